"""Imports what a worker needs for any point before the points are known, and says later whether an imported file has changed."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kernels import registry
from orchestrator import gc_pause


def preload(packages: Iterable[str] = ()) -> None:
    """Imports torch, the adapters and these kernel libraries, and opens no device."""
    import_all(("torch", f"{__package__}.point_runner", *packages))
    registry.adapters()


def import_all(packages: Iterable[str]) -> None:
    """An import that fails here fails again later."""
    with gc_pause.paused():  # a sixth of the time that the import takes
        for package in packages:
            with suppress(Exception):
                importlib.import_module(package)


@dataclass(frozen=True)
class LoadedFiles:
    """The files that this process has loaded, and the folders that it imports from, each with its size and time of change."""

    states: Mapping[str, tuple[int, int] | None]

    @classmethod
    def now(cls) -> LoadedFiles:
        of_modules = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
        mapped = {line.split(maxsplit=5)[-1] for line in Path("/proc/self/maps").read_text().splitlines() if ".so" in line}
        return cls({file: _state(file) for file in sorted({*filter(None, of_modules), *mapped, *sys.path})})

    def are_unchanged(self) -> bool:
        return all(_state(file) == state for file, state in self.states.items())


def _state(file: str) -> tuple[int, int] | None:
    """None for one that is gone."""
    with suppress(OSError):
        found = Path(file).stat()
        return found.st_size, found.st_mtime_ns
    return None
