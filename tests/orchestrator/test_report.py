"""Tables against rows worked out by hand."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from orchestrator.grid import markdown
from orchestrator.report import best, best_grids, latest, status_grid
from orchestrator.row import Row, finish, to_table

SHAPE: Row = {"device_name": "H200", "model": "m", "q_dtype": "bf16", "kv_dtype": "bf16", "cluster": "c"}


def made(backend: str, median_us: float | None, status: Any = "ok", reason: str = "", **keys: object) -> Row:
    shape = {"s_qo": 1, "batch_size": 8, "s_kv": 8192, **keys}
    point_id = f"{backend}-{shape['s_qo']}-{shape['batch_size']}-{shape['s_kv']}"
    return finish({**SHAPE, **shape, "backend": backend, "median_us": median_us, "point_id": point_id}, status, reason)


def table(*rows: Row) -> pd.DataFrame:
    return to_table(rows).to_pandas()


def test_the_best_backend_is_the_fastest_ok_one_with_its_margin():
    found = best(table(made("a", 20.0), made("b", 10.0), made("c", 15.0), made("d", 1.0, "mismatch"))).reset_index()

    assert list(found["backend"]) == ["b"]
    assert list(found["runner_up"]) == ["c"]
    assert found.loc[0, "margin"] == pytest.approx(0.5)


def test_a_backend_alone_has_no_margin():
    assert best(table(made("a", 20.0)))["margin"].isna().all()


def test_the_grid_has_a_row_for_each_draft_and_batch_and_a_column_for_each_context():
    rows = [made("a", 10.0), made("b", 11.0), made("a", 40.0, s_kv=32768), made("b", 30.0, s_qo=4)]
    (grid,) = best_grids(table(*rows))

    assert grid.header == ("s_qo", "batch", "s_kv 8,192", "s_kv 32,768")
    assert grid.cells == (("1", "8", "a 10.0 (+10%)", "a 40.0"), ("4", "8", "b 30.0", "–"))


def test_auto_does_not_compete_with_the_kernel_it_chose():
    rows = [made("auto", 9.9), made("fa2_tc", 10.0), made("xqa", 11.0)]
    for row, kernel in zip(rows, ("fa2_tc", "fa2_tc", "xqa"), strict=True):
        row["resolved_backend"] = kernel
    (grid,) = best_grids(table(*rows))
    assert grid.cells == (("1", "8", "fa2_tc 10.0 (+10%)"),)

    rows[0]["resolved_backend"] = "fa3"
    (grid,) = best_grids(table(*rows))
    assert grid.cells == (("1", "8", "auto 9.9 (+1.0%)"),)


def test_different_problems_never_compete_and_what_varies_names_its_table():
    rows = [made("a", 10.0, page_size=16), made("b", 20.0, page_size=64), made("c", 30.0, page_size=64)]
    for row, suffix in zip(rows, "abc", strict=True):
        row["point_id"] += suffix
    small, large = best_grids(table(*rows))

    assert (small.cells, large.cells) == ((("1", "8", "a 10.0"),), (("1", "8", "b 20.0 (+50%)"),))
    assert "page_size 16" in small.title and "page_size 64" in large.title


def test_the_newest_row_of_a_point_speaks():
    old, new = made("a", 10.0), made("a", 12.0)
    old["finished_at"], new["finished_at"] = "2026-01-01T00:00:00+00:00", "2026-02-01T00:00:00+00:00"

    assert list(latest(table(new, old))["median_us"]) == [12.0]


def test_statuses_are_counted_by_reason_and_skipped_ones_without_their_estimates():
    rows = [
        made("a", 10.0),
        made("b", None, "unsupported", "needs SM100"),
        made("c", None, "unsupported", "needs SM100"),
        made("d", None, "skipped", "too slow: about 31 s"),
        made("e", None, "skipped", "too slow: about 77 s"),
    ]

    assert status_grid(table(*rows)).cells == (("ok", "1", ""), ("unsupported", "2", "needs SM100"), ("skipped", "2", "too slow"))


def test_nothing_but_failures_still_makes_a_report():
    rows = table(made("a", None, "failed", "boom | bang"))

    assert best_grids(rows) == []
    assert "| failed | 1 | boom \\| bang |" in markdown([status_grid(rows)])


def test_what_another_key_tells_is_no_label():
    rows = [made("a", 10.0, q_dtype=q, out_dtype=q, num_qo_heads=h, num_kv_heads=h) for q in ("bf16", "fp16") for h in (8, 64)]
    titles = [grid.title for grid in best_grids(table(*({**row, "point_id": str(i)} for i, row in enumerate(rows))))]

    assert len(titles) == 4
    assert all("num_qo_heads" in title and "num_kv_heads" not in title and "out_dtype" not in title for title in titles)


def test_two_trees_of_one_name_never_compete():
    rows = [
        made("a", 10.0, mask="t", tree=[-1, 0]),
        made("b", 20.0, mask="t", tree=[-1, 0]),
        made("c", 5.0, mask="t", tree=[-1, -1]),
    ]
    found = best_grids(table(*rows))

    assert sorted(cell for grid in found for _, _, cell in grid.cells) == ["a 10.0 (+100%)", "c 5.0"]
    assert len(best_grids(table(*rows[:2]))) == 1 and "tree" not in best_grids(table(*rows[:2]))[0].title
