"""The dashboard without a browser: what the command and the server say and refuse."""

from __future__ import annotations

import gzip
import http.client
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest

from orchestrator import ROOT
from orchestrator.analysis.dataset import Dataset
from orchestrator.analysis.questions import exactness, one_backend, open_views
from orchestrator.analysis.questions.tables import lead
from orchestrator.analysis.sql import Where
from orchestrator.errors import UserError
from orchestrator.reporting.dashboard import data, packing, page, serve
from orchestrator.storage import folder, parquet
from orchestrator.storage.columns import COLUMNS
from tests.helpers.command_line import Invoke
from tests.helpers.timed_rows import made

MAIN = ROOT / "results" / "h200_main/specdec_long_ctx"
SMALL = ROOT / "results" / "h200_releases/bisect_fa3_begins"


def load(path: Path, where: Where) -> tuple[pd.DataFrame, dict[str, Any]]:
    return data.rows_and_header(open_views(path, where=where), path)


@pytest.fixture(scope="module")
def main() -> tuple[Dataset, pd.DataFrame, dict[str, Any]]:
    """The main dataset, and the rows and the header of its page."""
    opened = open_views(MAIN)
    return opened, *data.rows_and_header(opened, MAIN)


@pytest.mark.parametrize(
    ("path", "title"),
    [
        (str(MAIN), "specdec_long_ctx"),
        ("s3://bucket/night,1", "night,1"),
        (f"{MAIN},{ROOT}/results/h100_main/specdec_one_gpu", "specdec_long_ctx + specdec_one_gpu"),
        (f"{ROOT}/results/h200_rules/*", "rule_edges + rule_edges_fa2_keys"),
        (f"{ROOT}/results/h200_mla/*", f"13 datasets of {ROOT}/results/h200_mla/*"),
    ],
)
def test_a_page_is_titled_by_what_it_shows(path: str, title: str):
    assert page.title_of(path) == title


def test_the_command_writes_one_file_that_names_no_address_to_load_from(
    tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delattr(data, "open_dataset")  # what the page opened has its Parquet file too
    target = tmp_path / "report.html"
    done = invoke("mode=dashboard", f"results.path={MAIN}", f"export={target}")

    assert done.returncode == 0, done.stderr
    text = target.read_text()
    assert len(text) < 5e6
    markup = re.sub(r"(<script[^>]*>).*?</script>", r"\1", text, flags=re.DOTALL)  # ECharts spells out a tag in its code
    assert not re.findall(r"<(?:script|link|img|iframe)[^>]*(?:src|href)=\"(?!data:)[^\"]*\"", markup)
    assert "connect-src" not in text and "default-src 'none'" in text


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (["results.path=results/nothing", "export=a.html"], "no rows there"),
        ([f"results.path={MAIN}", "export=a.csv"], "type export=NAME.html"),
        ([f"results.path={SMALL}", "export=/nowhere/a.html"], "cannot be written"),
        ([f"results.path={MAIN}", "export=a.html", "where={s_qo: 7}"], "has these values; there are s_qo: 1, 2, 4, 8"),
        ([f"results.path={MAIN}", "export=a.html", "where={s_qoo: 1}"], "did you mean 's_qo'?"),
        ([f"results.path={MAIN}", "dashboard.port=70000"], "dashboard.port"),
    ],
)
def test_wrong_input_ends_with_words(keys: list[str], words: str, invoke: Invoke):
    done = invoke("mode=dashboard", *keys)

    assert done.returncode == 2
    assert words in done.stderr and "Traceback" not in done.stderr


def test_where_keeps_rows_of_several_values_of_any_kind():
    table, _ = load(MAIN, {"s_qo": (1, 4), "cuda_graph": (True,)})
    assert set(table["s_qo"]) == {1, 4} and table["cuda_graph"].all()


@pytest.fixture(scope="module")
def server() -> Iterator[serve.PageServer]:
    with serve.PageServer(str(SMALL), {}, 0) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.mark.parametrize(
    ("host", "path", "status"),
    [
        ("127.0.0.1", "/", 200),
        ("localhost", "/rows.parquet", 200),
        ("evil.example", "/", 403),
        ("127.0.0.1", "/../pyproject.toml", 404),
    ],
)
def test_the_server_answers_its_own_names_and_two_addresses(host: str, path: str, status: int, server: serve.PageServer):
    assert server.server_address[0] == serve.LOOPBACK
    asked = http.client.HTTPConnection(serve.LOOPBACK, server.server_port)
    asked.request("GET", path, headers={"Host": f"{host}:{server.server_port}"})
    assert asked.getresponse().status == status
    asked.close()


def test_a_port_that_is_taken_is_an_error_in_words(server: serve.PageServer):
    with pytest.raises(UserError, match=r"dashboard\.port"):
        serve.PageServer(str(SMALL), {}, server.server_port)


