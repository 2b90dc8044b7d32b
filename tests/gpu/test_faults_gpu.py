"""Faults that need a GPU: a lost CUDA context, a kernel that never ends, a device without free memory.

Run with `pytest -m gpu` on a machine with a CUDA device.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.command_line import run_from_scratch
from tests.helpers.runs import TINY, rows_of

ENDS = {
    "nothing": "ok",
    "lost_device": "failed",
    "fills_the_device": "oom",
    "never_ends": "timeout",
    "finds_nobody": "ok",
    "torch_sdpa": "ok",
}


def test_each_fault_of_a_gpu_costs_its_own_point_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FAULTY_MARKS", str(tmp_path))
    points = [f"sweep.backend=[{','.join(ENDS)}]", "sweep.batch_size=[1]", "sweep.s_qo=[1]"]
    done = run_from_scratch(*TINY, *points, "limits.point_seconds=20", f"results.path={tmp_path / 'rows'}")
    table = rows_of(tmp_path / "rows")

    assert done.returncode == 1, done.stderr
    assert dict(zip(table["backend"], table["status"], strict=True)) == ENDS
    assert table.set_index("backend").loc["fills_the_device", "attempt"] == 2
