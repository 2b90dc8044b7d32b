"""Decides, before anything runs, which point runs on which kind of device, which does not and why, and what it will cost. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, TypeVar

from kernels import registry
from kernels.adapter import Adapter, Module
from kernels.contract.runner import said
from kernels.device import Device
from kernels.engines.start import LAYERS
from kernels.problem import Problem
from kernels.problem.padded import launched
from kernels.step import size as step_size
from kernels.step.size import StepSize
from kernels.timing import sustained
from kernels.timing.config import MIN_SAMPLES, Timing
from orchestrator import gc_pause, libraries
from orchestrator.config.parts import VersionRule
from orchestrator.config.settings import Settings
from orchestrator.errors import OrchestratorError
from orchestrator.libraries import LibraryVersions
from orchestrator.planning.cost import Cost, estimate, in_engine, kernel_seconds
from orchestrator.planning.plan import Decision, DecisionKind, ModuleKey, Plan, process_bytes
from orchestrator.point import Point

# A step is one CUDA graph, which one process captures: that of the worker, which has its weights and checks all of its layers.
OWN_PROCESS = "the environment that runs the command: type sweep.env=[null], or the command with the Python of that environment"
NO_COST = Cost(0.0, 0.0, 0)  # of a point whose problem its model cannot have
Given = TypeVar("Given")
Answers = Callable[[Problem], Any]
MAX_ANSWERS = 512  # of one question
UNTIMED_STEPS, PREPARE_S = 12, 0.02  # steps of warm-up and check; seconds to prepare a runner


def make_plan(
    points: Iterable[Point],
    devices: Sequence[Device],
    settings: Settings,
    versions: Sequence[LibraryVersions] = (),
    environments: Mapping[str, LibraryVersions] | None = None,
    *,
    releases: Sequence[LibraryVersions] = (),
) -> Plan:
    """Decides each point once for all kinds of devices, or once for each of them if `cluster.spread` is `each_device`.

    `versions` are those of the machines that have the devices: a backend whose library one of them lacks is unsupported, and rules
    are those of the releases that they share. Without them every library counts as installed, in the release that rules were read
    from. `environments` has those of the environments, by name. `releases` are versions for rules alone: a machine that compiles
    need not have the libraries of all backends.
    """
    backends = Backends(settings.adapters, versions or releases, environments, settings.versions)
    models = [_DeviceModel(device, settings) for device in {device.name: device for device in devices}.values()]
    considered = [_Among(some, backends) for some in ([models] if settings.cluster.spread == "any" else [[one] for one in models])]
    with gc_pause.paused():
        look = bool(versions)
        return Plan(tuple([_decided(point, among, look) for point in points for among in considered]))


def _decided(point: Point, among: _Among, look: bool) -> Decision:
    """The decision; `failed` for a plugin that cannot be asked; with `look`, `unsupported` if a library is missing there."""
    if point.refused:
        return Decision(point, "unsupported", point.refused, among.names, NO_COST, ())
    try:
        decision = _decide(point, among.backend_of(point), among.backends)
        asked = decision.kind == "run" or (decision.kind == "skipped" and point.engine)  # of an engine it is said before limits
        lacking = among.backends.lacking(point) if (look or point.env) and asked else ""
        return decision._replace(kind="unsupported", reason=lacking, modules=()) if lacking else decision
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if not point.plugin_code or isinstance(error, OrchestratorError):
            raise
        words = f"the plugin cannot say where {point.backend} runs: {said(error)}"
        return Decision(point, "failed", words, among.names, NO_COST, ())


class _DeviceModel:
    """A kind of device, with a cache of what problems cost there: most backends of one problem cost the same."""

    def __init__(self, device: Device, settings: Settings) -> None:
        self.device, self.settings = device, settings
        self.room = int(device.memory_bytes * settings.limits.memory_fraction)
        self.point_seconds, self.forced = settings.limits.point_seconds, settings.check.force_unsupported
        self.in_step = settings.timing.context == "step"
        # By the identity of the problem, which its point keeps alive: its cost by the backend's own bytes, and without those.
        self._costs: dict[int, dict[int | None, Cost]] = {}

    def cost(self, problem: Problem, extra: int) -> Cost:
        """The cost of a problem on a backend that needs so many bytes of its own."""
        if (known := self._costs.get(id(problem))) is None:
            known = self._costs[id(problem)] = {None: estimate(problem, 0, self.device, self.settings.timing)}
        if (cost := known.get(extra)) is None:
            cost = known[extra] = self._with(extra, known[None], problem)
        return cost

    def _with(self, extra: int, least: Cost, problem: Problem) -> Cost:
        timing, layer = self.settings.timing, self.settings.model.layer
        alone = Cost(least.setup_s, least.point_s, least.memory_bytes + extra, least.own_bytes + extra, least.race_saves_s)
        if timing.context != "step" or layer is None or step_size.unmet(problem):
            return alone
        size = step_size.size_of(problem, layer, self.device.tb_per_sec, self.room, timing.step_layers)
        return with_step(alone, problem, self.device, timing, size)


class _BackendThere:
    """A backend on a kind of device, and what it is asked of problems there (`kernels.adapter`), `_once` of those alike to it."""

    def __init__(self, adapter: Adapter, model: _DeviceModel, point: Point) -> None:
        def unmet(problem: Problem) -> str:
            sentences = adapter.unmet(problem, model.device)
            return f"{adapter.name} on {model.device.name} needs: {'; '.join(sentences)}" if sentences else ""

        def modules(problem: Problem) -> tuple[ModuleKey, ...]:
            found = adapter.modules(problem, model.device)
            if foreign := [module for module in found if not isinstance(module, Module)]:
                raise TypeError(f"{foreign[0]!r} is no Module")
            return tuple(dict.fromkeys((model.device.arch, module) for module in found))

        once = (lambda answers: answers) if point.plugin_code else _once  # a plugin is asked for each problem
        self.unmet, self.modules = once(unmet), once(modules)
        self._own_bytes = once(lambda problem: adapter.workspace_bytes(launched(problem)))
        self.model, self._has_process = model, point.env is not None
        self._layer = model.settings.model.layer if point.engine else None

    def cost(self, problem: Problem) -> Cost:
        """The cost of a point. In an environment the process takes memory too, which is not the backend's."""
        if self._layer is not None:
            layers = self.model.settings.timing.step_layers or LAYERS
            return in_engine(problem, self._layer, layers, self.model.device)
        cost = self.model.cost(problem, self._own_bytes(problem))
        return cost._replace(memory_bytes=cost.memory_bytes + process_bytes(problem)) if self._has_process else cost


