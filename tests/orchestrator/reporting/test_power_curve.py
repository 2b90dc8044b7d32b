"""Drawn faults by kind and size, with the uncertainty of the rate, and those that the check promised to catch."""

from __future__ import annotations

import pandas as pd
import pytest

from orchestrator.reporting.quality import alarm_grids, curve_grids, size_grids

COMMON = {
    "routine": "paged_decode",
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
        row("pair: query 0, key 9", "ok", batch_size=1, routine="sparse_mla"),  # of one query token of several
        row("halved 4: keys 0 to 3", "failed"),
    ]
    (grid,) = curve_grids(pd.DataFrame(rows))

    assert grid.title == "1 of 6 drawn faults caught, 2 missed that their rows promise to catch · cpu"
    assert [cells[:6] for cells in grid.cells] == [
        ("the widest", "lost", "bf16", "5 to 16", "0 of 1", "0.0%"),
        ("the widest", "lost", "bf16", "17 to 64", "1 of 2", "50.0%"),
        ("the widest", "pair", "bf16", "1", "0 of 3", "0.0%"),
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


TOO_FEW, NEEDED = "not enough draws to tell", "{}, if no other is missed"


def of_size(size: int, caught: int, missed: int = 0, kind: str = "lost") -> list[dict[str, object]]:
    fault = f"{kind} {size}: keys 0 to {size - 1} of KV head 1"
    return [row(fault, status) for status in ["mismatch"] * caught + ["ok"] * missed]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([*of_size(1, 50, 50), *of_size(4, 100), *of_size(16, 200)], ("4 keys", "300 of 300 from 4 keys on", "99.0%", "")),
        ([*of_size(4, 600, 2), *of_size(16, 200)], ("4 keys", "800 of 802 from 4 keys on", "99.2%", "")),
        # Many large faults do not hide small ones that are missed.
        ([*of_size(1, 9, 1), *of_size(4, 1000)], ("4 keys", "1000 of 1000 from 4 keys on", "99.7%", "")),
        ([*of_size(4, 1, 1), *of_size(16, 200)], (TOO_FEW, "200 of 200 from 16 keys on", "98.5%", NEEDED.format(299))),
        ([*of_size(4, 100, 1), *of_size(16, 99)], (TOO_FEW, "199 of 200 from 4 keys on", "97.7%", NEEDED.format(473))),
        (of_size(64, 6, 1), (TOO_FEW, "6 of 7 from 64 keys on", "47.9%", NEEDED.format(473))),
        (of_size(64, 3, 3), ("no size that was drawn", "3 of 6 from 64 keys on", "15.3%", "")),
    ],
)
def test_the_smallest_size_from_which_on_99_of_100_are_caught(rows: list[dict[str, object]], said: tuple[str, ...]):
    (grid,) = size_grids(pd.DataFrame(rows))

    assert grid.header[3] == "99% are caught from"
    assert grid.cells == (("the widest", "lost", "bf16", *said),)


def test_sizes_are_told_apart_by_kind_and_cache():
    fp8 = [{**one, "kv_dtype": "fp8_e4m3"} for one in of_size(8, 400)]
    (grid,) = size_grids(pd.DataFrame([*of_size(2, 300), *of_size(32, 300, kind="halved"), *fp8]))

    assert [cells[1:4] for cells in grid.cells] == [
        ("halved", "bf16", "32 keys"),
        ("lost", "bf16", "2 keys"),
        ("lost", "fp8_e4m3", "8 keys"),
    ]


def test_right_outputs_that_were_called_wrong_are_counted_with_an_upper_bound():
    def right(status: str, seed: int, **keys: object) -> dict[str, object]:
        return {**COMMON, "backend": "no_fault", "resolved_backend": "right output of fa2", "status": status, "seed": seed, **keys}

    rows = [right("ok", seed) for seed in range(4)]
    rows += [right("ok", 0, backend="no_fault@fa2"), right("mismatch", 1, backend="no_fault@fa2"), right("failed", 2)]
    (grid,) = alarm_grids(pd.DataFrame([*rows, row("lost 64: keys 0 to 63 of KV head 1", "mismatch", seed=0)]))

    assert grid.title == "1 of 6 right outputs called wrong, over 4 seeds of inputs; with 95% confidence at most 58.18% · cpu"
    assert grid.cells == (("fa2", "bf16", "2", "1", "97.47%"), ("the widest", "bf16", "4", "0", "52.71%"))
    assert alarm_grids(pd.DataFrame([row("lost 64: keys 0 to 63 of KV head 1", "mismatch", seed=0)])) == []
