"""What is drawn of the committed datasets against what pandas computes from the same files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd
import pytest

from orchestrator import ROOT
from orchestrator.reporting.dashboard import serve
from orchestrator.storage import parquet
from orchestrator.storage.row import Row
from tests.helpers.datasets import MAIN
from tests.helpers.shown import Shown
from tests.helpers.timed_rows import made

VERIFY = ROOT / "results" / "h200_target_verify"
HTTP = ("http://127.0.0.1",)
Show = Callable[..., Shown]
Exported = Callable[[Path], str]
GRID = ["q_dtype", "kv_dtype", "s_qo", "batch_size", "s_kv"]


@pytest.fixture(scope="module")
def main() -> pd.DataFrame:
    return pd.read_parquet(MAIN)


def ok(table: pd.DataFrame) -> pd.DataFrame:
    return table[table["status"] == "ok"].copy()


def kernels(table: pd.DataFrame) -> pd.DataFrame:
    """A row for each kernel of a problem: that of the backend of its own name if there is one. A reference competes alone."""
    right = ok(table)
    is_reference = right["backend"] == "torch_sdpa"
    has_others = (~is_reference).groupby([right[key] for key in GRID]).transform("any")
    right = right[~(is_reference & has_others)].copy()
    right["kernel"] = right["resolved_backend"].fillna(right["backend"])
    right["another"] = right["kernel"] != right["backend"]
    keys = [*GRID, "routine", "kv_layout", "page_order", "kernel"]
    return right.sort_values("another", kind="stable").drop_duplicates(keys)


def cell(row: pd.Series) -> tuple[str, str, str]:
    """A problem as the heat map names it: its plot, its line, its column."""
    return (f"q {row['q_dtype']}, kv {row['kv_dtype']} · s_qo {row['s_qo']}", f"{row['batch_size']:,}", f"{row['s_kv']:,}")


def test_every_winner_and_its_median_is_in_the_heat_map_that_opens_first(show: Show, exported: Exported, main: pd.DataFrame):
    drawn = {}
    for chart in show(exported(MAIN)).charts():
        for found in chart["series"][0]["data"]:
            x, y, _ = found["value"]
            drawn[chart["title"], chart["y"][y], chart["x"][x]] = found["label"].split()[:2] if found["row"] is not None else None
    best = kernels(main).sort_values("median_us").drop_duplicates(GRID)
    won = {cell(row): (row["backend"], row["median_us"]) for _, row in best.iterrows()}
    everything = {cell(row) for _, row in main.drop_duplicates(GRID).iterrows()}

    assert (len(won), len(everything)) == (192, 192)
    assert {key for key, found in drawn.items() if found is None} == everything - won.keys()
    assert {key: found[0] for key, found in drawn.items() if found} == {key: backend for key, (backend, _) in won.items()}
    for key, (_, median) in won.items():
        assert float(drawn[key][1].replace(",", "")) == pytest.approx(median, rel=1e-3)


def test_the_heat_map_by_speed_up_holds_the_ratio_to_the_backend_chosen(show: Show, exported: Exported, main: pd.DataFrame):
    charts = show(exported(MAIN), over="cudnn").charts()
    drawn = sorted(c["speedup"] for chart in charts for c in chart["series"][0]["data"] if c.get("speedup") is not None)
    best = kernels(main).groupby(GRID)["median_us"].min()
    cudnn = ok(main)[ok(main)["backend"] == "cudnn"].set_index(GRID)["median_us"]

    (launch,) = ok(main)["launch_us"].unique()  # ratios are of times without it

    assert drawn == pytest.approx(sorted(((cudnn - launch) / (best - launch)).dropna()))


def test_lines_go_through_the_medians_with_bars_from_p05_to_p95(show: Show, exported: Exported, main: pd.DataFrame):
    shown = show(exported(MAIN), view="lines", x="batch_size", **{"f.s_kv": "50000", "f.s_qo": "1", "f.dtype": "q bf16, kv bf16"})
    (chart,) = shown.charts()
    at = (main["s_kv"] == 50000) & (main["s_qo"] == 1) & (main["q_dtype"] == "bf16") & (main["kv_dtype"] == "bf16")
    wanted = ok(main[at])
    chosen = "auto(" + wanted["resolved_backend"] + ")"  # `auto` is shown with what it chose
    wanted = wanted.assign(name=wanted["backend"].where(wanted["backend"] != "auto", chosen))

    for name, rows in wanted.sort_values("batch_size").groupby("name"):
        line, bars = (next(s for s in chart["series"] if (s["name"], s["type"]) == (name, kind)) for kind in ("line", "custom"))
        assert [p["value"] for p in line["data"]] == rows[["batch_size", "median_us"]].to_numpy().tolist()
        expected = rows[["batch_size", "p05_us", "p95_us"]].to_numpy()
        assert [p["value"] for p in bars["data"]] == [pytest.approx(bar.tolist(), rel=1e-6) for bar in expected]
    assert {s["name"] for s in chart["series"]} == set(wanted["name"])


def test_the_roofline_holds_every_ok_point_and_the_measured_ceilings(show: Show, exported: Exported, main: pd.DataFrame):
    (chart,) = show(exported(MAIN), view="roofline").charts()
    drawn = sorted(tuple(p["value"]) for s in chart["series"] if s["type"] == "scatter" for p in s["data"])
    right = ok(main)
    wanted = sorted(zip(right["flops"] / right["bytes"], right["tflops"], strict=True))

    assert [y for _, y in drawn] == pytest.approx([y for _, y in sorted(wanted)], rel=1e-6)
    assert [x for x, _ in drawn] == pytest.approx([x for x, _ in sorted(wanted)], rel=1e-6)
    flat = {s["data"][-1]["value"][1] for s in chart["series"] if s["type"] == "line" and s["name"].startswith("products")}
    assert sorted(flat) == pytest.approx(sorted(right["peak_tflops"].unique()), rel=1e-6)


def test_the_crossover_is_the_best_prefill_over_the_best_decode(show: Show, exported: Exported):
    table = parquet.read(VERIFY).to_pandas()
    keys = [*GRID, "kv_layout", "page_order"]
    right = kernels(table)
    own = right.assign(own_us=right["median_us"] - right["launch_us"].min())  # ratios are of times without the launch
    best = own.groupby([*keys, "routine"])["own_us"].min().unstack("routine").dropna()
    charts = show(exported(VERIFY), view="crossover").charts()
    drawn = sorted(tuple(p["value"]) for chart in charts for s in chart["series"] for p in s["data"])

    wanted = sorted(zip(best.index.get_level_values("s_kv"), best["paged_prefill"] / best["paged_decode"], strict=True))
    assert [x for x, _ in drawn] == [x for x, _ in wanted]
    assert [y for _, y in drawn] == pytest.approx([y for _, y in wanted])


def test_the_compare_view_pairs_equal_points_and_draws_their_ratio(show: Show, exported: Exported, main: pd.DataFrame):
    shown = show(exported(MAIN), view="compare", by="backend", base="auto", cand="fa2_tc")
    (chart,) = shown.charts()
    sides = {name: ok(main)[ok(main)["backend"] == name].set_index(GRID)["median_us"] for name in ("auto", "fa2_tc")}
    ratio = (sides["fa2_tc"] / sides["auto"]).dropna()

    assert sorted(p["value"][1] for s in chart["series"] for p in s["data"]) == pytest.approx(sorted(ratio))
    assert shown.text("#summary").startswith(f"{len(ratio)} points on both sides")


def test_filters_search_and_sort_leave_the_rows_that_pandas_leaves(show: Show, exported: Exported, main: pd.DataFrame):
    shown = show(exported(MAIN), view="table")
    for chip in ("f-backend-fa2", "f-s_qo-1", "f-status-ok"):
        shown.click(f'[id="{chip}"]')
    wanted = main[(main["backend"] == "fa2") & (main["s_qo"] == 1) & (main["status"] == "ok")]
    assert shown.text("#count") == f"1 to {len(wanted)} of {len(wanted)} rows"

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


def test_csv_and_parquet_hold_what_the_dataset_holds(show: Show, exported: Exported, main: pd.DataFrame, tmp_path: Path):
    shown = show(exported(MAIN), view="table", **{"f.backend": "cudnn"})
    csv = pd.read_csv(shown.saved("#csv", tmp_path)).sort_values("point_id")
    wanted = main[main["backend"] == "cudnn"].sort_values("point_id")

    assert list(csv["point_id"]) == list(wanted["point_id"])
    assert list(csv["median_us"].dropna()) == list(wanted["median_us"].dropna())
    assert list(csv["command"]) == list(wanted["command"])
    pd.testing.assert_frame_equal(pd.read_parquet(shown.saved("#parquet-file", tmp_path)), parquet.read(MAIN).to_pandas())


def test_a_served_page_is_the_exported_one_and_gives_its_parquet(show: Show, exported: Exported, tmp_path: Path):
    from threading import Thread

    with serve.Server(str(MAIN), {}, 0) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        shown = show(server.url, own=HTTP, view="table")
        table = pd.read_parquet(shown.saved("#parquet-file", tmp_path))
        shown.open(server.url)
        assert shown.charts() == show(exported(MAIN)).charts()
        server.shutdown()

    pd.testing.assert_frame_equal(table, parquet.read(MAIN).to_pandas())


def test_the_heat_map_of_steps_has_the_backend_that_is_cheapest_in_the_step(show: Show, of_rows: Callable[[Sequence[Row]], str]):
    step = {"context": "step"}
    shown = show(of_rows([made("alone", 10.0, in_step_us=9.0, **step), made("within", 12.0, in_step_us=7.0, **step)]))
    (chart,) = shown.charts()
    (cell,) = chart["series"][0]["data"]

    assert cell["label"].split()[:2] == ["within", "7"]
