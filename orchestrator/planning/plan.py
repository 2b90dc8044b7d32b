"""Decides, before anything runs, which point runs on which kind of device, which does not and why, and what it will cost. Pure."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from kernels.adapter import Adapter, Module
from kernels.device import Device
from kernels.problem import Problem
from kernels.problem.padded import launched
from kernels.step import size as step_size
from orchestrator import gc_pause
from orchestrator.config.settings import Settings
from orchestrator.libraries import Versions
from orchestrator.planning.backends import Backends
from orchestrator.planning.cost import Cost, estimate
from orchestrator.planning.step_cost import with_step
from orchestrator.point import Point

DecisionKind = Literal["run", "unsupported", "skipped"]
ModuleKey = tuple[str, Module]  # (compiler architecture such as "9.0a", module)

# A step is one CUDA graph, which one process captures: that of the worker, which has its weights and checks all of its layers.
OWN_PROCESS = "the environment that runs the command: type sweep.env=[null], or the command with the Python of that environment"
CONTEXT_BYTES = 700 * 2**20  # of a process of an environment: its CUDA context, a flush buffer, code of kernels


@dataclass(frozen=True, slots=True)
class Decision:
    """What becomes of a point.

    `devices` names the kinds of devices that may run it; if none may, those that were considered.
    A point of kind "run" has a `reason` only if its support rule forbids it and `check.force_unsupported` runs it all the same.
    `not_passed` are then the features of its problem that the backend never hands to its kernel.
    `room_bytes` is the usable memory of the smallest device that may run it.
    """

    point: Point
    kind: DecisionKind
    reason: str
    devices: tuple[str, ...]
    cost: Cost
    modules: tuple[ModuleKey, ...]
    room_bytes: int = 0
    not_passed: tuple[str, ...] = ()


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

    def of(self, kind: DecisionKind) -> list[Decision]:
        return [d for d in self.decisions if d.kind == kind]

    @cached_property
    def modules(self) -> dict[ModuleKey, list[Point]]:
        """The distinct modules to compile, each with the points that wait for it."""
        waiting: dict[ModuleKey, list[Point]] = defaultdict(list)
        for decision in self.of("run"):
            for module in decision.modules:
                waiting[module].append(decision.point)
        return dict(waiting)

    def together(self) -> list[list[Decision]]:
        """The points that run, by problem, how they are measured and where they may run."""
        members: dict[tuple[Problem, str, tuple[str, ...]], list[Decision]] = defaultdict(list)
        for decision in self.of("run"):
            members[decision.point.problem, decision.point.how, decision.devices].append(decision)
        return list(members.values())

    @cached_property
    def groups(self) -> list[Group]:
        """Longest first, so that the last worker does not end long after the others."""
        groups = [
            Group(tuple(part), part[0].devices, seconds_of(part)) for members in self.together() for part in _fitting_parts(members)
        ]
        return sorted(groups, key=lambda group: -group.cost_s)

    def without(self, broken: Mapping[ModuleKey, str], archs: Mapping[str, str]) -> tuple[Plan, dict[Decision, str]]:
        """What can still run if some modules do not compile, and each point that no device is left for, with the reason.

        `broken` has the compiler's message for each such module, `archs` the architecture of each kind of device.
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

    def reasons(self, kind: DecisionKind) -> Counter[str]:
        """How many points each reason takes out."""
        return Counter(headline(kind, decision.reason) for decision in self.of(kind))

    def eta_s(self, workers: int) -> float:
        """Seconds of wall time without compilation; a worker cannot help another with its longest group."""
        costs = [group.cost_s for group in self.groups]
        return max(sum(costs) / workers, costs[0]) if costs else 0.0


def make_plan(
    points: Iterable[Point],
    devices: Sequence[Device],
    settings: Settings,
    versions: Sequence[Versions] = (),
    environments: Mapping[str, Versions] | None = None,
    *,
    releases: Sequence[Versions] = (),
) -> Plan:
    """Decides each point once for all kinds of devices, or once for each of them if `cluster.spread` is `each_device`.

    `versions` are those of the machines that have the devices: a backend whose library one of them lacks is unsupported, and rules
    are those of the releases that they share. Without them every library counts as installed, in the release that rules were read
    from. `environments` has those of the environments, by name. `releases` are versions for rules alone: a machine that compiles
    need not have the libraries of all backends.
    """
    backends = Backends(settings.adapters, versions or releases, environments, settings.versions)
    models = [_DeviceModel(device, settings) for device in {device.name: device for device in devices}.values()]
    considered = [models] if settings.cluster.spread == "any" else [[model] for model in models]
    with gc_pause.paused():
        plan = Plan(tuple(_decide(point, some, settings, backends) for point in points for some in considered))
    return Plan(tuple(_if_installed(d, backends) if versions or d.point.env else d for d in plan.decisions))


def _if_installed(decision: Decision, backends: Backends) -> Decision:
    """A decision, which is against a point that would run if a library were installed."""
    lacking = backends.lacking(decision.point) if decision.kind == "run" else ""
    return replace(decision, kind="unsupported", reason=lacking, modules=()) if lacking else decision


