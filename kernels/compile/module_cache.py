"""The folder in which a machine keeps compiled kernel modules, and how FlashInfer loads them without a compiler.

FlashInfer 0.7.2.post1 looks for `<AOT folder>/<name>/<name>.so` before it compiles anything (`jit/env.py`, `get_aot_artifacts`).
The folder is a variable of that module, and no environment variable sets it. Ours is in the user's cache, one for each version of
FlashInfer, CUDA and architecture. Nothing is written into site-packages.
"""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

FOLDER = "attention-orchestrator/modules"


@dataclass(frozen=True)
class Library:
    """A compiled module: the name that the kernel library looks for, and the shared object's bytes."""

    name: str
    content: bytes

    @cached_property
    def cuda(self) -> str | None:
        """The major version of the CUDA runtime that it links to (`libcudart.so.13`), which is its compiler's; None without one."""
        found = re.search(rb"libcudart\.so\.(\d+)", self.content)
        return found.group(1).decode() if found else None


def folder_of(arch: str) -> Path:
    """The folder for an architecture such as `9.0a`, and for this machine's FlashInfer, instruction set and CUDA."""
    try:
        of_version = version("flashinfer-python")
    except PackageNotFoundError:
        of_version = "none"
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cuda = cuda_of_torch()
    return home / FOLDER / f"{of_version}-{platform.machine()}-{f'cu{_major(cuda)}' if cuda else 'cpu'}" / arch


@cache
def cuda_of_torch() -> str | None:
    """The CUDA version of this machine's torch, such as `13.0`; None for a torch without CUDA. Does not import torch."""
    spec = find_spec("torch")
    for folder in spec.submodule_search_locations or () if spec else ():
        if (file := Path(folder) / "version.py").is_file():
            found = re.search(r"^cuda\b.*=\s*['\"]([\d.]+)['\"]", file.read_text(), re.MULTILINE)
            return found.group(1) if found else None
    return None


def other_cuda(library: Library, here: str | None) -> str:
    """Why a module cannot be loaded beside a torch of CUDA `here`, which has its own runtime; empty if it can, or without torch."""
    if library.cuda is None or here is None or library.cuda == _major(here):
        return ""
    return f"compiled with CUDA {library.cuda}, and torch has CUDA {here} where it is to run"


def _major(version_of_cuda: str) -> str:
    return version_of_cuda.partition(".")[0]


def install(arch: str, library: Library) -> None:
    """Writes a module to the folder that workers load from. A module that a worker is loading stays intact. Raises OSError."""
    file = folder_of(arch) / library.name / f"{library.name}.so"
    if file.is_file() and file.read_bytes() == library.content:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_suffix(f".{platform.node()}-{os.getpid()}")  # several machines may share a home folder
    fresh.write_bytes(library.content)
    fresh.replace(file)


@cache
def load_from(folder: Path) -> None:
    """Makes FlashInfer look for modules in a folder first, in this process."""
    from flashinfer.jit import env

    env.FLASHINFER_AOT_DIR = folder
