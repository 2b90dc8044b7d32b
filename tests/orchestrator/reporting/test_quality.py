"""Tables of noise from A/A pairs and of mutants that the check caught, against rows worked out by hand."""

from __future__ import annotations

from typing import Any

from orchestrator.reporting import quality
from orchestrator.storage.row import Row
from tests.helpers.compared import table, timed


def half_of_pair(number: int, backend: str, us: float, **keys: Any) -> Row:
    return timed(backend, us, twin=number, group_id=backend, **keys)


def mutant(name: str, status: str, over: float | None, s_kv: int = 8192, **keys: Any) -> Row:
    known = {"kv_dtype": "bf16", "err_over_tolerance": over, "resolved_backend": "mutant of fa2", **keys}
    return timed(name, 10.0, status=status, s_kv=s_kv, **known)


def test_noise_is_shown_by_range_of_time_and_for_the_worst_points():
    rows = [
        half_of_pair(0, "a", 10.0),
        half_of_pair(1, "a", 10.1),
        half_of_pair(0, "b", 500.0),
        half_of_pair(1, "b", 495.0),
        half_of_pair(0, "c", 700.0),
        half_of_pair(1, "c", 700.7),
    ]
    ranges, worst = quality.noise_grids(table(*rows))

    assert ranges.cells == (
        ("0 to 20 µs", "1", "1.00%", "1.00%", "1.00%", "1.00%"),
        ("100 to 1000 µs", "2", "0.55%", "0.96%", "0.99%", "1.00%"),
        ("all", "3", "1.00%", "1.00%", "1.00%", "1.00%"),
    )
    assert [cells[:2] for cells in worst.cells] == [("1.00%", "a"), ("1.00%", "b"), ("0.10%", "c")]


def test_missed_mutants_are_counted_and_a_failed_one_is_not_caught():
    rows = [
        mutant("full_draft", "mismatch", 12.5, point_id="1"),
        mutant("full_draft", "ok", 0.9, point_id="2"),
        mutant("full_draft", "mismatch", 30.0, s_kv=50000, point_id="3"),
        mutant("output_left", "mismatch", float("inf"), point_id="4"),
        mutant("bf16_sums", "failed", None, resolved_backend=None, point_id="5"),
        mutant("sinks_ignored", "unsupported", None, resolved_backend=None, point_id="6"),
        timed("fa2", 10.0, point_id="7"),
    ]
    (grid,) = quality.power_grids(table(*rows))

    assert grid.title.startswith("3 of 5 wrong kernels caught")
    assert grid.header == ("mutant", "bf16 8,192", "bf16 50,000")
    assert grid.cells == (
        ("full_draft", "0.9× (1 of 2 missed)", "30×"),
        ("output_left", "no number", "–"),
        ("bf16_sums", "no answer (1 of 1 missed)", "–"),
    )
    assert quality.is_caught(table(*rows)).tolist() == [True, False, True, True, False, False, False]
