"""The commands of README.md and docs/ that need no GPU, no network and no file of the reader's: they run as they are printed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from orchestrator import ROOT
from tests.helpers.command_line import Invoke

PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
PRINTED = re.compile(r"(?m)^ *(python -m orchestrator [^\n]*)$|`(python -m orchestrator [^`\n]*)`")
# Words of a command that needs something which is not here, or that another test types (the dashboard, the site, a plugin).
NOT_HERE = (
    "DIR",
    "NAME",
    "HOST",
    "FILE",
    "...",
    "trace.jsonl",
    "my_model",
    "my_backend",
    "my.module",
    "mine",
    "sweep.env",
    "modules=",
)
NOT_HERE_MODES = (
    "mode=bisect",
    "mode=calibrate",
    "mode=compare",
    "mode=compile",
    "mode=conformance",
    "mode=dashboard",
    "mode=replay",  # which measures, on the GPU of the row
    "mode=site",
    "mode=support",
)
NOT_HERE_KEYS = ("rerun=suspects", "import=", "cluster=", "--help")


def commands() -> list[tuple[str, ...]]:
    """The words after `python -m orchestrator`, once each, in the order of the pages."""
    found = {}
    for page in PAGES:
        for block, inline in PRINTED.findall(page.read_text().replace("\\\n", " ")):
            text = (block or inline).split(" #")[0].partition(" > ")[0]
            if not any(word in text for word in (*NOT_HERE, *NOT_HERE_MODES, *NOT_HERE_KEYS)):
                found[tuple(shlex.split(text)[3:])] = page.name
    return list(found)


def reads(words: tuple[str, ...]) -> bool:
    return any(word.startswith("results.path=results/h200_") for word in words)


READING = [words for words in commands() if reads(words)]
RUNNING = [words for words in commands() if not reads(words) and any(word.startswith("+sweep=") for word in words)]


def test_the_docs_have_commands_of_both_kinds():
    assert len(READING) > 20
    assert len(RUNNING) > 5


@pytest.mark.parametrize("words", READING, ids=" ".join)
def test_a_command_that_reads_a_committed_dataset_answers(words: tuple[str, ...], invoke: Invoke, tmp_path: Path):
    here = tuple(re.sub(r"^(export=\w+:)(\w+)$", rf"\g<1>{tmp_path}/\2", word) for word in words)  # never into the checkout
    done = invoke(*here)

    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("words", RUNNING, ids=" ".join)
def test_a_command_that_runs_a_sweep_can_be_planned(words: tuple[str, ...], invoke: Invoke):
    done = invoke(*(word for word in words if not word.startswith(("mode=", "question=", "format="))), "mode=plan", "device=h200")

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "command",
    [
        "export=aiconfigurator:out results.path=results/h200_main/specdec_long_ctx",
        "export=flashinfer_trace:out results.path=results/h100_prefill/ragged_prefill",
    ],
)
def test_the_output_of_an_export_is_the_one_that_is_shown(command: str, invoke: Invoke, tmp_path: Path):
    shown = (ROOT / "docs" / "formats.md").read_text().partition(f"python -m orchestrator {command}\n\n")[2].partition("\n\n")[0]
    done = invoke(*command.replace(":out", f":{tmp_path}/out").split())
    printed = (done.stdout + done.stderr).replace(f"{tmp_path}/", "").splitlines()

    assert [line.strip() for line in shown.splitlines()] == printed
