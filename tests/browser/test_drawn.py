"""What is drawn of the committed datasets against what pandas computes from the same files."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from orchestrator import ROOT
from orchestrator.analysis.questions import exactness
from orchestrator.analysis.questions.exactness import named
from orchestrator.reporting.dashboard import serve
from orchestrator.storage import parquet
from orchestrator.storage.row import Row
from tests.helpers.datasets import MAIN
from tests.helpers.shown import Shown
from tests.helpers.timed_rows import made
from tests.helpers.winners import GRID, kernels, launch_of, ok

VERIFY, CASCADE, MIXED = (
    ROOT / "results" / f"{name}.parquet"
    for name in ("h200_drafts/target_verify", "h200_prefill/cascade", "h200_drafts/mixed_q_len")
)
TWO_CALLS = {
    "two_calls_fa3(fa3 + fa3 + merge_state_in_place) (FlashInfer)",
    "two_calls_fa3_fa2(fa3 + fa2_tc + merge_state_in_place) (FlashInfer)",
}
HTTP = ("http://127.0.0.1",)
Show = At = Callable[..., Shown]


@pytest.fixture(scope="module")
def main() -> pd.DataFrame:
    return pd.read_parquet(MAIN)


def as_stored(table: pd.DataFrame) -> None:
    """The rows of the file; `own_us` of older rows is computed as they are read."""
    stored = parquet.read(MAIN).to_pandas()
    right = table["status"] == "ok"

    pd.testing.assert_frame_equal(table.drop(columns="own_us"), stored.drop(columns="own_us"))
    assert (table["own_us"][right] < table["median_us"][right]).all()


def cell(row: pd.Series) -> tuple[str, str, str]:
    """A problem as the heat map names it: its plot, its line, its column."""
    return (f"q {row['q_dtype']}, kv {row['kv_dtype']} · s_qo {row['s_qo']}", f"{row['batch_size']:,}", f"{row['s_kv']:,}")


@pytest.mark.parametrize(
    ("path", "names", "bare"),
    [
        (CASCADE, TWO_CALLS, "two_calls_fa3"),
        (MIXED, {"fa2_tc+fa3@4 (fa3: FlashInfer)", "trtllm-native+fa3@4(xqa+fa3@4) (fa3: FlashInfer)"}, "fa2_tc+fa3@4"),
    ],
)
def test_backends_made_of_flashinfers_fa3_say_so(at: At, path: Path, names: set[str], bare: str):
    lines = {str(line["name"]) for chart in at(path, view="lines").charts() for line in chart["series"]}

    assert names <= lines
    assert bare not in lines


def test_every_winner_its_kernel_its_median_and_its_error_are_in_the_map(at: At, main: pd.DataFrame):
    drawn = {}
    for chart in at(MAIN, view="best").charts():
        for found in chart["series"][0]["data"]:
            x, y, _ = found["value"]
            drawn[chart["title"], chart["y"][y], chart["x"][x]] = found["label"] if found["row"] is not None else None
    ranked = kernels(main).sort_values("median_us")
    best = ranked.drop_duplicates(GRID)
    won = {cell(row): row for _, row in best.iterrows()}
    after = ranked[~ranked.index.isin(best.index)].drop_duplicates(GRID)
    next_error = {cell(row): row["rel_err"] for _, row in after.iterrows()}
    everything = {cell(row) for _, row in main.drop_duplicates(GRID).iterrows()}

    assert (len(won), len(everything)) == (192, 192)
    assert {key for key, found in drawn.items() if found is None} == everything - won.keys()
    for key, row in won.items():
        name = exactness.named(row["backend"], row["resolved_backend"])
        words, time = "".join(drawn[key].split()), re.search(r"\n([\d,.]+)", drawn[key])
        assert words.startswith("".join(name.split())) and time is not None
        assert float(time[1].replace(",", "")) == pytest.approx(row["median_us"], rel=1e-3)
        error = exactness.error(row["rel_err"], row["rel_err"] / next_error.get(key, math.inf))
        assert words.replace(",", "").endswith("".join(error.replace(",", "").split()))


def test_the_map_by_speed_up_holds_the_ratio_to_the_backend_chosen(at: At, main: pd.DataFrame):
    charts = at(MAIN, view="best", over="cudnn").charts()
    drawn = sorted(c["speedup"] for chart in charts for c in chart["series"][0]["data"] if c.get("speedup") is not None)
    best = kernels(main).groupby(GRID)["median_us"].min()
    cudnn = ok(main)[ok(main)["backend"] == "cudnn"].set_index(GRID)["median_us"]

    (launch,) = set(launch_of(ok(main)))  # ratios are of times without it

    assert drawn == pytest.approx(sorted(((cudnn - launch) / (best - launch)).dropna()))


def test_neighbours_of_a_long_axis_share_cells_and_each_says_who_wins_most_of_them(show: Show, of_rows):
    contexts, batches = range(1024, 1024 + 60), (1, 2)
    rows = [
        made(name, us, batch_size=batch, s_kv=s_kv)
        for batch in batches
        for s_kv in contexts
        for name, us in (("fa2_tc", 10.0), ("cudnn", 11.0 if s_kv % 3 else 9.0))
    ]
    shown = show(of_rows(rows), view="best")
    (chart,) = shown.charts()
    cells = {(found["value"][0], found["value"][1]): found["label"] for found in chart["series"][0]["data"]}

    assert chart["x"] == [f"{first:,}–{first + 2:,}" for first in contexts[::3]] and chart["y"] == ["1", "2"]
    assert len(cells) == 20 * 2 and all("".join(words.split()) == "fa2_tc2of3" for words in cells.values())
    assert "60 values of s_kv share 20 cells: each names the backend that is the fastest most often" in shown.page.inner_text(
        "#view"
    )
    (chart,) = show(of_rows(rows), view="best", over="cudnn").charts()
    assert {round(c["speedup"], 2) for c in chart["series"][0]["data"]} == {1.1}


def test_lines_are_times_over_the_fastest_with_bars_from_p05_to_p95(at: At, main: pd.DataFrame):
    one_plot = {
        "view": "lines",
        "top": "2",
        "x": "batch_size",
        "f.s_kv": "50000",
        "f.s_qo": "1",
        "f.q_dtype": "bf16",
        "f.kv_dtype": "bf16",
    }
    (chart,) = at(MAIN, **one_plot).charts()
    wanted = ok(main.query("s_kv == 50000 and s_qo == 1 and q_dtype == 'bf16' and kv_dtype == 'bf16'"))
    (launch,) = set(launch_of(wanted))
    fastest = wanted["batch_size"].map(kernels(wanted).groupby("batch_size")["median_us"].min() - launch)
    pairs = zip(wanted["backend"], wanted["resolved_backend"], strict=True)
    ran = [named(f"auto({kernel})" if backend == "auto" else backend, kernel) for backend, kernel in pairs]
    several = wanted.assign(name=ran).groupby("backend")["name"].transform("nunique") > 1  # kernels of a line
    wanted = wanted.assign(name=wanted["backend"].where(several, pd.Series(ran, index=wanted.index)))
    for name in ("median_us", "p05_us", "p95_us"):
        wanted[name + " over"] = (wanted[name] - launch) / fastest

    def compare(chart: dict[str, Any], suffix: str) -> None:
        for name, rows in wanted.sort_values("batch_size").groupby("name"):
            line, bars = (next(s for s in chart["series"] if (s["name"], s["type"]) == (name, kind)) for kind in ("line", "custom"))
            for drawn, columns in ((line, ["median_us"]), (bars, ["p05_us", "p95_us"])):
                expected = rows[["batch_size", *(column + suffix for column in columns)]].to_numpy()
                assert [p["value"] for p in drawn["data"]] == [pytest.approx(point.tolist(), rel=1e-6) for point in expected]
        assert {s["name"] for s in chart["series"]} == set(wanted["name"])

    compare(chart, " over")
    beyond = {name for name, rows in wanted.groupby("name") if rows["median_us over"].max() > 2 and name != "torch_sdpa"}
    (note,) = at(MAIN, **one_plot).page.locator(".panel .note").all_inner_texts()
    assert {name for name in set(wanted["name"]) if f" {name} " in note} == beyond
    compare(at(MAIN, **one_plot, metric="median_us").charts()[0], "")


def test_the_roofline_holds_every_ok_point_and_the_measured_ceilings(at: At, main: pd.DataFrame):
    charts = at(MAIN, view="roofline").charts()
    drawn = sorted(tuple(p["value"]) for chart in charts for s in chart["series"] if s["type"] == "scatter" for p in s["data"])
    right = ok(main)
    wanted = sorted(zip(right["flops"] / right["bytes"], right["tflops"], strict=True))

    assert [y for _, y in drawn] == pytest.approx([y for _, y in sorted(wanted)], rel=1e-6)
    assert [x for x, _ in drawn] == pytest.approx([x for x, _ in sorted(wanted)], rel=1e-6)
    lines = [s for chart in charts for s in chart["series"] if s["type"] == "line"]
    flat = {s["data"][-1]["value"][1] for s in lines if s["name"].startswith("products")}
    assert sorted(flat) == pytest.approx(sorted(right["peak_tflops"].unique()), rel=1e-6)


def test_the_crossover_is_the_best_prefill_over_the_best_decode(at: At):
    table = parquet.read(VERIFY).to_pandas()
    keys = [*GRID, "kv_layout", "page_order"]
    right = kernels(table)
    own = right.assign(own_us=right["median_us"] - launch_of(right))  # ratios are of times without the launch
    best = own.groupby([*keys, "routine"])["own_us"].min().unstack("routine").dropna()
    charts = at(VERIFY, view="crossover").charts()
    drawn = sorted(tuple(p["value"]) for chart in charts for s in chart["series"] for p in s["data"])

    wanted = sorted(zip(best.index.get_level_values("s_kv"), best["paged_prefill"] / best["paged_decode"], strict=True))
    assert [x for x, _ in drawn] == [x for x, _ in wanted]
    assert [y for _, y in drawn] == pytest.approx([y for _, y in wanted])


def test_the_compare_view_opens_on_the_pair_with_most_in_common_and_draws_the_ratio_of_any(at: At, main: pd.DataFrame):
    shown = at(MAIN, view="compare")
    sides = {name: part.set_index([*GRID[2:], "backend"])["median_us"] for name, part in ok(main).groupby(["q_dtype", "kv_dtype"])}
    most = max(len((a / b).dropna()) for a in sides.values() for b in sides.values() if a is not b)
    assert shown.page.input_value("#by") == "dtype" and shown.text("#summary").startswith(f"{most} points on both sides")

    shown = at(MAIN, view="compare", by="backend", base="auto", cand="fa2_tc")
    (chart,) = shown.charts()
    sides = {name: ok(main)[ok(main)["backend"] == name].set_index(GRID)["median_us"] for name in ("auto", "fa2_tc")}
    ratio = (sides["fa2_tc"] / sides["auto"]).dropna()

    assert sorted(p["value"][1] for s in chart["series"] for p in s["data"]) == pytest.approx(sorted(ratio))
    assert shown.text("#summary").startswith(f"{len(ratio)} points on both sides")


def test_filters_with_their_counts_search_and_sort_leave_the_rows_that_pandas_leaves(at: At, main: pd.DataFrame):
    shown = at(MAIN, view="table")
    for chip in ("f-backend-fa2", "f-s_qo-1", "f-status-ok"):
        shown.click(f'[id="{chip}"]')
    wanted = main[(main["backend"] == "fa2") & (main["s_qo"] == 1) & (main["status"] == "ok")]
    assert shown.text("#count") == f"1 to {len(wanted)} of {len(wanted)} rows"
    others = main[(main["s_qo"] == 1) & (main["status"] == "ok")]["backend"].value_counts()  # what another backend would leave
    chips = shown.page.locator("[id^=f-backend-]").all_inner_texts()
    assert {chip.split()[0]: int(chip.split()[1]) for chip in chips} == dict(others)

    shown.click("#sort-median_us")
    shown.click("#sort-median_us")
    column = shown.page.locator("#rows thead th").all_inner_texts().index("median_us ▼")
    cells = shown.page.locator(f"#rows tbody td:nth-child({column + 1})").all_inner_texts()
    slowest_first = wanted["median_us"].sort_values(ascending=False)
    assert [float(cell.replace(",", "")) for cell in cells] == pytest.approx(list(slowest_first), rel=1e-3)

    shown.click("#clear")
    shown.do(lambda: (shown.page.fill("#q", "sm100 gen"), shown.page.press("#q", "Enter")))
    hits = main["reason"].str.contains("SM100").sum()
    assert shown.text("#count") == f"1 to 100 of {hits:,} rows"


def test_csv_and_parquet_hold_what_the_dataset_holds(at: At, main: pd.DataFrame, tmp_path: Path):
    shown = at(MAIN, view="table", **{"f.backend": "cudnn"})
    csv = pd.read_csv(shown.saved("#csv", tmp_path)).sort_values("point_id")
    wanted = main[main["backend"] == "cudnn"].sort_values("point_id")

    assert list(csv["point_id"]) == list(wanted["point_id"])
    assert list(csv["median_us"].dropna()) == list(wanted["median_us"].dropna())
    assert list(csv["command"]) == list(wanted["command"])
    as_stored(pd.read_parquet(shown.saved("#parquet-file", tmp_path)))


def test_a_served_page_is_the_exported_one_and_gives_its_parquet(show: Show, at: At, tmp_path: Path):
    from threading import Thread

    with serve.PageServer(str(MAIN), {}, 0) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        shown = show(server.url, own=HTTP, view="table")
        table = pd.read_parquet(shown.saved("#parquet-file", tmp_path))
        assert shown.go().charts() == at(MAIN).charts()
        server.shutdown()

    as_stored(table)


def test_the_heat_map_of_steps_has_the_backend_that_is_cheapest_in_the_step(show: Show, of_rows: Callable[[Sequence[Row]], str]):
    step = {"context": "step"}
    shown = show(of_rows([made("alone", 10.0, in_step_us=9.0, **step), made("within", 12.0, in_step_us=7.0, **step)]), view="best")
    (chart,) = shown.charts()
    (cell,) = chart["series"][0]["data"]

    assert cell["label"].split()[:2] == ["within", "7"]
