"""From a sweep to its points: the grid of its axes, less what is excluded, plus what is included. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from json.encoder import encode_basestring_ascii

from pydantic import ValidationError

from kernels import registry
from kernels.problem import PLAIN_MASKS, Problem
from kernels.trees import TreeTooSmall
from orchestrator import collector
from orchestrator.axes import AxisValue, keys_of
from orchestrator.errors import UserError, explain, unknown
from orchestrator.frozen import Scalar
from orchestrator.settings import Settings

Rule = Mapping[str, tuple[Scalar | None, ...]]
_canonical = json.JSONEncoder(sort_keys=True).encode  # json.dumps would make an encoder for every point
_Choice = list[dict[str, Scalar | None]]  # what each value of an axis sets
HEADS = ("num_qo_heads", "num_kv_heads", "head_dim")


@dataclass(frozen=True)
class Point:
    """One problem on one backend, as it is to be measured. Where it runs is no part of it."""

    problem: Problem
    backend: str
    how: str  # fingerprint of the measurement settings
    twin: int = 0  # 1: the same point once more, for the noise between two measurements of one thing

    @cached_property
    def point_id(self) -> str:
        """Hash of what is measured and how; the same on every machine."""
        # What `fingerprint` of the three in a list gives, in half the time: a large plan asks for every point's.
        twin = f", {self.twin}" if self.twin else ""
        return _digest(f'["{self.group_id}", {encode_basestring_ascii(self.backend)}{twin}]')

    @cached_property
    def group_id(self) -> str:
        """Hash of the problem: points of one group run on the same inputs and the same reference.

        A field at its default does not enter, so that the ids of old rows outlive a new axis.
        """
        return _group_id(self.problem, self.how)


@lru_cache(maxsize=2**18)
def _group_id(problem: Problem, how: str) -> str:
    """Worked out once for all points of a group."""
    return fingerprint([problem.model_dump(exclude_defaults=True), how])


def fingerprint(what: object) -> str:
    """The first 12 hex digits of a SHA-256 over canonical JSON."""
    return _digest(_canonical(what))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def expand(settings: Settings) -> list[Point]:
    """The points of a sweep in the order of its axes, none twice.

    Raises UserError for a value that no problem can have, a backend that does not exist, and a sweep without points.
    """
    with collector.paused():
        return _expanded(settings)


def _expanded(settings: Settings) -> list[Point]:
    how = fingerprint([settings.timing.identity(), settings.check.model_dump(include={"enabled"})])
    problem_of = _Problems(settings)
    points: dict[tuple[int, str], Point] = {}  # by the problem's identity: equal problems are one object
    known: set[tuple[str, str]] = set()
    for keys, exclude in _combinations(settings):
        if any(_matches(rule, keys.get) for rule in exclude):
            continue
        backend = keys.pop("backend", None)
        problem = problem_of(keys)
        if any(_matches(rule, _value_of(problem, backend)) for rule in exclude):  # what the model or a default has set
            continue
        name = str(backend)
        if (problem.routine, name) not in known:
            _require_backend(problem.routine, backend, settings.adapters)
            known.add((problem.routine, name))
        if (id(problem), name) not in points:
            points[id(problem), name] = Point(problem, name, how)
    if not points:
        empty = ", ".join(f"sweep.{axis}" for axis, values in settings.sweep.axes.items() if not values)
        raise UserError(f"sweep {settings.sweep.name} has no points: {empty or 'every point'} is empty or excluded; give it values")
    return list(points.values())


class _Problems:
    """Problems from the keys of a sweep, over the model's share of one GPU; each made once, equal ones the same object."""

    def __init__(self, settings: Settings) -> None:
        self.model, self.trees = settings.model, settings.trees
        self.made: dict[tuple[tuple[str, Scalar], ...], Problem] = {}
        self.distinct: dict[Problem, Problem] = {}
        self.shares: dict[tuple[Scalar | None, Scalar | None], dict[str, Scalar]] = {}  # the model's, by routine and tp
        self.axes_of_heads = {key for key in Problem.model_fields if key.startswith(HEADS)}

    def __call__(self, keys: Mapping[str, Scalar]) -> Problem:
        known = tuple(keys.items())
        if known not in self.made:
            problem = self._make(keys)
            self.made[known] = self.distinct.setdefault(problem, problem)
        return self.made[known]

    def _make(self, keys: Mapping[str, Scalar]) -> Problem:
        own_heads = not self.axes_of_heads.isdisjoint(keys)  # a sweep's own head shapes are no longer the model's
        named = {"model": "custom" if own_heads else self.model.name, "tree": self._tree(keys)}
        try:
            return Problem.model_validate({**named, **self._share(keys.get("routine"), keys.get("tp")), **keys})
        except ValidationError as error:
            raise UserError(explain(error, "sweep")) from None

    def _share(self, routine: Scalar | None, tp: Scalar | None) -> dict[str, Scalar]:
        if (routine, tp) not in self.shares:
            size = self.model.tp[0] if tp is None else _whole(tp)
            self.shares[routine, tp] = {"tp": size, **self.model.share(str(routine), size)}
        return self.shares[routine, tp]

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


def _whole(value: Scalar) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise UserError(f"sweep.tp={value!r}: allowed: a whole number")
    return value


def _combinations(settings: Settings) -> Iterator[tuple[dict[str, Scalar], tuple[Rule, ...]]]:
    """The keys of each combination, and the rules that may leave it out: none of what is included by name."""
    sweep = settings.sweep
    for keys in _grid(sweep.axes):
        yield keys, sweep.exclude
    for added in sweep.include:
        for keys in _grid({**sweep.axes, **added}):
            yield keys, ()


def _grid(axes: Mapping[str, tuple[AxisValue, ...]]) -> Iterator[dict[str, Scalar]]:
    """Every combination; of two axes that set one key the later wins, and one without values of its own yields to a mapping."""
    moved = {key for axis, values in axes.items() for value in values for key in keys_of(axis, value) if key != axis}
    choices: list[_Choice] = []
    for axis, values in axes.items():
        if values or axis not in moved:
            choice = [keys_of(axis, value) for value in values]
            if len(choice) == 1 and choices:
                choices[-1] = [keys | choice[0] for keys in choices[-1]]
            else:
                choices.append(choice)
    for keys in _merged({}, choices):
        yield {key: value for key, value in keys.items() if value is not None}


def _merged(so_far: dict[str, Scalar | None], choices: Sequence[_Choice]) -> Iterator[dict[str, Scalar | None]]:
    """What each combination sets; what the first axes set is merged once for all values of the last."""
    if not choices:
        yield so_far
        return
    for keys in choices[0]:
        yield from _merged(so_far | keys, choices[1:])


def _matches(rule: Rule, value_of: Callable[[str], object]) -> bool:
    return all(value_of(key) in values for key, values in rule.items())


def _value_of(problem: Problem, backend: object) -> Callable[[str], object]:
    special = {"backend": backend, "out_dtype": problem.output_dtype}
    return lambda key: special[key] if key in special else getattr(problem, key)


def _require_backend(routine: str, backend: object, plugins: tuple[str, ...]) -> None:
    try:
        registry.get(routine, str(backend), plugins)
    except registry.UnknownBackend as error:
        raise UserError(f"sweep.backend={backend!r}: {error}") from None
    except (ImportError, ValueError, AttributeError) as error:
        raise UserError(f"adapters={list(plugins)}: {error}; allowed: modules that hold a tuple ADAPTERS") from None