class _Backend:
    """What is the same for all points of a backend in an environment."""

    def __init__(self, point: Point, among: _Among) -> None:
        self.adapter, self.env, self.names = among.backends.adapter_of(point), point.env, among.names
        self.places = tuple(_BackendThere(self.adapter, model, point) for model in among.models)


class _Among:
    """The kinds of devices that a point is decided for, with the backends there."""

    def __init__(self, models: Sequence[_DeviceModel], backends: Backends) -> None:
        self.models, self.backends, self.names = models, backends, tuple(model.device.name for model in models)
        self._known: dict[tuple[str, str, str | None], _Backend] = {}

    def backend_of(self, point: Point) -> _Backend:
        key = point.problem.routine, point.backend, point.env
        if (found := self._known.get(key)) is None:
            found = self._known[key] = _Backend(point, self)
        return found


class _Reads:
    """A problem that notes which of its values are read."""

    def __init__(self, problem: Problem) -> None:
        self._problem, self._names = problem, set[str]()

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._problem, name)
        if callable(value):  # which reads what nobody sees
            raise TypeError(name)
        self._names.add(name)
        self.__dict__[name] = value  # is found there the next time
        return value


def _once(answer_to: Answers) -> Answers:
    """A pure function of problems, computed once for all that have the same of what it reads: a rule seldom reads lengths.

    What it read for one problem says all that its answer depends on, and the same values lead another problem the same way.
    """
    names, answers, each = frozenset[str](), dict[Any, Any](), False
    values: Answers = attrgetter("routine")

    def answer(problem: Problem) -> Any:
        nonlocal names, answers, each, values
        if each or problem.graph_batch is not None:
            return answer_to(problem)
        if (found := answers.get(values(problem), answers)) is not answers:
            return found
        try:
            found = answer_to(reads := _Reads(problem))  # type: ignore[arg-type]
            if not reads._names <= names:
                names, answers = names | reads._names, {}
                values = attrgetter(*sorted(names))
            answers[values(problem)] = found
            each = len(answers) > MAX_ANSWERS  # it reads lengths
        except TypeError:  # of what cannot be noted, or hashed
            each, found = True, answer_to(problem)
        return found

    return answer


