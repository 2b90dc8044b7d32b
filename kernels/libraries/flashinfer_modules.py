"""FlashInfer's modules: how they are compiled, and how FlashInfer finds one that was compiled on another machine.

FlashInfer looks for `<AOT folder>/<name>/<name>.so` before it compiles anything: by `JitSpec.is_aot` from 0.5.3 on, and by
`get_aot_artifacts` (`jit/env.py`) since 0.7.0. The folder is a variable of `jit/env.py`, and no environment variable sets it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kernels.adapter import Module
from kernels.contract.toolchain import Toolchain
from kernels.libraries.flashinfer_calls import module_spec, takes


@dataclass(frozen=True)
class FlashInferToolchain(Toolchain):
    library: str = "flashinfer-python"

    def spec(self, where: Any, function: str, args: Sequence[Any]) -> Any:
        return module_spec(where, function, args)

    def environment(self, arch: str, link_flags: str) -> dict[str, str]:
        return {"FLASHINFER_CUDA_ARCH_LIST": arch, **({"FLASHINFER_EXTRA_LDFLAGS": link_flags} if link_flags else {})}

    def may_compile(self) -> bool:
        return not os.environ.get("FLASHINFER_DISABLE_JIT")

    def look_in(self, folder: Path) -> None:
        from flashinfer.jit import env

        env.FLASHINFER_AOT_DIR = folder

    def lock(self, spec: Any) -> AbstractContextManager[Any]:
        from filelock import FileLock

        return FileLock(spec.lock_path, thread_local=False)

    def build(self, spec: Any) -> None:
        """Until 0.6.15 the library's own `build` takes the lock again, unless it is told not to."""
        if "verbose" in (takes(spec.build) or ()):
            spec.build(verbose=False, need_lock=False)
        else:
            spec.build()

    def is_compiled_here(self, spec: Any) -> bool:
        library = getattr(spec, "jit_library_path", None)  # modules that nvcc makes have one
        return library is not None and Path(library).is_file()

    def sources(self) -> str | None:
        spec = find_spec("flashinfer")
        if spec is None or spec.origin is None:
            return None
        given = [(name, os.environ.get(name)) for name in FLAGS]
        files = sorted(_files(str(Path(spec.origin).parent)))
        return hashlib.sha256(repr((files, given)).encode()).hexdigest()

    def comes_compiled(self, spec: Any) -> bool:
        return bool(spec.is_aot)


FLASHINFER = FlashInferToolchain()
# What a person sets to build otherwise. `environment` sets others, which follow from the machine.
FLAGS = ("CC", "CXX", "FLASHINFER_EXTRA_CFLAGS", "FLASHINFER_EXTRA_CUDAFLAGS", "FLASHINFER_JIT_DEBUG", "FLASHINFER_JIT_LINEINFO")


def _files(folder: str) -> Iterator[tuple[str, int, int]]:
    """Every file below a folder with its size and time of change: sources in C++, and the Python that writes others."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                found = entry.stat()
                yield entry.path, found.st_size, found.st_mtime_ns
            elif entry.name != "__pycache__":
                yield from _files(entry.path)


def flashinfer_module(function: str, args: tuple[str | int | bool, ...] = ()) -> Module:
    """A module of FlashInfer, by a function under `flashinfer.jit` such as `cascade:gen_cascade_module`, and its arguments."""
    return Module(f"flashinfer.jit.{function}", args, FLASHINFER)


MERGE_MODULE = flashinfer_module("cascade:gen_cascade_module")  # merge_state and its kin
