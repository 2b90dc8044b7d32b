"""What a command says of itself with -v, what a shell completes, and the workflow for pull requests."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pandas as pd
import pytest
import yaml

from orchestrator import ROOT
from orchestrator.composing.compose import composed
from orchestrator.config.settings import load
from tests.helpers.command_line import Invoke, run

ONE = ("+sweep=smoke", "sweep.backend=[torch_sdpa]", "sweep.batch_size=[1]", "sweep.s_qo=[1]", "sweep.s_kv=[64]", "cluster=inline")


def test_with_v_each_step_is_a_line_with_the_time_and_no_row_knows_of_it(tmp_path: Path):
    done = run("-v", *ONE, "timing=quick", f"results.path={tmp_path}")
    lines = [line.partition(" ") for line in done.stderr.splitlines() if re.match(r"\d\d:\d\d:\d\d ", line)]
    (command,) = pd.read_parquet(tmp_path)["command"]

    assert done.returncode == 0, done.stderr
    assert [text for _, _, text in lines] == [
        "1 points, 1 of them to run, on inline",
        "inline: a worker starts",
        "inline: its worker is ready",
        "inline: takes batch 1, s_qo 1, s_kv 64: torch_sdpa",
        "1 rows stored, 1 in all",
    ]
    assert "-v" not in command.split()


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("+sweep=sm", "+sweep=smoke"), ("timing=", "timing=quick timing=thorough"), ("limits.po", "limits.point_seconds=")],
)
def test_a_shell_completes_keys_and_names_of_files(invoke: Invoke, monkeypatch: pytest.MonkeyPatch, typed: str, offered: str):
    line = f"attention-orchestrator {typed}"
    monkeypatch.setenv("COMP_LINE", line)
    monkeypatch.setenv("COMP_POINT", str(len(line)))
    done = invoke("--shell-completion", "query=bash")

    assert done.returncode == 0, done.stderr
    assert offered in " ".join(done.stdout.split())


def test_the_workflow_for_pull_requests_types_commands_that_there_are():
    workflow = yaml.safe_load((ROOT / "docs" / "github_actions.yaml").read_text())
    job = workflow["jobs"]["compare"]
    typed = "\n".join(step.get("run", "") for step in job["steps"]).replace("$SWEEP", job["env"]["SWEEP"])
    commands = re.findall(r"-m orchestrator (.*?)(?: > .*)?$", typed, re.MULTILINE)
    measured = [load(composed(shlex.split(command))) for command in commands[:2]]

    assert [settings.results.path for settings in measured] == ["../rows-before", "../rows-after"]
    assert measured[0].sweep == measured[1].sweep
    assert composed(shlex.split(commands[2]))["mode"] == "compare"
    assert "head.repo.full_name == github.repository" in job["if"]
