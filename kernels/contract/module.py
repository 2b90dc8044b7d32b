"""A kernel module: what is compiled once, before the points that load it run."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import Any

from kernels.contract.toolchain import PLAIN, Toolchain
from kernels.problem.dtypes import DTYPES, torch_dtype


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
