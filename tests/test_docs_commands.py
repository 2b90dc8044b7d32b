"""The commands of README.md and docs/ that need no GPU, no network and no file of the reader's: they run as they are printed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from orchestrator import ROOT
from tests.helpers.command_line import Invoke

PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
# A command on a line of its own, which may be followed by an empty line and its output, also indented; or within a sentence.
PRINTED = re.compile(r"(?m)^ *(python -m orchestrator [^\n]*)$(?:\n\n((?:    [^\n]+\n)+))?|`(python -m orchestrator [^`\n]*)`")
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
    "results/before",
    "results.path=results/specdec_long_ctx",
    "published",
)
CONTINUED = re.compile(r" *\\\n *")  # a command of several lines
NOT_HERE_MODES = (
    "mode=bisect",
    "mode=calibrate",
    "mode=compile",
    "mode=conformance",
    "mode=dashboard",
    "mode=replay",  # which measures, on the GPU of the row
    "mode=site",
    "mode=support",
    "mode=watch",
)
NOT_HERE_KEYS = ("rerun=suspects", "import=", "cluster=", "--help")


def commands() -> dict[tuple[str, ...], str]:
    """The words after `python -m orchestrator`, once each, in the order of the pages, with the output that a page shows below."""
    found: dict[tuple[str, ...], str] = {}
    for page in PAGES:
        for block, output, inline in PRINTED.findall(CONTINUED.sub(" ", page.read_text())):
            text = (block or inline).split(" #")[0].partition(" > ")[0]
            if not any(word in text for word in (*NOT_HERE, *NOT_HERE_MODES, *NOT_HERE_KEYS)):
                words = tuple(shlex.split(text)[3:])
                found[words] = output or found.get(words, "")
    return found


def reads(words: tuple[str, ...]) -> bool:
    """Whether it reads a committed dataset, which is named, or found by its model."""
    found = "mode=report" in words and any(word.startswith("model=") for word in words)
    return found or any(word.startswith(("results.path=results/h", "baseline=results/h")) for word in words)


COMMANDS = commands()
READING = [words for words in COMMANDS if reads(words)]
RUNNING = [words for words in COMMANDS if not reads(words) and any(word.startswith("+sweep=") for word in words)]


def test_the_docs_have_commands_of_both_kinds():
    assert len(READING) > 10
    assert len(RUNNING) > 5
    assert len([words for words in READING if COMMANDS[words]]) >= 3


@pytest.mark.parametrize("words", READING, ids=" ".join)
def test_a_command_that_reads_a_committed_dataset_answers(words: tuple[str, ...], invoke: Invoke, tmp_path: Path):
    """And says what the page shows, line by line."""
    here = tuple(re.sub(r"^(export=\w+:)(\w+)$", rf"\g<1>{tmp_path}/\2", word) for word in words)  # never into the checkout
    done = invoke(*here)
    printed = CONTINUED.sub(" ", done.stdout + done.stderr).replace(f"{tmp_path}/", "").splitlines()
    shown = [line.strip() for line in COMMANDS[words].splitlines() if "python -m orchestrator" not in line]

    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert [line for line in shown if line not in map(str.strip, printed)] == []


@pytest.mark.parametrize("words", RUNNING, ids=" ".join)
def test_a_command_that_runs_a_sweep_can_be_planned(words: tuple[str, ...], invoke: Invoke):
    done = invoke(*(word for word in words if not word.startswith(("mode=", "question=", "format="))), "mode=plan", "device=h200")

    assert done.returncode == 0, done.stderr


TYPED = [
    tuple(shlex.split(words.replace("DIR", "results/h200_main/specdec_long_ctx")))
    for words in re.findall(
        r"(?m)(?:`|^attention-orchestrator )((?:mode=(?:report|compare)|export=vllm) [^`\n]*)", (ROOT / "README.md").read_text()
    )
    if "NAME" not in words and "PATH" not in words
]


@pytest.mark.parametrize("words", TYPED, ids=" ".join)
def test_what_the_readme_says_to_type_answers(words: tuple[str, ...], invoke: Invoke):
    done = invoke(*words)

    assert len(TYPED) >= 6
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert "mode=compare" not in words or "does not fit" not in done.stdout  # two GPUs by a server that people run


def test_the_times_of_a_smaller_main_sweep_are_those_of_a_plan(invoke: Invoke):
    table = (ROOT / "docs/sweeps.md").read_text().partition("| estimated time |")[2].partition("\n\n")[0]
    shown = dict(re.findall(r"(?m)^\| (?:`(.*?)`.*?|all points) \| (.*) \|$", table))

    assert len(shown) == 6
    for words, lasts in shown.items():
        printed = " ".join(invoke("+sweep=specdec_long_ctx", "mode=plan", "device=h200", *shlex.split(words)).stdout.split())
        assert f"estimated time, without compilation: {lasts}, of which" in printed
