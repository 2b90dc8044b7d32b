"""Kernel modules that are being compiled, and how they reach the workers. Knows nothing of Ray: a pool builds."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Protocol

from kernels.adapter import Module
from kernels.compile import records
from kernels.compile.build import Built, build, builds_at_once, install
from kernels.compile.module_cache import Library
from orchestrator.errors import NoWorkers
from orchestrator.planning.plan import ModuleKey


class Builds(Protocol):
    """Modules that are compiled, each once, and then put where the workers load them."""

    @property
    def left(self) -> int:
        """How many `wait` has not returned yet."""

    @property
    def stranded(self) -> bool:
        """Whether modules are left, none is being compiled, and no machine that is there can compile them."""

    def wait(self, timeout_s: float) -> list[Built]:
        """Those that have ended since the last call; waits at most that long for the first."""

    def close(self) -> None:
        """Starts no further compilation."""


class ThreadedBuilds:
    """Builds in threads here. `found` was compiled before, `loaded` are the architectures of the devices here."""

    stranded = False

    def __init__(self, keys: Sequence[ModuleKey], found: Mapping[ModuleKey, Library], cores: int, loaded: Collection[str]) -> None:
        self.loaded = loaded
        self._threads = ThreadPoolExecutor(builds_at_once(cores))
        there = records.found_again([key for key in keys if key[0] in loaded and key not in found])  # not those of an archive
        self._ended = [Built(module, arch, 0.0, library=library) for (arch, module), library in there.items()]
        self._pending = {self._threads.submit(self._build, *key, found.get(key)) for key in keys if key not in there}

    @property
    def left(self) -> int:
        return len(self._pending) + len(self._ended)

    def wait(self, timeout_s: float) -> list[Built]:
        done: set[Future[Built]]
        done, self._pending = wait(self._pending, 0.0 if self._ended else timeout_s, FIRST_COMPLETED)
        ended, self._ended = self._ended, []
        return [*ended, *(future.result() for future in done)]

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _build(self, arch: str, module: Module, library: Library | None) -> Built:
        """A module for devices elsewhere is compiled and not installed: they may have another CUDA."""
        built = Built(module, arch, 0.0, library=library) if library else build(module, arch)
        return install(built) if arch in self.loaded else built


def iter_built(builds: Builds) -> Iterator[Built]:
    """Every module once compiled or failed; closes the builds. Raises NoWorkers if no machine is left for one."""
    try:
        while builds.left:
            if builds.stranded:
                raise no_compiler(builds)
            yield from builds.wait(timeout_s=1.0)
    finally:
        builds.close()


def no_compiler(builds: Builds, waited: str = "") -> NoWorkers:
    """The error of a run whose modules no machine can compile; `waited` says for how long one was awaited."""
    return NoWorkers(f"{builds.left} kernel modules are left to compile, and no machine is there that could{waited}")
