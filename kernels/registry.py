"""Finds the adapters: every file in `kernels/adapters`, those of routines in folders, and the modules a user names."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache

from kernels import adapters as own_adapters
from kernels.adapter import Adapter
from kernels.contract import splits as of_keys
from kernels.contract.releases import installed
from kernels.contract.runner import said
from kernels.engines import flags
from kernels.problem import ROUTINES
from kernels.problem.routine import parts
from kernels.split import Split
from kernels.split.batch import PREFILL_ROUTINE, SPELLING, parsed

OLD_HOOKS = {"extra_bytes": "workspace_bytes", "at": "for_versions"}  # methods of `Adapter` in older versions, and today


class UnknownBackend(KeyError):
    """No adapter of this routine has this name; the message lists those that have."""

    def __str__(self) -> str:
        return str(self.args[0])


class BadPlugin(ImportError):
    """A module named in `adapters` cannot be imported, or holds no adapters; the message says which one and why."""


@dataclass(frozen=True)
class Registered:
    """An adapter, and the module whose code it is: of this project or a plugin. `made_of` is the backend that a mutant wraps."""

    adapter: Adapter
    module: str
    made_of: str = ""


@cache
def adapters(plugins: tuple[str, ...] = ()) -> dict[tuple[str, str], Adapter]:
    """Adapters by (routine, name), from `ADAPTERS` of every module in `kernels/adapters`, of `kernels/routines/NAME/adapters`, and
    of the modules in `plugins`.

    Raises BadPlugin for a plugin that cannot be imported or holds no adapters, ValueError if two adapters claim one name.
    """
    return {key: one.adapter for key, one in registered(plugins).items()}


def get(routine: str, backend: str, plugins: tuple[str, ...] = ()) -> Adapter:
    """The adapter of a backend; UnknownBackend names those there are."""
    return _registered(routine, backend, plugins).adapter


def get_installed(routine: str, backend: str, plugins: tuple[str, ...] = ()) -> Adapter:
    """As `get`, with the rule and the modules of the versions that are installed in this very process."""
    adapter = get(routine, backend, plugins)
    return adapter.for_versions(installed(adapter.all_distributions))


def module_of(routine: str, backend: str, plugins: tuple[str, ...] = ()) -> str:
    """The dotted name of the module that a backend comes from; UnknownBackend names those there are."""
    return _registered(routine, backend, plugins).module


@cache
def registered(plugins: tuple[str, ...] = ()) -> dict[tuple[str, str], Registered]:
    """As `adapters`, with the module of each. By `adapters_from(adapter)` a module may make others of the plugins before it."""
    found: dict[tuple[str, str], Registered] = {}
    own = (f"{own_adapters.__name__}.{m.name}" for m in pkgutil.iter_modules(own_adapters.__path__))
    for module in (*own, *parts("adapters"), *plugins):
        before = [one for one in found.values() if one.module in plugins]
        for new in (*(Registered(adapter, module) for adapter in _adapters_in(module)), *_made_from(module, before)):
            if (key := (new.adapter.routine, new.adapter.name)) in found:
                raise ValueError(f"two adapters of {key[0]} are called '{key[1]}'; the second stands in {module}")
            found[key] = new
    return found


def splits(names: Iterable[str], plugins: tuple[str, ...] = ()) -> dict[tuple[str, str], Registered]:
    """Backends that run a batch in two calls, or make so many parts of the keys, of those `names` that say so, by (routine, name).

    There are too many to list, so `registered` has none of them. See `kernels/split` and `kernels/contract/splits.py`.
    """
    found = {}
    pairs = [(routine, name) for routine in PREFILL_ROUTINE for name in names if parsed(name)]
    pairs += [(routine, name) for routine in ROUTINES for name in names if of_keys.parsed(name)]
    for routine, name in pairs:
        with suppress(UnknownBackend):
            found[routine, name] = _registered(routine, name, plugins)
    return found


def _made_from(module: str, before: Iterable[Registered]) -> Iterator[Registered]:
    """What a module, which has been imported, makes of each of these backends."""
    make: Callable[[Adapter], Iterable[Adapter]] | None = getattr(importlib.import_module(module), "adapters_from", None)
    if make is not None:
        for base in before:
            yield from (Registered(made, base.module, base.adapter.name) for made in make(base.adapter))


@cache
def _registered(routine: str, backend: str, plugins: tuple[str, ...]) -> Registered:
    known = registered(plugins)
    if (routine, backend) in known:
        return known[routine, backend]
    if (told := of_keys.parsed(backend)) and (routine, told[0]) in known:
        base = known[routine, told[0]]
        return replace(base, adapter=replace(base.adapter, name=backend, num_splits=told[1]))
    if (of_engine := flags.adapter_of(routine, backend)) is not None:
        return Registered(of_engine, flags.__name__)
    if routine in PREFILL_ROUTINE and (names := parsed(backend)):
        return _split(routine, backend, names, plugins)
    if routine in PREFILL_ROUTINE and (mutant := _mutant_of_split(routine, backend, plugins)):
        return mutant
    others = sorted(name for of, name in known if of == routine)
    near = get_close_matches(backend, others, n=1)
    hint = f"did you mean '{near[0]}'? " if near else ""
    if routine in PREFILL_ROUTINE and "+" in backend:
        hint = f"two backends for one batch are written {SPELLING}; "
    raise UnknownBackend(f"{routine} has no backend '{backend}'; {hint}it has {', '.join(others)}")


def _split(routine: str, backend: str, names: tuple[str, str, int | None], plugins: tuple[str, ...]) -> Registered:
    """The backend that runs a batch in two calls, by the backends of the calls. It belongs to the plugin of either."""
    decode = _registered(routine, names[0], plugins)
    prefill = _registered(PREFILL_ROUTINE[routine], names[1], plugins)
    modules = {one.module: None for one in (decode, prefill) if one.module in plugins}
    if len(modules) > 1:
        raise UnknownBackend(f"'{backend}' is made of backends of two plugins, {' and '.join(modules)}; put both into one of them")
    return Registered(
        Split.from_parts(routine, backend, decode.adapter, prefill.adapter, names[2]), next(iter(modules), decode.module)
    )


def _mutant_of_split(routine: str, backend: str, plugins: tuple[str, ...]) -> Registered | None:
    """A wrong kernel made of a split batch, such as `drawn_007@fa2_tc+fa2@4`, if one of the plugins makes it."""
    base = backend.partition("@")[2]
    if not parsed(base):
        return None
    made = (one for module in plugins for one in _made_from(module, [_registered(routine, base, plugins)]))
    return next((one for one in made if one.adapter.name == backend), None)


def _adapters_in(module: str) -> tuple[Adapter, ...]:
    if not all(part.isidentifier() for part in module.split(".")):
        hint = "my.module for the file my/module.py" if module else "my.module"
        raise BadPlugin(f"{module!r} is not the name of a module; type it with dots, as in an import: {hint}")
    try:
        found: object = getattr(importlib.import_module(module), "ADAPTERS", None)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):  # an import inside the plugin
            edit = f"; if installed: sed -i 's/from kernels/from attention_orchestrator.kernels/' {module.replace('.', '/')}.py"
            raise BadPlugin(f"{module} cannot be imported: {error}{edit * str(error.name).startswith('kernels')}") from error
        hint = "put its folder on PYTHONPATH, here and on the workers"
        raise BadPlugin(f"there is no module '{error.name}'; {hint}") from None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a plugin may raise anything while it is imported
        raise BadPlugin(f"{module} cannot be imported: {said(error)}") from error
    if not isinstance(found, tuple | list) or not all(isinstance(adapter, Adapter) for adapter in found):
        raise BadPlugin(f"{module} has no tuple ADAPTERS of Adapter objects; write ADAPTERS = (MyBackend(),) at its end")
    for old, new in OLD_HOOKS.items():
        if any(hasattr(adapter, old) for adapter in found):
            raise BadPlugin(f"{module}: {old} is now called {new}; rename the method")
    return tuple(found)
