"""A command whose output cannot be written goes on to its end, and says so in one line and by its exit code."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from orchestrator.cli import UNWRITTEN, main
from orchestrator.output import guarded
from orchestrator.storage import parquet

STUDY = "results.path=results/h200_engines/vllm_triton"
SMALL = ["+sweep=smoke", "cluster=inline", "sweep.s_kv=[256]", "sweep.s_qo=[1]", "sweep.backend=[torch_sdpa]"]


@pytest.mark.parametrize("typed", [["--version"], ["--help"], ["mode=report", STUDY], ["mode=report", STUDY, "format=csv"]])
@pytest.mark.parametrize(("where", "why"), [("/dev/full", "No space left on device"), (None, "it is closed")])
def test_an_output_that_cannot_be_written_is_said_in_one_line(
    typed: list[str], where: str | None, why: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    code, said = _code_and_stderr(typed, where, monkeypatch, capfd)

    assert code == UNWRITTEN
    assert said.startswith(f"error: the output could not be written: {why}; what was measured, or written to files, is kept;")
    assert said.count("\n") == 1


def test_what_was_measured_is_stored_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    code, said = _code_and_stderr([*SMALL, f"results.path={tmp_path}"], "/dev/full", monkeypatch, capfd)

    assert code == UNWRITTEN and "the output could not be written" in said
    assert {row["status"] for row in parquet.read(tmp_path).to_pylist()} == {"ok"}


def test_wrong_input_is_said_although_the_output_is_closed(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    code, said = _code_and_stderr(["mode=reprot", "+sweep=smoke"], None, monkeypatch, capfd)

    assert (code, said.partition(":")[0]) == (2, "error")


def test_a_closed_stderr_is_silent(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "stderr", None)
    with guarded():
        sys.stderr.write("nobody reads this")


def _code_and_stderr(
    typed: list[str], where: str | None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> tuple[int, str]:
    """As the process ends that has this file, or nothing, as its output."""
    stdout = Path(where).open("w") if where else None
    monkeypatch.setattr(sys, "stdout", stdout)
    code = main(typed)
    monkeypatch.undo()
    if stdout:
        stdout.close()
    return code, capfd.readouterr().err
