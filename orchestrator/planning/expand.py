"""Expands a sweep to its points: the grid of its axes, without what is excluded, with what is included. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from kernels import registry
from kernels.adapter import Adapter
from kernels.contract import splits
from kernels.engines import flags
from kernels.problem import PLAIN_MASKS, Problem
from kernels.problem.routine import own_axes, routine_of
from kernels.problem.trees import TreeTooSmall
from orchestrator import gc_pause
from orchestrator.code_version import plugin_code
from orchestrator.config.base import Scalar
from orchestrator.config.environment import find
from orchestrator.config.model import CUSTOM, HEADS, Model, shipped
from orchestrator.config.ranges import Allowed, Bounds, several
from orchestrator.config.settings import Chosen, Settings
from orchestrator.config.sweep import AxisValue, Sweep, keys_of
from orchestrator.errors import UserError, as_typed, explain, unknown
from orchestrator.point import Point, fingerprint

Rule = Mapping[str, tuple[Scalar | Bounds | None, ...]]
MAX_COMBINATIONS = 2_000_000
# What a model has beside its heads: nothing to other heads that a sweep sets.
LENT = ("sinks", "window", "softmax_scale", "soft_cap")
# Heads that every sweep can have: what is wrong with a problem of these is wrong with the sweep, and not with its model.
ANY_MODEL = {"num_qo_heads": 64, "num_kv_heads": 8, "head_dim_qk": 128, "head_dim_vo": 128, "head_dim_ckv": 512, "head_dim_kpe": 64}
# Beside the keys of a problem: known before a point has run.
OF_POINTS = ("backend", "env", "num_splits", "out_dtype", "flag", "drafts")
BESIDE = ("backend", "env", "num_splits", "flag")  # of these, what a sweep sets and no problem has


def expand(settings: Settings) -> list[Point]:
    """The points of a sweep in the order of its axes, none twice. What its model cannot have is `refused`, and does not run.

    Raises UserError for a value that no problem can have, an unknown backend, and a sweep without points for its model.
    """
    with gc_pause.paused():
        return _expanded(settings)


def _expanded(settings: Settings) -> list[Point]:
    _require_bounded(settings.sweep)
    how = fingerprint(_how(settings))
    problem_of = _Problems(settings)
    points: list[Point] = []
    there: dict[tuple[str, str | None], set[int]] = {}  # by backend and env, problems by id(): equal ones are one object
    known: dict[tuple[str, str], tuple[Adapter, str]] = {}  # each backend, and the code of its plugin
    for of_point, cells, exclude in _combinations(settings):
        backend, env = _backend_of(of_point, settings), of_point.get("env")
        name, place = str(backend), None if env is None else str(env)
        if (name, place) not in there and place is not None:
            find(place, settings.env)  # an unknown name is an error before anything starts
        seen = there.setdefault((name, place), set())
        for cell in cells:
            if (made := cell.made) is None:
                made = cell.made = problem_of(cell.keys)
            problem, refused = made
            if exclude and any(_matches(rule, _value_of(problem, backend, env)) for rule in exclude):  # of the model, or a default
                continue
            if id(problem) not in seen:
                seen.add(id(problem))
                if (origin := known.get((problem.routine, name))) is None:
                    origin = known[problem.routine, name] = _origin_of(problem.routine, backend, settings.adapters)
                adapter, code = origin
                called = () if refused else _distributions(adapter, problem, code)
                points.append(Point(problem, name, how, 0, called, place, code, refused))
    if not points:
        empty = ", ".join(f"sweep.{axis}" for axis, values in settings.sweep.axes.items() if not values)
        raise UserError(f"sweep {settings.sweep.name} has no points: {empty or 'every point'} is empty or excluded; give it values")
    if all(point.refused for point in points):
        raise UserError(Counter(point.refused for point in points).most_common(1)[0][0])
    return points


def _distributions(adapter: Adapter, problem: Problem, plugin: str) -> tuple[str, ...]:
    """The packages of a backend. A plugin that cannot name them is asked again when its points are decided, and fails there."""
    try:
        return adapter.distributions_for(problem)
    except KeyboardInterrupt:
        raise
    except BaseException:
        if not plugin:
            raise
        return ()


def _require_bounded(sweep: Sweep) -> None:
    """Raises UserError for a sweep of more than MAX_COMBINATIONS, before it makes the first."""
    for axes in (sweep.axes, *({**sweep.axes, **added} for added in sweep.include)):
        count = math.prod(max(1, len(values)) for values in axes.values())
        if count > MAX_COMBINATIONS:
            longest = sorted(axes, key=lambda axis: len(axes[axis]), reverse=True)[:3]
            named = ", ".join(f"sweep.{axis} has {len(axes[axis]):,} values" for axis in longest)
            raise UserError(f"sweep {sweep.name} has {count:,} combinations ({named}); allowed: up to {MAX_COMBINATIONS:,}")


def _how(settings: Settings) -> list[object]:
    """How points are measured, as it enters their ids: in a step, the sizes of its layers too."""
    how: list[object] = [settings.timing.identity(), settings.check.model_dump(include={"enabled"})]
    layer = settings.model.layer if settings.timing.context != "isolated" else None
    return how if layer is None else [*how, layer.model_dump(exclude_defaults=True)]


class _Problems:
    """Problems of a sweep's keys and the model's share of one GPU, equal ones once, each with why its model cannot have it."""

    def __init__(self, settings: Settings) -> None:
        self.trees, self.context = settings.trees, settings.timing.context
        of_engine = flags.PAGES.get(_engine_of(settings)) if self.context == "engine" else None
        self.own: dict[str, Scalar] = {} if of_engine is None else {"page_size": of_engine}
        self.models: dict[Scalar | None, Model] = {None: settings.model}
        self.distinct: dict[Problem, Problem] = {}
        self.given: dict[frozenset[str], set[str]] = {}
        # Of one GPU, by model, routine, tp, and window or none.
        self.shares: dict[tuple[Scalar | None, Scalar | None, int, bool], dict[str, Scalar]] = {}

    def __call__(self, keys: Mapping[str, Scalar]) -> tuple[Problem, str]:
        problem, refused = self._make(keys)
        # Which keys were given is the same for nearly all, and a set of them is as large as a problem.
        given = self.given.setdefault(frozenset(problem.model_fields_set), problem.model_fields_set)
        object.__setattr__(problem, "__pydantic_fields_set__", given)
        return self.distinct.setdefault(problem, problem), refused

    def _make(self, keys: Mapping[str, Scalar]) -> tuple[Problem, str]:
        model = self._model(keys.get("model"))
        own_heads = [key for key in HEADS if key in keys]  # a sweep's own head shapes are no longer the model's
        if own_heads and self.context != "isolated":
            raise UserError(
                f"timing.context={self.context}: the sweep sets {', '.join(sorted(own_heads))} of its own, "
                f"so the layers of model {model.name} do not fit; leave these out, or type timing.context=isolated"
            )
        if "routine" not in keys:  # a sweep of an engine's flags takes what the model has
            keys = {**keys, "routine": "paged_decode" if model.head_dim_ckv is None else "mla"}
        routine, tp = str(keys["routine"]), keys.get("tp", model.tp[0])
        if isinstance(tp, bool) or not isinstance(tp, int) or tp < 1:
            raise UserError(f"sweep.tp={tp!r}: allowed: a whole number")
        if (of := (keys.get("model"), routine, tp, "window" in keys)) not in self.shares:
            self.shares[of] = model.share(routine, tp, windowed="window" in keys)
        share = self.shares[of]
        if any(keys[key] != share.get(key) for key in own_heads):
            share = {key: value for key, value in share.items() if key not in LENT}
        of_model = {"model": CUSTOM if own_heads else model.name, "tp": tp}
        given: dict[str, Any] = {**share, **self.own, "tree": self._tree(keys), **keys, **of_model}
        refused = "" if own_heads else model.refusal(routine, tp, keys.get("s_kv"), keys.get("mask"))
        if self.context == "engine" and model.layer is None:
            refused = refused or f"model {model.name} does not say how large its layers are (model.layer); type another model"
        try:
            return Problem.model_validate(given), refused
        except ValidationError as error:
            said = explain(error, "sweep")
        try:
            own = routine_of(routine)
            heads = own.any_model if own else ANY_MODEL
            of_sweep = {key: value for key, value in given.items() if key in keys or key not in (*LENT, *HEADS)}
            Problem.model_validate({**of_sweep, **heads})
        except ValidationError:
            raise UserError(said) from None
        whole = len(own_heads) >= len(HEADS if routine == "mla" else HEADS[:4])
        if whole or (own_heads and not model.typed):
            raise UserError(said)
        return Problem.model_construct(None, **given), refused or f"model {model.name}: {said}; type another model for these"

    def _model(self, name: Scalar | None) -> Model:
        """The model of the run, or one of conf/model that the sweep names in its place. Raises UserError."""
        if name not in self.models:
            if self.context != "isolated":
                raise UserError(
                    f"sweep.model={name!r}: timing.context={self.context} is of one model; type model={name} 'sweep.heads=[model]'"
                )
            if name not in shipped():
                raise UserError(unknown("sweep.model", str(name), shipped()))
            self.models[name] = Model.model_validate(shipped()[str(name)])
        return self.models[name]

    def _tree(self, keys: Mapping[str, Scalar]) -> tuple[int, ...] | None:
        name, s_qo = str(keys.get("mask", "causal")), keys.get("s_qo")
        if name in PLAIN_MASKS or not isinstance(s_qo, int):
            return None
        if name not in self.trees:
            raise UserError(unknown("sweep.mask", name, [*PLAIN_MASKS, *self.trees]))
        try:
            return self.trees[name].parents(s_qo)
        except TreeTooSmall as error:
            raise UserError(f"sweep.mask={name}: {error}; give s_qo smaller values, or exclude these points") from None


@dataclass(slots=True)
class _Cell:
    """The keys of one problem, and what `_Problems` says of them: asked once for all backends."""

    keys: dict[str, Scalar]
    made: tuple[Problem, str] | None = None


_Part = tuple[dict[str, Scalar], list[_Cell]]  # keys of points, and problems that all of them have
_Axis = list[tuple[dict[str, Scalar], dict[str, Scalar]]]  # keys that each of its values sets: of points, and of their problems


def _combinations(settings: Settings) -> Iterator[tuple[dict[str, Scalar], list[_Cell], tuple[Rule, ...]]]:
    """Points in order, many at a time, and the rules that may exclude some: none for what `include` names."""
    sweep = settings.sweep
    exclude = tuple({key: Allowed(values) for key, values in rule.items()} for rule in sweep.exclude)
    for axes, rules in ((sweep.axes, exclude), *(({**sweep.axes, **added}, ()) for added in sweep.include)):
        for of_point, every in _grid(axes):
            cells = [one for one in every if not any(_matches(rule, {**one.keys, **of_point}.get) for rule in rules)]
            if cells:
                yield of_point, cells, rules


def _grid(axes: Mapping[str, tuple[AxisValue, ...]]) -> Iterator[_Part]:
    """Every combination. If two axes set one key, the later wins; an axis without values yields to a mapping that sets its key."""
    moved = {key for axis, values in axes.items() for value in values for key in keys_of(axis, value) if key != axis}
    choices = [[keys_of(axis, value) for value in values] for axis, values in axes.items() if values or axis not in moved]
    own = [{key for keys in choice for key in keys} for choice in choices]
    if sum(map(len, own)) == len(set().union(*own)):  # no two axes set one key: a null unsets nothing, and is left out before
        parts = [_axis(choice) for choice in sorted(choices, key=lambda choice: len(choice) > 1)]
        cells = [_Cell(keys) for keys in _merged([[keys for _, keys in axis] for axis in parts if any(keys for _, keys in axis)])]
    else:
        parts = [_axis(_merged(choices))]
        made = {tuple(keys.items()): _Cell(keys) for _, keys in parts[0]}
        cells = [made[tuple(keys.items())] for _, keys in parts[0]]
    behind = [i + 1 for i, axis in enumerate(parts) if any(of_point for of_point, _ in axis) or not any(keys for _, keys in axis)]
    yield from _parts({}, cells, parts[: max(behind, default=0)])


def _axis(choice: Iterable[Mapping[str, Scalar | None]]) -> _Axis:
    set_keys = ({key: value for key, value in keys.items() if value is not None} for keys in choice)
    return [({key: keys.pop(key) for key in BESIDE if key in keys}, keys) for keys in set_keys]


def _parts(of_point: dict[str, Scalar], cells: list[_Cell], axes: Sequence[_Axis]) -> Iterator[_Part]:
    """The combinations of these axes, each with its share of the problems, which the axes behind them have together."""
    if not axes:
        yield of_point, cells
        return
    width = len(cells) // max(1, len(axes[0])) if any(keys for _, keys in axes[0]) else 0
    for i, (keys, _) in enumerate(axes[0]):
        yield from _parts(of_point | keys, cells[i * width : (i + 1) * width] if width else cells, axes[1:])


def _merged(choices: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The keys that each combination sets. Those of the first axes are merged once for all values of the last."""
    found: list[dict[str, Any]] = [{}]
    for choice in choices:
        found = [keys | more for keys in found for more in choice]
    return found


