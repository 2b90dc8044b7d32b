"""A backend outside the project, as a stranger uses it: from a folder of their own, through the command line."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from tests.helpers.command_line import environment, run

POINTS = ["+sweep=smoke", "cluster=inline", "timing=quick", "sweep.batch_size=[1]", "sweep.s_kv=[256]", "sweep.s_qo=[1]"]
PLUGIN = """
from dataclasses import dataclass

from kernels.adapters.torch_sdpa import TorchSdpa
from my_helper import NAME


@dataclass(frozen=True, kw_only=True)
class Mine(TorchSdpa):
    routine: str = "paged_decode"
    name: str = NAME


ADAPTERS = (Mine(),)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "my_plugin.py").write_text(PLUGIN)
    (tmp_path / "my_helper.py").write_text('NAME = "mine"\n')
    return tmp_path


def run_in(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """A command typed in a folder that holds the plugin."""
    done = run(*args, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def rows(folder: Path) -> pd.DataFrame:
    return pd.read_parquet(folder / "rows")


def sweep(folder: Path, *args: str) -> str:
    """Runs the sweep with the plugin and says how many rows are new."""
    done = run_in(folder, *POINTS, "results.path=rows", "adapters=[my_plugin]", "sweep.backend=[mine,torch_sdpa]", *args)
    return next(line for line in done.stdout.splitlines() if line.startswith("run "))


def test_a_plugin_s_code_enters_the_version_of_its_own_rows_alone(folder: Path):
    run_in(folder, *POINTS, "results.path=rows", "sweep.backend=[torch_sdpa]")
    (plain,) = rows(folder)["orchestrator_version"]

    assert "1 rows" in sweep(folder)  # nothing of torch_sdpa runs again
    of = rows(folder).set_index("backend")["orchestrator_version"]
    assert of["torch_sdpa"] == plain
    assert of["mine"].startswith(f"{plain}.") and len(of["mine"]) == len(plain) + 9

    assert "0 rows" in sweep(folder)
    (folder / "my_helper.py").write_text('NAME = "mine"  # edited\n')
    assert "1 rows" in sweep(folder)
    table = rows(folder)
    assert sorted(table["backend"]) == ["mine", "mine", "torch_sdpa"]
    assert table.groupby("backend")["orchestrator_version"].nunique().to_dict() == {"mine": 2, "torch_sdpa": 1}


def test_the_command_of_a_plugin_s_row_replays_it_as_printed(folder: Path):
    sweep(folder)
    before = rows(folder).set_index("backend")
    command = before.loc["mine", "command"]
    done = subprocess.run(  # by a shell, in the same folder
        command.replace("python ", f"{shlex.quote(sys.executable)} ", 1), shell=True, cwd=folder, capture_output=True, text=True,
        timeout=200, check=False, env={**os.environ, **environment()},
    )  # fmt: skip
    after = pd.read_parquet(folder / "rows_replay").set_index("backend")

    assert done.returncode == 0, done.stdout + done.stderr
    assert "'adapters=[my_plugin]'" in command
    assert list(after.index) == ["mine"]
    assert after.loc["mine", "run_id"] != before.loc["mine", "run_id"]
    assert after.loc["mine", "orchestrator_version"] == before.loc["mine", "orchestrator_version"]
    assert rows(folder).set_index("backend")["run_id"].equals(before["run_id"])


def test_mode_check_power_makes_wrong_kernels_of_a_plugin_s_backend(folder: Path):
    points = [*POINTS, "results.path=rows", "adapters=[my_plugin]", "sweep.backend=[mine,torch_sdpa]"]
    run_in(folder, *points, "mode=check_power")
    table = pd.read_parquet(folder / "rows_check_power").set_index("backend")
    plain, made = table.loc["one_token_short"], table.loc["one_token_short@mine"]

    assert (plain["status"], made["status"]) == ("mismatch", "mismatch")
    assert made["resolved_backend"].startswith("mutant of torch_sdpa")
    assert made["orchestrator_version"].startswith(f"{plain['orchestrator_version']}.")
    assert set(table.filter(like="@", axis=0)["status"]) == {"mismatch", "unsupported"}
    assert len(table.filter(like="@", axis=0)) > 20
