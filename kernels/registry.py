"""Finds the adapters: every file in `kernels/adapters`, and the modules a user names. Holds no list of its own."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache

import kernels.adapters
from kernels.adapter import Adapter


class UnknownBackend(KeyError):
    """No adapter of this routine has this name; the message lists those that have."""

    def __str__(self) -> str:
        return str(self.args[0])


@cache
def adapters(plugins: tuple[str, ...] = ()) -> dict[tuple[str, str], Adapter]:
    """Adapters by (routine, name), from `ADAPTERS` of every module in `kernels/adapters` and of the modules in `plugins`.

    Raises ImportError for a plugin that cannot be imported, ValueError where two adapters claim one name.
    """
    found: dict[tuple[str, str], Adapter] = {}
    for module in (*_own_modules(), *plugins):
        for adapter in importlib.import_module(module).ADAPTERS:
            if (key := (adapter.routine, adapter.name)) in found:
                raise ValueError(f"two adapters of {key[0]} are called '{key[1]}'; the second stands in {module}")
            found[key] = adapter
    return found


def get(routine: str, backend: str, plugins: tuple[str, ...] = ()) -> Adapter:
    """The adapter of a backend; UnknownBackend names those there are."""
    known = adapters(plugins)
    if (routine, backend) not in known:
        names = sorted(name for of, name in known if of == routine)
        near = get_close_matches(backend, names, n=1)
        hint = f"did you mean '{near[0]}'? " if near else ""
        raise UnknownBackend(f"{routine} has no backend '{backend}'; {hint}it has {', '.join(names)}")
    return known[routine, backend]


def _own_modules() -> Iterable[str]:
    return (f"kernels.adapters.{m.name}" for m in pkgutil.iter_modules(kernels.adapters.__path__))
