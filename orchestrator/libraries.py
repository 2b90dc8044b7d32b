"""The kernel libraries that backends come from: versions, and what to type if one is not installed. Imports none of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

from kernels.contract import releases
from orchestrator.errors import UserError

if TYPE_CHECKING:
    from kernels.adapter import Adapter
    from kernels.problem import Problem

LibraryVersions = Mapping[str, str | None]  # of a machine: by column of a row, and by the name of a distribution


@cache
def installed(distribution: str) -> str | None:
    """The version of a Python package here, by its name on PyPI; None if it is not installed."""
    return releases.installed((distribution,))[distribution]


TO_MEASURE = "in the checkout, type pip install '.[run]', or make install and source .venv/bin/activate"


def require_to_measure(with_ray: bool) -> None:
    """Raises UserError if a package is not installed that every run needs. The extra `run` installs them."""
    for name in ("torch", "pynvml", *(["ray"] if with_ray else [])):
        if find_spec(name) is None:
            raise UserError(f"{name} is not installed, and this command measures; {TO_MEASURE}")


def named_by(plugins: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The libraries that the project's own backends come from, and those of plugins. Imports their adapters."""
    from kernels import registry  # what reads rows needs no adapter

    return tuple(sorted({name for adapter in registry.adapters(plugins).values() for name in adapter.all_distributions}))


@cache
def versions(more: tuple[str, ...] = ()) -> dict[str, str | None]:
    """The libraries that the project's own backends come from, and `more`, as they are here."""
    return {name: installed(name) for name in sorted({*named_by(), *more})}


def column(distributions: Sequence[str], machine: LibraryVersions) -> str | None:
    """The column `libraries` of a row: each library with its version, such as "flashinfer-python 0.7.2.post1", or None."""
    found = {name: machine.get(name) for name in distributions}
    return ", ".join(f"{name} {of}" for name, of in found.items() if of) or None


def shared(distributions: Sequence[str], machines: Sequence[LibraryVersions]) -> LibraryVersions:
    """The versions of these libraries that all machines have alike; those in which they differ are left out (`versions=any`)."""
    found = {name: {machine.get(name) for machine in machines} for name in distributions}
    return {name: next(iter(of)) for name, of in found.items() if len(of) == 1}


def missing(adapter: Adapter, *machines: LibraryVersions, problem: Problem | None = None) -> str:
    """What some machine lacks to run a backend (without a problem: any), and what to type there; empty if none lacks it."""
    needed = adapter.all_distributions if problem is None else adapter.distributions_for(problem)
    lacking = [name for name in needed if any(name in machine and machine[name] is None for machine in machines)]
    if not lacking:
        return ""
    verb = "is" if len(lacking) == 1 else "are"
    return f"{adapter.name} needs {' and '.join(lacking)}, which {verb} not installed there; {adapter.how_to_install(lacking)}"
