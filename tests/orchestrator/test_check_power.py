"""`mode=check_power check.draws=N` on a CPU: right outputs beside drawn faults, and those of a wrong backend."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from kernels.mutants.drawn import BESIDE
from tests.helpers.command_line import Invoke

ASKED = ["+sweep=smoke", "mode=check_power", "check.draws=2", "timing=quick", "cluster=inline", "sweep.batch_size=[1]"]
FEW = [*ASKED, "sweep.s_kv=[256]", "sweep.s_qo=[4]"]


def run(invoke: Invoke, folder: Path, *more: str, code: int = 0) -> tuple[pd.DataFrame, str]:
    done = invoke(*FEW, *more, f"results.path={folder / 'rows'}")
    assert done.returncode == code, done.stderr
    return pd.read_parquet(folder / "rows_check_power").set_index(["backend", "seed"]), done.stdout


def test_right_outputs_pass_and_those_of_a_wrong_backend_do_not(invoke: Invoke, tmp_path: Path):
    wrong = "adapters=[tests.backends.faulty]"
    rows, shown = run(invoke, tmp_path, "check.tolerance=each", wrong, "sweep.backend=[torch_sdpa,wrong]", code=1)

    assert {seed: rows.loc[("no_fault@torch_sdpa", seed), "status"] for seed in (0, 1)} == {0: "ok", 1: "ok"}
    assert {seed: rows.loc[("no_fault@wrong", seed), "status"] for seed in (0, 1)} == {0: "mismatch", 1: "mismatch"}
    assert "2 of 4 right outputs called wrong, over 2 seeds of inputs; with 95% confidence at most 90.24%" in shown
    assert "the statement does not hold here: a right kernel is called wrong less than once in 10,000" in shown


def test_right_outputs_pass_at_the_widest_tolerance(invoke: Invoke, tmp_path: Path):
    rows, shown = run(invoke, tmp_path, "sweep.backend=[torch_sdpa]")
    assert set(rows.loc[[*BESIDE], "status"]) == {"mismatch"} and "does not hold" not in shown
    right = rows.xs("no_fault", level="backend")

    assert set(right["status"]) == {"ok"}, set(right["reason"])
    assert set(right["resolved_backend"]) == {"right output of torch_sdpa_cpu"}
    assert "0 of 2 right outputs called wrong, over 2 seeds of inputs; with 95% confidence at most 77.64%" in shown


def test_a_fault_that_does_not_show_is_not_caught_because_its_kernel_copies_the_cache(invoke: Invoke, tmp_path: Path):
    """The copy is made again after a token has changed, as for the backend itself."""
    rows, _ = run(invoke, tmp_path, "sweep.backend=[torch_sdpa]", "check.tolerance=each")
    reasons = rows.loc[rows["status"] == "mismatch", "reason"]

    assert len(reasons)
    assert not reasons.str.contains("does not declare").any()