def _decide(point: Point, backend: _Backend, backends: Backends) -> Decision:
    problem = point.problem
    able: list[tuple[_BackendThere, Cost]] = []
    refusals: list[tuple[DecisionKind, str]] = []
    costs = [(place, place.cost(problem)) for place in backend.places]
    for place, cost in costs:
        if refusal := _refusal(problem, backend, place, cost):
            refusals.append(refusal)
        else:
            able.append((place, cost))
    if able:
        return _to_run(point, backend, able, "")
    kind: DecisionKind = "skipped" if any(of == "skipped" for of, _ in refusals) else "unsupported"
    reason = " | ".join(dict.fromkeys(reason for of, reason in refusals if of == kind))
    models = [place.model for place in backend.places]
    if kind == "unsupported" and models[0].forced:  # what its rule forbids runs, unless it cannot
        lacks = (_unmet_of_step(problem, backend, of) or backend.adapter.lacks_choice(problem, of.device) for of in models)
        if not any(lacks):
            return _to_run(point, backend, costs, reason)
    return Decision(point, kind, backends.one(reason), backend.names, costs[0][1], ())


def _to_run(point: Point, backend: _Backend, able: Sequence[tuple[_BackendThere, Cost]], rule: str) -> Decision:
    problem, (place, worst) = point.problem, able[0]
    modules, room, names = place.modules(problem), place.model.room, backend.names
    if len(able) < len(names):
        names = tuple([one.model.device.name for one, _ in able])
    if len(able) > 1:
        modules = tuple(dict.fromkeys(itertools.chain(*(one.modules(problem) for one, _ in able))))
        worst, room = max((cost for _, cost in able), key=lambda cost: cost.total_s), min(one.model.room for one, _ in able)
    here, there = (modules, ()) if backend.env is None else ((), modules)
    never = dict.fromkeys(f for one, _ in able for f in backend.adapter.not_passed(problem, one.model.device)) if rule else ()
    return Decision(point, "run", rule, names, worst, here, room, tuple(never), there)


def _refusal(problem: Problem, backend: _Backend, place: _BackendThere, cost: Cost) -> tuple[DecisionKind, str] | None:
    """How and why a device does not run a point, or None: a step's needs, the rule, a limit (first if forced: it must fit)."""
    model, unmet = place.model, place.unmet(problem)
    if model.in_step and (sentences := _unmet_of_step(problem, backend, model)):
        return ("unsupported", f"timing.context=step needs: {'; '.join(sentences)}")
    name, limit, over_limit = model.device.name, model.point_seconds, None
    if cost.memory_bytes > model.room:
        over_limit = f"too big: needs about {cost.memory_bytes / 1e9:.3g} GB of {model.room / 1e9:.3g} GB on {name}"
    elif cost.total_s > limit:
        over_limit = f"too slow: about {cost.total_s:.3g} s on {name}, limits.point_seconds is {limit:g}"
    if unmet and not (over_limit and model.forced):
        return ("unsupported", unmet)
    return ("skipped", over_limit) if over_limit else None


