"""Checks the plan that an engine makes once a step: after it the same call, captured or not, must attend to the new lengths."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kernels.conformance.checks import CheckFinding, from_verdict, judge_call, passed
from kernels.inputs.generate import draw, redraw
from kernels.inputs.step_lengths import host_lengths, of_lengths
from kernels.problem import Problem
from kernels.timing.caches import Caches
from kernels.timing.timers import timer_for

if TYPE_CHECKING:
    from kernels.adapter import Adapter, Runner
    from kernels.device import Device

WARMUP = 3  # calls before a graph is captured


def plans_step(adapter: Adapter, device: Device, problem: Problem) -> CheckFinding:
    """A plan for shorter requests, and then for the first ones again. Each answer is that of its own lengths.

    A backend that says it has nothing to plan must follow lengths and pages that change in the inputs' tensors. On a GPU a graph is
    captured before the first of these plans and replayed after each.
    """
    inputs = draw(problem, device.kind)
    runner = adapter.prepare(inputs, device)
    if runner.plan_step is None:
        return CheckFinding("not run", "it does not say what it plans once a step (Runner.plan_step)")
    lengths = shorter(problem)
    if not problem.paged or lengths == problem.kv_lens:
        return CheckFinding("not run", "its requests cannot become shorter: they have no pages, or no keys but their queries'")
    call = _captured(runner) if device.kind == "cuda" else runner
    step = of_lengths(inputs, lengths)
    step.write_into(inputs)
    runner.plan_step(step.host)
    finding = from_verdict(judge_call(adapter, device, replace(inputs, problem=with_lengths(problem, lengths)), call), "shorter")
    if finding.verdict != "passed":
        return finding
    redraw(inputs)
    runner.plan_step(host_lengths(inputs))
    finding = from_verdict(judge_call(adapter, device, inputs, call), "planned for its first lengths again")
    return finding if finding.verdict != "passed" else passed("right after plans for two steps, by the same call")


def _captured(runner: Runner) -> Runner:
    return replace(runner, launch=timer_for(runner, "graph", WARMUP, Caches()).replay)


def shorter(problem: Problem) -> tuple[int, ...]:
    """About two thirds of each request's KV length, each of them another, and at least its query tokens and a shared prefix."""
    least = (q + (problem.shared_prefix or 0) for q in problem.q_lens)
    return tuple(max(few, kv * 2 // 3 - number) for number, (few, kv) in enumerate(zip(least, problem.kv_lens, strict=True)))


def with_lengths(problem: Problem, kv_lens: tuple[int, ...]) -> Problem:
    """The same problem with these KV lengths."""
    keys = problem.model_dump(exclude={"batch_size", "s_qo", "min_s_qo", "s_kv", "seq_lens", "batch_spec"})
    spec = "_".join(f"q{q}s{kv}" for q, kv in zip(problem.q_lens, kv_lens, strict=True))
    return Problem.model_validate({**keys, "batch_spec": spec})