def test_another_echarts_than_the_reviewed_one_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(page, "ECHARTS_SHA256", "0" * 64)
    with pytest.raises(UserError, match=r"echarts\.min\.js"):
        page.fill(b"", None, "")


def test_the_page_says_what_each_of_its_columns_means(main: tuple[Dataset, pd.DataFrame, dict[str, Any]]):
    _, table, about = main
    packed = gzip.decompress(packing.pack(table, about))
    header = json.loads(packed[4 : 4 + int.from_bytes(packed[:4], "little")])

    assert header["columns"]["median_us"]["about"] == f"{COLUMNS['median_us'].meaning} Unit: µs."
    assert header["columns"]["backend"]["about"] == COLUMNS["backend"].meaning
    assert all(column["about"] for column in header["columns"].values())


def test_a_row_timed_in_a_step_is_ranked_by_its_cost_there_as_in_the_reports(tmp_path: Path):
    """`a` is faster alone, `b` in the step."""
    step = {"context": "step", "timer": "cuda_graph_events", "launch_us": 4.0}
    written = folder.FolderStore(str(tmp_path / "steps"))
    written.add([made("a", 10.0, in_step_us=9.0, **step), made("b", 12.0, in_step_us=7.0, **step), made("c", 11.0)])
    written.close()
    table, _ = load(tmp_path / "steps", {})
    times = table.set_index("backend")[["ranked_us", "own_us", "median_us"]]

    assert times.to_numpy().tolist() == [[9.0, 9.0, 10.0], [7.0, 7.0, 12.0], [11.0, 11.0, 11.0]]
    in_step = {"context": "step"}
    (best,) = open_views(tmp_path / "steps", where=in_step).records("FROM best")
    assert best["backend"] == load(tmp_path / "steps", in_step)[0].sort_values("ranked_us")["backend"].iloc[0] == "b"


def test_a_server_with_layers_of_two_kinds_has_an_answer_for_each_by_name():
    opened = open_views(ROOT / "results/h200_main/servers", where={"model": "gpt_oss_120b", "tp": 1, "kv_dtype": "bf16"})
    told = {words.partition(": ")[0] for of in data.deployments(opened) for phase in of["phases"] for words in phase["brief"]}

    assert {f"vLLM 0.33.0, {kind} layers" for kind in ("full", "sliding")} <= told


def test_the_page_carries_the_answers_and_the_rankings_of_the_reports(main: tuple[Dataset, pd.DataFrame, dict[str, Any]]):
    opened, table, header = main
    told = [row for of in header["deployments"] for phase in of["phases"] for row in phase["tables"][0]["rows"]]
    best = opened.records("FROM best ORDER BY row")
    of_workloads = opened.records("FROM ranked_workloads")

    too_big = {note for _, note in one_backend.grids(opened)[2].cells if "do not count" in note}
    assert {of["left_out"] for of in header["deployments"]} - {""} == too_big != set()
    assert sorted(told) == sorted(cells[1:] for cells in one_backend.grids(opened)[0].cells)
    assert {phase["name"] for of in header["deployments"] for phase in of["phases"]} == {"decode", "drafts"}
    lines = header["tables"]["problem"]
    assert [table["ran"][row] for row in lines["row"]] == [exactness.named(one["backend"], one["kernel"]) for one in best]
    assert list(lines["ahead"].dropna()) == [
        lead(one["margin"], "+" if one["above_noise"] else "≈") for one in best if one["runner_up"]
    ]
    assert len(header["tables"]["workload"]) == len(of_workloads) == table["workload"].nunique() == 128


def test_a_rough_time_has_its_interval_and_may_be_further_off(tmp_path: Path):
    written = folder.FolderStore(str(tmp_path / "rough"))
    written.add([made("a", 100.0, p05_us=98.0, p95_us=103.0), made("b", 120.0, stop_reason="decided", ci95_rel=0.1)])
    written.close()
    table, header = load(tmp_path / "rough", {})
    sure, rough = (table.set_index("backend").loc[name] for name in "ab")

    assert (sure["low_us"], sure["high_us"], rough["low_us"], rough["high_us"]) == pytest.approx((98.0, 103.0, 108.0, 132.0))
    assert rough["noise"] - sure["noise"] == pytest.approx(0.05)
    assert header["facts"]["driver"] == [] and None not in [word for words in header["facts"].values() for word in words]


def test_no_script_of_the_page_ranks_or_adds_up_costs():
    scripts = (page.static(f"{name}.js") for name in page.MODULES)
    assert not [text for text in scripts if re.search(r"kernelsOnce|noise_floor|fastestOf|Math\.exp", text)]


def test_the_parquet_file_of_the_page_explains_its_columns_too():
    table = pq.read_table(io.BytesIO(data.parquet(MAIN)))

    assert table.drop_columns("own_us").equals(parquet.read(MAIN).drop_columns("own_us"))
    assert table["own_us"].null_count == table["median_us"].null_count  # also of rows that are older than the column
    assert table.schema.field("median_us").metadata[b"unit"].decode() == "µs"
