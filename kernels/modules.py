"""Where a machine keeps compiled kernel modules, and how FlashInfer is told to load them: then it needs no compiler.

FlashInfer 0.7.2.post1 looks for `<AOT folder>/<name>/<name>.so` before it compiles anything (`jit/env.py`, `get_aot_artifacts`).
The folder is a variable of that module and of no environment; ours lies beside our other caches, one for each version of
FlashInfer and each architecture, so that nothing is written into site-packages.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

FOLDER = "attention-orchestrator/modules"


@dataclass(frozen=True)
class Library:
    """A compiled module: the name that the kernel library looks for, and the shared object's bytes."""

    name: str
    content: bytes


def folder_of(arch: str) -> Path:
    """The modules of an architecture such as `9.0a`, for the FlashInfer and the instruction set of this machine."""
    try:
        of_version = version("flashinfer-python")
    except PackageNotFoundError:
        of_version = "none"
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / FOLDER / f"{of_version}-{platform.machine()}" / arch


def install(arch: str, library: Library) -> None:
    """Puts a module where workers look. One that is being loaded meanwhile is not disturbed. Raises OSError."""
    file = folder_of(arch) / library.name / f"{library.name}.so"
    if file.is_file() and file.read_bytes() == library.content:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_suffix(f".{os.getpid()}")
    fresh.write_bytes(library.content)
    fresh.replace(file)


@cache
def load_from(folder: Path) -> None:
    """Makes FlashInfer look in a folder of modules first, in this process."""
    from flashinfer.jit import env

    env.FLASHINFER_AOT_DIR = folder
