"""Which points the dataset already answers, for each way to ask."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from orchestrator.config.settings import Settings
from orchestrator.planning.cost import Cost
from orchestrator.planning.expand import expand
from orchestrator.planning.plan import Decision, DecisionKind
from orchestrator.planning.replay import points_of
from orchestrator.planning.resume import Resume
from orchestrator.point import Point
from orchestrator.storage.row import Row, describe, finish, library_column, to_table

COMMON: Row = {"cluster": "local", "torch_version": "2.13", "flashinfer_version": "0.7.2", "orchestrator_version": "0.1.0"}


def decided(point: Point, kind: DecisionKind = "run") -> Decision:
    return Decision(point, kind, "", ("cpu",), Cost(0, 0, 0), ())


@pytest.mark.parametrize(
    ("stored", "kind", "kept_by"),
    [
        ("ok", "run", {"changed", "failed", "none"}),
        ("unsupported", "unsupported", {"changed", "failed", "none"}),
        ("unsupported", "run", {"failed", "none"}),
        ("skipped", "skipped", {"changed", "failed", "none"}),
        ("skipped", "run", {"failed", "none"}),
        ("failed", "run", {"none"}),
        ("mismatch", "run", {"none"}),
        ("timeout", "run", {"none"}),
        ("oom", "run", {"none"}),
        (None, "run", set()),
    ],
)
@pytest.mark.parametrize("rerun", ["changed", "failed", "none", "all"])
def test_what_is_kept(settings: Callable[..., Settings], stored: str, kind: DecisionKind, kept_by: set[str], rerun: str):
    given = settings("+sweep=smoke", f"rerun={rerun}")
    point = expand(given)[0]
    rows = [finish({**describe(point), **COMMON, **library_column(point, {}), "device_name": "cpu"}, stored)] if stored else []

    assert Resume(to_table(rows), given, COMMON).is_answered(decided(point, kind)) == (rerun in kept_by)


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ({"libraries": "torch 2.9"}, {"changed": False, "failed": True, "none": True}),
        ({"flashinfer_version": "0.8"}, {"changed": True, "failed": True, "none": True}),  # the backend is not from it
        ({"orchestrator_version": "0.2.0"}, {"changed": False, "failed": True, "none": True}),
        ({"cluster": "lab"}, {"changed": False, "failed": False, "none": False}),
        ({"device_name": "NVIDIA H100"}, {"changed": False, "failed": False, "none": False}),
        ({"ray_version": "3"}, {"changed": True, "failed": True, "none": True}),
    ],
)
@pytest.mark.parametrize("rerun", ["changed", "failed", "none"])
def test_rows_of_another_version_or_place(settings: Callable[..., Settings], change: Row, kept: dict[str, bool], rerun: str):
    given = settings("+sweep=smoke", f"rerun={rerun}")
    point = expand(given)[0]
    row = finish({**describe(point), **COMMON, **library_column(point, {}), "device_name": "cpu", **change}, "ok")

    assert Resume(to_table([row]), given, COMMON).is_answered(decided(point)) == kept[rerun]


def test_replay_runs_its_point_again_whatever_is_stored(settings: Callable[..., Settings]):
    point = expand(settings("+sweep=smoke"))[0]
    given = settings("+sweep=smoke", "mode=replay", f"point={point.point_id}")
    row = finish({**describe(point), **COMMON, **library_column(point, {}), "device_name": "cpu"}, "ok")

    assert not Resume(to_table([row]), given, COMMON).is_answered(decided(point))


def test_counts_speak_of_the_current_row_of_each_point(settings: Callable[..., Settings]):
    given = settings("+sweep=smoke")
    first, second = expand(given)[:2]
    at = {"device_name": "cpu"}
    rows = [
        finish({**describe(first), **COMMON, **library_column(first, {}), **at}, "ok"),
        finish({**describe(first), **COMMON, **at, "libraries": "torch 2.9"}, "failed"),
        finish({**describe(second), **COMMON, **at, "libraries": "torch 2.9"}, "failed"),
    ]

    assert Resume(to_table(rows), given, COMMON).counts([decided(first), decided(second)]) == {"ok": 1, "failed": 1}


@pytest.mark.parametrize("how", [{"stop_reason": "decided"}, {"stop_reason": "uncontested"}, {"measured_as": "fa2_tc"}, {}])
def test_a_row_of_less_than_full_precision_answers_a_request_for_no_more(settings: Callable[..., Settings], how: Row):
    answered = {}
    for precision in ("decide", "full"):
        given = settings("+sweep=smoke", f"timing.precision={precision}")
        point = expand(given)[0]
        row = finish({**describe(point), **COMMON, **library_column(point, {}), "device_name": "cpu", **how}, "ok")
        resume = Resume(to_table([row]), given, COMMON)
        answered[precision] = resume.is_answered(decided(point)), resume.counts([decided(point)])["ok"]

    assert answered == {"decide": (True, 1), "full": (not how, 1)}


def test_of_an_aa_pair_both_rows_run_again_so_that_they_are_interleaved(settings: Callable[..., Settings]):
    given = settings("+sweep=smoke", "mode=noise", "sweep.backend=[torch_sdpa]", "sweep.s_qo=[1]", "sweep.s_kv=[64]")
    pairs = points_of(given)
    rows = [
        finish({**describe(point), **COMMON, **library_column(point, {}), "device_name": "cpu"}, status)
        for point, status in zip(pairs, ("ok", "timeout", "ok", "ok"), strict=True)
    ]
    left = Resume(to_table(rows), given, COMMON).left_of([decided(point) for point in pairs])

    assert [(d.point.problem.batch_size, d.point.twin) for d in left] == [(1, 0), (1, 1)]
