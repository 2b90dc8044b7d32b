"""What the page answers first, on one and on all committed datasets, against the reports' own answers and against pandas."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
import pytest

from orchestrator.analysis.dataset import Dataset
from orchestrator.analysis.names import all_shown
from orchestrator.analysis.questions import exactness, one_backend, open_views
from orchestrator.analysis.questions.choices import PLACE, ServerChoices, servers
from orchestrator.analysis.rough import mark
from tests.helpers.datasets import ALL, MAIN
from tests.helpers.shown import Shown
from tests.helpers.winners import GRID, kernels

At = Callable[..., Shown]


def filters(place: dict[str, object]) -> dict[str, str]:
    """What a person picks to see one server."""
    return {f"f.{name}": str(value) for name, value in place.items() if value is not None}


def chosen(data: Dataset, servers_: list[ServerChoices], number: int) -> tuple[dict[str, object], ServerChoices]:
    """The place of one of the servers, which `servers` lists in order of their places."""
    keys = ", ".join(PLACE)
    places = data.records(f"SELECT DISTINCT {keys} FROM one_backend ORDER BY {', '.join(f'{key} NULLS LAST' for key in PLACE)}")
    return places[number], servers_[number]


def the_reports_lines(server: ServerChoices) -> list[tuple[str, ...]]:
    found = [one_backend._answer(server, who) for who in one_backend.ENGINES if server.choices_of(who)]
    return [line[1:] for line in found]  # without the server, which stands over the table


def the_reports_defaults(data: Dataset, place: dict[str, object]) -> list[list[str]]:
    """What `engine_default` says of each engine at one place, over its shapes whose KV cache fits the GPU."""
    here = " AND ".join(f"{key} = {value!r}" for key, value in place.items() if value is not None)
    names, taken = (f"string_agg(DISTINCT {column}, ', ' ORDER BY {column})" for column in ("name", "taken"))
    lines = data.execute(f"""
        SELECT engine, {names}, {taken}, count(*), avg((regret <= 1 + getvariable('same'))::INT), median(regret), max(regret),
               arg_max(rough OR best_rough, regret)
        FROM engine_default WHERE {here} AND problem NOT IN (SELECT problem FROM shapes WHERE too_big)
        GROUP BY engine ORDER BY engine DESC""")
    return [
        [engine, names, all_shown(taken), str(points), f"{close:.0%}", f"{middle:.2f}", f"{mark(rough)}{worst:.2f}"]
        for engine, names, taken, points, close, middle, worst, rough in lines
    ]


def test_the_page_opens_with_the_reports_answer_for_each_cache_and_draft(at: At):
    for picked in ({"kv_dtype": "bf16"}, {"kv_dtype": "fp8_e4m3", "s_qo": 4}):
        data = open_views(MAIN, where=picked)
        (server,) = servers(data)
        shown = at(MAIN, **{f"f.{name}": str(value) for name, value in picked.items()})

        assert [tuple(line) for line in shown.table("#one-backend")] == the_reports_lines(server)
        place, _ = chosen(data, [server], 0)
        assert [line[:7] for line in shown.table("#engine-default")] == the_reports_defaults(data, place)
        name, _, why = one_backend._answer(server, "vLLM 0.32.0")[2].partition(" (")
        assert name in shown.text(".tiles") and why in shown.text(".tiles")
        assert shown.text("h2 span") == server.title
        ((big, every),) = data.execute("SELECT count(DISTINCT shape) FILTER (too_big), count(DISTINCT shape) FROM shapes")
        assert shown.text("#too-big").startswith(f"{big} of {every} shapes do not count here") and big > 5


def test_the_pickers_choose_device_model_cache_and_draft(at: At):
    shown = at(MAIN)
    shown.choose("pick-kv_dtype", "fp8_e4m3")
    shown.choose("pick-s_qo", "8")
    assert "f.kv_dtype=fp8_e4m3&f.s_qo=8" in shown.page.url
    assert [shown.page.input_value(f"#pick-{name}") for name in ("device_name", "model")] == ["NVIDIA H200", "llama_3_1_70b"]
    assert [chart["title"] for chart in shown.charts()] == ["NVIDIA H200 · llama_3_1_70b · paged_decode"]

    shown.go(**{"f.backend": "fa2"})
    assert shown.text("#ignored").endswith("filters of backend do not count here.")


def test_the_header_names_gpu_model_versions_and_date(at: At):
    main = pd.read_parquet(MAIN)
    facts = at(MAIN).text("#facts")
    days = main["finished_at"].dt.strftime("%Y-%m-%d")

    assert all(word in facts for word in (days.min(), days.max(), "NVIDIA H200", "llama_3_1_70b", "torch 2.11.0"))
    assert all(library in facts for libraries in main["libraries"].dropna().unique() for library in libraries.split(", "))


def test_the_maps_hold_the_fastest_of_each_shape_whatever_its_queries(at: At):
    right = kernels(pd.read_parquet(MAIN)).query("kv_dtype == 'fp8_e4m3'")
    best = right.sort_values("median_us").drop_duplicates(GRID[2:])
    drawn = {}
    for chart in at(MAIN, **{"f.kv_dtype": "fp8_e4m3"}).charts():
        for found in chart["series"][0]["data"]:
            x, y, _ = found["value"]
            drawn[chart["title"].split()[1], chart["y"][y], chart["x"][x]] = found["label"].split("\n")

    assert len(drawn) == len(best) == 64
    for _, row in best.iterrows():
        backend, *kernel, time, error = drawn[str(row["s_qo"]), f"{row['batch_size']:,}", f"{row['s_kv']:,}"]
        assert (backend, float(time.split()[0].replace(",", ""))) == (row["backend"], pytest.approx(row["median_us"], rel=1e-3))
        assert error.startswith(exactness.error(row["rel_err"]))
        assert ("FP8 queries" in str(kernel)) == row["q_dtype"].startswith("fp8")


def test_the_page_of_all_datasets_answers_as_the_report_does_for_each_server(at: At, everything: Dataset):
    found = servers(everything)
    for number in range(0, len(found), 8):
        place, server = chosen(everything, found, number)
        shown = at(ALL, **filters(place))

        assert [tuple(line) for line in shown.table("#one-backend")] == the_reports_lines(server)
        assert [line[:7] for line in shown.table("#engine-default")] == the_reports_defaults(everything, place)
        drawn = sum(cell["row"] is not None for chart in shown.charts() for cell in chart["series"][0]["data"])
        assert drawn > 0


def test_of_all_datasets_rule_edges_are_out_and_what_never_ran_makes_no_panel(at: At, everything: Dataset):
    assert not everything.scalar("SELECT count(*) FROM rows WHERE sweep LIKE 'rule_edges%'")
    shown = at(ALL, view="best", **{"f.model": "llama_3_1_70b", "f.routine": "paged_decode", "f.s_qo": "2"})
    charts = shown.charts()
    ran = [any(cell["row"] is not None for cell in chart["series"][0]["data"]) for chart in charts]

    assert len(ran) > 8 and all(ran)
    assert len({chart["title"] for chart in charts}) == len(charts)
    shown.page.click("#notes summary")
    assert "left out: h200_rules/rule_edges" in shown.text("#notes")


def test_a_click_lists_all_backends_of_the_shape_with_kernel_and_error(at: At):
    main = pd.read_parquet(MAIN)
    shown = at(MAIN, **{"f.kv_dtype": "fp8_e4m3", "f.s_qo": "1"})
    shown.page.click(".panel details summary")
    shown.page.click(".panel details tr:has(td:nth-child(1):text-is('8,192')):has(td:nth-child(2):text-is('1')) button")
    same = main.query("kv_dtype == 'fp8_e4m3' and s_qo == 1 and batch_size == 1 and s_kv == 8192")
    right = same[same["status"] == "ok"].sort_values("median_us")
    lines = shown.table("#row .ranking")

    assert [line[1].split()[0].partition("(")[0] for line in lines] == right["backend"].to_list()
    assert [line[-1] for line in lines] == [exactness.share(error) for error in right["rel_err"]]
    ran = dict(zip(right["backend"], right["resolved_backend"], strict=True))
    assert f"trtllm-native ran {ran['trtllm-native']}" in [line[1] for line in lines]
    (launch,) = right["launch_us"].unique()
    own = right["median_us"] - launch
    fastest = own[right["backend"] != "torch_sdpa"].min()
    assert [line[-2] for line in lines] == [f"{time / fastest:.2f}×" for time in own]
    others = same[same["status"] != "ok"]
    assert f"{len(others)} others did not run or are not right" in shown.text("#row")
    assert "driver" not in shown.text("#row")  # folded away
    shown.page.click("#row .provenance summary")
    assert main["driver"].dropna().iloc[0] in shown.text("#row")
    shown.page.click("#close")
