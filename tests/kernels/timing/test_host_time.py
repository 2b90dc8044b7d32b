"""The host's time for plans and calls, with backends that plan on a CPU and profiles that are made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from kernels import registry
from kernels.adapter import Runner
from kernels.inputs import Inputs
from kernels.inputs.generate import draw
from kernels.problem import Problem
from kernels.timing import host_time
from kernels.timing.host_time import NO_DEVICE, NO_PLAN, NO_WORK, UNSTATED, measure
from kernels.timing.profiled import PART, Event, Work
from orchestrator.machines import cpu
from tests.backends.planning import PLAN_S

PROBLEM = Problem.model_validate(
    {"batch_size": 2, "s_qo": 2, "s_kv": 400, "num_qo_heads": 2, "num_kv_heads": 1, "head_dim_qk": 16, "head_dim_vo": 16}
)
Parts = Sequence[Callable[[], object]]


@pytest.fixture
def inputs() -> Inputs:
    return draw(PROBLEM, "cpu")


def prepared(inputs: Inputs, backend: str) -> Runner:
    return registry.get("paged_decode", backend, ("tests.backends.planning",)).prepare(inputs, cpu())


class FakeProfile:
    """Runs the parts, and gives an entry for each thing that `asked` notes meanwhile: its name, and whether the device did it."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, bool]] = []

    def __call__(self, parts: Parts) -> list[Event]:
        events = []
        for number, part in enumerate(parts):
            start = number * 1_000_000
            self.asked.clear()
            part()
            events.append(Event(PART, False, start, 1000))
            events += [Event(name, on_device, start + 10, 5000) for name, on_device in self.asked]
        return events

    def asking(self, what: Callable[..., object], *names: tuple[str, bool]) -> Callable[..., None]:
        def launch(*given: object) -> None:
            self.asked.extend(names)
            what(*given)

        return launch


KERNEL, COPY, WAIT = ("attention", True), ("Memcpy DtoH (Device -> Pageable)", True), ("cudaStreamSynchronize", False)


def test_a_plan_takes_as_long_as_it_takes_and_ends_with_the_inputs_own_lengths(inputs: Inputs):
    cost = measure(runner := prepared(inputs, "planned"), inputs)

    assert cost.plan is not None
    assert PLAN_S * 1e6 <= cost.plan.median_us <= cost.plan.p95_us < 20 * PLAN_S * 1e6
    assert cost.plan.ci95_rel < 1
    assert (cost.call, cost.of_plan, cost.of_call, cost.note) == (None, None, None, NO_DEVICE)
    assert inputs.kv_lens.tolist() == [400, 400]
    runner()
    assert runner.out.isfinite().all()


def test_each_plan_is_for_other_lengths_than_the_one_before(inputs: Inputs):
    seen: list[tuple[list[int], list[int]]] = []
    runner = replace(prepared(inputs, "planned"), plan_step=lambda h: seen.append((h.kv_lens.tolist(), inputs.kv_lens.tolist())))
    measure(runner, inputs)

    assert len(seen) == host_time.WARMUP + host_time.PLANS
    assert all(on_host == on_device for on_host, on_device in seen)
    assert len({tuple(on_host) for on_host, _ in seen}) == len(seen)
    assert all(a < b for (a, _), (b, _) in pairwise(seen))


def test_a_slow_plan_is_made_less_often(inputs: Inputs, monkeypatch: pytest.MonkeyPatch):
    made: list[object] = []
    monkeypatch.setattr(host_time, "MAX_SECONDS", 0.0)
    measure(replace(prepared(inputs, "planned"), plan_step=made.append), inputs)

    assert len(made) == host_time.WARMUP + host_time.MIN_PLANS


def test_work_of_plan_and_call_is_counted_apart(inputs: Inputs):
    profile, runner = FakeProfile(), prepared(inputs, "planned")
    assert runner.plan_step is not None
    asking = replace(
        runner,
        launch=profile.asking(runner.launch, KERNEL, KERNEL),
        plan_step=profile.asking(runner.plan_step, COPY, WAIT, ("cudaMemcpyAsync", False)),
    )
    cost = measure(asking, inputs, profile)

    assert cost.of_plan == Work(syncs=1, d2h_copies=1, h2d_copies=0, kernels=0, device_us=5.0)
    assert cost.of_call == Work(syncs=0, d2h_copies=0, h2d_copies=0, kernels=2, device_us=10.0)
    assert cost.call is not None and cost.call.median_us > 0
    assert cost.note == ""
    assert inputs.kv_lens.tolist() == [400, 400]


def test_writing_lengths_is_no_work_of_the_plan(inputs: Inputs, monkeypatch: pytest.MonkeyPatch):
    """An engine writes lengths for all backends alike."""
    from kernels.inputs.step_lengths import StepLengths

    profile, runner = FakeProfile(), prepared(inputs, "planned")
    monkeypatch.setattr(StepLengths, "write_into", profile.asking(StepLengths.write_into, ("Memcpy HtoD (Pinned -> Device)", True)))
    cost = measure(replace(runner, launch=profile.asking(runner.launch, KERNEL)), inputs, profile)

    assert cost.of_plan == NO_WORK


def test_a_backend_without_a_plan_costs_nothing_to_plan(inputs: Inputs):
    profile, runner = FakeProfile(), prepared(inputs, "without_plan")
    cost = measure(replace(runner, launch=profile.asking(runner.launch, KERNEL)), inputs, profile)

    assert (cost.plan, cost.of_plan, cost.note) == (NO_PLAN, NO_WORK, "")


def test_what_an_adapter_does_not_say_is_not_zero(inputs: Inputs):
    profile, runner = FakeProfile(), prepared(inputs, "says_nothing")
    cost = measure(replace(runner, launch=profile.asking(runner.launch, KERNEL)), inputs, profile)

    assert (cost.plan, cost.of_plan, cost.note) == (None, None, UNSTATED)
    assert cost.of_call is not None and cost.of_call.kernels == 1


def test_a_profile_without_the_kernels_of_a_call_counts_nothing(inputs: Inputs):
    """Zero waits and copies would be believed."""
    cost = measure(prepared(inputs, "planned"), inputs, FakeProfile())

    assert (cost.of_plan, cost.of_call) == (None, None)
    assert "no kernel of a call" in cost.note
    assert cost.plan is not None and cost.call is not None


def test_after_an_exception_the_lengths_are_the_inputs_own(inputs: Inputs):
    runner: Any = prepared(inputs, "raises_in_plan")
    with pytest.raises(RuntimeError, match="no room"):
        measure(runner, inputs)

    assert inputs.kv_lens.tolist() == [400, 400]
