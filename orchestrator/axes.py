"""A sweep as YAML names it: axes, values that set several keys at once, rules that leave points out or add some."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from kernels import batch_spec
from kernels.problem import Problem
from orchestrator.errors import unknown
from orchestrator.frozen import Frozen, Scalar

AxisValue = Scalar | None | dict[str, Scalar | None]  # a mapping moves several keys together; null is the model's or the default

NO_AXIS = frozenset({"name", "about", "exclude", "include"})


class Sweep(Frozen):
    """A sweep as data: axes with their values, rules that leave points out, rules that add some."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+$")]
    about: str = ""
    axes: dict[str, tuple[AxisValue, ...]]
    exclude: tuple[dict[str, tuple[Scalar | None, ...]], ...] = ()
    include: tuple[dict[str, tuple[AxisValue, ...]], ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _from_yaml(cls, flat: Any) -> Any:
        """YAML keeps axes beside the name; here they stand apart, each a tuple even where one value was given."""
        if not isinstance(flat, dict) or "axes" in flat:
            return flat
        rules = {key: tuple(map(_as_axes, _as_rules(key, flat.get(key)))) for key in ("exclude", "include")}
        axes = _as_axes({key: value for key, value in flat.items() if key not in NO_AXIS})
        return {"name": flat.get("name"), "about": flat.get("about", ""), "axes": axes, **rules}

    @model_validator(mode="after")
    def _known_axes(self) -> Self:
        for where, axes in (("sweep", self.axes), *((f"sweep.include[{i}]", rule) for i, rule in enumerate(self.include))):
            for axis, values in axes.items():
                _check_axis(where, axis, values)
        for i, rule in enumerate(self.exclude):
            for key in rule:
                if key not in KEYS:
                    raise ValueError(unknown(f"sweep.exclude[{i}]", key, KEYS))
            for spec in rule.get("batch_spec", ()):
                _check_excluded_spec(f"sweep.exclude[{i}]", spec)
        return self


# A model is a group: model=llama_3_1_8b, or -m model=a,b. A tree is named by `mask`.
KEYS = (frozenset(Problem.model_fields) | {"backend"}) - {"model", "tree"}


def keys_of(axis: str, value: AxisValue) -> dict[str, Scalar | None]:
    """The keys that one value of an axis sets: itself, or those of a mapping.

    There `q` under `dtype` means `q_dtype`, and `{min: 1, max: 8}` under `s_qo` means `min_s_qo` and `s_qo`. A `batch_spec` sets
    every length; ValueError where it is none.
    """
    if isinstance(value, dict):
        keys = {key if key in KEYS else axis if key == "max" else f"{key}_{axis}": v for key, v in value.items()}
    else:
        keys = {axis: value}
    spec = keys.get("batch_spec")
    return keys | batch_spec.keys_of(spec) if isinstance(spec, str) else keys


def _check_axis(where: str, axis: str, values: tuple[AxisValue, ...]) -> None:
    for value in values:
        for key in keys_of(axis, value):
            if key not in KEYS:
                hint = (
                    ""
                    if isinstance(value, dict)
                    else ". An axis of another name takes mappings, such as dtype: [{q: bf16, kv: bf16}]"
                )
                raise ValueError(unknown(where, axis if key == axis else f"{axis}.{key}", KEYS) + hint)


def _check_excluded_spec(where: str, spec: Scalar | None) -> None:
    """A batch whose requests are alike has no spec that a rule could match, a mixed one has its shortest."""
    keys = batch_spec.keys_of(str(spec))
    if keys["batch_spec"] != spec:
        lens = ", ".join(f"{key}: {keys[key]}" for key in ("batch_size", "s_qo", "s_kv"))
        raise ValueError(f"{where}: batch_spec={spec!r}: type {keys['batch_spec'] or f'{{{lens}}}'}, which its points are known by")


def _as_rules(key: str, rules: Any) -> list[Any]:
    if rules is not None and not isinstance(rules, list):
        raise ValueError(f"sweep.{key}={rules!r}: allowed: a list of rules such as [{{backend: cudnn, s_qo: [4, 8]}}]")
    return rules or []


def _as_axes(mapping: Any) -> Any:
    if not isinstance(mapping, dict):
        raise ValueError(f"sweep: {mapping!r} is no rule; allowed: a mapping such as {{backend: cudnn, s_qo: [4, 8]}}")
    axes = {key: tuple(v) if isinstance(v, list | tuple) else (v,) for key, v in mapping.items()}
    for key, values in axes.items():
        for value in values:
            parts = value.values() if isinstance(value, dict) else (value,)
            if not all(part is None or isinstance(part, Scalar) for part in parts):
                raise ValueError(f"sweep.{key}={value!r}: allowed: numbers and words, or mappings of keys to such")
    return axes
