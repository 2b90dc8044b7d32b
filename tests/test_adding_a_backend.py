"""docs/adding_a_backend.md: its backend runs as printed, its commands work, and its errors are those that are raised."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from orchestrator import ROOT
from tests.helpers.command_line import environment, run

PAGE = (ROOT / "docs" / "adding_a_backend.md").read_text()
CHECK, SWEEP, POWER = (line for line in PAGE.splitlines() if line.startswith("python -m orchestrator "))
FEW = " cluster=inline timing=quick sweep.batch_size=[1] sweep.s_kv=[256] results.path=rows"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the page's backend, as its reader saves it."""
    found = tmp_path_factory.mktemp("reader")
    _, code = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (found / "my_backend.py").write_text(code)
    return found


def type_in(folder: Path, line: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, *shlex.split(line)[1:]]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=230, check=False, env=environment())


def test_the_page_s_backend_is_about_40_lines():
    _, code = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)

    assert len([line for line in code.splitlines() if line.strip()]) <= 45


@pytest.fixture(scope="module")
def done(folder: Path) -> subprocess.CompletedProcess[str]:
    """The page's first command, run once."""
    return type_in(folder, f"{CHECK} format=markdown")


def test_the_page_s_backend_passes_every_check_that_a_cpu_can_run(done: subprocess.CompletedProcess[str]):
    verdicts = dict(re.findall(r"^\| (.+?) \| (passed|failed|too strict|not run) \|", done.stdout, re.MULTILINE))

    assert done.returncode == 0, done.stdout + done.stderr
    assert set(verdicts.values()) == {"passed", "not run"}
    assert verdicts["answers: page layouts"] == "passed"
    assert verdicts["rule: the same KV length for every request"] == "not run"  # the kernel is not told of the lengths
    assert verdicts["a CUDA graph captures the call"] == "not run"
    assert list(verdicts.values()).count("passed") >= 20


def test_every_check_that_the_page_names_exists(done: subprocess.CompletedProcess[str]):
    named = re.findall(r"\| `([^`|]+)` \|$", PAGE.partition("## The contract of a call")[2].partition("##")[0], re.MULTILINE)

    assert len(named) >= 7
    assert all(f"| {name} |" in done.stdout for name in named)


def test_the_page_s_backend_runs_in_a_sweep_and_its_wrong_kernels_are_caught(folder: Path):
    swept, power = (run(*shlex.split(line + FEW)[3:], cwd=folder, timeout=230) for line in (SWEEP, POWER))
    rows, caught = (pd.read_parquet(folder / name) for name in ("rows", "rows_check_power"))
    ran = rows[rows["backend"] == "gather_sdpa"].set_index("s_qo")

    assert (swept.returncode, power.returncode) == (0, 0), swept.stderr + power.stderr
    assert ran["status"].to_dict() == {1: "ok", 4: "unsupported"}
    assert ran.loc[1, "resolved_backend"] == "torch_sdpa_after_gather"
    assert ran.loc[4, "reason"] == "gather_sdpa on cpu needs: one query token a request"
    assert "one_token_short@gather_sdpa" in set(caught.loc[caught["status"] == "mismatch", "backend"])


def test_every_error_of_the_page_is_one_that_the_code_raises():
    table = PAGE.partition("## Errors and what to do")[2]
    errors = re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE)
    source = "\n".join(path.read_text() for folder in ("kernels", "orchestrator") for path in (ROOT / folder).rglob("*.py"))

    assert len(errors) >= 10
    assert [error for error in errors if error.partition(" 'my_backend'")[0] not in source] == []
