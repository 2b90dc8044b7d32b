"""`--config-dir` in the commands that are printed and stored: what is typed from them works."""

from __future__ import annotations

import shlex
from pathlib import Path

import pandas as pd
import pytest

from orchestrator.composing.compose import composed
from orchestrator.errors import UserError
from tests.helpers.command_line import Invoke

SWEEP = """
defaults: [smoke, _self_]
name: of_mine
backend: [torch_sdpa]
batch_size: [1]
s_kv: [64]
s_qo: [1]
"""


def test_a_sweep_of_one_s_own_is_asked_and_replayed_with_the_commands_as_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, invoke: Invoke
):
    (tmp_path / "mine" / "sweep").mkdir(parents=True)
    (tmp_path / "mine" / "sweep" / "of_mine.yaml").write_text(SWEEP)
    monkeypatch.chdir(tmp_path)
    ran = invoke("--config-dir", "mine", "+sweep=of_mine", "cluster=inline", "timing=quick", "results.path=rows")
    assert ran.returncode == 0, ran.stderr
    row = pd.read_parquet("rows").iloc[0]

    printed = [line.split()[3:] for line in ran.stdout.splitlines() if line.startswith("  python -m")]
    assert all(words[0] == "--config-dir=mine" for words in printed)
    (report,) = (words for words in printed if "mode=report" in words)
    assert "| ok | 1 |" in invoke(*report).stdout
    of_row, of_readme = (
        shlex.split(row["command"])[3:],
        ["--config-dir", "mine", "mode=replay", f"point={row['point_id']}", "results.path=rows"],
    )
    for again in ([*of_row, "into=again"], of_readme):
        replayed = invoke(*again)
        assert replayed.returncode == 0 and "its new row is in" in replayed.stdout, replayed.stderr
        assert replayed.stdout.startswith("runs: python -m orchestrator ") and "--config-dir=mine" in replayed.stdout

    (tmp_path / "mine").rename(tmp_path / "moved")
    lost = invoke("mode=replay", f"point={row['point_id']}", "results.path=rows")
    assert (lost.returncode, lost.stdout) == (2, "")
    assert (
        "its command has --config-dir=mine, which runs or reads what the dataset names; if you trust it, type that" in lost.stderr
    )
    assert invoke("--config-dir", "moved", "mode=replay", f"point={row['point_id']}", "results.path=rows").returncode == 0


def test_a_folder_of_one_s_own_may_have_any_name_and_must_be_there(tmp_path: Path):
    folder = tmp_path / 'my "sweeps"'
    (folder / "sweep").mkdir(parents=True)
    (folder / "sweep" / "of_mine.yaml").write_text(SWEEP)

    assert composed(["+sweep=of_mine", "timing=quick"], str(folder))["sweep"]["s_kv"] == [64]
    with pytest.raises(UserError, match="--config-dir: there is no folder"):
        composed(["+sweep=smoke"], "elsewhere")


def test_a_name_that_is_not_there_says_where_a_file_of_one_s_own_would_be(invoke: Invoke):
    done = invoke("+sweep=of_mine", "mode=plan")

    assert done.returncode == 2
    assert "a file of your own is found with --config-dir DIR, as DIR/sweep/of_mine.yaml" in done.stderr