def _matches(rule: Rule, value_of: Callable[[str], object]) -> bool:
    return all(value_of(key) in values for key, values in rule.items())


def _value_of(problem: Problem, backend: object, env: object) -> Callable[[str], object]:
    """The keys of a point: those of `OF_POINTS`, and of its problem."""
    special = {"backend": backend, "env": env, "num_splits": splits.splits_in(str(backend)), "out_dtype": problem.output_dtype}
    special |= {"flag": (flags.parsed(str(backend)) or ("", None))[1], "drafts": problem.s_qo - 1}
    own = own_axes()
    return lambda key: special[key] if key in special else problem.axis(key) if key in own else getattr(problem, key)


def _backend_of(keys: Mapping[str, Scalar], settings: Settings) -> Scalar | None:
    """The backend that the keys name, alone, with `num_splits`, or by `flag`. Raises UserError."""
    backend, count, flag = keys.get("backend"), keys.get("num_splits"), keys.get("flag")
    if (flag is not None) != (settings.timing.context == "engine") or (flag is not None and backend is not None):
        raise UserError(
            f"sweep.flag={flag!r}, sweep.backend={backend!r}, timing.context={settings.timing.context}: flags are of an engine, "
            f"and measured with timing.context=engine and no backend; type +sweep=in_engine 'sweep.flag=[default,FLASHINFER]'"
        )
    if flag is not None:
        return f"{_engine_of(settings)}/{flag}"
    if count is None:
        return backend
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= splits.MAX_SPLITS:
        raise UserError(f"sweep.num_splits={count!r}: allowed: 1 to {splits.MAX_SPLITS}, or null for the library's choice")
    return splits.named(str(backend), count)


