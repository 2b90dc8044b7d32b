"""The table of times alone and in a step, and the figure of twins, from rows."""

from __future__ import annotations

import pandas as pd
import pytest

from benchmarks import in_step
from orchestrator import ROOT
from tests.helpers.timed_rows import made

PROBLEM = {"tp": 1, "routine": "paged_decode", "resolved_backend": "fa2_tc", "launch_us": 3.7}
IN_STEP = {
    "context": "step",
    "in_step_us": 18.3,
    "in_step_low_us": 18.1,
    "in_step_high_us": 18.6,
    "step_us": 5000.0,
    "step_layers": 12,
}


def test_a_line_has_the_times_alone_without_their_launch_and_the_cost_in_a_step():
    step = pd.DataFrame([made("fa2_tc", 25.8, l2="cold", **PROBLEM, **IN_STEP), made("fa2", None, "unsupported")])
    other = pd.DataFrame([made("fa2_tc", 21.9, l2="clean", **PROBLEM), made("fa2", 50.0, l2="clean", **PROBLEM)])
    grid = in_step.table(step, [other])

    assert grid.header[4:6] == ("alone, cold", "alone, clean")
    assert grid.header[7] == "clean - in step"
    assert grid.cells == (("8 x 8,192", "1", "bf16", "fa2_tc", "22.1", "18.2", "18.3 (18.1 to 18.6)", "-0.1", "12", "5,000"),)


def test_twins_are_compared_by_their_cost_in_a_step():
    def twin(number: int, us: float, backend: str) -> dict[str, object]:
        return {**made(backend, 1.0, twin=number, context="step", in_step_us=us), "group_id": "g"}

    rows = pd.DataFrame([twin(0, 50.0, "a"), twin(1, 51.0, "a"), twin(0, 200.0, "b"), twin(1, 198.0, "b")])
    lines = {cells[0]: cells[1:] for cells in in_step.twins(rows).cells}

    assert lines["20 to 100 µs"] == ("1", "2.00%", "2.00%", "2.00%", "2.00%", "1.00")
    assert lines["100 to 1000 µs"][1] == "1.00%"
    assert lines["all"][:2] == ("2", "1.50%")
    assert float(lines["all"][5]) == pytest.approx(1.5)


def test_the_command_prints_the_table_of_a_dataset():
    folder = ROOT / "results" / "h100_mla_in_step"

    assert in_step.main(str(folder)).count("| fa3 |") == 6
    assert "| all | " in in_step.main("aa", str(ROOT / "results" / "h100_study_in_step_noise"))
