"""Every check of a backend on a device, and its verdict: passed, failed, too strict, or not run and why."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from kernels.adapter import Adapter, Module
from kernels.compile import module_cache
from kernels.conformance import checks, on_cuda
from kernels.conformance.checks import Check, CheckFinding, failed, passed
from kernels.conformance.problems import OTHER_OUTPUT, changed, changes_of, describe, find_closest, neighbours
from kernels.device import Device
from kernels.lazy import torch
from kernels.problem import Problem

MAX_EDGE_STARTS = 12  # served problems whose neighbours are searched for edges
LARGE_KV_BYTES = 512 * 2**20  # of the problem on which copies on the CPU are looked for
# Checks of one call, by their names: what each means stands in its function.
CALLS: dict[str, Check] = {
    "every call writes the same output": checks.same_output,
    "right after many calls": checks.many_calls,
    "other queries after prepare": checks.other_queries,
    "unused slots are skipped": checks.unused_slots,
    "follows its mask": checks.follows_mask,
    "what the Runner says": checks.runner_fields,
    "planned again": checks.plans_again,
    "planned for a step": checks.plans_step,
}
CALLS_ON_CUDA: dict[str, Check] = {
    "a CUDA graph captures the call": on_cuda.graph,
    "no host synchronisation": on_cuda.no_sync,
    "memory within workspace_bytes": on_cuda.memory,
    "no copy of the cache on the CPU": on_cuda.no_cpu_copy,
}
BUILD_SPECS = "build specifications of its modules"
ANSWER = "answers: "
RUN: dict[str, Check] = {**CALLS, **CALLS_ON_CUDA, BUILD_SPECS: checks.build_specs}
Outcome = Literal["passed", "failed", "too strict", "not run"]


@dataclass(frozen=True)
class Trial:
    """One check on one problem of one device. A forced one runs a problem that the backend's rule forbids."""

    check: str
    problem: Problem
    device: Device
    forced: bool = False


@dataclass(frozen=True)
class Result:
    """The verdict of one check of a backend."""

    check: str
    verdict: Outcome
    words: str


RunTrial = Callable[[Trial], CheckFinding]


