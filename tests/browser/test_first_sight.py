"""What a person sees first, and takes along: each was once a fault that a new reader stumbled over."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from orchestrator.analysis.compare import best_of
from orchestrator.analysis.compare.selection import Selection
from orchestrator.reporting.site.build import build
from orchestrator.storage.row import Row
from tests.helpers.datasets import MAIN
from tests.helpers.shown import Shown
from tests.helpers.timed_rows import made

Show = At = Callable[..., Shown]
OfRows = Callable[[Sequence[Row]], str]
OPTION = "echarts.getInstanceByDom(document.querySelector('.chart')).getOption()"
DTYPES = {"bf16": ("bf16", "bf16"), "fp8": ("fp8_e4m3", "fp8_e4m3")}


def two_gpus() -> list[Row]:
    """An H200 is 1.5 times as fast as an H100 over bf16, and as fast over FP8; each ran in a cluster of its own."""
    rows = []
    for gpu, cluster, us in (("NVIDIA H100", "inline", 30.0), ("NVIDIA H200", "local", 20.0)):
        for name, (q, kv) in DTYPES.items():
            keys: dict[str, Any] = {"device_name": gpu, "cluster": cluster, "q_dtype": q, "kv_dtype": kv, "model": "llama_3_1_70b"}
            for backend, slower in (("fa2_tc", 1.0), ("cudnn", 1.5)):
                for s_kv in (8192, 16384):
                    row = made(backend, slower * (us if name == "bf16" else 15.0), s_kv=s_kv, **keys)
                    rows.append({**row, "point_id": f"{backend} {name} {s_kv}"})
    return rows


def test_several_servers_open_on_a_list_of_which_each_opens_its_answer(show: Show, of_rows: OfRows):
    shown = show(of_rows(two_gpus()))
    assert "Which server?" in shown.text() and shown.charts() == []
    lines = shown.table("table.servers")
    assert [line[:3] for line in lines] == [
        ["llama_3_1_70b · tp 1", gpu, kv] for gpu in ("NVIDIA H100", "NVIDIA H200") for kv in ("bf16", "fp8_e4m3")
    ]
    shown.do(lambda: shown.page.locator("table.servers button").nth(2).click())
    assert shown.text("h2 span").endswith("NVIDIA H200") and "kv bf16" in shown.text("h2 span")
    shown.click("#servers")
    assert shown.table("table.servers") == lines


def test_no_cluster_is_in_a_title_a_legend_or_the_way_of_a_comparison(show: Show, of_rows: OfRows):
    address = of_rows(two_gpus())
    shown = show(address, view="roofline")
    for view in ("best", "lines", "compare"):
        drawn = [(chart["title"], [s["name"] for s in chart["series"]]) for chart in shown.go(view=view).charts()]
        assert drawn and not re.search("inline|local|cluster", str(drawn))


def test_the_bands_of_a_comparison_have_names_under_the_table_of_mode_compare(show: Show, of_rows: OfRows):
    shown = show(of_rows(two_gpus()), view="compare")
    (chart,) = shown.charts()
    rows = pd.DataFrame(two_gpus())
    sides = (Selection(gpu, "", rows[rows["device_name"] == gpu]) for gpu in ("NVIDIA H100", "NVIDIA H200"))
    (grid, *_) = best_of.grids(best_of.best_of(*sides))

    assert sorted(s["name"] for s in chart["series"]) == [
        "q bf16, kv bf16: median 0.67×", "q fp8_e4m3, kv fp8_e4m3: median 1.00×"
    ]  # fmt: skip
    assert shown.text("#best-of caption") == grid.title and shown.table("#best-of") == [list(cells) for cells in grid.cells]
    assert [line[1] for line in shown.table("#best-of")] == ["1.50", "1.00"]


def test_the_table_opens_on_what_is_ok_by_shape_and_time(at: At):
    found = [(line[1], line[6], float(line[7])) for line in at(MAIN, view="table").table("#rows")[:9]]

    assert {status for status, *_ in found} == {"ok"} and {kv for _, kv, _ in found} == {"8,192"}
    assert [us for *_, us in found] == sorted(us for *_, us in found)


def test_the_command_of_a_card_names_the_dataset_that_was_read(at: At):
    shown = at(MAIN, view="table")
    shown.page.locator("#rows button:text('show')").first.click()
    command = shown.text("#row .command")
    shown.page.click("#close")

    assert re.fullmatch(r"python -m orchestrator mode=replay point=\w{12} results\.path=specdec_long_ctx", command)


def test_a_view_without_anything_to_draw_is_dimmed_and_counts_ok_once(at: At):
    shown = at(MAIN, view="crossover")
    dimmed = shown.page.locator("#tabs button.empty").all_inner_texts()
    counts = {line[0]: line[1] for line in shown.table(".nothing") if line[0] == "ok"}

    assert dimmed == ["Decode or prefill"] and counts == {"ok": "960"} and "960 ok" in shown.text("#counts")


def test_lines_open_on_what_is_near_the_fastest_and_references_wait_for_a_click(at: At):
    shown = at(MAIN, view="lines")
    assert shown.page.input_value("#top") == "1.25"
    option = shown.page.evaluate(OPTION)
    assert option["yAxis"][0]["max"] <= 1.25 and option["legend"][0]["selected"]["torch_sdpa"] is False
    assert "behind its name in the legend: torch_sdpa, a reference." in shown.text(".panel .note")


def test_the_roofline_ends_on_round_numbers_and_its_ceilings_are_named_where_they_are(at: At):
    option = at(MAIN, view="roofline").page.evaluate(OPTION)
    ends = [option["xAxis"][0][end] for end in ("min", "max")]
    clouds = [s for s in option["series"] if s["type"] == "scatter"]
    named = [p["label"]["formatter"] for s in option["series"] if s["type"] == "line" for p in s["data"] if p["label"]["show"]]

    assert all(float(f"{end:.0e}") == end and f"{end:.0e}"[0] in "125" for end in ends)
    assert option["legend"][0]["data"] == [s["name"] for s in clouds]
    assert len({s["symbolOffset"][0] for s in clouds}) == len(clouds)  # side by side
    assert [words.split()[0] for words in named] == ["memory", "products"]


@pytest.mark.parametrize(
    ("view", "words"),
    [
        ("answer", ("Fastest backend of each workload; in a cell: backend, median µs", "tp 1", "num_qo_heads 64", "NVIDIA H200")),
        ("lines", ("time over the fastest, by s_kv", "NVIDIA H200", "solid", "flash_attn_3_32_splits")),
        ("roofline", ("Achieved TFLOP/s by FLOP for each byte", "fa2_tc")),
        ("compare", ("Time of the candidate over the baseline; below 1", "median µs")),
    ],
)
def test_a_saved_picture_has_its_question_its_unit_and_its_legend(at: At, tmp_path: Path, view: str, words: tuple[str, ...]):
    shown = at(MAIN, view=view, **({"f.kv_dtype": "bf16", "f.phase": "decode"} if view == "answer" else {}))
    svg = shown.saved(".take:text('SVG')", tmp_path).read_text()
    text = re.sub(r"\s+", " ", " ".join(re.findall(r"<text[^>]*>([^<]*)", svg)))

    assert [word for word in words if word not in text and word != "solid"] == []


def test_on_a_phone_the_head_is_low_and_a_sites_index_no_wider_than_the_screen(show: Show, of_rows: OfRows, tmp_path: Path):
    shown = show(of_rows(two_gpus()))
    shown.page.set_viewport_size({"width": 390, "height": 844})
    head = shown.page.locator("#head").bounding_box()
    assert head is not None and head["height"] < 200
    assert shown.page.evaluate("document.documentElement.scrollWidth") <= 390

    build(str(tmp_path / "some"), {}, str(tmp_path / "site"))
    shown.page.goto((tmp_path / "site" / "index.html").as_uri())
    assert shown.page.evaluate("Math.max(...[...document.querySelectorAll('table')].map((one) => one.scrollWidth))") <= 390
    assert "llama_3_1_70b · tp 1" in shown.page.inner_text("h2:text('Servers') ~ table")
    phases = "[4, 5].map((n) => getComputedStyle(document.querySelector(`table td:nth-child(${n})`), '::before').content)"
    assert shown.page.evaluate(phases) == ['"decode: "', '"drafts: "']
    shown.page.locator("table a").first.click()
    shown.page.wait_for_selector("body[data-drawn]")
    assert "NVIDIA H100" in shown.text("h2 span")


def test_tables_of_an_answer_fit_the_window(show: Show, exported: Callable[[Path], str]):
    shown = show(exported(MAIN))
    shown.page.click("#tables summary")
    over = "[...document.querySelectorAll('#tables .scroll')].map((one) => one.scrollWidth - one.clientWidth)"
    assert max(shown.page.evaluate(over)) <= 0
