"""What the process of an environment answers, without a process: requests in their order, and those that come too early."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kernels.environment.serve import EnvironmentServer
from kernels.environment.wire import Wire
from kernels.problem import Problem
from kernels.timing import sustained
from kernels.timing.config import Timing
from orchestrator.machines import cpu

Ask = Callable[..., dict[str, Any]]


@pytest.fixture
def ask() -> Iterator[Ask]:
    """The header of the server's answer to a request. Nobody reads what it sends meanwhile."""
    wire = Wire(*os.pipe())
    server = EnvironmentServer(wire)
    yield lambda do, **keys: server.answer({"do": do, **keys})[0]
    wire.close()


def opened(ask: Ask) -> None:
    assert "error" not in ask("open", device=cpu().model_dump(mode="json"), plugins=[], imports=[])


def drawn(ask: Ask, problem: Problem) -> None:
    opened(ask)
    assert ask("draw", problem=problem.model_dump(mode="json", exclude_defaults=True))["sums"]


def prepared(ask: Ask, problem: Problem) -> None:
    drawn(ask, problem)
    timing = Timing(warmup=1).model_dump(by_alias=True, mode="json")
    assert "error" not in ask("prepare", call=1, backend="torch_sdpa", timing=timing, arch=cpu().arch)


def test_a_request_that_comes_before_what_it_needs_says_so(ask: Ask, problem: Callable[..., Problem]):
    assert ask("draw", problem={})["error"]["message"] == "asked for 'draw', which needs an open device"
    opened(ask)
    assert ask("sums")["error"]["message"] == "asked for 'sums', which needs drawn inputs"
    drawn(ask, problem())
    assert ask("sums")["sums"]


def test_launches_are_compared_from_the_request_on(ask: Ask, problem: Callable[..., Problem]):
    prepared(ask, problem())
    assert "error" in ask("compare", call=1)
    for do in ("launch", "compare_launches", "launch", "compare"):
        assert "error" not in ask(do, call=1), do
    assert ask("most_different", call=1) == {"tensors": [None, None]}

    ask("poison", call=1)
    ask("compare", call=1)
    assert ask("most_different", call=1)["tensors"][0]["shape"] == ask("now", call=1)["tensors"][0]["shape"]
    ask("restart", call=1)
    assert ask("most_different", call=1) == {"tensors": [None, None]}


def test_samples_are_taken_in_a_row_or_without_a_pause(ask: Ask, problem: Callable[..., Problem], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sustained, "HALF_S", 0.01)
    prepared(ask, problem())

    assert [len(ask("block", call=1, count=5, **how)["us"]) for how in ({}, {"sustained": True})] == [5, 5]


def test_a_call_that_was_dropped_and_inputs_that_were_released_are_gone(ask: Ask, problem: Callable[..., Problem]):
    prepared(ask, problem())

    assert ask("drop", call=1) == {} and "error" in ask("launch", call=1)
    assert ask("release") == {} and "needs drawn inputs" in ask("sums")["error"]["message"]


def test_an_exception_is_an_answer_and_says_that_the_device_still_answers(ask: Ask, problem: Callable[..., Problem]):
    drawn(ask, problem())

    assert ask("launch", call=7) == {"error": {"kind": "KeyError", "message": "7"}, "healthy": True}
