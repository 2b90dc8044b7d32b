"""Workers that wait for the next run: they end with their time, and with the run that they are lent to."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from ray.exceptions import RayActorError

from orchestrator.pools.ray import keeper
from orchestrator.pools.ray.keeper import LOAD_SECONDS, PLACE_SECONDS, UNUSED_SECONDS, Keeping
from orchestrator.worker.preload import LoadedFiles

GPUS = [("a", "cuda"), ("b", "cuda")]


@dataclass(eq=False)
class Answer:
    """Ray's reference to an answer of a worker."""

    is_there: bool = True
    error: Exception | None = None


@dataclass(eq=False)
class Method:
    answer: Answer

    def remote(self, *args: object) -> Answer:
        return self.answer


@dataclass(eq=False)
class Actor:
    """A worker that is placed and has loaded its libraries, unless a test says otherwise."""

    place: tuple[str, str]
    process: Method = field(default_factory=lambda: Method(Answer()))
    load: Method = field(default_factory=lambda: Method(Answer()))


@pytest.fixture
def actors(monkeypatch: pytest.MonkeyPatch) -> list[Actor]:
    """Those that were started and have not ended."""
    found: list[Actor] = []

    def new_worker(kind: str, node_id: str) -> Actor:
        found.append(Actor((node_id, kind)))
        return found[-1]

    def get(answer: Answer) -> None:
        if answer.error:
            raise answer.error

    def wait(answers: list[Answer], timeout: float) -> tuple[list[Answer], list[Answer]]:
        return [one for one in answers if one.is_there], []

    monkeypatch.setattr(keeper, "new_worker", new_worker)
    monkeypatch.setattr(keeper.ray, "wait", wait)
    monkeypatch.setattr(keeper.ray, "get", get)
    monkeypatch.setattr(keeper.ray, "kill", lambda actor, no_restart: found.remove(actor))
    return found


@pytest.fixture
def keeping(actors: list[Actor]) -> Keeping:
    """Two that wait from second 0 to 100."""
    made = Keeping(now=0.0)
    made.keep(GPUS, ("flashinfer",), now=0.0, seconds=100.0)
    made.look(1.0)
    return made


def test_one_that_gets_no_device_is_given_up(keeping: Keeping, actors: list[Actor]):
    keeping.waiting[0].placed = keeping.waiting[0].loaded = Answer(is_there=False)
    keeping.look(PLACE_SECONDS - 1)
    before = len(actors)
    keeping.look(PLACE_SECONDS + 1)

    assert (before, [actor.place for actor in actors]) == (2, [("b", "cuda")])


def test_they_end_with_their_time_and_the_keeper_with_them(keeping: Keeping, actors: list[Actor]):
    keeping.look(99.9)
    in_time = len(actors)
    keeping.look(100.1)

    assert (in_time, len(actors)) == (2, 0)
    assert keeping.is_over(100.1)


def test_those_that_are_lent_end_with_their_run_and_with_nothing_else(keeping: Keeping, actors: list[Actor]):
    lent = keeping.take("job", 50.0)
    keeping.hear("job", 180.0)
    keeping.look(200.0)
    during, over = len(actors), keeping.is_over(200.0)
    keeping.end_lent("job")

    assert [(spare.node_id, spare.kind) for spare in lent] == GPUS
    assert (during, over, len(actors), keeping.is_over(201.0)) == (2, False, 0, True)


def test_those_that_are_lent_to_a_run_that_is_silent_end(keeping: Keeping, actors: list[Actor]):
    keeping.take("job", 50.0)
    keeping.look(50.0 + UNUSED_SECONDS)
    before = len(actors)
    keeping.look(51.0 + UNUSED_SECONDS)

    assert (before, len(actors)) == (2, 0)


def test_a_second_run_gets_none_that_are_lent_and_none_that_still_load(keeping: Keeping, actors: list[Actor]):
    keeping.waiting[1].loaded = Answer(is_there=False)

    assert [spare.node_id for spare in keeping.take("one", 2.0)] == ["a"]
    assert keeping.take("two", 2.0) == []


@pytest.mark.parametrize("fault", ["died", "never loads"])
def test_one_that_fails_is_given_up_and_started_again_only_by_the_next_run(keeping: Keeping, actors: list[Actor], fault: str):
    keeping.waiting[0].loaded = Answer(error=RayActorError()) if fault == "died" else Answer(is_there=False)
    keeping.until = 1000.0
    keeping.look(LOAD_SECONDS + 1 if fault == "never loads" else 2.0)
    left = [actor.place for actor in actors]
    keeping.keep(GPUS, (), now=200.0, seconds=100.0)

    assert left == [("b", "cuda")]
    assert sorted(actor.place for actor in actors) == GPUS


def test_a_keeper_whose_run_never_asks_ends(actors: list[Actor]):
    made = Keeping(now=0.0)

    assert [made.is_over(now) for now in (1.0, UNUSED_SECONDS + 1)] == [False, True]


def test_a_process_knows_whether_what_it_has_loaded_is_still_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (file := tmp_path / "loaded_once.py").write_text("A = 1")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    import_once: Any = __import__("loaded_once")
    loaded = LoadedFiles.now()
    same = loaded.are_unchanged()
    file.write_text("A = 22")
    edited = LoadedFiles.now() if not loaded.are_unchanged() else None
    (tmp_path / "installed.py").touch()
    os.utime(tmp_path, ns=(1, 1))

    assert import_once.A == 1 and same
    assert edited is not None and not edited.are_unchanged()
