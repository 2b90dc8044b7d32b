"""The code that empties a multiprocessor's instruction cache."""

from __future__ import annotations

from kernels.timing.caches import straight_line


def test_code_without_a_branch_has_no_two_instructions_alike():
    steps = [step for step in straight_line(5000).split(";") if "mad" in step]

    assert len(steps) == len(set(steps)) == 5000
