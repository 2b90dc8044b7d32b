"""Kernel modules on their way, and the groups of points that wait for them: a group waits for its own modules alone.

Knows nothing of Ray: a pool builds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Protocol

from kernels import modules
from kernels.adapter import Module
from kernels.build import Built, build, builds_at_once
from kernels.modules import Library
from orchestrator.plan import Decision, Group, Plan, seconds_of
from orchestrator.pool import NoWorkers

Key = tuple[str, Module]  # (compiler architecture, module)


class Builds(Protocol):
    """Modules that are being compiled, each once, and put where the workers load them."""

    @property
    def left(self) -> int:
        """How many have not been told of yet."""

    @property
    def stranded(self) -> bool:
        """Whether none is being compiled, and no machine is left to compile what is left."""

    def wait(self, timeout_s: float) -> list[Built]:
        """Those that have ended since, none twice; waits at most that long for the first."""

    def close(self) -> None:
        """Compiles no further."""


class ThreadedBuilds:
    """Builds in threads of this process. `found` is compiled already, elsewhere; `loaded` are the architectures of devices here."""

    stranded = False

    def __init__(self, keys: Sequence[Key], found: Mapping[Key, Library], cores: int, loaded: Collection[str]) -> None:
        self.loaded = loaded
        self._threads = ThreadPoolExecutor(builds_at_once(cores))
        self._pending = {self._threads.submit(self._build, arch, module, found.get((arch, module))) for arch, module in keys}

    @property
    def left(self) -> int:
        return len(self._pending)

    def wait(self, timeout_s: float) -> list[Built]:
        done: set[Future[Built]]
        done, self._pending = wait(self._pending, timeout_s, FIRST_COMPLETED)
        return [future.result() for future in done]

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _build(self, arch: str, module: Module, library: Library | None) -> Built:
        """For devices elsewhere it is compiled and not kept: they may have another CUDA."""
        built = Built(module, arch, 0.0, library=library) if library else build(module, arch)
        return install(built) if arch in self.loaded else built


def install(built: Built) -> Built:
    """Puts a compiled module where this machine's workers look; never raises."""
    if built.library is None:
        return built
    if words := modules.other_cuda(built.library, modules.cuda_of_torch()):
        return replace(built, library=None, error=f"{words}; give the compiler and torch one CUDA")
    try:
        modules.install(built.arch, built.library)
    except OSError as error:
        return replace(built, library=None, error=f"it cannot be kept for the workers: {error}")
    return built


class Readiness:
    """The groups of a plan by the modules that they still wait for.

    `archs` has the architecture of each kind of device; `on_built` is told of each module, `on_lost` of the points that no
    kind of device is left for, with the compiler's words. A machine that compiles is waited for as long as `wait_seconds`.
    """

    def __init__(
        self,
        plan: Plan,
        archs: Mapping[str, str],
        on_built: Callable[[Built], None],
        on_lost: Callable[[Mapping[Decision, str]], None],
        wait_seconds: float = 0.0,
    ) -> None:
        self.archs, self.on_built, self.on_lost, self.wait_seconds = archs, on_built, on_lost, wait_seconds
        self.builds: Builds | None = None
        self._stranded: float | None = None  # since when nobody compiles what is left
        self._broken: dict[Key, str] = {}
        parts = sorted(plan.together(), key=lambda part: -seconds_of(part))
        self._waiting = {i: (part, {key for d in part for key in d.modules}) for i, part in enumerate(parts)}
        self.modules = list(dict.fromkeys(key for part in parts for d in part for key in d.modules))  # the longest group's first

    @property
    def left(self) -> bool:
        """Whether groups may still come."""
        return bool(self._waiting)

    def groups(self, timeout_s: float) -> list[Group]:
        """Groups that nothing is missing for any more; waits at most that long where there are none.

        Raises NoWorkers where somebody would wait and nobody is left to compile.
        """
        if self.builds:
            self._require_machines(self.builds, give_up=timeout_s > 0)  # without, other points are still at work
        ended = self.builds.wait(timeout_s) if self.builds and self.builds.left and not self._free() else []
        for built in ended:
            self.on_built(built)
            if built.error:
                self._broken[built.arch, built.module] = built.error
            for _, missing in self._waiting.values():
                missing.discard((built.arch, built.module))
        return sorted(self._released(), key=lambda group: -group.cost_s)

    def _require_machines(self, builds: Builds, give_up: bool) -> None:
        if not builds.stranded:
            self._stranded = None
            return
        self._stranded = self._stranded or time.monotonic()
        if give_up and time.monotonic() - self._stranded >= self.wait_seconds:
            waited = f" after cluster.wait_seconds={self.wait_seconds:g}" if self.wait_seconds else ""
            raise NoWorkers(f"{builds.left} kernel modules are left to compile, and no machine is there that could{waited}")

    def _free(self) -> list[int]:
        return [i for i, (_, missing) in self._waiting.items() if not missing]

    def _released(self) -> Iterator[Group]:
        for i in self._free():
            part, _ = self._waiting.pop(i)
            left, lost = Plan(tuple(part)).without(self._broken, self.archs)
            if lost:
                self.on_lost(lost)
            yield from left.groups