def _engine_of(settings: Settings) -> str:
    """The engine that a sweep of flags starts. Raises UserError for one that this project cannot start, and for a release."""
    typed = getattr(settings, "engine", None)
    name = "vllm" if typed is None else str(typed.name)
    if name not in flags.ENGINES:
        raise UserError(
            f"engine={name!r}: a sweep of flags starts the release that is installed; allowed: {', '.join(flags.ENGINES)}; "
            f"for a release type engine=vllm 'sweep.env=[vllm:0.25.1]'"
        )
    return name


def _origin_of(routine: str, backend: object, plugins: tuple[str, ...]) -> tuple[Adapter, str]:
    """A backend, and its plugin's hash, empty for this project's own. Raises UserError for an unknown backend."""
    try:
        return registry.get(routine, str(backend), plugins), plugin_code(registry.module_of(routine, str(backend), plugins))
    except registry.UnknownBackend as error:
        own = "" if plugins else "; for a backend of your own, type adapters=[its_module]"
        raise UserError(f"sweep.backend={backend!r}: {error}{own}") from None
    except (ImportError, ValueError, AttributeError) as error:
        raise UserError(f"adapters={list(plugins)}: {error}; allowed: modules with a tuple ADAPTERS") from None


def chosen(points: Iterable[Point], settings: Chosen) -> list[Point]:
    """The points with the values of `where`. Raises UserError for a key that no point has, and if none is left."""
    where = settings.where
    for key in where:
        if key not in (known := {*OF_POINTS, *Problem.model_fields, *own_axes()}):
            raise UserError(unknown("where", key, known))
    rule = {key: Allowed(several(values)) for key, values in where.items()}
    found = [point for point in points if not rule or _matches(rule, _value_of(point.problem, point.backend, point.env))]
    if not found:
        raise UserError(f"where={as_typed(where)}: no point of sweep {settings.sweep.name} has these values; type others")
    return found
