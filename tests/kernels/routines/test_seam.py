"""A routine in a folder of its own registers itself: from YAML to stored rows."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pandas as pd
import pytest

from orchestrator import ROOT
from tests.helpers.command_line import run_code

FOLDER = ROOT / "tests" / "backends" / "routines"
BEGIN = f"""
import sys
for name in [name for name in sys.modules if name.startswith(("kernels", "orchestrator"))]:
    del sys.modules[name]  # what the process had already
from kernels import routines
routines.__path__.append({str(FOLDER)!r})
from orchestrator.cli import main
sys.exit(main(sys.argv[1:]))
"""
POINTS = (
    "+sweep=base", "sweep.name=toy", "sweep.routine=doubled", "sweep.batch_size=[1,3]", "sweep.s_qo=[1,2]", "sweep.s_kv=null",
    "sweep.backend=[product,twice]",
    "+sweep.heads=[{num_qo_heads: 4, num_kv_heads: 4, head_dim_qk: 8, head_dim_vo: 8}]", "cluster=inline", "timing=quick",
)  # fmt: skip


def command(*args: str) -> subprocess.CompletedProcess[str]:
    return run_code(BEGIN, *args)


def test_a_sweep_of_it_becomes_rows_and_a_wrong_backend_is_called_wrong(tmp_path: Path) -> None:
    done = command(*POINTS, "+sweep.times=[2,3]", f"results.path={tmp_path}")
    assert done.returncode == 1, done.stderr
    rows = pd.read_parquet(tmp_path / "rows.parquet")

    assert len(rows) == 16
    wrong = (rows["backend"] == "twice") & (rows["routine_axes"] == "times=3")
    assert set(rows[wrong]["status"]) == {"mismatch"}
    assert set(rows[~wrong]["status"]) == {"ok"}
    assert set(rows[~wrong]["oracle"]) == {"fp32_product"}


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("+sweep.times=[4]", "times=4: allowed with routine=doubled: 2, 3"),
        ("sweep.s_kv=[64]", "s_kv=64: routine=doubled has no keys; leave s_kv out"),
        ("sweep.window=[9]", "window=9: routine=doubled has no window; leave it out, or type one of its own keys"),
    ],
)  # fmt: skip
def test_a_key_that_it_does_not_have_is_refused_by_name(typed: str, said: str) -> None:
    key = typed.lstrip("+").split("=")[0]
    done = command(*(word for word in POINTS if not word.startswith(f"{key}=")), typed, "mode=plan")

    assert done.returncode == 2
    assert said in done.stderr