class _DeviceModel:
    """A kind of device, with a cache of what problems cost there: most backends of one problem cost the same."""

    def __init__(self, device: Device, settings: Settings) -> None:
        self.device, self.settings = device, settings
        self.room = int(device.memory_bytes * settings.limits.memory_fraction)
        # By the identity of the problem, which its point keeps alive, and the backend's own bytes.
        self._costs: dict[tuple[int, int], Cost] = {}

    def cost(self, problem: Problem, adapter: Adapter) -> Cost:
        extra = adapter.workspace_bytes(launched(problem))
        if (cost := self._costs.get((id(problem), extra))) is None:
            cost = self._costs[id(problem), extra] = self._estimate(problem, extra)
        return cost

    def _estimate(self, problem: Problem, extra: int) -> Cost:
        timing, layer = self.settings.timing, self.settings.model.layer
        alone = estimate(problem, extra, self.device, timing)
        if timing.context != "step" or layer is None or step_size.unmet(problem):
            return alone
        size = step_size.size_of(problem, layer, self.device.tb_per_sec, self.room, timing.step_layers)
        return with_step(alone, problem, self.device, timing, size)


def seconds_of(members: Sequence[Decision]) -> float:
    """What points on the same inputs are expected to take together."""
    return members[0].cost.setup_s + sum(d.cost.point_s for d in members)


def _fitting_parts(members: Sequence[Decision]) -> Iterator[list[Decision]]:
    """Cuts a group into parts that fit a device's memory together. Each environment of a part has a process with its own inputs."""
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


def _with_process(point: Point, cost: Cost) -> Cost:
    """The cost of a point whose backend runs in an environment: the process there takes memory too, which is not the backend's."""
    return cost if point.env is None else replace(cost, memory_bytes=cost.memory_bytes + process_bytes(point.problem))


def process_bytes(problem: Problem) -> int:
    """What the process of an environment takes of the device beside a backend's own memory: its context, and inputs of its own."""
    return CONTEXT_BYTES + launched(problem).input_bytes


def _decide(point: Point, models: Sequence[_DeviceModel], settings: Settings, backends: Backends) -> Decision:
    problem = point.problem
    adapter = backends.of(point)
    able: list[tuple[_DeviceModel, Cost]] = []
    refusals: list[tuple[DecisionKind, str]] = []
    costs = [(model, _with_process(point, model.cost(problem, adapter))) for model in models]
    for model, cost in costs:
        if refusal := _refusal(point, adapter, model, cost):
            refusals.append(refusal)
        else:
            able.append((model, cost))
    if able:
        return _to_run(point, adapter, able, "")
    forced = settings.check.force_unsupported and all(kind == "unsupported" for kind, _ in refusals)
    in_no_step = any(_unmet_of_step(point, adapter, model) for model in models)
    if forced and not in_no_step and not any(adapter.lacks_choice(problem, model.device) for model in models):
        return _to_run(point, adapter, costs, " | ".join(dict.fromkeys(reason for _, reason in refusals)))
    kind: DecisionKind = "skipped" if any(kind == "skipped" for kind, _ in refusals) else "unsupported"
    reasons = dict.fromkeys(reason for refused_as, reason in refusals if refused_as == kind)
    return Decision(point, kind, " | ".join(reasons), tuple(model.device.name for model in models), costs[0][1], ())


def _to_run(point: Point, adapter: Adapter, able: Sequence[tuple[_DeviceModel, Cost]], rule: str) -> Decision:
    own = able if point.env is None else ()  # environments say themselves which modules they load (`environments/modules.py`)
    modules = {(model.device.arch, m): None for model, _ in own for m in adapter.modules(point.problem, model.device)}
    worst = max((cost for _, cost in able), key=lambda cost: cost.total_s)
    room = min(model.room for model, _ in able)
    never = dict.fromkeys(f for model, _ in able for f in adapter.not_passed(point.problem, model.device)) if rule else ()
    return Decision(point, "run", rule, tuple(model.device.name for model, _ in able), worst, tuple(modules), room, tuple(never))


def _refusal(point: Point, adapter: Adapter, model: _DeviceModel, cost: Cost) -> tuple[DecisionKind, str] | None:
    unmet = adapter.unmet(point.problem, model.device)
    if sentences := _unmet_of_step(point, adapter, model):
        return "unsupported", f"timing.context=step needs: {'; '.join(sentences)}"
    over_limit = _over_limit(model, cost)
    if unmet and not (over_limit and model.settings.check.force_unsupported):
        return "unsupported", f"{adapter.name} on {model.device.name} needs: {'; '.join(unmet)}"
    return over_limit


def _unmet_of_step(point: Point, adapter: Adapter, model: _DeviceModel) -> list[str]:
    """What a point lacks to be timed in a step, if that is asked for. Forced, it would show nothing of a kernel."""
    if model.settings.timing.context != "step":
        return []
    order = (
        ["the requests of the decode call first in batch_spec, such as 15q4s8k_q1s8k"] if adapter.reorders(point.problem) else []
    )
    return [*step_size.unmet(point.problem), *order, *([OWN_PROCESS] if point.env is not None else [])]


def _over_limit(model: _DeviceModel, cost: Cost) -> tuple[DecisionKind, str] | None:
    name, limit = model.device.name, model.settings.limits.point_seconds
    if cost.memory_bytes > model.room:
        return "skipped", f"too big: needs about {cost.memory_bytes / 1e9:.3g} GB of {model.room / 1e9:.3g} GB on {name}"
    if cost.total_s > limit:
        return "skipped", f"too slow: about {cost.total_s:.3g} s on {name}, limits.point_seconds is {limit:g}"
    return None


def headline(status: str, reason: str) -> str:
    """A reason as tables count it: without the figures of its own point."""
    return reason.partition(":")[0] if status in ("skipped", "ok") else reason
