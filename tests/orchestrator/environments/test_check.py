"""The worker's own check judges what runs in an environment: backends that cheat there are found out as they are here."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace

import pytest

from kernels.adapter import Adapter
from kernels.environment.remote import RemoteTimer
from kernels.problem import Problem
from kernels.timing.config import Timing
from kernels.timing.timers import Block, Timer, WallClock
from orchestrator.config.environment import Environment
from orchestrator.machines import cpu
from orchestrator.point import Point
from orchestrator.storage.row import Row
from orchestrator.worker import output_check
from orchestrator.worker.messages import Task, WorkerConfig
from orchestrator.worker.point_runner import PointRunner
from tests.backends.cheating import SHAPES, STALE
from tests.backends.indexing import PLACES, SMALL, name_of
from tests.helpers.blamed import HONEST, PAIR, assert_each_is_named_and_nobody_else_suffers, rows_of
from tests.helpers.forked_environment import ForkedPopen

CHEATS = {  # one for each way in which the check finds out, and its words
    "lazy": "off by more than",
    "remembers_queries": "off by more than",
    "overruns": "it wrote outside its output",
    "writes_unused": "it wrote to slots of the cache that hold no token",
    "corrupts_later": "it wrote to the inputs, which it may only read",
}
TWICE = Environment(name="twice", python=sys.executable)  # the same libraries in another process
CONFIG = WorkerConfig(
    Timing(min_samples=20, max_samples=20), True, ("tests.backends.cheating",), {"run_id": "r"}, environments=(TWICE,)
)


def test_cheats_in_an_environment_are_found_out(
    forked: list[ForkedPopen], problem: Callable[..., Problem], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(output_check, "LAUNCH_SECONDS", 60.0)
    monkeypatch.setattr(output_check, "LAUNCHES", 24)  # each is three messages
    blocks: list[tuple[str, int]] = []
    for timer in (RemoteTimer, WallClock):
        monkeypatch.setattr(timer, "block", _noting(timer.block, blocks))
    worker = PointRunner.create(CONFIG, cpu())
    points = [
        Point(problem(), name, "how", env=env) for name in ("honest", *CHEATS) for env in ("twice", None) if env or name == "honest"
    ]
    checked = [row for point in points for row in worker.prepare(Task(point, "replay")).rows]
    rows: dict[tuple[str, str | None], Row] = {(row["backend"], row["env"]): row for row in (*checked, *worker.measure().rows)}
    worker.environments.close()

    assert {name: rows[name, "twice"]["status"] for name in CHEATS} == dict.fromkeys(CHEATS, "mismatch")
    assert all(words in rows[name, "twice"]["reason"] for name, words in CHEATS.items())
    assert [rows["honest", env]["status"] for env in ("twice", None)] == ["ok", "ok"]
    each = len(set(blocks))  # honest on both sides, and cheats that were right at first
    assert {name for name, _ in blocks} == {"RemoteTimer", "WallClock"}
    assert set(blocks[:each]) == set(blocks[each : 2 * each]) == set(blocks)  # each takes one block in a round
    here, there = rows["honest", None], rows["honest", "twice"]
    assert there["launches_checked"] == output_check.LAUNCHES
    assert [there[name] for name in ("rel_err", "max_abs_err", "weight_over_limit")] == [
        here[name] for name in ("rel_err", "max_abs_err", "weight_over_limit")
    ]


@pytest.mark.parametrize("cheat", [one for one in STALE if one.name in ("states_kept", "slots_kept", "indices_kept")])
def test_what_another_routine_keeps_in_an_environment_is_found(cheat: Adapter, forked: list[ForkedPopen]):
    problem = Problem.model_validate({"routine": cheat.routine, "batch_size": 2, **SHAPES[cheat.routine]})
    worker = PointRunner.create(CONFIG, cpu())
    points = [Point(problem, name, "how", env="twice") for name in (cheat.name, cheat.of)]
    checked = [row for point in points for row in worker.prepare(Task(point, "replay")).rows]
    rows = {row["backend"]: row for row in (*checked, *worker.measure().rows)}
    worker.environments.close()

    assert (rows[cheat.name]["status"], rows[cheat.of]["status"]) == ("mismatch", "ok")
    assert output_check.AFTER_CHANGE in rows[cheat.name]["reason"]


def _noting(block: Callable[..., Block], into: list[tuple[str, int]]) -> Callable[..., Block]:
    def noted(self: Timer, *args: object) -> Block:
        into.append((type(self).__name__, id(self)))
        return block(self, *args)

    return noted


def test_inputs_that_differ_are_not_measured(
    forked: list[ForkedPopen], problem: Callable[..., Problem], monkeypatch: pytest.MonkeyPatch
):
    """As under a torch that draws other numbers from the same seed."""
    worker = PointRunner.create(replace(CONFIG, adapters=()), cpu())
    asked = ForkedPopen.started[-1]
    there = worker.environments._processes["twice"]
    ask = there.ask

    def other_seed(do: str, *args: object, **keys: object) -> object:
        if do == "draw":
            keys["problem"] = {**keys["problem"], "seed": 5}  # type: ignore[dict-item]
        return ask(do, *args, **keys)  # type: ignore[arg-type]

    monkeypatch.setattr(there, "ask", other_seed)
    (row,) = worker.prepare(Task(Point(problem(), "torch_sdpa", "how", env="twice"), "replay")).rows
    worker.environments.close()

    assert asked.pid and row["status"] == "failed"
    assert "differ from the worker's by checksum" in row["reason"]


def test_further_inputs_that_differ_make_no_right_answer(
    forked: list[ForkedPopen], problem: Callable[..., Problem], monkeypatch: pytest.MonkeyPatch
):
    worker = PointRunner.create(replace(CONFIG, adapters=("tests.backends.faulty",), max_inputs=2), cpu())
    there = worker.environments._processes["twice"]
    ask = there.ask

    def other_values(do: str, *args: object, **keys: object) -> object:
        if do == "draw_other_values":
            keys["number"] = 7
        return ask(do, *args, **keys)  # type: ignore[arg-type]

    monkeypatch.setattr(there, "ask", other_values)
    before = worker.prepare(Task(Point(problem(), "nothing", "how", env="twice"), "replay")).rows
    (row,) = (*before, *worker.measure().rows)
    worker.environments.close()

    assert row["status"] == "failed" and "differ from the worker's by checksum" in row["reason"]


def test_inputs_that_a_failing_backend_damaged_are_drawn_again(forked: list[ForkedPopen], problem: Callable[..., Problem]):
    worker = PointRunner.create(replace(CONFIG, adapters=("tests.backends.faulty",)), cpu())
    names = ("nothing", "raises", "nothing")
    first = worker.prepare(Task(Point(problem(), names[0], "how", env="twice"), "replay"))
    there = worker.environments._processes["twice"]
    there.ask("draw_other_values", number=3)  # as if the one that fails next had done it
    second, third = (worker.prepare(Task(Point(problem(), name, "how", twin=1, env="twice"), "replay")) for name in names[1:])
    rows = worker.measure().rows
    worker.environments.close()

    assert first.rows == third.rows == () and [row["status"] for row in (*second.rows, *rows)] == ["mismatch", "ok", "ok"]
    assert second.rows[0]["reason"].startswith("it wrote to the inputs, which it may only read, and then: RuntimeError")


def test_who_writes_wrong_small_inputs_there_is_named(forked: list[ForkedPopen], problem: Callable[..., Problem]):
    """They share inputs in the process of that environment."""
    guilty = [name_of(small, place, "huge") for small, place in zip(SMALL, (*PLACES, *PLACES), strict=False)]

    rows = rows_of(problem(page_size=16, **PAIR), [HONEST[0], *guilty, HONEST[1]], env="twice")

    assert_each_is_named_and_nobody_else_suffers(rows, guilty)


def test_an_environment_that_cannot_start_costs_its_own_points_alone(forked: list[ForkedPopen], problem: Callable[..., Problem]):
    """Its libraries may not load: here a plugin is not found there."""
    started = len(forked)
    worker = PointRunner.create(replace(CONFIG, adapters=("tests.backends.faulty",)), cpu())
    worker.environments._unusable["twice"] = "ImportError: libcudart.so.12: cannot open shared object file"
    rows = [
        row
        for env in ("twice", None)
        for row in worker.prepare(Task(Point(problem(), "torch_sdpa", "how", env=env), "replay")).rows
    ]
    rows += worker.measure().rows
    worker.environments.close()

    assert [(row["env"], row["status"]) for row in rows] == [("twice", "failed"), (None, "ok")]
    assert rows[0]["reason"].startswith("RuntimeError: environment twice cannot be used: ImportError")
    assert len(forked) == started + 1
