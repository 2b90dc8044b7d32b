"""A sweep: axes and their values, and rules that exclude or include points."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from kernels.problem import Problem, batch_spec
from kernels.problem.dtypes import ALIASES
from kernels.problem.routine import own_axes
from kernels.timing.config import Precision
from orchestrator.config import environment
from orchestrator.config.base import Frozen, Scalar
from orchestrator.config.parts import todays
from orchestrator.config.ranges import Bounds, filters, numbers, several
from orchestrator.errors import unknown

# A mapping sets several keys together; null is the model's value or the default.
AxisValue = Scalar | None | dict[str, Scalar | None]

OF_MODEL = ("heads", "model")  # an axis and its value: the heads of the model, among others that the sweep sets
NOT_AXES = frozenset({"name", "about", "precision", "timed_in", "point_seconds", "exclude", "include"})


class Sweep(Frozen):
    """Axes with values, and rules that exclude or include points; `precision` is that of timing unless another is typed."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9_.-]*$")]
    about: str = ""
    precision: Precision = "full"
    axes: dict[str, tuple[AxisValue, ...]]
    exclude: tuple[dict[str, tuple[Scalar | Bounds | None, ...]], ...] = ()
    include: tuple[dict[str, tuple[AxisValue, ...]], ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _from_yaml(cls, flat: Any) -> Any:
        """Separates the axes from the other keys of the YAML file. Each becomes a tuple, also if it has a single value."""
        if not isinstance(flat, dict) or "axes" in flat:
            return flat
        rules: dict[str, Any] = {}
        for key, ranges in (("exclude", filters), ("include", numbers)):
            if not isinstance(given := flat.get(key), list | None):
                raise ValueError(f"sweep.{key}={given!r}: allowed: a list of rules such as [{{backend: cudnn, s_qo: [4, 8]}}]")
            rules[key] = tuple(_as_axes(rule, ranges) for rule in given or ())
        axes = _as_axes({key: value for key, value in flat.items() if key not in NOT_AXES})
        own = {key: flat[key] for key in ("about", "precision") if key in flat}
        return {"name": flat.get("name"), **own, "axes": axes, **rules}

    @model_validator(mode="after")
    def _known_axes(self) -> Self:
        for where, axes in (("sweep", self.axes), *((f"sweep.include[{i}]", rule) for i, rule in enumerate(self.include))):
            for axis, values in axes.items():
                for value, key in ((one, key) for one in values for key in keys_of(axis, one) if key not in SWEEP_KEYS):
                    hint = ". An axis of another name takes mappings, such as dtype: [{q: bf16, kv: bf16}]"
                    words = unknown(where, axis if key == axis else f"{axis}.{key}", SWEEP_KEYS)
                    raise ValueError(words if isinstance(value, dict) else words + hint)
        for i, rule in enumerate(self.exclude):
            for key in rule:
                if key not in SWEEP_KEYS:
                    raise ValueError(unknown(f"sweep.exclude[{i}]", key, SWEEP_KEYS))
            for spec in rule.get("batch_spec", ()):
                _check_excluded_spec(f"sweep.exclude[{i}]", str(spec))
        return self


# Not a tree, which `mask` names.
_OF_POINTS = {"backend", "env", "num_splits", "flag", "drafts"}
SWEEP_KEYS = (frozenset(Problem.model_fields) | own_axes() | _OF_POINTS) - {"tree", "routine_axes"}


def keys_of(axis: str, value: AxisValue) -> dict[str, Scalar | None]:
    """The problem keys that one value of an axis sets: the axis itself, or the keys of a mapping.

    In a mapping, `q` under `dtype` means `q_dtype`, and `{min: 1, max: 8}` under `s_qo` means `min_s_qo` and `s_qo`. A
    `batch_spec` sets all lengths, `drafts` one query token more, `heads: model` none. Raises ValueError for what cannot be read.
    """
    if (axis, value) == OF_MODEL:
        return {}
    if isinstance(value, dict):
        keys = {key if key in SWEEP_KEYS else axis if key == "max" else f"{key}_{axis}": v for key, v in value.items()}
    else:
        keys = {axis: value}
    if "drafts" in keys and (drafts := keys.pop("drafts")) is not None:
        if isinstance(drafts, bool) or not isinstance(drafts, int) or drafts < 0:
            raise ValueError(f"sweep.drafts={drafts!r}: allowed: whole numbers from 0")
        keys["s_qo"] = drafts + 1
    spec = keys.get("batch_spec")
    return keys | batch_spec.keys_of(spec) if isinstance(spec, str) else keys


def _check_excluded_spec(where: str, spec: str) -> None:
    """Raises ValueError for a spec that no point has: equal requests have no spec, mixed ones the shortest spelling."""
    keys = batch_spec.keys_of(spec)
    if keys["batch_spec"] != spec:
        lens = ", ".join(f"{key}: {keys[key]}" for key in ("batch_size", "s_qo", "s_kv"))
        raise ValueError(f"{where}: batch_spec={spec!r}: type {keys['batch_spec'] or f'{{{lens}}}'}, the name that its points have")


def _as_axes(mapping: Any, ranges: Callable[[str, Iterable[Any]], Iterable[Any]] = numbers) -> Any:
    """Keys with their values, each a tuple. `ranges` says what a range in it stands for."""
    if not isinstance(mapping, dict):
        raise ValueError(f"sweep: {mapping!r} is not a rule; allowed: a mapping such as {{backend: cudnn, s_qo: [4, 8]}}")
    axes = {key: tuple(ranges(f"sweep.{key}", several(values))) for key, values in mapping.items()}
    for key, values in axes.items():
        for value in values:
            parts = value.values() if isinstance(value, dict) else (value,)
            if not all(part is None or isinstance(part, Scalar | Bounds) for part in parts):
                raise ValueError(f"sweep.{key}={value!r}: allowed: numbers and words, or mappings of keys to such")
    return {key: tuple(_renamed(key, value) for value in values) for key, values in axes.items()}


def _renamed(key: str, value: Any) -> Any:
    """The value of an axis, in which a backend and a dtype have this project's name, and a library and its version one spelling."""
    if isinstance(value, dict):
        return {part: _renamed(part, v) for part, v in value.items()}
    if not isinstance(value, str):
        return value
    return todays(value) if key == "backend" else environment.shown(value) if key == "env" else ALIASES.get(value, value)
