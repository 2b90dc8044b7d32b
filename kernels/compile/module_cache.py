"""The folder in which a machine keeps compiled kernel modules for its workers. It is in the user's cache.

There is one for each kernel library and its version, CUDA and architecture. How a library is made to look there is in its
toolchain. Nothing is written into site-packages.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kernels.adapter import Module
from kernels.contract.toolchain import PLAIN, Toolchain

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,254}")  # of an architecture or a module, which becomes a folder's
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


def cache_folder(name: str) -> Path:
    """A folder in the user's cache, where no other user can lay a file or a link."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / name


def folder_of(arch: str, toolchain: Toolchain = PLAIN) -> Path:
    """A library's folder for an architecture such as `9.0a`, its version here, and this machine's instruction set and CUDA."""
    cuda = f"cu{_major(of_torch)}" if (of_torch := cuda_of_torch()) else "cpu"
    return cache_folder(FOLDER) / "-".join([*_named(toolchain.library), platform.machine(), cuda]) / arch


@cache
def _named(library: str) -> tuple[str, ...]:
    """A library and its version here, as in the name of a folder; nothing for modules of no library."""
    if not library:
        return ()
    try:
        return library, version(library)
    except PackageNotFoundError:
        return library, "none"


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


def kept(arch: str, toolchain: Toolchain, spec: Any) -> Library | None:
    """A module that is in the folder, by its build specification; None without one, and for modules of no known library version."""
    if not toolchain.library:
        return None
    file = file_in(folder_of(arch, toolchain), str(spec.name))
    return Library(str(spec.name), file.read_bytes()) if file.is_file() else None


def install(arch: str, library: Library, toolchain: Toolchain = PLAIN) -> None:
    """Writes a module to the folder that workers load from. A module that a worker is loading stays intact. Raises OSError."""
    file = file_in(folder_of(arch, toolchain), library.name)
    if file.is_file() and file.read_bytes() == library.content:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_suffix(f".{platform.node()}-{os.getpid()}")  # several machines may share a home folder
    fresh.write_bytes(library.content)
    fresh.replace(file)


def look_for(modules: Iterable[Module], arch: str) -> None:
    """Makes the libraries of these modules look for them in the folder first, in this process."""
    for toolchain in dict.fromkeys(module.toolchain for module in modules):
        toolchain.look_in(folder_of(arch, toolchain))


def file_in(folder: Path, name: str) -> Path:
    """Raises ValueError for a name that leads out of the folder."""
    if not (NAME.fullmatch(name) and NAME.fullmatch(folder.name)):
        raise ValueError(f"{folder.name!r}/{name!r}: allowed: an architecture and a module whose names are no paths")
    return folder / name / f"{name}.so"
