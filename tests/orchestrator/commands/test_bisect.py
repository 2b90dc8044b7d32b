"""mode=bisect as a command: its keys, and the runs that it starts."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from orchestrator import machines
from orchestrator.commands import bisect
from orchestrator.commands.invocation import Invocation
from orchestrator.config.settings import Settings, load
from orchestrator.errors import CannotMeasure, UserError
from orchestrator.planning.expand import chosen, expand
from orchestrator.planning.replay import points_of
from orchestrator.storage.columns import COLUMNS
from tests.helpers.command_line import composed

TYPED = (
    "+sweep=smoke", "mode=bisect", "good=flashinfer-python:0.5.3", "bad=flashinfer-python:0.6.3", "where={backend: fa2_tc}",
    "sweep.batch_size=[1]", "bisect.rounds=2",
)  # fmt: skip


class Silent:
    def print(self, *_args: object, **_keys: object) -> None:
        """Prints nothing."""


def steps(*more: str) -> bisect.ReleaseRuns:
    """A search as typed; of keys that `more` has too, those of `more` count."""
    keys = {one.partition("=")[0] for one in more}
    typed = (*(one for one in TYPED if one.partition("=")[0] not in keys), *more)
    settings = load(composed(*typed))
    points = chosen(expand(settings), settings)
    return bisect.ReleaseRuns(Invocation(settings, typed, Silent()), "flashinfer-python", points, settings.bisect)  # type: ignore


def test_two_releases_are_needed_and_a_run_takes_none(settings: Callable[..., Settings]):
    with pytest.raises(UserError, match=r"mode=bisect needs two releases; type good=flashinfer:0\.5\.3"):
        settings("+sweep=smoke", "mode=bisect", "good=flashinfer-python:0.5.3")
    with pytest.raises(UserError, match=r"bad=0\.6: allowed: a library with its version"):  # YAML reads a number
        bisect.releases(settings("+sweep=smoke", "mode=bisect", "good=flashinfer-python:0.5.3", "bad=0.6"))


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        (
            ["good=flashinfer:0.5.3", "where={backend: fa2_tc}"],
            r"no point of flashinfer-python can run on this machine.*\(it has no GPU\)",
        ),
        (["good=flashinfer-python:0.5.3", "where={backend: torch_sdpa}"], "no backend of sweep smoke is of flashinfer-python"),
        (["good=vllm:0.25.1"], r"is of vllm; .*; of an engine: \+sweep=servers 'sweep.env=\[vllm:0.25.1,NEWER\]', then mode="),
    ],
)
def test_a_machine_that_can_run_no_point_of_the_library_is_told_at_once(
    typed: list[str], words: str, settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(machines, "describe", lambda: machines.Machine("here", (machines.cpu(),), {}))
    given = settings("+sweep=smoke", "mode=bisect", "bad=flashinfer-python:0.6.3", *typed)

    with pytest.raises(UserError, match=words):
        bisect.execute(Invocation(given, (), Silent()))  # type: ignore[arg-type]


def test_its_rows_are_beside_those_of_the_sweep(settings: Callable[..., Settings]):
    assert settings(*TYPED).results.path == "results/smoke_bisect"


def test_a_step_is_the_command_as_it_was_typed_over_two_environments():
    _, _, _, *typed = shlex.split(steps().command_of(["0.5.3", "0.6.3"]))

    assert typed == [
        "+sweep=smoke",
        "where={backend: fa2_tc}",
        "sweep.batch_size=[1]",
        "sweep.env=[flashinfer-python:0.5.3,flashinfer-python:0.6.3]",
        "results.path=results/smoke_bisect",
    ]


@pytest.mark.parametrize(("sweep", "backend"), [("smoke", "fa2_tc"), ("auto_routing", "auto"), ("auto_guard", "auto")])
def test_a_step_runs_the_points_that_where_asks_for_and_no_others(sweep: str, backend: str):
    """The grids that a sweep includes too: those of `auto_routing` have other routines."""
    where = f"where={{backend: {backend}, routine: paged_decode, s_qo: 1}}"
    wanted = steps(f"+sweep={sweep}", where)
    _, _, _, *typed = shlex.split(wanted.command_of(["0.5.3", "0.6.3"]))
    run = points_of(load(composed(*typed)))

    assert {(point.backend, point.problem.routine, point.problem.s_qo) for point in run} == {(backend, "paged_decode", 1)}
    assert {point.env for point in run} == {"flashinfer-python:0.5.3", "flashinfer-python:0.6.3"}
    assert len(run) == 2 * wanted.count


@pytest.mark.parametrize(
    ("where", "words"),
    [("{backend: none}", "no point of sweep smoke has these values"), ("{batch: 1}", r"where: unknown 'batch'; did you mean")],
)
def test_where_names_values_that_points_have(where: str, words: str):
    with pytest.raises(UserError, match=words):
        steps(f"where={where}")


def test_with_a_folder_of_wheels_each_environment_takes_its_release_from_there(tmp_path: Path):
    command = steps(f"bisect.wheels={tmp_path}").command_of(["0.5.3", "0.6.3"])

    assert "+env.flashinfer_python_0_6_3={requirements:[" in command
    assert "flashinfer-python==0.6.3" in command
    assert str(tmp_path) in command


def test_the_environments_of_a_search_share_what_it_says():
    command = steps("bisect.shares=all").command_of(["0.5.3", "0.6.3"])

    assert "shares:all" in command and "wheels" not in command
    with pytest.raises(UserError, match=r"bisect\.shares='none'"):
        steps("bisect.shares=none")


@pytest.mark.parametrize("value", ["it's", "a\\b", "a-b:1.0", "0.7", ["a", {"b": ["1", "c d"]}], {"kv_dtype": ["fp8_e4m3"]}])
def test_values_are_written_as_hydra_reads_them(value: Any):
    from hydra.core.override_parser.overrides_parser import OverridesParser

    assert OverridesParser.create().parse_override(f"key={bisect.hydra_text(value)}").value() == value


def run_that(rows: list[dict[str, object]], monkeypatch: pytest.MonkeyPatch, code: int = 0, stderr: str = "") -> list[list[str]]:
    """Stands in the place of the process of a step and of its dataset."""
    commands: list[list[str]] = []

    def run(command: list[str], **_keys: object) -> SimpleNamespace:
        commands.append(command)
        return SimpleNamespace(returncode=code, stdout="", stderr=stderr)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setenv("PIP_INDEX_URL", "http://index.example")  # else pip is asked
    monkeypatch.setattr(
        bisect.ReleaseRuns, "rows", lambda _self, before=None: pd.DataFrame([{"run_id": "before"}] if before is None else rows)
    )
    return commands


def test_a_release_without_rows_cannot_be_measured_and_the_run_says_why(monkeypatch: pytest.MonkeyPatch):
    only_good = [{"env": "flashinfer-python:0.5.3", "run_id": "now", "status": "ok"}]
    for rows in ([], only_good):
        commands = run_that(rows, monkeypatch, 2, "sweep.env='flashinfer-python:0.6.3': no wheel\n\n")
        with pytest.raises(CannotMeasure, match="no wheel"):
            steps().measure("0.5.3", "0.6.3")
        assert commands[0][-2:] == ["rerun=all", "results.path=results/smoke_bisect"]


@pytest.mark.parametrize("words", ["the run ended without a word", "ImportError: libkernel.so"])
def test_if_no_point_of_the_good_release_ran_the_input_is_wrong(words: str, monkeypatch: pytest.MonkeyPatch):
    rows = [{"env": f"flashinfer-python:{of}", "run_id": "now", "status": "failed", "reason": words} for of in ("0.5.3", "0.6.3")]
    run_that(rows if "libkernel" in words else rows[1:], monkeypatch)
    with pytest.raises(UserError, match=rf"good=flashinfer-python:0\.5\.3: none of its points ran; {words}"):
        steps().measure("0.5.3", "0.6.3")


def test_ctrl_c_in_a_step_ends_the_search(monkeypatch: pytest.MonkeyPatch):
    run_that([], monkeypatch, 130)
    with pytest.raises(KeyboardInterrupt):
        steps().measure("0.5.3", "0.6.3")


def test_the_place_of_a_report_is_made_of_columns_that_rows_have():
    assert bisect.PLACE.keys() <= COLUMNS.keys()
