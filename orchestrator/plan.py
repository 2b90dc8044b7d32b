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
from orchestrator import collector
from orchestrator.settings import Settings
from orchestrator.sweep import Point

# Figures of the cost model, from one H200 and one 2-core CPU: making and checking the inputs of a point takes about as
# long as 60 reads of its KV cache plus 8 times its FLOPs at the fp32 rate; a call outside the samples is made some 12 times.
SETUP_READS, SETUP_FLOPS, UNTIMED_CALLS, POINT_OVERHEAD_S = 60, 8, 12, 0.05

Verdict = Literal["run", "unsupported", "skipped"]


@dataclass(frozen=True, slots=True)
class Cost:
    """What a point is expected to take: seconds of its inputs and reference, seconds of its own, bytes at its peak."""

    setup_s: float
    point_s: float
    memory_bytes: int
    own_bytes: int = 0  # of `memory_bytes`, what the backend takes beside what its group shares

    @property
    def total_s(self) -> float:
        return self.setup_s + self.point_s


@dataclass(frozen=True, slots=True)
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

    def together(self) -> list[list[Decision]]:
        """What runs, by problem, how it is measured and where it may run."""
        members: dict[tuple[Problem, str, tuple[str, ...]], list[Decision]] = defaultdict(list)
        for decision in self.of("run"):
            members[decision.point.problem, decision.point.how, decision.devices].append(decision)
        return list(members.values())

    @cached_property
    def groups(self) -> list[Group]:
        """Longest first, so that the last worker does not end long after the others."""
        groups = [
            Group(tuple(d.point for d in part), part[0].devices, seconds_of(part))
            for members in self.together()
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
    kinds = [_Kind(device, settings) for device in {device.name: device for device in devices}.values()]
    together = [kinds] if settings.cluster.spread == "any" else [[kind] for kind in kinds]
    with collector.paused():
        return Plan(tuple(_decide(point, some, settings) for point in points for some in together))


class _Kind:
    """A kind of device, with what problems cost there: backends of one problem mostly cost the same."""

    def __init__(self, device: Device, settings: Settings) -> None:
        self.device, self.settings = device, settings
        self.room = int(device.memory_bytes * settings.limits.memory_fraction)
        self._costs: dict[tuple[int, int], Cost] = {}  # by the problem's identity, which its point keeps, and a backend's own bytes

    def cost(self, problem: Problem, adapter: Adapter) -> Cost:
        extra = adapter.extra_bytes(problem)
        if (cost := self._costs.get((id(problem), extra))) is None:
            cost = self._costs[id(problem), extra] = estimate(problem, extra, self.device, self.settings.timing)
        return cost


def seconds_of(members: Sequence[Decision]) -> float:
    """What points on the same inputs are expected to take together."""
    return members[0].cost.setup_s + sum(d.cost.point_s for d in members)


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


def _decide(point: Point, kinds: Sequence[_Kind], settings: Settings) -> Decision:
    problem = point.problem
    adapter = registry.get(problem.routine, point.backend, settings.adapters)
    able: list[tuple[_Kind, Cost]] = []
    found: list[tuple[Verdict, str]] = []
    costs = [(kind, kind.cost(problem, adapter)) for kind in kinds]
    for kind, cost in costs:
        if refusal := _refusal(problem, adapter, kind, cost):
            found.append(refusal)
        else:
            able.append((kind, cost))
    if able:
        return _to_run(point, adapter, able, "")
    if settings.check.force_unsupported and all(v == "unsupported" for v, _ in found):
        return _to_run(point, adapter, costs, " | ".join(dict.fromkeys(reason for _, reason in found)))
    verdict: Verdict = "skipped" if any(v == "skipped" for v, _ in found) else "unsupported"
    reasons = dict.fromkeys(reason for v, reason in found if v == verdict)
    return Decision(point, verdict, " | ".join(reasons), tuple(kind.device.name for kind in kinds), costs[0][1], ())


def _to_run(point: Point, adapter: Adapter, able: Sequence[tuple[_Kind, Cost]], rule: str) -> Decision:
    modules = {(kind.device.arch, m): None for kind, _ in able for m in adapter.modules(point.problem, kind.device)}
    worst = max((cost for _, cost in able), key=lambda cost: cost.total_s)
    room = min(kind.room for kind, _ in able)
    return Decision(point, "run", rule, tuple(kind.device.name for kind, _ in able), worst, tuple(modules), room)


def _refusal(problem: Problem, adapter: Adapter, kind: _Kind, cost: Cost) -> tuple[Verdict, str] | None:
    unmet = adapter.unmet(problem, kind.device)
    beyond = _beyond(kind, cost)
    if unmet and not (beyond and kind.settings.check.force_unsupported):
        return "unsupported", f"{adapter.name} on {kind.device.name} needs: {'; '.join(unmet)}"
    return beyond


def _beyond(kind: _Kind, cost: Cost) -> tuple[Verdict, str] | None:
    name, limit = kind.device.name, kind.settings.limits.point_seconds
    if cost.memory_bytes > kind.room:
        return "skipped", f"too big: needs about {cost.memory_bytes / 1e9:.3g} GB of {kind.room / 1e9:.3g} GB on {name}"
    if cost.total_s > limit:
        return "skipped", f"too slow: about {cost.total_s:.3g} s on {name}, limits.point_seconds is {limit:g}"
    return None


def headline(status: str, reason: str) -> str:
    """A reason as tables count it: without the figures of its own point."""
    return reason.partition(":")[0] if status in ("skipped", "ok") else reason


def estimate(problem: Problem, extra_bytes: int, device: Device, timing: Timing) -> Cost:
    """Cost of a point from the bytes and FLOPs it must do at the device's rates; `extra_bytes` are its backend's own."""
    read_s = problem.bytes / (device.tb_per_sec * 1e12)
    kernel_s = max(read_s, problem.flops / (device.peak_tflops(problem.q_dtype) * 1e12))
    samples = min(max(timing.max_seconds / kernel_s, 2 * timing.block_samples), timing.max_samples)
    setup_s = SETUP_READS * read_s + SETUP_FLOPS * problem.flops / (device.tflops["fp32"] * 1e12)
    reference_bytes = 2 * 4 * problem.num_q_tokens * problem.num_qo_heads * problem.value_dim
    own = extra_bytes + problem.qo_bytes
    memory = problem.input_bytes + own + reference_bytes + SCRATCH_BYTES
    return Cost(setup_s, POINT_OVERHEAD_S + (samples + UNTIMED_CALLS) * kernel_s, memory, own)
