"""A plan: every point of a sweep with its decision, and the groups of points that run on the same inputs. Pure."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from kernels.adapter import Module
from kernels.problem import Problem
from kernels.problem.padded import launched
from orchestrator.grouped import grouped
from orchestrator.planning.cost import Cost
from orchestrator.point import Point

DecisionKind = Literal["run", "unsupported", "skipped", "failed"]  # failed: a plugin that cannot be asked
ModuleKey = tuple[str, Module]  # (compiler architecture such as "9.0a", module)

CONTEXT_BYTES = 700 * 2**20  # of a process of an environment: its CUDA context, a flush buffer, code of kernels


class Decision(NamedTuple):
    """What becomes of a point."""

    point: Point
    kind: DecisionKind
    reason: str  # of a point of kind "run": the rule that forbids it, which `check.force_unsupported` overrides
    devices: tuple[str, ...]  # kinds of devices that may run it; if none may, those that were considered
    cost: Cost
    modules: tuple[ModuleKey, ...]  # none for a point of another environment
    room_bytes: int = 0  # the usable memory of the smallest device that may run it
    not_passed: tuple[str, ...] = ()  # with a forbidden point: features that the backend never hands to its kernel
    # An estimate for a point of another environment: what it would load here. There other versions may load other modules.
    modules_there: tuple[ModuleKey, ...] = ()


@dataclass(frozen=True)
class Group:
    """Points on the same inputs. One worker on a device of one of `devices` prepares them all and measures them interleaved."""

    decisions: tuple[Decision, ...]
    devices: tuple[str, ...]
    cost_s: float

    @property
    def points(self) -> tuple[Point, ...]:
        return tuple(decision.point for decision in self.decisions)


@dataclass(frozen=True)
class Plan:
    """Every point of a sweep with its decision."""

    decisions: tuple[Decision, ...]

    def decisions_of(self, kind: DecisionKind) -> list[Decision]:
        return [d for d in self.decisions if d.kind == kind]

    @cached_property
    def modules(self) -> dict[ModuleKey, list[Point]]:
        """The distinct modules to compile, each with the points that wait for it."""
        return {module: points for (env, module), points in self.modules_of_environments.items() if env is None}

    @cached_property
    def modules_of_environments(self) -> dict[tuple[str | None, ModuleKey], list[Point]]:
        """The modules of every environment, by its name (None is the one that runs the command), each with its points."""
        runs = self.decisions_of("run")
        return grouped(((d.point.env, module), d.point) for d in runs for module in (*d.modules, *d.modules_there))

    def sharing_inputs(self) -> list[list[Decision]]:
        """The points that run, by problem or start of an engine, how they are measured and where they may run."""
        number: dict[Hashable, int] = {}  # of what is shared
        of_problem: dict[int, int] = {}  # by its id(), since most points of a problem hold one object: a hash reads all of its keys
        together: dict[tuple[int, str, tuple[str, ...]], list[Decision]] = {}
        for d in self.decisions_of("run"):
            point = d.point
            if (one := of_problem.get(id(point.problem))) is None:
                one = number.setdefault(point.shares, len(number))
                if not point.engine:  # the start of an engine is not its problem's
                    of_problem[id(point.problem)] = one
            together.setdefault((one, point.how, d.devices), []).append(d)
        return list(together.values())

    @cached_property
    def groups(self) -> list[Group]:
        """Longest first, so that the last worker does not end long after the others."""
        parts = (part for members in self.sharing_inputs() for part in _fitting_parts(members))
        groups = (Group(tuple(part), part[0].devices, seconds_of(part)) for part in parts)
        return sorted(groups, key=lambda group: -group.cost_s)

    def without_modules(self, broken: Mapping[ModuleKey, str], archs: Mapping[str, str]) -> tuple[Plan, dict[Decision, str]]:
        """What still runs without `broken` modules (with their errors), by devices' `archs`, and why each other point does not."""
        left, uncompiled = [], {}
        for decision in self.decisions_of("run"):
            failed = [key for key in decision.modules if key in broken]
            errors = {arch: module.why_missing(broken[arch, module]) for arch, module in failed}
            devices = tuple(name for name in decision.devices if archs.get(name) not in errors)
            if devices:
                left.append(decision._replace(devices=devices))
            else:
                uncompiled[decision] = next(iter(errors.values()))
        return Plan(tuple(left)), uncompiled

    def reasons(self, kind: DecisionKind) -> Counter[str]:
        return Counter(headline(kind, decision.reason) for decision in self.decisions_of(kind))

    def eta_s(self, workers: int) -> float:
        """Seconds from the first point on, without compiling: each worker takes the longest group that is left, if there is one."""
        busy = [0.0] * min(workers, len(self.groups))
        for group in self.groups:
            heapq.heapreplace(busy, busy[0] + group.cost_s)
        return max(busy, default=0.0)


def seconds_of(members: Sequence[Decision]) -> float:
    """What points on the same inputs are expected to take together. Several backends race if timing.precision asks for that."""
    points = [d.point for d in members]
    races = len({point.backend for point in points}) > 1 and not any(point.twin for point in points)
    races = races and len({point.env for point in points}) == 1  # as `Contest.races` has it
    saved_s = sum(d.cost.race_saves_s for d in members) if races else 0.0
    return members[0].cost.start_s + members[0].cost.setup_s + sum(d.cost.point_s for d in members) - saved_s


def _fitting_parts(members: Sequence[Decision]) -> Iterator[list[Decision]]:
    """Cuts a group into parts that fit a device's memory together. Each environment of a part has a process with its own inputs."""
    if _bytes_together(members[0], sum([d.cost.own_bytes for d in members]), _envs_of(members)) <= members[0].room_bytes:
        yield list(members)
        return
    part: list[Decision] = []
    used = 0
    envs: set[str] = set()
    for next_ones in _pieces(members):
        own, theirs = sum(d.cost.own_bytes for d in next_ones), _envs_of(next_ones)
        if part and _bytes_together(next_ones[0], used + own, theirs | envs) > next_ones[0].room_bytes:
            yield part
            part, used, envs = [], 0, set()
        part += next_ones
        used += own
        envs |= theirs
    yield part


def _pieces(members: Sequence[Decision]) -> Iterator[list[Decision]]:
    """What is not cut: both points of an A/A pair, and a backend with itself in other environments if these fit together."""
    for _, of_backend in itertools.groupby(members, key=lambda d: d.point.backend):
        together = list(of_backend)
        envs = _envs_of(together)
        if not envs or _bytes_together(together[0], sum(d.cost.own_bytes for d in together), envs) <= together[0].room_bytes:
            yield together
        else:
            yield from ([d for d in together if d.point.env == env] for env in dict.fromkeys(d.point.env for d in together))


def _envs_of(members: Sequence[Decision]) -> set[str]:
    return {d.point.env for d in members if d.point.env is not None}


def _bytes_together(one: Decision, own_bytes: int, envs: set[str]) -> int:
    """What points on the inputs of `one` take of a device: these, the backends' own bytes, and a process for each environment."""
    of_process = process_bytes(one.point.problem)
    shared = one.cost.memory_bytes - one.cost.own_bytes - (of_process if one.point.env is not None else 0)
    return shared + own_bytes + of_process * len(envs)


def process_bytes(problem: Problem) -> int:
    """What the process of an environment takes of the device beside a backend's own memory: its context, and inputs of its own."""
    return CONTEXT_BYTES + launched(problem).input_bytes


def headline(status: str, reason: str) -> str:
    """A reason as tables count it: without the figures of its own point."""
    return reason.partition(":")[0] if status in ("skipped", "ok") else reason
