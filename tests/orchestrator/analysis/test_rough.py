"""Rough and credited times: whoever shows or uses one says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.analysis.dataset import Dataset
from orchestrator.analysis.questions import crossover, engine_default, one_backend, pad_up, regret
from orchestrator.analysis.questions.deployments import parts
from orchestrator.analysis.rough import counted, how_known
from orchestrator.config.draft_cost import Draft
from orchestrator.config.engine import selected
from orchestrator.formats import results_csv
from orchestrator.formats.aiconfigurator import writer as tables
from orchestrator.formats.engine_config import config_text
from orchestrator.formats.flashinfer_trace import writer as traces
from orchestrator.reporting.site.build import build
from orchestrator.storage.row import Row, to_table
from tests.helpers.compared import MORNING, NIGHT, dataset, timed
from tests.helpers.timed_rows import made, views_of

ROUGH = {"stop_reason": "decided", "ci95_rel": 0.1}
PROBLEM: dict[str, Any] = {
    "num_qo_heads": 8, "num_kv_heads": 1, "head_dim_qk": 128, "head_dim_vo": 128, "page_size": 64, "tp": 8, "out_dtype": "bf16",
    "seq_lens": "fixed", "page_order": "random", "kv_layout": "HND", "sinks": False, "return_lse": False, "seed": 0,
    "tflops": 1.0, "std_us": 1.0, "rel_err": 0.002, "check": "passed", "timer": "cuda_graph_events", "l2": "clean",
    "context": "isolated", "cuda_graph": True, "command": "", "libraries": "lib 1", "orchestrator_version": "1",
    "torch_version": "2", "cuda": "13", "group_id": "g", "finished_at": "2026-11-23T00:00:00+00:00",
}  # fmt: skip
DEFAULT, FLAG = "flash_attn_3", "trtllm-native"  # vLLM's default on Hopper, and a flag's


def decode(backend: str, us: float, **keys: Any) -> Row:
    row = made(backend, us, **{"routine": "paged_decode", "mask": "causal", "compute_capability": "9.0", **PROBLEM, **keys})
    return {**row, "point_id": f"{row['point_id']}-{row['routine']}-{row['kv_dtype']}", "rel_err": 0.002}


@pytest.fixture(scope="module")
def data() -> Dataset:
    """The default is rough at both batches, and ahead of a flag by less than that at the second one."""
    return views_of(
        to_table(
            [
                decode(FLAG, 100.0, batch_size=1),
                decode(DEFAULT, 150.0, batch_size=1, **ROUGH),
                decode("fa2_tc", 100.0, batch_size=1),
                decode("auto", 100.0, batch_size=1, resolved_backend="fa2_tc", measured_as="fa2_tc"),
                decode(FLAG, 100.0, batch_size=8),
                decode(DEFAULT, 104.0, batch_size=8, **ROUGH),
                decode("fa2_tc", 200.0, batch_size=8, **ROUGH),
                decode("auto", 200.0, batch_size=8, resolved_backend="fa2_tc", measured_as="fa2_tc", **ROUGH),
            ]
        )
    )


def test_answers_mark_what_rests_on_a_rough_time_and_name_whose_time_a_credited_row_has(data: Dataset):
    default = {r["batch_size"]: r for r in data.records("FROM engine_default WHERE engine LIKE 'vLLM%'")}
    of_auto = {r["batch_size"]: r for r in data.records("FROM regret")}
    (worst,) = (grid for grid in engine_default.grids(data) if grid.title.startswith("where"))

    assert [(default[b]["rough"], default[b]["best_rough"]) for b in (1, 8)] == [(True, False)] * 2
    assert [(of_auto[b]["rough"], of_auto[b]["measured_as"]) for b in (1, 8)] == [(False, "fa2_tc"), (True, "fa2_tc")]
    assert worst.cells[0][0] == "~1.50" and worst.cells[0][3] == "~150.0"
    assert "up to ~1.50 times as long" in str(engine_default.summary(data))
    assert regret.grids(data)[1].cells[0][0] == "~2.00" and "it takes ~2.00 times" in str(regret.summary(data))


def test_a_deployment_s_means_say_that_a_ratio_is_rough_and_a_lead_must_exceed_it(data: Dataset):
    (part,) = (part for part in parts(data) if part.who.startswith("vLLM"))
    default, flag = part.default, next(choice for choice in part.choices if choice.margin is not None)
    grid = one_backend.grids(data)[0]

    assert default is not None and (default.record["rough"], default.mean_words, default.worst_words) == (2, "~1.25", "~1.50")
    assert (flag.record["rough"], flag.mean_words) == (0, "1.00")
    assert flag.margin is not None and (flag.margin.ahead, flag.margin.workloads) == (1, 2)  # 4% over a rough time is no lead
    assert flag.margin.floor == pytest.approx(0.05 + data.scalar("SELECT max(noise_floor) FROM one_backend"))
    assert "~ of times known within 5%" in grid.title


def test_ratios_of_the_other_questions_are_marked():
    rows = [
        decode("fa2_tc", 100.0, s_qo=2),
        decode("fa2", 103.0, s_qo=2, routine="paged_prefill", **ROUGH),
        decode("fa2_tc", 94.0, s_qo=4, **ROUGH),
        decode("fa2_tc", 50.0, s_qo=4, batch_size=1),
        decode("fa2_tc", 100.0, s_qo=2, batch_size=1, **ROUGH),
        decode("fa2_tc", 80.0, s_qo=2, kv_dtype="fp8_e4m3", batch_size=1),
    ]
    data = views_of(to_table(rows))
    (near,) = data.records("FROM crossover")
    (padded,) = data.records("FROM pad_up")  # 6% over a rough time is none
    (fp8,) = data.records("FROM fp8")

    assert (near["faster"], near["rough"]) == ("either", True) and "(+~3.0%)" in crossover.grids(data)[0].cells[0][2]
    assert (padded["batch_size"], padded["rough"], padded["pad_rough"]) == (1, True, False)
    assert pad_up.grids(data)[0].cells[0][5] == "~2.0×"
    assert (fp8["fp8_kv_rough"], fp8["fp8_q_rough"]) == (True, True)


def test_a_row_says_its_interval_and_its_source():
    rough = {"median_us": 200.0, **ROUGH, "measured_as": "fa2"}

    assert how_known(rough) == (
        "rough: 180.0 to 220.0 µs, stopped early, since it cannot be the fastest; measured as fa2, which makes the same call"
    )
    assert how_known({"median_us": 200.0, "stop_reason": "ci95", "measured_as": None}) == "" and counted([]) == []
    assert how_known({**rough, "ci95_rel": float("nan"), "measured_as": None}).startswith("rough: within 5%")


def test_every_export_says_which_times_are_rough_or_credited(data: Dataset, tmp_path: Path):
    rows = data.current().to_dict("records")
    text, _ = results_csv.to_csv(rows)
    of_trace = [trace["evaluation"]["log"] for lines in traces.to_traces(rows)[0].values() for trace in lines]
    slow = [row for row in rows if row["stop_reason"] == "decided"]
    found, _, notes = tables.to_tables(slow)
    tables.save(found, str(tmp_path / "out"), notes)
    flags = config_text(data, selected("vllm")[0], Draft(), "results/mine")

    assert text.count("; rough: 180.0 to 220.0 µs") == 2 and text.count("measured as fa2_tc") == 2
    assert counted(row for row in rows if not results_csv.inexpressible(row))[0].startswith("4 times are rough")
    assert (
        sum("rough: 180.0 to 220.0 µs" in log for log in of_trace) == 2
        and sum("measured as fa2_tc" in log for log in of_trace) == 2
    )
    assert (tmp_path / "out" / "collection_meta.yaml").read_text().startswith("# 2 times are rough")
    assert tables.to_tables(rows)[2] == []  # no rough one is the fastest
    assert "2 ratios are rough, only known within 5%" in flags and "faster at 1, slower at 0, too close to tell at 1; " in flags


def test_the_site_marks_rough_times_in_a_history(tmp_path: Path):
    (tmp_path / "in").mkdir()
    for name, us, when, keys in (
        ("night", 20.0, NIGHT, {}),
        ("morning", 30.0, MORNING, {**ROUGH, "run_id": "r2", "measured_as": "fa2"}),
    ):
        dataset(
            tmp_path / "in" / name,
            [{**timed("fa2_tc", us, when, batch_size=1, **keys), "point_id": "p", "ci95_rel": 0.1, "libraries": ""}],
        )
    build(str(tmp_path / "in"), {}, str(tmp_path / "site"))
    page = (tmp_path / "site" / "history" / "nvidia-h200-fa2_tc.html").read_text()

    assert "<td>~+50.0%</td>" in page
    assert "<td>~30.00</td>\n<td>27.00</td>\n<td>33.00</td>\n<td>fa2</td>" in page