def execute(adapter: Adapter, trial: Trial) -> CheckFinding:
    """Runs a trial in this process; whatever the backend raises is a failure in words."""
    check = RUN.get(trial.check, checks.answer)
    try:
        if trial.device.kind == "cuda":  # modules that an archive brought
            module_cache.look_for(adapter.modules(trial.problem, trial.device), trial.device.arch)
        with torch.no_grad():
            return check(adapter, trial.device, trial.problem)
    except Exception as error:  # a backend may raise anything
        return failed(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")


def conformance(
    adapter: Adapter, device: Device, known: Sequence[Device], impure: str, run: RunTrial, *, missing: str = ""
) -> Iterator[Result]:
    """Every check of a backend on a device, one result each, as they end.

    `known` are the kinds of devices that a plan may name, `impure` is what `purity` says of this backend, `missing` which library
    is not installed.
    """
    run = _remembering(run)
    yield Result("planning imports no torch", "failed" if impure else "passed", impure)
    try:
        searched = {kind.name: find_closest(adapter, kind) for kind in known}
        problem, lacking = searched[device.name] if device in known else find_closest(adapter, device)
    except Exception as error:  # a rule may raise anything
        yield Result("the rule answers", "failed", f"{type(error).__name__}: {error}")
        return
    pairs = [(kind, found) for kind in known for found, unmet in [searched[kind.name]] if not unmet]
    where = ", ".join(kind.name for kind, _ in pairs)
    nowhere = "no problem was found that it serves on any device of conf/device"
    yield Result("the rule answers", "passed" if pairs else "failed", f"serves something on {where}" if pairs else nowhere)
    yield Result("modules() is data", *_of_finding(_modules_are_data(adapter, pairs)))
    yield Result("workspace_bytes is a number of bytes", *_of_finding(_workspace_bytes(adapter, pairs)))
    yield _build_specs(adapter, device, pairs, run)
    if missing:
        yield Result("all checks that run it", "not run", missing)
        return
    if lacking:
        words = f"nothing is served on {device.name}, which lacks: {'; '.join(lacking)}"
        yield Result("all checks that run it", "not run", words)
        return
    served: list[Problem] = [problem]
    yield from _answers(adapter, device, problem, served, run)
    yield from _calls(adapter, device, problem, run)
    yield from _edges(adapter, device, known, served, run)


def _remembering(run: RunTrial) -> RunTrial:
    """The same, but what two checks ask is run once."""
    found: dict[tuple[str, Problem, str, bool], CheckFinding] = {}

    def once(trial: Trial) -> CheckFinding:
        key = trial.check, trial.problem, trial.device.name, trial.forced
        if key not in found:
            found[key] = run(trial)
        return found[key]

    return once


def _of_finding(finding: CheckFinding) -> tuple[Outcome, str]:
    return finding.verdict, finding.words


def _modules_are_data(adapter: Adapter, pairs: Sequence[tuple[Device, Problem]]) -> CheckFinding:
    """Modules are compared and sent to other machines: equal each time, hashable, and equal after pickling."""
    for device, problem in pairs:
        modules = adapter.modules(problem, device)
        if not isinstance(modules, tuple) or not all(isinstance(module, Module) for module in modules):
            return failed(f"on {device.name} it is {modules!r}; return a tuple of Module")
        try:
            same = pickle.loads(pickle.dumps(modules)) == modules == adapter.modules(problem, device)
            hash(modules)
        except Exception as error:  # what cannot be pickled or hashed raises many things
            return failed(f"on {device.name}: {type(error).__name__}: {error}")
        if not same:
            return failed(f"on {device.name} it differs after pickling, or from one call to the next")
    return passed("hashable, and the same after pickling")


def _workspace_bytes(adapter: Adapter, pairs: Sequence[tuple[Device, Problem]]) -> CheckFinding:
    for _, problem in pairs:
        larger = changed(problem, {"batch_size": 2 * problem.batch_size}) or problem
        of, more = adapter.workspace_bytes(problem), adapter.workspace_bytes(larger)
        if type(of) is not int or of < 0:
            return failed(f"{of!r} at {describe(problem)}; return a whole number, 0 or more")
        if more < of:
            return failed(f"{of} at batch_size={problem.batch_size}, and fewer, {more}, at batch_size={larger.batch_size}")
    return passed("0 or more, and no fewer for a larger batch")


def _build_specs(adapter: Adapter, device: Device, pairs: Sequence[tuple[Device, Problem]], run: RunTrial) -> Result:
    needing = [(kind, problem) for kind, problem in pairs if adapter.modules(problem, kind)]
    if not needing:
        return Result(BUILD_SPECS, "passed", "it has no modules")
    kind, problem = next((pair for pair in needing if pair[0].name == device.name), needing[0])
    return Result(BUILD_SPECS, *_of_finding(run(Trial(BUILD_SPECS, problem, kind))))


def _answers(adapter: Adapter, device: Device, base: Problem, served: list[Problem], run: RunTrial) -> Iterator[Result]:
    """One result for each family of problems. What is served is added to `served`."""
    for family, changes in changes_of(adapter.routine, "families").items():
        problems = list(dict.fromkeys(p for keys in changes if (p := changed(base, keys)) is not None))
        if family == OTHER_OUTPUT:  # an output of the same dtype may be asked for by its name
            problems = [problem for problem in problems if problem.output_dtype != problem.q_dtype]
        able = [problem for problem in problems if not adapter.unmet(problem, device)]
        served += able
        if able:
            yield _merged(f"{ANSWER}{family}", able, [run(Trial(ANSWER, problem, device)) for problem in able])
        else:
            lacking = dict.fromkeys(s for problem in problems for s in adapter.unmet(problem, device))
            yield Result(f"{ANSWER}{family}", "not run", f"its rule forbids it: {'; '.join(lacking) or 'there is no such problem'}")


def _merged(check: str, problems: Sequence[Problem], findings: Sequence[CheckFinding]) -> Result:
    wrong = [(problem, finding) for problem, finding in zip(problems, findings, strict=True) if finding.verdict == "failed"]
    if wrong:
        problem, finding = wrong[0]
        count = f"{len(wrong)} of {len(problems)} problems; " if len(problems) > 1 else ""
        return Result(check, "failed", f"{count}{finding.words}, at {describe(problem)}")
    if left := [finding for finding in findings if finding.verdict == "not run"]:
        return Result(check, "not run", left[0].words)
    worst, count = max(finding.error or 0.0 for finding in findings), f"{len(problems)} problem{'s' * (len(problems) > 1)}"
    return Result(check, "passed", f"{count}, largest error {worst:.2g} of the tolerance")


def _calls(adapter: Adapter, device: Device, base: Problem, run: RunTrial) -> Iterator[Result]:
    """The contract of a call, on a problem with drafts if those are served."""
    masks = changes_of(adapter.routine, "axes").get("mask", ())
    able = [p for keys in masks if (p := changed(base, keys)) is not None and not adapter.unmet(p, device)]
    drafts = [p for n in (7, 4, 3) if (p := changed(base, {"s_qo": n})) is not None and not adapter.unmet(p, device)]
    asked = {check: [(drafts or [base])[0]] for check in (*CALLS, *CALLS_ON_CUDA)}
    asked["follows its mask"] = [p for p in (*drafts[:1], *able) if p.s_qo > 1]
    asked["no copy of the cache on the CPU"] = [_large(adapter, device, base)]
    for check, problems in asked.items():
        if check in CALLS_ON_CUDA and device.kind != "cuda":
            yield Result(check, "not run", f"needs a CUDA device; this one is {device.name}")
        elif problems:
            yield _merged_words(check, problems, [run(Trial(check, problem, device)) for problem in problems])
        else:
            yield Result(check, "not run", "it serves no problem that two masks answer differently")


def _merged_words(check: str, problems: Sequence[Problem], findings: Sequence[CheckFinding]) -> Result:
    for problem, finding in zip(problems, findings, strict=True):
        if finding.verdict != "passed":
            return Result(check, finding.verdict, f"{finding.words}, at {describe(problem)}")
    return Result(check, "passed", "; ".join(dict.fromkeys(finding.words for finding in findings)))


def _large(adapter: Adapter, device: Device, base: Problem) -> Problem:
    """The served problem with a KV cache of at least `LARGE_KV_BYTES`, or the largest below."""
    found = base
    for s_kv in (1024, 4096, 16384, 65536, 262144):
        problem = changed(base, {"s_kv": s_kv, "batch_size": 8})
        if problem is None or adapter.unmet(problem, device):
            continue
        found = problem
        if found.kv_bytes >= LARGE_KV_BYTES:
            break
    return found


def _edges(adapter: Adapter, device: Device, known: Sequence[Device], served: Sequence[Problem], run: RunTrial) -> Iterator[Result]:
    """Both sides of each condition of the rule. What it forbids runs last, since it may break the process."""
    problems = list(dict.fromkeys(served))
    found = find_edges(adapter, device, problems[:MAX_EDGE_STARTS])
    inside = {sentence: run(Trial(ANSWER, edge.inside, device)) for sentence, edge in found.items()}
    for sentence, edge in found.items():
        if never := adapter.not_passed(edge.outside, device):
            yield _not_passed(edge, inside[sentence], never)
        else:
            yield _of_edge(edge, inside[sentence], run(Trial(ANSWER, edge.outside, device, forced=True)))
    asked = [*problems[:MAX_EDGE_STARTS], *(other for problem in problems[:1] for other in neighbours(problem))]
    for sentence in dict.fromkeys(s for problem in asked for one in (device, *known) for s in adapter.unmet(problem, one)):
        if sentence not in found:
            yield Result(f"rule: {sentence}", "not run", f"on {device.name} no change of one axis breaks this condition alone")


def _not_passed(edge: Edge, inside: CheckFinding, never: Sequence[str]) -> Result:
    """The verdict on an edge whose forbidden side has a feature that the kernel never gets: running it shows nothing."""
    if inside.verdict != "passed":
        return _of_edge(edge, inside, inside)
    forbidden, missing = describe(edge.outside, edge.inside), " and ".join(never)
    words = f"right at {describe(edge.inside, edge.outside)}; {forbidden} would show nothing: {missing} not passed to the kernel"
    return Result(f"rule: {edge.sentence}", "not run", words)


def _of_edge(edge: Edge, inside: CheckFinding, outside: CheckFinding) -> Result:
    check = f"rule: {edge.sentence}"
    allowed, forbidden = describe(edge.inside, edge.outside), describe(edge.outside, edge.inside)
    if inside.verdict == "not run":
        return Result(check, "not run", inside.words)
    if inside.verdict == "failed":
        return Result(check, "failed", f"it allows {allowed}, and there: {inside.words}, at {describe(edge.inside)}")
    if outside.verdict == "passed":
        advice = "allow it, or keep the condition if the kernel is not meant for it"
        return Result(check, "too strict", f"it forbids {forbidden}, which ran and was right; {advice}")
    return Result(check, "passed", f"right at {allowed}; at {forbidden}, run all the same: {outside.words}")


@dataclass(frozen=True)
class Edge:
    """A condition of a rule, and two problems that differ in one axis: `inside` is served, and `outside` lacks this alone."""

    sentence: str
    inside: Problem
    outside: Problem


def find_edges(adapter: Adapter, device: Device, served: Iterable[Problem]) -> dict[str, Edge]:
    """One edge for each condition that one change to one of the `served` problems breaks, by its sentence."""
    found: dict[str, Edge] = {}
    for inside in served:
        for outside in neighbours(inside):
            unmet = adapter.unmet(outside, device)
            if len(unmet) == 1 and unmet[0] not in found:
                found[unmet[0]] = _narrowed(adapter, device, Edge(unmet[0], inside, outside))
    return found


def _narrowed(adapter: Adapter, device: Device, edge: Edge) -> Edge:
    """The same edge with its two problems one apart, if they differ in one whole number."""
    inside, outside = edge.inside.model_dump(), edge.outside.model_dump()
    keys = [key for key in inside if inside[key] != outside[key]]
    if len(keys) != 1 or not all(type(side[keys[0]]) is int for side in (inside, outside)):
        return edge
    key = keys[0]
    low, high = inside[key], outside[key]
    best = edge
    while abs(high - low) > 1:
        middle = (low + high) // 2
        problem = changed(edge.inside, {key: middle})
        unmet = None if problem is None else adapter.unmet(problem, device)
        if problem is not None and unmet == []:
            low, best = middle, Edge(edge.sentence, problem, best.outside)
        elif problem is not None and unmet == [edge.sentence]:
            high, best = middle, Edge(edge.sentence, best.inside, problem)
        else:
            break
    return best
