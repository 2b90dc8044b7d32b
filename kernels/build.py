"""Compiles one kernel module on CPUs, with or without a GPU or a driver in the machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from kernels.adapter import Module

ERROR_LINES = 3


@dataclass(frozen=True)
class Built:
    """What became of a module: seconds of wall time, and the compiler's first error if it failed."""

    module: Module
    arch: str
    seconds: float
    error: str | None = None


def build(module: Module, arch: str) -> Built:
    """Compiles a module for an architecture such as `9.0a` into the library's cache; a compiled one costs nothing.

    Must run in a process that has not imported the kernel library for another architecture. Never raises: a library
    may fail in any way, and the points that wait for the module carry its words.
    """
    started = time.perf_counter()
    try:
        if arch != "cpu":
            _prepare_environment(arch)
        spec = module.spec()
        started = time.perf_counter()  # importing the library is no compilation
        if not getattr(spec, "is_aot", False):
            spec.build()
    except Exception as error:  # nvcc, ninja and the generators all raise their own
        return Built(module, arch, time.perf_counter() - started, _first_error(str(error)) or type(error).__name__)
    return Built(module, arch, time.perf_counter() - started)


def _prepare_environment(arch: str) -> None:
    """What FlashInfer's build needs to be told: the architecture, the toolkit, and a driver to link against."""
    os.environ["FLASHINFER_CUDA_ARCH_LIST"] = arch
    toolkit = Path("/usr/local/cuda")
    if "CUDA_HOME" not in os.environ and (toolkit / "bin" / "nvcc").exists():
        os.environ["CUDA_HOME"] = str(toolkit)  # not `which nvcc`, which may be a wrapper far from its headers
    headers = _pip_headers()
    if headers:
        _prepend("CPATH", headers)
    if not _has_driver():
        _prepend("LIBRARY_PATH", _stub_driver())
        # The linker drops a library that defines none of the symbols it looks for. The module would then not load the
        # driver where it runs, and the process would die at its first call of cuTensorMapEncodeTiled.
        os.environ["FLASHINFER_EXTRA_LDFLAGS"] = "-Wl,--no-as-needed -lcuda"


def _has_driver() -> bool:
    listed = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=False).stdout
    return "libcuda.so " in listed or bool(os.environ.get("CUDA_HOME") and _toolkit_stub().exists())


def _toolkit_stub() -> Path:
    return Path(os.environ["CUDA_HOME"]) / "lib64" / "stubs" / "libcuda.so"


def _stub_driver() -> str:
    """A folder with an empty libcuda.so of the driver's soname, made once a machine."""
    folder = Path(tempfile.gettempdir()) / f"attention-orchestrator-stub-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    library = folder / "libcuda.so"
    if not library.exists():
        fresh = folder / f"libcuda.so.{os.getpid()}"
        compiler = os.environ.get("CC") or shutil.which("gcc") or "cc"
        flags = ["-shared", "-x", "c", "/dev/null", "-Wl,-soname,libcuda.so.1", "-o", str(fresh)]
        subprocess.run([compiler, *flags], check=True, capture_output=True)
        fresh.replace(library)
    return str(folder)


def _pip_headers() -> str | None:
    """Headers of the CUDA libraries that pip installed, for toolkits that came without them (curand_kernel.h)."""
    spec = find_spec("nvidia")
    for root in spec.submodule_search_locations or () if spec else ():
        if (include := Path(root) / "cu13" / "include").is_dir():
            return str(include)
    return None


def _prepend(variable: str, folder: str) -> None:
    others = [part for part in os.environ.get(variable, "").split(":") if part and part != folder]
    os.environ[variable] = ":".join([folder, *others])


def _first_error(output: str) -> str:
    """The lines of a build log from its first error on."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    first = next((i for i, line in enumerate(lines) if "error" in line.lower()), 0)
    return " ".join(lines[first : first + ERROR_LINES])[:600]
