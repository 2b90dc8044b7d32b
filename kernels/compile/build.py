"""Compiles kernel modules on CPUs. The machine needs neither a GPU nor a driver."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sysconfig
import tempfile
import threading
import time
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from kernels.adapter import Module
from kernels.compile import module_cache, records
from kernels.compile.module_cache import Library, cache_folder, kept
from kernels.contract.toolchain import NOT_IMPORTED, TOOLKIT, Toolchain, find_nvcc

ERROR_LINES = 3
COMPILER_ERROR = re.compile(r"\berror\b ?(C\d+)?:|\bfatal\b", re.IGNORECASE)  # not the -Werror of a command line
NO_COMPILER = (
    "there is no nvcc here: compile on a machine that has it (mode=compile device=... modules=FILE.tar.xz), "
    "then give modules=FILE.tar.xz"
)
# The linker drops a library that defines none of the symbols it looks for. The module would then not load the driver on the GPU
# machine, and the process would die at its first call of cuTensorMapEncodeTiled.
ASK_FOR_DRIVER = "-Wl,--no-as-needed -lcuda"

_generating = threading.Lock()  # the generators write sources and are not thread-safe


@dataclass(frozen=True)
class Built:
    """A build: its wall time, the first error, `library` to load elsewhere, and what it was `compiled_on` and from (`sources`)."""

    module: Module
    arch: str
    seconds: float
    error: str | None = None
    library: Library | None = None
    compiled_on: str = ""
    sources: str | None = None

    @property
    def key(self) -> tuple[str, Module]:
        """Architecture and module, as plans name it."""
        return self.arch, self.module


def build(module: Module, arch: str) -> Built:
    """Compiles a module for an architecture such as `9.0a` into the library's cache. Returns at once if it is compiled already.

    A module that came from another machine is found in the folder in which this machine keeps those, and so is one that was
    compiled here from the sources that are here now (`records`). Any other that this machine has compiled, perhaps by another
    program, is given to the library's build, which sees whether a source has changed.

    Several threads may build at once. The process must not have imported the kernel library for another architecture. Never
    raises: the error is in the result, and becomes the reason of the points that need the module.
    """
    started = time.perf_counter()
    if (library := records.found_again([(arch, module)]).get((arch, module))) is not None:
        return Built(module, arch, 0.0, library=library)
    toolchain = module.toolchain
    compiled_on, sources = "", None
    try:
        with _generating:
            if arch != "cpu":
                _prepare_environment(arch, toolchain)
            spec = module.spec()
        started = time.perf_counter()  # without the import of the library and the wait for other threads
        can_compile = find_nvcc() is not None and toolchain.may_compile()
        compiled_here = toolchain.is_compiled_here(spec) or records.is_outdated(arch, module)
        library = None if can_compile and compiled_here else kept(arch, toolchain, spec)
        if library is None:
            compiled_on = platform.node()
            if not toolchain.comes_compiled(spec):
                sources = records.sources_of(toolchain)
                with toolchain.lock(spec):
                    toolchain.build(spec)
            file = toolchain.file_of(spec)
            library = Library(str(spec.name), file.read_bytes()) if file else None
    except Exception as error:  # nvcc, ninja and the generators each raise their own exceptions
        words = _first_error(str(error)) or type(error).__name__
        if isinstance(error, ImportError):
            words = NOT_IMPORTED + words
        elif arch != "cpu" and find_nvcc() is None:
            words = f"{words}; {NO_COMPILER}"
        return Built(module, arch, time.perf_counter() - started, words)
    return Built(module, arch, time.perf_counter() - started, library=library, compiled_on=compiled_on, sources=sources)


def install(built: Built) -> Built:
    """Puts a compiled module where this machine's workers look. Never raises: an error becomes that of the module."""
    if built.library is None:
        return built
    if words := module_cache.other_cuda(built.library, module_cache.cuda_of_torch()):
        return replace(built, library=None, error=f"{words}; give the compiler and torch one CUDA")
    try:
        records.put(built.arch, built.module, built.library, built.compiled_on, built.sources)
    except OSError as error:
        return replace(built, library=None, error=f"it cannot be kept for the workers: {error}")
    return built


def builds_at_once(cores: int) -> int:
    """How many modules a machine compiles at once. Each has several sources, so half of the cores are left for those."""
    return max(1, cores // 2)


def share_cores(cores: int) -> None:
    """Bounds the compilers of all builds in this process, and gives workers that measure priority.

    Each ninja runs one compiler of its own and takes a token from this pipe for every further one (GNU make's jobserver; needs
    ninja 1.13, which FlashInfer brings). Without it, every build would start as many compilers as there are cores. The pipe's
    only name is under this process in /proc, so nothing is left of it if the process is killed.
    """
    os.nice(10)
    with tempfile.TemporaryDirectory() as folder:
        os.mkfifo(pipe := Path(folder) / "tokens")
        tokens = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    os.write(tokens, b"+" * (cores - builds_at_once(cores)))
    os.environ["MAKEFLAGS"] = f"--jobserver-auth=fifo:/proc/{os.getpid()}/fd/{tokens}"


def _prepare_environment(arch: str, toolchain: Toolchain) -> None:
    """Sets what a build reads from the environment: the architecture, the toolkit, and a driver to link against."""
    if "CUDA_HOME" not in os.environ and (TOOLKIT / "bin" / "nvcc").exists():
        os.environ["CUDA_HOME"] = str(TOOLKIT)  # `which nvcc` may be a wrapper without headers beside it
    _prepend("PATH", sysconfig.get_path("scripts"))  # pip's ninja, even if the virtual environment is not activated
    headers = _pip_headers()
    if headers:
        _prepend("CPATH", headers)
    link_flags = ""
    if not _has_driver():
        _prepend("LIBRARY_PATH", _stub_driver())
        link_flags = ASK_FOR_DRIVER
    os.environ.update(toolchain.environment(arch, link_flags))


def _has_driver() -> bool:
    listed = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=False).stdout
    home = os.environ.get("CUDA_HOME")
    return "libcuda.so " in listed or bool(home and Path(home, "lib64", "stubs", "libcuda.so").exists())


def _stub_driver() -> str:
    """A folder with an empty libcuda.so that has the driver's soname. Made once per machine."""
    folder = cache_folder(f"attention-orchestrator/stub-{platform.machine()}")
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / "libcuda.so"
    if not library.exists():
        fresh = folder / f"libcuda.so.{os.getpid()}"
        compiler = os.environ.get("CC") or shutil.which("gcc") or "cc"
        flags = ["-shared", "-x", "c", "/dev/null", "-Wl,-soname,libcuda.so.1", "-o", str(fresh)]
        subprocess.run([compiler, *flags], check=True, capture_output=True)
        fresh.replace(library)
    return str(folder)


def _pip_headers() -> str | None:
    """Headers of the CUDA libraries that pip installed, for toolkits without them (curand_kernel.h)."""
    spec = find_spec("nvidia")
    for root in spec.submodule_search_locations or () if spec else ():
        if (include := Path(root) / "cu13" / "include").is_dir():
            return str(include)
    return None


def _prepend(variable: str, folder: str) -> None:
    others = [part for part in os.environ.get(variable, "").split(":") if part and part != folder]
    os.environ[variable] = ":".join([folder, *others])


def _first_error(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    first = next((i for i, line in enumerate(lines) if COMPILER_ERROR.search(line)), 0)
    return " ".join(lines[first : first + ERROR_LINES])[:600]
