"""Drawn faults by kind and size, with the uncertainty of the rate, and those that the check promised to catch."""

from __future__ import annotations

import pandas as pd

from orchestrator.reporting.power_curve import curve_grids

COMMON = {
    "backend": "drawn_000",
    "device_name": "cpu",
    "kv_dtype": "bf16",
    "check_min_tokens": 64,
    "check_pairs_covered": 1.0,
    "batch_size": 2,
}


def row(fault: str, status: str, **keys: object) -> dict[str, object]:
    return {**COMMON, "resolved_backend": f"mutant of fa2: {fault}", "status": status, **keys}


def test_a_fault_that_was_missed_though_its_row_promised_is_counted():
    lost = "lost 64: keys 0 to 63 of KV head 1"
    rows = [row(lost, "mismatch"), row(lost, "ok"), row("lost 16: keys 0 to 15 of KV head 1", "ok")]
    rows += [
        row("pair: query 0, key 9", "ok"),
        row("pair: query 0, key 9", "ok", batch_size=1),
        row("halved 4: keys 0 to 3", "failed"),
    ]
    (grid,) = curve_grids(pd.DataFrame(rows))

    assert grid.title == "1 of 5 drawn faults caught, 2 missed that their rows promise to catch · cpu"
    assert [cells[:6] for cells in grid.cells] == [
        ("the widest", "lost", "bf16", "5 to 16", "0 of 1", "0.0%"),
        ("the widest", "lost", "bf16", "17 to 64", "1 of 2", "50.0%"),
        ("the widest", "pair", "bf16", "1", "0 of 2", "0.0%"),
    ]


def test_faults_of_each_backend_are_counted_by_the_kernel_whose_tolerance_they_had():
    lost = "lost 64: keys 0 to 63 of KV head 1"
    rows = [row(lost, "mismatch", backend="drawn_003@fa2"), row(lost, "ok", backend="drawn_003@fa3")]
    rows[1]["resolved_backend"] = f"mutant of fa3: {lost}"
    (grid,) = curve_grids(pd.DataFrame(rows))

    assert [cells[:5] for cells in grid.cells] == [
        ("fa2", "lost", "bf16", "17 to 64", "1 of 1"),
        ("fa3", "lost", "bf16", "17 to 64", "0 of 1"),
    ]
