"""What a command says of itself with -v, what a shell completes, and the workflow for pull requests."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml

from orchestrator import ROOT
from orchestrator.commands import watch
from orchestrator.composing.compose import composed
from orchestrator.config.settings import load
from tests.helpers.command_line import Invoke, environment, run

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


def test_through_ray_the_report_is_imported_while_the_worker_loads_torch(tmp_path: Path):
    words = ["-v", *ONE[:-1], "cluster=local", "timing=quick", f"results.path={tmp_path}"]
    command = [sys.executable, "-X", "importtime", "-m", "orchestrator", *words]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=True, timeout=200)
    steps = re.findall(
        r"(?:^import time:.* |\d )(?:\S*: )?(ray|pandas|torch|its worker is ready|1 rows stored)\b(?![.])", done.stderr, re.M
    )

    assert steps == ["ray", "pandas", "its worker is ready", "1 rows stored"]


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("+sweep=sm", ["+sweep=smoke"]),
        ("model=deepseek_v3_2", ["model=deepseek_v3_2"]),
        ("limits.po", ["limits.point_seconds="]),
        ("mode=re", ["mode=replay", "mode=report"]),
        ("mode=report question=o", ["question=one_backend", "question=odd"]),
        ("mode=document format=", ["format=terminal", "format=markdown", "format=html"]),
        ("timing.l2=", ["timing.l2=clean", "timing.l2=dirty", "timing.l2=warm"]),
        ("mode=report full=t", ["full=true"]),
        ("results.path=h1", ["results.path=h100_main/"]),
        ("baseline=h100_main/", ["baseline=h100_main/run", "baseline=h100_main/specdec"]),
        ("mode=report question=nothing", []),
        ("results.path=/no/such/folder/", []),
    ],
)
def test_a_shell_completes_keys_files_and_values(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, typed: str, offered: list[str]
):
    (tmp_path / "h100_main" / "run").mkdir(parents=True)
    for name in ("specdec.parquet", "run/rows.parquet", "notes.md"):
        (tmp_path / "h100_main" / name).touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COMP_LINE", f"attention-orchestrator {typed}")
    done = invoke("--shell-completion", "query=bash")

    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == offered


def test_bash_completes_with_what_the_page_says_to_put_into_its_file(tmp_path: Path):
    (tmp_path / "attention-orchestrator").write_text(f'#!/bin/sh\nexec {sys.executable} -m orchestrator "$@"\n')
    (tmp_path / "attention-orchestrator").chmod(0o755)
    (install,) = re.findall(r"^eval .*shell-completion.*$", (ROOT / "docs" / "commands.md").read_text(), re.MULTILINE)
    asked = "COMP_LINE='attention-orchestrator mode=report question=one' COMP_CWORD=2; hydra_bash_completion; echo ${COMPREPLY[@]}"
    path = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", f"{install}\n{asked}"], env=path, cwd=ROOT, capture_output=True, text=True, check=True)

    assert done.stdout == "question=one_backend\n", done.stderr


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


def test_the_workflow_of_each_night_types_a_watch_whose_reports_it_finds():
    workflow = yaml.safe_load((ROOT / "docs" / "github_watch.yaml").read_text())
    job = workflow["jobs"]["watch"]
    typed = next(step["run"] for step in job["steps"] if "orchestrator" in step.get("run", "")).partition("#")[0]
    words = shlex.split(typed.replace("$WATCH", job["env"]["WATCH"]).replace("$HISTORY", job["env"]["HISTORY"]))
    settings = load(composed(words[words.index("orchestrator") + 1 :]))

    assert workflow[True]["schedule"]  # YAML 1.1 reads `on` as true
    assert settings.results.path == f"{job['env']['HISTORY']}_watch"
    assert settings.watch.site == "public" and settings.watch.since == ("flashinfer:0.7.2.post1",)
    assert any(f"{watch.REPORT} -newer" in step.get("run", "") for step in job["steps"])
