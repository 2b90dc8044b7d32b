"""A sweep over two versions of a library: rows of both from one run; what one version does costs its own points alone."""

from __future__ import annotations

import shlex
from pathlib import Path

import pandas as pd
import pytest

from orchestrator import ROOT
from orchestrator.cli import main
from orchestrator.process import start_time
from tests.helpers.command_line import Invoke
from tests.helpers.forked_environment import ForkedPopen
from tests.helpers.runs import SMALL

POINT_SECONDS = 3.0


class Ran:
    """What a command over both environments left."""

    def __init__(self, path: Path, words: list[str]) -> None:
        self.path, self.words = path, words

    @property
    def rows(self) -> pd.DataFrame:
        return pd.read_parquet(self.path).set_index(["backend", "env"]).sort_index()


@pytest.fixture(scope="module")
def ran(cache: Path, typed: list[str], forked: list[ForkedPopen], tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """One command with right, wrong, crashing and hanging kernels in v1 and v2; in v1 all are right."""
    path = tmp_path_factory.mktemp("two_versions") / "rows"
    words = [*SMALL, "cluster=inline", "adapters=[tests.backends.versioned]", *typed, "sweep.batch_size=[1]", "sweep.s_qo=[1]"]
    words += ["sweep.backend=[versioned,turns_wrong,crashes,hangs]", "sweep.env=[v1,v2]", f"limits.point_seconds={POINT_SECONDS}"]
    words += [f"results.path={path}"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        assert main(words) == 1
    return Ran(path, words)


def test_rows_of_both_versions_say_what_they_ran_with(ran: Ran):
    right = ran.rows.loc["versioned"]

    assert right["status"].to_dict() == {"v1": "ok", "v2": "ok"}
    assert right["resolved_backend"].to_dict() == {"v1": "kernel_of_1.0", "v2": "kernel_of_2.0"}
    assert right["libraries"].to_dict() == {"v1": "ao-fakekernel 1.0", "v2": "ao-fakekernel 2.0"}
    assert right["group_id"].nunique() == 1 and right["point_id"].nunique() == 2
    assert right["check"].to_list() == ["passed", "passed"] and (right["num_samples"] >= 10).all()


@pytest.mark.parametrize(
    ("backend", "status", "words"),
    [
        ("turns_wrong", "mismatch", "off by more than"),
        ("crashes", "failed", "the process of its environment died of SIGSEGV"),
        ("hangs", "timeout", f"no answer after {POINT_SECONDS * 0.9:g} s; the process of its environment was killed"),
    ],
)
def test_what_a_version_breaks_costs_its_own_point_alone(ran: Ran, backend: str, status: str, words: str):
    rows = ran.rows.loc[backend]

    assert rows["status"].to_dict() == {"v1": "ok", "v2": status}
    assert words in rows["reason"]["v2"]
    assert rows["median_us"].notna().to_dict() == {"v1": True, "v2": False}


def test_no_process_is_left(ran: Ran, forked: list[ForkedPopen]):
    assert len(forked) >= 4  # v1; v2, and twice more after it was lost
    assert [one.pid for one in forked if start_time(one.pid)] == []


def test_the_same_command_runs_nothing_again_and_a_replay_one_point_alone(ran: Ran, forked: list[ForkedPopen], invoke: Invoke):
    before, started = ran.rows, len(forked)
    others = [word for word in ran.words if not word.startswith("sweep.backend=")]
    assert invoke(*others, "sweep.backend=[versioned]").returncode == 0
    assert len(forked) == started and ran.rows["run_id"].equals(before["run_id"])

    command = before["command"]["versioned", "v2"]
    assert invoke(*shlex.split(command)[3:], f"results.path={ran.path}", f"into={ran.path}").returncode == 0
    assert len(forked) == started + 1
    changed = ran.rows["run_id"] != before["run_id"]
    assert list(changed[changed].index) == [("versioned", "v2")]


def test_versions_can_be_compared(ran: Ran, invoke: Invoke):
    said = invoke("mode=compare", f"results.path={ran.path}", "baseline=env:v1", "candidate=env:v2", "format=markdown")

    assert said.returncode == 1  # three kernels got worse
    assert "| env | v1 | v2 |" in said.stdout and "env:v1 → env:v2" in said.stdout
    assert "| failing | 3 |" in said.stdout
