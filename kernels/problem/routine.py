"""What a routine in a folder of `kernels/routines` says of its problems, and how its functions take the place of attention's.

A folder NAME registers itself: `kernels.routines.NAME.problem` holds `ROUTINE`, an object of a subclass of `Routine`. Nothing here
imports torch. `docs/routines.md` lists the functions that a folder may replace.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from functools import cache, lru_cache, wraps
from importlib import import_module
from types import ModuleType
from typing import Any, ClassVar, ParamSpec, TypeVar

FOLDERS = f"{__name__.removesuffix('.problem.routine')}.routines"  # installed, `kernels` has another name
# The values of an axis of a routine's own, the default first. int: any from 1, and no default. A number: any, and this by default.
Axis = tuple[int | str, ...] | type[int] | int
Given = ParamSpec("Given")
Returned = TypeVar("Returned")


class Routine:
    """A routine of a folder, as plans see it. What is not overridden is as in attention over keys and values.

    `keys` are the fields of `Problem` that its problems may set, beside those that every problem has. Others are refused by name.
    `axes` are its own: they are typed as `sweep.AXIS`, and stored together in `Problem.routine_axes`. `oracle` names its reference.
    """

    name: str
    oracle: str
    keys: ClassVar[frozenset[str]] = frozenset()
    axes: ClassVar[Mapping[str, Axis]] = {}
    second_output = False  # beside the output a tensor is judged that the call writes; an adapter gives it as `Runner.lse`
    latent = False  # keys and values are one latent that all heads read, as in `mla`
    attends = False  # its answers are attention over the keys of `Problem.judged`: weighed, and made wrong, as such
    any_model: ClassVar[Mapping[str, int]] = {}  # heads that all its sweeps can have
    config_keys: ClassVar[Mapping[str, str]] = {}  # sizes in `model.routines[NAME]`, and their names in a public config.json
    promises: ClassVar[Mapping[str, str]] = {}  # of mode=check_power: kinds of its drawn faults, and the clause of each

    def completed(self, keys: dict[str, Any]) -> dict[str, Any]:
        """The keys of a problem with those that follow from others. Raises ValueError for one that says otherwise."""
        return keys

    def check(self, problem: Any) -> None:
        """Raises ValueError with a message for the user if keys of a problem do not fit together."""

    def judged(self, problem: Any) -> Any:
        """The problem by whose keys an answer is judged: of `Inputs.judged`."""
        return problem

    def flops(self, problem: Any) -> int:
        """Multiplications and additions."""
        found: int = problem.attention_flops
        return found

    def kv_bytes(self, problem: Any) -> int | None:
        """The fewest bytes to read what stands in place of keys and values, and to write it if it changes; None: as attention."""
        return None

    def qo_bytes(self, problem: Any) -> int | None:
        """The fewest bytes to read the queries and to write one output; None: as attention."""
        return None

    def input_bytes(self, problem: Any) -> int | None:
        """Bytes of memory for inputs and one output; None: as attention."""
        return None

    def share(self, model: Any, tp: int) -> dict[str, int | str] | str:
        """The part of one GPU of `tp`, as keys of a problem, from `orchestrator.config.model.Model`; or why there is none.

        `model.routines[NAME]` has the sizes of the model's layers of this routine, as its file gives them.
        """
        return f"model {model.name} has no layers of routine={self.name}"


@cache
def found() -> dict[str, Routine]:
    """The routines of all folders, by name."""
    folders = import_module(FOLDERS)
    names = sorted(one.name for one in pkgutil.iter_modules(folders.__path__) if one.ispkg)
    return {name: import_module(f"{FOLDERS}.{name}.problem").ROUTINE for name in names}


def routine_of(name: str) -> Routine | None:
    """The routine of a folder; None for one of attention over keys and values."""
    return found().get(name)


def own_axes() -> frozenset[str]:
    """The axes that some routine has of its own."""
    return frozenset(axis for one in found().values() for axis in one.axes)


def part(name: str, what: str) -> ModuleType | None:
    """The module `what` of a routine's folder, such as `hooks`, `adapters` or `mutants`; None if it has none."""
    folder = import_module(f"{FOLDERS}.{name}")
    there = any(one.name == what for one in pkgutil.iter_modules(folder.__path__))
    return import_module(f"{FOLDERS}.{name}.{what}") if there else None


def parts(what: str) -> list[str]:
    """The dotted names of the modules `what` of all folders."""
    return [module.__name__ for name in found() if (module := part(name, what)) is not None]


def by_routine(default: Callable[Given, Returned]) -> Callable[Given, Returned]:
    """The function, or for a folder's routine that of its name in `hooks`. The first argument that is or has a problem tells."""

    @wraps(default)
    def chosen(*args: Given.args, **kwargs: Given.kwargs) -> Returned:
        name = next((name for one in (*args, *kwargs.values()) if (name := _routine_in(one))), "")
        hooks = part(name, "hooks") if name in found() else None
        call: Callable[Given, Returned] = getattr(hooks, default.__name__, default)
        return call(*args, **kwargs)

    return chosen


def _routine_in(argument: object) -> str:
    problem = getattr(argument, "problem", argument)
    return str(getattr(problem, "routine", ""))


def with_axes(keys: dict[str, Any]) -> dict[str, Any]:
    """Keys of a problem with its routine's own axes as `routine_axes`, and what follows from others. Raises ValueError."""
    own = routine_of(str(keys.get("routine")))
    if own is None:
        return keys
    given = {**axes_in(keys.get("routine_axes")), **{key: keys[key] for key in own.axes if keys.get(key) is not None}}
    kept = {key: value for key, value in keys.items() if key not in own.axes}
    for key, value in given.items():
        _require_allowed(own, key, value)
    if missing := [key for key, allowed in own.axes.items() if allowed is int and key not in given]:
        raise ValueError(f"{missing[0]}: routine={own.name} needs it; type +sweep.{missing[0]}=[1]")
    usual = {key: allowed[0] if isinstance(allowed, tuple) else allowed for key, allowed in own.axes.items()}
    values = {**usual, **given}
    spelled = " ".join(f"{key}={values[key]}" for key in sorted(values))
    return own.completed({**kept, "routine_axes": spelled or None})


def axes_in(spelled: object) -> Mapping[str, int | str]:
    """The axes in a `routine_axes`, such as `top_k=2048 order=random`."""
    return _axes_in(str(spelled or ""))


@lru_cache(maxsize=1024)  # a plan asks a problem for its axes again and again
def _axes_in(spelled: str) -> Mapping[str, int | str]:
    pairs = (word.partition("=")[::2] for word in spelled.split())
    return {key: int(value) if value.isdecimal() else value for key, value in pairs}


def _require_allowed(own: Routine, key: str, value: object) -> None:
    allowed = own.axes.get(key, ())
    if isinstance(allowed, tuple):
        if value not in allowed:
            raise ValueError(f"{key}={value!r}: allowed with routine={own.name}: {', '.join(map(str, allowed))}")
    elif type(value) is not int or not 1 <= value < 2**31:
        raise ValueError(f"{key}={value!r}: allowed: a whole number from 1")
