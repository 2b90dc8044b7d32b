"""The checks that run a backend, on a CPU or a GPU: each takes an adapter, a device and a problem that it serves there."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from kernels.adapter import Adapter, Runner
from kernels.check import oracle
from kernels.check.judgement import judge_whole
from kernels.check.log_sum_exp import judge_with_lse
from kernels.check.oracle import Verdict, judge, reference
from kernels.check.tolerance import row_tolerances
from kernels.conformance.problems import LISTED_BY_SPEC, TREE, changed, describe, next_batches
from kernels.cuda import synchronize
from kernels.device import Device
from kernels.inputs import Inputs
from kernels.inputs.copied_tokens import copied_tokens
from kernels.inputs.generate import UNUSED_SLOT, draw, poison_unused_slots, redraw
from kernels.inputs.step_lengths import host_lengths, of_lengths
from kernels.inputs.tensors import decoy
from kernels.lazy import Tensor, torch
from kernels.problem import Problem
from kernels.problem.dtypes import UNIT_ROUNDOFF
from kernels.problem.routine import routine_of
from kernels.timing.caches import Caches
from kernels.timing.timers import timer_for

CALLS = 20  # after which a kernel that does not reset its counters is wrong
ARCHITECTURES = "FLASHINFER_CUDA_ARCH_LIST"  # FlashInfer asks the GPU if it is not set
ALL_ARCHITECTURES = "8.0 9.0a 10.0a 12.0a"  # each module takes those that it can be compiled for
WARMUP = 3  # calls before a graph is captured


@dataclass(frozen=True)
class CheckFinding:
    """What one check found on one problem. `error` is that of the answer, in tolerances, if it has one."""

    verdict: Literal["passed", "failed", "not run"]
    words: str
    error: float | None = None


Check = Callable[["Adapter", "Device", "Problem"], CheckFinding]


def passed(words: str = "") -> CheckFinding:
    return CheckFinding("passed", words)


def failed(words: str) -> CheckFinding:
    return CheckFinding("failed", words)


def prepare(adapter: Adapter, device: Device, problem: Problem) -> tuple[Inputs, Runner]:
    """Inputs, and the backend prepared and called once while the queries had other values, as a worker does."""
    inputs = draw(problem, device.kind)
    with decoy(inputs):
        runner = adapter.prepared(inputs, device)
        runner()
        synchronize(device)
    runner.refresh()
    return inputs, runner


def judge_call(adapter: Adapter, device: Device, inputs: Inputs, runner: Runner) -> Verdict:
    """Calls once on an output full of NaN and poisoned unused slots, and compares with the reference."""
    answer = oracle.answer(inputs)
    if routine_of(inputs.problem.routine):
        _launch_poisoned(adapter, device, inputs, runner)
        return judge_whole(runner.as_asked(runner.out), inputs, answer, runner.arithmetic, runner.written_lse())
    limits = row_tolerances(inputs, answer, runner.arithmetic)
    verdict = judge_against(adapter, device, inputs, runner, answer.out, limits=limits)
    written = runner.written_lse()
    lse = None if written is None else runner.without_padding(written)
    return judge_with_lse(verdict, lse, answer, inputs.problem, runner.arithmetic)


def judge_against(
    adapter: Adapter, device: Device, inputs: Inputs, runner: Runner, expected: Tensor, *, limits: Tensor | None = None
) -> Verdict:
    """The same call, compared with `expected`, fp32 [T, H, D_vo], without its log-sum-exp. `limits` [T, H]: tolerances of rows."""
    _launch_poisoned(adapter, device, inputs, runner)
    return judge(runner.as_asked(runner.out), expected, inputs.problem, runner.arithmetic, limits)


def _launch_poisoned(adapter: Adapter, device: Device, inputs: Inputs, runner: Runner) -> None:
    poison_unused_slots(inputs, math.nan if adapter.skips_unused_in(inputs.problem) else UNUSED_SLOT)
    runner.out.fill_(math.nan)
    if (lse := runner.written_lse()) is not None:
        lse.fill_(math.nan)
    runner.ready()
    runner()
    synchronize(device)


def from_verdict(verdict: Verdict, words: str = "") -> CheckFinding:
    if verdict.passed:
        return CheckFinding("passed", words, verdict.of_tolerance)
    return CheckFinding("failed", f"{words}{': ' if words else ''}{verdict.reason}", verdict.of_tolerance)


def answer(adapter: Adapter, device: Device, problem: Problem) -> CheckFinding:
    """The answer is right. Poison stands in unused slots and unused page-table entries, NaN in the output."""
    inputs, runner = prepare(adapter, device, problem)
    return from_verdict(judge_call(adapter, device, inputs, runner))


def same_output(adapter: Adapter, device: Device, problem: Problem) -> CheckFinding:
    """Every call writes the whole answer into the same memory."""
    inputs, runner = prepare(adapter, device, problem)
    where = runner.out.data_ptr()
    for number in range(1, 4):
        finding = from_verdict(judge_call(adapter, device, inputs, runner), f"call {number} after its preparation")
        if finding.verdict != "passed":
            return finding
        if runner.out.data_ptr() != where:
            return failed(f"call {number} moved the output to other memory; allocate it once, in prepare")
    return passed("three calls wrote all of one tensor")


def many_calls(adapter: Adapter, device: Device, problem: Problem) -> CheckFinding:
    """The answer is still right after many calls."""
    inputs, runner = prepare(adapter, device, problem)
    for _ in range(CALLS):
        runner()
    return from_verdict(judge_call(adapter, device, inputs, runner), f"after {CALLS} calls")


def other_queries(adapter: Adapter, device: Device, problem: Problem) -> CheckFinding:
    """The answer follows queries whose values change in the same memory after the preparation, and once more later."""
    inputs, runner = prepare(adapter, device, problem)
    first = judge_call(adapter, device, inputs, runner)
    if not first.passed:
        return from_verdict(first, "with other queries than in prepare")
    with copied_tokens(inputs, []) if routine_of(problem.routine) else decoy(inputs):
        runner.refresh()
        return from_verdict(judge_call(adapter, device, inputs, runner), "with queries that changed after a call")


def unused_slots(adapter: Adapter, device: Device, problem: Problem) -> CheckFinding:
    """What no request uses does not reach the answer: NaN if the backend says that it skips it, else a large number."""
    inputs, runner = prepare(adapter, device, problem)
    poison = "NaN (skips_unused)" if adapter.skips_unused_in(problem) else f"{UNUSED_SLOT:g}"
    return from_verdict(judge_call(adapter, device, inputs, runner), f"unused slots hold {poison}")


def follows_mask(adapter: Adapter, device: Device, problem: Problem) -> CheckFinding:
    """The answer passes against its own mask, and fails against each other mask."""
    inputs, runner = prepare(adapter, device, problem)
    own = judge_call(adapter, device, inputs, runner)
    if not own.passed:
        return from_verdict(own, f"mask={problem.mask}")
    masks = ({"mask": "causal", "tree": None}, {"mask": "full", "tree": None}, TREE)
    changes = [other for keys in masks if (other := changed(problem, keys)) is not None]
    others = [other for other in changes if other.mask != problem.mask and other.q_lens == problem.q_lens]
    if not others:
        return CheckFinding("not run", "no other mask would be answered otherwise")
    for other in others:
        expected = reference(replace(inputs, problem=other))
        if judge_against(adapter, device, inputs, runner, expected).passed:
            return failed(f"the answer under mask={problem.mask} also passes as the answer under mask={other.mask}")
    return passed(f"mask={problem.mask} is told from {' and '.join(other.mask for other in others)}")


def runner_fields(adapter: Adapter, device: Device, problem: Problem) -> CheckFinding:
    """What a Runner says of itself: the kernel that ran, and dtypes no narrower than those of the problem."""
    _, runner = prepare(adapter, device, problem)
    if not isinstance(runner.resolved_backend, str) or not runner.resolved_backend:
        return failed("resolved_backend is empty; name the kernel that runs")
    for field in ("compute_dtype", "accumulator_dtype"):
        if (dtype := getattr(runner, field)) not in UNIT_ROUNDOFF:
            return failed(f"{field}={dtype!r}: allowed: {', '.join(UNIT_ROUNDOFF)}")
    narrowest = max((problem.q_dtype, problem.kv_dtype), key=UNIT_ROUNDOFF.__getitem__)
    if UNIT_ROUNDOFF[runner.compute_dtype] > UNIT_ROUNDOFF[narrowest]:
        return failed(f"compute_dtype={runner.compute_dtype} is narrower than {narrowest}, the narrowest dtype of the problem")
    return passed(f"{runner.resolved_backend} computes in {runner.compute_dtype} and adds up in {runner.accumulator_dtype}")


def plans_again(adapter: Adapter, device: Device, problem: Problem) -> CheckFinding:
    """A wrapper planned for one batch, then another, then the first again answers each, by the kernel of a new wrapper."""
    first = draw(problem, device.kind)
    runner = adapter.prepared(first, device)
    if runner.plan_again is None:
        return CheckFinding("not run", "it has no wrapper that lives on between batches (Runner.plan_again)")
    others = [p for p in next_batches(problem) if not adapter.unmet(p, device)]
    kernels = set()
    for other in others:
        batch = draw(other, device.kind)
        kernel = adapter.prepared(batch, device).resolved_backend
        for inputs, meant in ((batch, kernel), (first, runner.resolved_backend)):
            again = runner.plan_again(inputs)
            if again.resolved_backend != meant:
                return failed(
                    f"planned again it is {again.resolved_backend}, and a new wrapper is {meant}, at {describe(inputs.problem)}"
                )
            finding = from_verdict(judge_call(adapter, device, inputs, again), "planned again")
            if finding.verdict != "passed":
                return failed(f"{finding.words}, at {describe(inputs.problem)}")
        kernels.add(kernel)
    if not others:
        return failed("the rule allows no other batch")
    return passed(f"right after {len(others)} other plans, by {' and '.join(sorted(kernels))}")


def build_specs(adapter: Adapter, device: Device, problem: Problem) -> CheckFinding:
    """Each kernel module has a build specification with a name, which the library makes without a GPU."""
    needed = adapter.modules(problem, device)
    if not torch.cuda.is_available():
        os.environ.setdefault(ARCHITECTURES, ALL_ARCHITECTURES)
    try:
        names = [module.spec().name for module in needed]
    except ModuleNotFoundError as error:
        return CheckFinding("not run", f"{error}; install it")
    return passed(f"on {device.name}: {', '.join(map(str, names))}" if names else "it needs none")


def plans_step(adapter: Adapter, device: Device, problem: Problem) -> CheckFinding:
    """A plan for shorter requests, and then for the first ones again. Each answer is that of its own lengths.

    A backend that says it has nothing to plan must follow lengths and pages that change in the inputs' tensors. On a GPU a graph is
    captured before the first of these plans and replayed after each.
    """
    inputs = draw(problem, device.kind)
    runner = adapter.prepare(inputs, device)
    if runner.plan_step is None:
        return CheckFinding("not run", "it does not say what it plans once a step (Runner.plan_step)")
    lengths = shorter_lengths(problem)
    if not problem.paged or lengths == problem.kv_lens:
        return CheckFinding("not run", "its requests cannot become shorter: they have no pages, or no keys but their queries'")
    call = replace(runner, launch=timer_for(runner, "graph", WARMUP, Caches()).replay) if device.kind == "cuda" else runner
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


def shorter_lengths(problem: Problem) -> tuple[int, ...]:
    """About two thirds of each request's KV length, each of them another, and at least its query tokens and a shared prefix."""
    least = (q + (problem.shared_prefix or 0) for q in problem.q_lens)
    return tuple(max(few, kv * 2 // 3 - number) for number, (few, kv) in enumerate(zip(least, problem.kv_lens, strict=True)))


def with_lengths(problem: Problem, kv_lens: tuple[int, ...]) -> Problem:
    spec = "_".join(f"q{q}s{kv}" for q, kv in zip(problem.q_lens, kv_lens, strict=True))
    return Problem.model_validate({**problem.model_dump(exclude=LISTED_BY_SPEC), "batch_spec": spec})