def _unmet_of_step(problem: Problem, backend: _Backend, model: _DeviceModel) -> list[str]:
    """What a point lacks to be timed in a step, if that is asked for. Forced, it would show nothing of a kernel."""
    if not model.in_step:
        return []
    unmet = [*step_size.unmet(problem)]
    if backend.adapter.reorders(problem):
        unmet.append("the requests of the decode call first in batch_spec, such as 15q4s8k_q1s8k")
    if backend.env is not None:
        unmet.append(OWN_PROCESS)
    return unmet


class Backends:
    """The adapters of points, each with the rule for the versions of its environment, or for those that its machines share."""

    def __init__(
        self,
        plugins: tuple[str, ...],
        machines: Sequence[LibraryVersions],
        environments: Mapping[str, LibraryVersions] | None = None,
        allowed: VersionRule = "same",
    ) -> None:
        self._plugins, self._machines, self._environments = plugins, machines, environments or {}
        self._enough = all if allowed == "any" else any
        self._known: dict[tuple[str, str, str | None], Adapter] = {}
        self._lacking: dict[tuple[str, str, str | None, tuple[str, ...]], str] = {}  # by the libraries of the problem too
        self._first: dict[Any, Any] = {}

    def one(self, value: Given) -> Given:
        """The first value that is equal: the points of a large plan have few different reasons, names and modules among them."""
        found: Given = self._first.setdefault(value, value)
        return found

    def adapter_of(self, point: Point) -> Adapter:
        """The adapter of a point's backend, as it is in the releases that the point would run with."""
        key = point.problem.routine, point.backend, point.env
        if key not in self._known:
            adapter = registry.get(*key[:2], self._plugins)
            self._known[key] = adapter.for_versions(libraries.shared(adapter.all_distributions, self._where(point)))
        return self._known[key]

    def lacking(self, point: Point) -> str:
        """The words for a library missing where a point would run: on a machine, or on all if versions may differ; else empty."""
        adapter = self.adapter_of(point)
        key = point.problem.routine, point.backend, point.env, adapter.distributions_for(point.problem)
        if key not in self._lacking:
            missing = [libraries.missing(adapter, machine, problem=point.problem) for machine in self._where(point)]
            words = next(filter(None, missing), "") if self._enough(missing) else ""
            if words and point.env is not None:
                said, _, what = words.partition("; type: pip install ")
                one_of_extra = adapter.extra and " and " not in said
                add = f"; add {'it' if one_of_extra else what} to its requirements" if what else ""
                words = f"environment {point.env}: {said}{add}"
            self._lacking[key] = words
        return self._lacking[key]

    def _where(self, point: Point) -> Sequence[LibraryVersions]:
        """The versions of each place that a point may run in."""
        if point.env is None:
            return self._machines
        return [self._environments[point.env]] if point.env in self._environments else []


def with_step(alone: Cost, problem: Problem, device: Device, timing: Timing, size: StepSize) -> Cost:
    """Adds the cost of a step of this size to that of an isolated call."""
    bytes_s, attention_s = device.tb_per_sec * 1e12, kernel_seconds(problem, device)
    products = 2 * problem.num_q_tokens * size.weight_bytes / 2  # of bf16 weights, each multiplied with every token
    rest_s = max(size.weight_bytes / bytes_s, products / (device.peak_tflops("bf16") * 1e12))
    pair_s = size.layers * (attention_s + 2 * rest_s)
    pairs = min(max(timing.max_seconds / pair_s, 2 * MIN_SAMPLES), timing.max_samples)
    sampling_s = 2 * sustained.SECONDS if timing.pace == "sustained" else pairs * pair_s  # with the stand-in at most
    logs = 3 * 4 * problem.num_q_tokens * problem.num_qo_heads * problem.value_dim  # fp32 copies of a layer's output
    own = size.layers * (alone.own_bytes + logs)
    shared = alone.memory_bytes - alone.own_bytes - problem.input_bytes + size.shared_bytes
    return Cost(
        setup_s=alone.setup_s + 10 * size.shared_bytes / bytes_s,
        point_s=alone.point_s + size.layers * PREPARE_S + sampling_s + UNTIMED_STEPS * pair_s,
        memory_bytes=shared + own,
        own_bytes=own,
    )
