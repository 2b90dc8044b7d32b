"""What the page answers first, on one and on all committed datasets, against the reports' own tables and against pandas."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pandas as pd

from orchestrator.analysis.dataset import Dataset
from orchestrator.analysis.questions import engine_default, exactness, one_backend, open_views
from orchestrator.analysis.questions.deployments import PLACE, Part, parts
from tests.helpers.datasets import ALL, MAIN
from tests.helpers.shown import Shown
from tests.helpers.winners import GRID, kernels, launch_of

At = Callable[..., Shown]


def filters(part: Part) -> dict[str, str]:
    """What a person picks to see a deployment in a phase. Without the nulls, another deployment could fit too."""
    place = dict(zip(PLACE, part.place, strict=True))
    return {f"f.{name}": "null" if value is None else str(value) for name, value in {**place, "phase": part.phase}.items()}


def the_reports_tables(data: Dataset, found: Sequence[Part]) -> list[list[list[str]]]:
    """Of parts of one deployment, without the column that names it."""
    grids = [*one_backend.grids_of(found), engine_default.grid_of(found, engine_default.close(data))]
    return [[list(cells[1:]) for cells in grid.cells] for grid in grids if grid.cells]


def the_pages_tables(shown: Shown) -> list[list[list[str]]]:
    return [
        shown.table(f"#tables .scroll:nth-of-type({number + 1})") for number in range(shown.page.locator("#tables .scroll").count())
    ]


def test_the_page_opens_with_the_reports_answers_and_never_mixes_phases(at: At):
    data = open_views(MAIN)
    found = parts(data)
    for first in {(part.place, part.phase): part for part in found}.values():
        same = [part for part in found if (part.place, part.phase) == (first.place, first.phase)]
        shown = at(MAIN, **filters(first))

        assert the_pages_tables(shown) == the_reports_tables(data, same)
        typed = shown.page.locator(".tile .type").evaluate_all("tiles => tiles.map((tile) => tile.firstChild.textContent)")
        assert typed == [part.answer.words for part in same]
        assert shown.text("h2 span") == first.title
        assert shown.page.locator("#too-big").all_inner_texts() == [f"{first.left_out}."] * bool(first.left_out)
        lengths = {int(chart["title"].partition("s_qo ")[2] or 1) for chart in shown.charts()}
        assert lengths == ({1} if first.phase == "decode" else {2, 4, 8})


def test_the_pickers_choose_gpu_model_cache_and_phase(at: At):
    shown = at(MAIN)
    shown.choose("pick-kv_dtype", "fp8_e4m3")
    shown.choose("pick-phase", "drafts")
    assert "f.kv_dtype=fp8_e4m3&f.phase=drafts" in shown.page.url
    assert [shown.page.input_value(f"#pick-{name}") for name in ("device_name", "model")] == ["NVIDIA H200", "llama_3_1_70b"]

    shown.go(**{"f.backend": "fa2"})
    assert shown.text("#ignored").endswith("filters of backend choose only what the map draws.")


def test_the_header_names_gpu_model_versions_and_date(at: At):
    main = pd.read_parquet(MAIN)
    facts = at(MAIN).text("#facts")
    days = main["finished_at"].dt.strftime("%Y-%m-%d")

    assert all(word in facts for word in (days.min(), days.max(), "NVIDIA H200", "llama_3_1_70b", "torch 2.11.0"))
    assert all(library in facts for libraries in main["libraries"].dropna().unique() for library in libraries.split(", "))


def test_the_maps_hold_the_fastest_of_each_workload_whatever_its_queries_and_the_filters(at: At):
    right = kernels(pd.read_parquet(MAIN)).query("kv_dtype == 'fp8_e4m3' and s_qo > 1")
    best = right.sort_values("median_us").drop_duplicates(GRID[2:])
    for chosen in ({}, {"f.backend": "fa2"}):
        drawn = {}
        for chart in at(MAIN, **{"f.kv_dtype": "fp8_e4m3", "f.phase": "drafts"}, **chosen).charts():
            for cell in chart["series"][0]["data"]:
                x, y, _ = cell["value"]
                drawn[chart["title"].split()[1], chart["y"][y], chart["x"][x]] = "".join(cell["label"].split())

        assert len(drawn) == len(best) == 48
        for _, row in best.iterrows():
            label = drawn[str(row["s_qo"]), f"{row['batch_size']:,}", f"{row['s_kv']:,}"]
            assert label.startswith(row["backend"]) and f"err{exactness.share(row['rel_err'])}" in label
            assert ("FP8queries" in label) == row["q_dtype"].startswith("fp8")


def test_the_page_of_all_datasets_answers_as_the_report_does_for_each_deployment(at: At, everything: Dataset):
    found = parts(everything)
    firsts = list({(part.place, part.phase): part for part in found}.values())
    for first in firsts[::16]:
        same = [part for part in found if (part.place, part.phase) == (first.place, first.phase)]
        shown = at(ALL, **filters(first))

        assert the_pages_tables(shown) == the_reports_tables(everything, same)
        assert shown.text("h2 span") == first.title
        assert shown.page.locator("#too-big").all_inner_texts() == [f"{first.left_out}."] * bool(first.left_out)


def test_of_all_datasets_rule_edges_are_out_and_what_never_ran_makes_no_panel(at: At, everything: Dataset):
    assert not everything.scalar("SELECT count(*) FROM rows WHERE sweep LIKE 'rule_edges%'")
    shown = at(ALL, view="best", **{"f.model": "llama_3_1_70b", "f.routine": "paged_decode", "f.s_qo": "2"})
    charts = shown.charts()
    ran = [any(cell["row"] is not None for cell in chart["series"][0]["data"]) for chart in charts]

    assert len(ran) > 8 and all(ran)
    assert len({chart["title"] for chart in charts}) == len(charts)
    shown.page.click("#notes summary")
    assert "left out: h200_rules/rule_edges" in shown.text("#notes")


def test_a_click_lists_all_backends_of_the_workload_with_kernel_and_error(at: At):
    main = pd.read_parquet(MAIN)
    shown = at(MAIN, **{"f.kv_dtype": "fp8_e4m3", "f.phase": "decode"})
    shown.page.click(".panel details summary")
    shown.page.click(".panel details tr:has(td:nth-child(1):text-is('8,192')):has(td:nth-child(2):text-is('1')) button")
    same = main.query("kv_dtype == 'fp8_e4m3' and s_qo == 1 and batch_size == 1 and s_kv == 8192")
    right = same[same["status"] == "ok"].sort_values("median_us")
    lines = shown.table("#row .ranking")

    assert [line[1].split()[0].partition("(")[0] for line in lines] == right["backend"].to_list()
    assert [line[-1] for line in lines] == [exactness.share(error) for error in right["rel_err"]]
    (launch,) = set(launch_of(right))
    fastest = kernels(same)["median_us"].min() - launch
    assert [line[-2] for line in lines] == [f"{time / fastest:.2f}×" for time in right["median_us"] - launch]
    others = same[same["status"] != "ok"]
    assert f"{len(others)} others did not run or are not right" in shown.text("#row")
    assert "driver" not in shown.text("#row")  # folded away
    shown.page.click("#row .provenance summary")
    assert main["driver"].dropna().iloc[0] in shown.text("#row")
    shown.page.click("#close")
