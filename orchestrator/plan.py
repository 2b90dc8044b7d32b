"""Decides before anything runs which point runs on which kind of device, which does not and why, and what it will cost. Pure."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from kernels import registry
from kernels.adapter import Adapter, Module
from kernels.device import Device
from kernels.oracle import SCRATCH_BYTES
from kernels.problem import Problem
from kernels.timing import Timing
from orchestrator.settings import Limits, Settings
from orchestrator.sweep import Point

# Figures of the cost model, from one H200 and one 2-core CPU: making and checking the inputs of a point takes about as
# long as 60 reads of its KV cache plus 8 times its FLOPs at the fp32 rate; a call outside the samples is made some 12 times.
SETUP_READS, SETUP_FLOPS, UNTIMED_CALLS, POINT_OVERHEAD_S = 60, 8, 12, 0.05

Verdict = Literal["run", "unsupported", "skipped"]


@dataclass(frozen=True)
class Cost:
    """What a point is expected to take: seconds of its inputs and reference, seconds of its own, bytes at its peak."""

    setup_s: float
    point_s: float
    memory_bytes: int
    own_bytes: int = 0  # of `memory_bytes`, what the backend takes beside what its group shares

    @property
    def total_s(self) -> float:
        return self.setup_s + self.point_s


@dataclass(frozen=True)
class Decision:
    """What becomes of a point. `devices` names the kinds that run it, or those that were asked where none does.

    A point that is to run has a reason only where its rule forbids it and `check.force_unsupported` runs it all the same.
    """

    point: Point
    verdict: Verdict
    reason: str
    devices: tuple[str, ...]
    cost: Cost
    modules: tuple[tuple[str, Module], ...]  # (compiler architecture, module)
    room_bytes: int = 0  # of the smallest device that may run it


@dataclass(frozen=True)
class Group:
    """Points on the same inputs, prepared together and measured in turns by one worker on a device of one of `devices`."""

    points: tuple[Point, ...]
    devices: tuple[str, ...]
    cost_s: float


@dataclass(frozen=True)
class Plan:
    """Every point of a sweep with its decision."""

    decisions: tuple[Decision, ...]

    def of(self, verdict: Verdict) -> list[Decision]:
        return [d for d in self.decisions if d.verdict == verdict]

    @cached_property
    def modules(self) -> dict[tuple[str, Module], list[Point]]:
        """The distinct modules to compile, each with the points that wait for it."""
        waiting: dict[tuple[str, Module], list[Point]] = defaultdict(list)
        for decision in self.of("run"):
            for module in decision.modules:
                waiting[module].append(decision.point)
        return dict(waiting)

    @cached_property
    def groups(self) -> list[Group]:
        """Longest first, so that the last worker does not end long after the others."""
        together: dict[tuple[str, tuple[str, ...]], list[Decision]] = defaultdict(list)
        for decision in self.of("run"):
            together[decision.point.group_id, decision.devices].append(decision)
        groups = [
            Group(tuple(d.point for d in part), devices, part[0].cost.setup_s + sum(d.cost.point_s for d in part))
            for (_, devices), members in together.items()
            for part in _that_fit(members)
        ]
        return sorted(groups, key=lambda group: -group.cost_s)

    def without(self, broken: Mapping[tuple[str, Module], str], archs: Mapping[str, str]) -> tuple[Plan, dict[Decision, str]]:
        """What is left to run where some modules do not compile, and the points that no device is left for, with the reason.

        `broken` has the compiler's words by architecture and module, `archs` the architecture of each kind of device.
        """
        left, lost = [], {}
        for decision in self.of("run"):
            failed = [key for key in decision.modules if key in broken]
            errors = {arch: f"kernel module {module} did not compile: {broken[arch, module]}" for arch, module in failed}
            devices = tuple(name for name in decision.devices if archs.get(name) not in errors)
            if devices:
                left.append(replace(decision, devices=devices))
            else:
                lost[decision] = next(iter(errors.values()))
        return Plan(tuple(left)), lost

    @property
    def peak_memory_bytes(self) -> int:
        return max((d.cost.memory_bytes for d in self.of("run")), default=0)

    def reasons(self, verdict: Verdict) -> Counter[str]:
        """How many points each reason takes out."""
        return Counter(headline(verdict, decision.reason) for decision in self.of(verdict))

    def eta_s(self, workers: int) -> float:
        """Seconds of wall time, compilation apart: no worker can help another with its longest group."""
        costs = [group.cost_s for group in self.groups]
        return max(sum(costs) / workers, costs[0]) if costs else 0.0


def make_plan(points: Iterable[Point], devices: Sequence[Device], settings: Settings) -> Plan:
    """Decides every point for the given kinds of devices together, or for each of them where `cluster.spread` asks for it."""
    kinds = list({device.name: device for device in devices}.values())
    together = [kinds] if settings.cluster.spread == "any" else [[kind] for kind in kinds]
    return Plan(tuple(_decide(point, some, settings) for point in points for some in together))


def _that_fit(members: Sequence[Decision]) -> Iterator[list[Decision]]:
    """Members of a group cut into parts that fit a device together; twins are never parted."""
    part: list[Decision] = []
    used = 0
    for _, twins in itertools.groupby(members, key=lambda d: d.point.backend):
        next_ones = list(twins)
        need = sum(d.cost.own_bytes for d in next_ones)
        shared = next_ones[0].cost.memory_bytes - next_ones[0].cost.own_bytes
        if part and shared + used + need > next_ones[0].room_bytes:
            yield part
            part, used = [], 0
        part += next_ones
        used += need
    yield part


def _decide(point: Point, kinds: Sequence[Device], settings: Settings) -> Decision:
    problem = point.problem
    adapter = registry.get(problem.routine, point.backend, settings.adapters)
    costs = {device.name: estimate(problem, adapter, device, settings.timing) for device in kinds}
    refusals = {device.name: _refusal(problem, adapter, device, costs[device.name], settings) for device in kinds}
    able = [device for device in kinds if refusals[device.name] is None]
    if able:
        modules = {(device.arch, m): None for device in able for m in adapter.modules(problem, device)}
        worst = max((costs[device.name] for device in able), key=lambda cost: cost.total_s)
        room = min(_room(device, settings.limits) for device in able)
        return Decision(point, "run", "", tuple(device.name for device in able), worst, tuple(modules), room)
    found = [refusal for refusal in refusals.values() if refusal]
    if settings.check.force_unsupported and all(v == "unsupported" for v, _ in found):
        reason = " | ".join(dict.fromkeys(reason for _, reason in found))
        modules = {(device.arch, m): None for device in kinds for m in adapter.modules(problem, device)}
        room = min(_room(device, settings.limits) for device in kinds)
        return Decision(point, "run", reason, tuple(refusals), costs[kinds[0].name], tuple(modules), room)
    verdict: Verdict = "skipped" if any(v == "skipped" for v, _ in found) else "unsupported"
    reasons = dict.fromkeys(reason for v, reason in found if v == verdict)
    return Decision(point, verdict, " | ".join(reasons), tuple(refusals), costs[kinds[0].name], ())


def _refusal(problem: Problem, adapter: Adapter, device: Device, cost: Cost, settings: Settings) -> tuple[Verdict, str] | None:
    unmet = adapter.unmet(problem, device)
    beyond = _beyond(device, cost, settings.limits)
    if unmet and not (beyond and settings.check.force_unsupported):
        return "unsupported", f"{adapter.name} on {device.name} needs: {'; '.join(unmet)}"
    return beyond


def _beyond(device: Device, cost: Cost, limits: Limits) -> tuple[Verdict, str] | None:
    room = _room(device, limits)
    if cost.memory_bytes > room:
        return "skipped", f"too big: needs about {cost.memory_bytes / 1e9:.3g} GB of {room / 1e9:.3g} GB on {device.name}"
    if cost.total_s > limits.point_seconds:
        estimate_s = f"{cost.total_s:.3g}"
        return "skipped", f"too slow: about {estimate_s} s on {device.name}, limits.point_seconds is {limits.point_seconds:g}"
    return None


def _room(device: Device, limits: Limits) -> int:
    return int(device.memory_bytes * limits.memory_fraction)


def headline(status: str, reason: str) -> str:
    """A reason as tables count it: without the figures of its own point."""
    return reason.partition(":")[0] if status in ("skipped", "ok") else reason


def estimate(problem: Problem, adapter: Adapter, device: Device, timing: Timing) -> Cost:
    """Cost of a point from the bytes and FLOPs it must do at the device's rates."""
    read_s = problem.bytes / (device.tb_per_sec * 1e12)
    kernel_s = max(read_s, problem.flops / (device.peak_tflops(problem.q_dtype) * 1e12))
    samples = min(max(timing.max_seconds / kernel_s, 2 * timing.block_samples), timing.max_samples)
    setup_s = SETUP_READS * read_s + SETUP_FLOPS * problem.flops / (device.tflops["fp32"] * 1e12)
    reference_bytes = 2 * 4 * problem.num_q_tokens * problem.num_qo_heads * problem.value_dim
    own = adapter.extra_bytes(problem) + problem.qo_bytes
    memory = problem.input_bytes + own + reference_bytes + SCRATCH_BYTES
    return Cost(setup_s, POINT_OVERHEAD_S + (samples + UNTIMED_CALLS) * kernel_s, memory, own)
