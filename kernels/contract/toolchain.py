"""Kernel modules, which are compiled before the points that load them run, and how their library makes and finds them."""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernels.problem.dtypes import DTYPES, torch_dtype


@dataclass(frozen=True)
class Toolchain:
    """What the project must know of a library that compiles modules. This class is for one of which it knows nothing.

    A module then builds by its specification alone and stays where that puts it. For a library with a module cache, subclass this
    and give the object to each `Module`: other machines then get its modules, and an archive keeps them with the library's version.
    Objects hold no state: they are sent to other processes. Methods may import the library.
    """

    library: str = ""  # its name on PyPI, also in `distributions` of the adapter; archives and folders go by its version

    def spec(self, where: Any, function: str, args: Sequence[Any]) -> Any:
        """The build specification that a function of an imported module of the library makes."""
        return getattr(where, function)(*args)

    def environment(self, arch: str, link_flags: str) -> dict[str, str]:
        """What the library's build reads from the environment, for an architecture such as `9.0a`.

        `link_flags` are for the linker: on a machine without a driver a module must still ask for it.
        """
        return {}

    def may_compile(self) -> bool:
        """Whether the user lets the library compile here."""
        return True

    def look_in(self, folder: Path) -> None:
        """Makes the library load `<folder>/<name>/<name>.so`, in this process, before it compiles a module of that name."""

    def lock(self, spec: Any) -> AbstractContextManager[Any]:
        """Held while a module is built, so that one process at a time does it."""
        return nullcontext()

    def build(self, spec: Any) -> None:
        """Builds a module. It is called under `lock`."""
        spec.build()

    def is_compiled_here(self, spec: Any) -> bool:
        """Whether this machine has compiled the module before. Its build then only looks for sources that have changed."""
        return False

    def sources(self) -> str | None:
        """What its modules are compiled from and by here, as a text; None if that is not known: they are then built again."""
        return None

    def comes_compiled(self, spec: Any) -> bool:
        """Whether the library was installed with this module."""
        return False

    def file_of(self, spec: Any) -> Path | None:
        """The shared object of a module that has been built; None if other machines cannot get it."""
        return Path(spec.get_library_path()) if hasattr(spec, "get_library_path") else None


PLAIN = Toolchain()
NOT_IMPORTED = "cannot be imported: "  # begins the error of a build whose library raises as it is imported
TOOLKIT = Path("/usr/local/cuda")


@dataclass(frozen=True)
class Module:
    """A kernel module that must be compiled before a point may run: a function that makes its build spec, and its arguments.

    The function gets names of dtypes as torch dtypes. Two points with equal modules share one build. `toolchain` says how the
    kernel library compiles it and finds it again.
    """

    generator: str  # "package.module:function"
    args: tuple[str | int | bool, ...]
    toolchain: Toolchain = field(default=PLAIN, compare=False, repr=False)  # it follows from the generator

    def __str__(self) -> str:
        return f"{self.generator.rpartition(':')[2].strip('_')}({', '.join(map(str, self.args))})"

    def spec(self) -> Any:
        """The library's build specification, with `.name` and `.build()`. Imports the library."""
        where, _, function = self.generator.partition(":")
        args = [torch_dtype(a) if isinstance(a, str) and a in (*DTYPES, "int32") else a for a in self.args]
        return self.toolchain.spec(importlib.import_module(where), function, args)

    def why_missing(self, error: str) -> str:
        """Why points do not have the module, by the error of its build."""
        if error.startswith(NOT_IMPORTED):
            return f"{self.toolchain.library or f'the library of {self}'} {error}"
        return f"kernel module {self} did not compile: {error}"


def find_nvcc() -> Path | None:
    """The CUDA compiler that a build would use, or None."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or str(TOOLKIT)
    found = shutil.which("nvcc", path=os.pathsep.join((str(Path(home) / "bin"), os.environ.get("PATH", ""))))
    return Path(found) if found else None
