"""docs/adding_a_backend.md: its backends run as printed, its commands work, and its errors are those that are raised."""

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
CHECK, SWEEP, POWER, CHECK_TRITON, SWEEP_TRITON, RANK = (
    line for line in PAGE.splitlines() if line.startswith("python -m orchestrator ")
)
FEW = " cluster=inline timing=quick sweep.batch_size=[1] sweep.s_kv=[256] results.path=rows"
OWN_KERNEL = ROOT / "docs" / "own_kernel"
MOST_ROWS = "at most 128 rows: query tokens times query heads of a KV head"  # more are right too, in more registers than a GPU has
TRITON = Path(sys.prefix) / "triton"  # where the Makefile puts it; one that came with torch is found without


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the page's backend, as its reader saves it."""
    found = tmp_path_factory.mktemp("reader")
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (found / "my_backend.py").write_text(code)
    return found


def type_in(folder: Path, line: str, **env: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, *shlex.split(line)[1:]]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=230, check=False, env={**environment(), **env})


def test_the_page_s_backends_are_about_40_lines_and_the_kernel_30():
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    texts = (code, *((OWN_KERNEL / name).read_text() for name in ("my_triton.py", "my_kernel.py")))

    assert [
        len([line for line in text.splitlines() if line.strip()]) <= most for text, most in zip(texts, (45, 45, 35), strict=True)
    ]


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
    alone = SWEEP.replace(",flex_attention", "").replace("s_qo=[1]", "s_qo=[4]")
    lines = (SWEEP, alone, POWER)
    swept, drafts, power = (run(*shlex.split(line + FEW)[3:], cwd=folder, timeout=230) for line in lines)
    rows, caught = (pd.read_parquet(folder / name) for name in ("rows", "rows_check_power"))
    ran = rows[rows["backend"] == "gather_sdpa"].set_index("s_qo")

    assert (swept.returncode, drafts.returncode, power.returncode) == (0, 0, 0), swept.stderr + drafts.stderr + power.stderr
    assert re.search(r"decode: (gather_sdpa|flex_attention) 1\.00×", swept.stdout)  # both are ranked, and one is first
    assert ran["status"].to_dict() == {1: "ok", 4: "unsupported"}
    assert ran.loc[1, "resolved_backend"] == "torch_sdpa_after_gather"
    assert ran.loc[4, "reason"] == "gather_sdpa on cpu needs: one query token a request"
    assert "one_token_short@gather_sdpa" in set(caught.loc[caught["status"] == "mismatch", "backend"])


@pytest.fixture(scope="module")
def copied(folder: Path) -> Path:
    """A folder with the page's Triton kernel, copied as it says."""
    (line,) = re.findall(r"^cp CHECKOUT.*$", PAGE, re.MULTILINE)
    place = folder / "triton"
    place.mkdir()
    subprocess.run(["bash", "-c", line.replace("CHECKOUT", str(ROOT))], cwd=place, check=True)
    return place


def test_the_triton_kernel_passes_every_check_in_triton_s_interpreter(copied: Path):
    path = f"{TRITON}:{environment()['PYTHONPATH']}"
    done = type_in(copied, f"{CHECK_TRITON} format=markdown", TRITON_INTERPRET="1", CUDA_VISIBLE_DEVICES="", PYTHONPATH=path)
    verdicts = re.findall(r"^\| (.+?) \| (passed|failed|too strict|not run) \|", done.stdout, re.MULTILINE)

    assert done.returncode == 0, done.stdout + done.stderr
    assert {name for name, verdict in verdicts if verdict not in ("passed", "not run")} == {f"rule: {MOST_ROWS}"}
    assert ("answers: causal drafts", "passed") in verdicts
    assert ("answers: KV lengths that differ", "passed") in verdicts and ("unused slots are skipped", "passed") in verdicts
    assert [verdict for _, verdict in verdicts].count("passed") >= 25


def test_the_triton_kernel_s_rank_is_planned_beside_ranked_backends(copied: Path):
    done = run(*shlex.split(SWEEP_TRITON)[3:], "mode=plan", "device=h200", "format=csv", cwd=copied)
    counts = dict(re.findall(r"^(\w+),(\d+)$", done.stdout, re.MULTILINE))

    assert done.returncode == 0, done.stderr
    assert (counts["run"], counts.get("unsupported", "0")) == ("448", "320")  # of four backends and three pairs of dtypes
    assert "flash_attn_3_sglang,128,64" in done.stdout  # over FP8 too, with FP8 queries
    assert shlex.split(SWEEP_TRITON)[-1] == shlex.split(RANK)[-1]


def test_the_page_s_engine_is_one_that_can_be_asked_about(tmp_path: Path):
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "mine.yaml").write_text(text)
    words = ["mode=report", "question=one_backend", "engine=mine", f"results.path={ROOT}/results/h200_main/specdec_long_ctx"]
    told = run("--config-dir", str(tmp_path), *words)

    assert told.returncode == 0 and "Mine 1.0.0  no advice: the default own has no time" in told.stdout
    assert "your own: --config-dir DIR (docs/adding_a_backend.md)" in run(*words).stderr


def test_every_error_of_the_page_is_one_that_the_code_raises():
    table = PAGE.partition("## Errors and what to do")[2]
    errors = re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE)
    source = "\n".join(path.read_text() for folder in ("kernels", "orchestrator") for path in (ROOT / folder).rglob("*.py"))

    assert len(errors) >= 10
    assert [error for error in errors if error.partition(" 'my_backend'")[0] not in source] == []
