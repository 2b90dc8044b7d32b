"""The columns of energy: what the blocks gave, what was subtracted, and what becomes of a point whose energy is not known."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from kernels.problem import Problem
from kernels.timing import energy, timers
from kernels.timing.config import Timing
from kernels.timing.energy import EnergyUnknown, Rate
from orchestrator.machines import cpu
from orchestrator.point import Point
from orchestrator.storage.row import Row
from orchestrator.worker.messages import Task, WorkerConfig
from orchestrator.worker.point_runner import PointRunner

ENERGY = ("energy_j", "energy_token_j", "energy_rel", "energy_flush_j", "energy_us")
TIMING = Timing(min_samples=10, max_samples=20, energy=True)


def rows_of(problem: Problem, *backends: str) -> dict[str, Row]:
    worker = PointRunner.create(WorkerConfig(TIMING, True, ("tests.backends.faulty",), {"run_id": "r"}), cpu())
    rows = [row for name in backends for row in worker.prepare(Task(Point(problem, name, "how"), "replay")).rows]
    return {row["backend"]: row for row in (*rows, *worker.measure().rows)}


def test_a_device_that_counts_no_energy_says_so_and_keeps_its_time(problem: Callable[..., Problem]):
    row = rows_of(problem(), "torch_sdpa")["torch_sdpa"]

    assert (row["status"], row["energy_note"]) == ("ok", "only CUDA devices count energy")
    assert row["median_us"] > 0
    assert [row[name] for name in ENERGY] == [None] * len(ENERGY)


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Blocks that were run, in order; each takes what a table says. A call whose runner fails raises as its kernel would."""
    ran: list[str] = []

    def issue(self: timers.Timer, cycles: int, with_call: bool = True) -> object:
        if with_call:
            self.runner()
        return SimpleNamespace(what="call" if with_call else "flush")

    def measure(issue: energy.Issue, cycle_s: float, counter: object) -> Rate:
        ran.append(issue(1).what)  # type: ignore[attr-defined]
        return Rate(0.020, 40e-6, 0.01) if ran[-1] == "flush" else Rate(0.032, 62e-6, 0.01)

    monkeypatch.setattr(timers.WallClock, "issue", issue)
    monkeypatch.setattr(energy, "measure", measure)
    return ran


def test_the_flush_is_measured_once_for_a_group_and_subtracted_from_each(blocks: list[str], problem: Callable[..., Problem]):
    found = rows_of(problem(), "torch_sdpa", "nothing")

    assert blocks == ["flush", "call", "call"]
    for row in found.values():
        assert (row["status"], row["energy_note"]) == ("ok", None)
        assert row["energy_j"] == pytest.approx(0.012)
        assert row["energy_token_j"] == pytest.approx(0.012 / problem().num_q_tokens)
        assert row["energy_flush_j"] == 0.020
        assert row["energy_us"] == pytest.approx(22.0)
        assert row["energy_rel"] == pytest.approx((0.0002**2 + 0.00032**2) ** 0.5 / 0.012)


def test_over_a_warm_l2_nothing_is_subtracted(blocks: list[str], problem: Callable[..., Problem], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(timers.WallClock, "l2", "warm")
    row = rows_of(problem(), "torch_sdpa")["torch_sdpa"]

    assert blocks == ["call"]
    assert (row["energy_j"], row["energy_flush_j"]) == (0.032, 0.0)


def test_a_flush_that_the_counter_cannot_tell_leaves_every_point_without_energy(
    blocks: list[str], problem: Callable[..., Problem], monkeypatch: pytest.MonkeyPatch
):
    def coarse(*_asked: object) -> Rate:
        blocks.append("asked")
        raise EnergyUnknown("the energy counter moved 3 times")

    monkeypatch.setattr(energy, "measure", coarse)
    found = rows_of(problem(), "torch_sdpa", "nothing")

    assert blocks == ["asked"]
    assert {row["energy_note"] for row in found.values()} == {"the energy counter moved 3 times"}
    assert {row["energy_j"] for row in found.values()} == {None}


def test_a_kernel_that_fails_in_its_block_is_failed_and_the_others_are_not(
    blocks: list[str], problem: Callable[..., Problem], monkeypatch: pytest.MonkeyPatch
):
    calls = iter([None, RuntimeError("it ran too often"), None])

    def measure(issue: energy.Issue, cycle_s: float, counter: object) -> Rate:
        if (error := next(calls)) is not None:
            raise error
        return Rate(0.020, 40e-6, 0.001) if issue(1).what == "flush" else Rate(0.032, 62e-6, 0.001)  # type: ignore[attr-defined]

    monkeypatch.setattr(energy, "measure", measure)
    found = rows_of(problem(), "torch_sdpa", "nothing")

    assert (found["torch_sdpa"]["status"], found["torch_sdpa"]["reason"]) == ("failed", "RuntimeError: it ran too often")
    assert found["torch_sdpa"]["energy_j"] is None
    assert (found["nothing"]["status"], found["nothing"]["energy_j"]) == ("ok", pytest.approx(0.012))


def test_a_point_that_is_not_ok_has_no_energy(blocks: list[str], problem: Callable[..., Problem]):
    row = rows_of(problem(), "spoils_later")["spoils_later"]

    assert (row["status"], row["energy_j"], row["energy_us"]) == ("mismatch", None, None)
