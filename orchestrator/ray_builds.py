"""Kernel modules compiled once each on the machines of a Ray cluster that have a compiler, and put where the devices are."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError

from kernels.adapter import Module
from kernels.build import Built, build, builds_at_once, share_cores
from kernels.modules import Library
from orchestrator.builds import Key, install
from orchestrator.machines import Machine
from orchestrator.ray_nodes import end_with_parent, on, words

ATTEMPTS = 2  # at a module whose compilers may have taken all memory
THREADS = 256  # Ray's bound on the calls that an actor serves together; ours is `builds_at_once`


@ray.remote(num_cpus=0, max_restarts=0, max_concurrency=THREADS)
class _Builder:
    """Compiles for one architecture on one machine, in a process that sees no other."""

    def __init__(self, cores: int) -> None:
        end_with_parent()
        share_cores(cores)

    def build(self, module: Module, arch: str) -> Built:
        return build(module, arch)


_install: Any = ray.remote(num_cpus=0)(install)


class RayBuilds:
    """`found` is compiled already, elsewhere; `homes` gives the nodes whose devices load modules of an architecture.

    `machines` are those that are there now, by node.
    """

    def __init__(
        self, keys: Sequence[Key], found: Mapping[Key, Library], machines: Mapping[str, Machine], homes: Callable[[str], list[str]]
    ) -> None:
        self.machines, self.homes = machines, homes
        self._queue = deque(key for key in keys if key not in found)
        self._tried: dict[Key, list[str]] = {key: [] for key in self._queue}  # nodes that were given a module
        self._builders: dict[tuple[str, str], Any] = {}  # by node and architecture
        self._building: dict[Any, tuple[Key, str, Any]] = {}  # by answer, the module, its node and builder
        self._installing: dict[Any, Key] = {}
        self._parts: dict[Key, list[Built]] = {}  # as each machine that needs it has it
        self._stored: dict[Key, Any] = {}  # compiled modules in Ray's store, for machines that join
        self._joining: dict[str, Collection[str]] = {}  # the architectures of machines that have joined, by node
        self._ended: list[Built] = []
        for arch, module in keys:
            if library := found.get((arch, module)):
                self._spread(Built(module, arch, 0.0, library=library))

    @property
    def left(self) -> int:
        return len(self._queue) + len(self._building) + len(set(self._installing.values())) + len(self._ended)

    def wait(self, timeout_s: float) -> list[Built]:
        self._fill()
        answers = [*self._building, *self._installing]
        if answers and not self._ended:
            ready, _ = ray.wait(answers, num_returns=1, timeout=timeout_s)
            for answer in ready:
                self._take(answer)
        ended, self._ended = self._ended, []
        return ended

    def bring(self, node: str, archs: Collection[str]) -> list[Any]:
        """Answers that come when a machine that has joined has what was compiled so far; later modules reach it like the others."""
        self._joining[node] = archs
        return [_put(node, stored) for (arch, _), stored in self._stored.items() if arch in archs]

    def close(self) -> None:
        for builder in self._builders.values():
            ray.kill(builder)

    def _fill(self) -> None:
        """Gives modules to the machines that have room for one more."""
        for _ in range(len(self._queue)):
            key = self._queue.popleft()
            if node := self._least_busy(key):
                self._start(key, node)
            else:
                self._queue.append(key)

    def _least_busy(self, key: Key) -> str | None:
        busy = Counter(node for _, node, _ in self._building.values())
        free = [m for m in self._compilers(key[0]) if busy[m.node_id] < builds_at_once(m.cores)]
        return min(free, key=lambda m: (m.node_id in self._tried[key], busy[m.node_id] / m.cores)).node_id if free else None

    def _compilers(self, arch: str) -> list[Machine]:
        """Machines that can compile for the machines of these devices; where there is none, those say what is missing."""
        at_home = [self.machines[node] for node in self.homes(arch) if node in self.machines] or list(self.machines.values())
        able = [m for m in self.machines.values() if m.has_nvcc and m.isa in {home.isa for home in at_home}]
        return able or at_home

    def _start(self, key: Key, node: str) -> None:
        arch, module = key
        self._tried[key].append(node)
        if (node, arch) not in self._builders:
            alone = {"env_vars": {"FLASHINFER_CUDA_ARCH_LIST": arch}}
            options = _Builder.options(runtime_env=alone, scheduling_strategy=on(node))  # type: ignore[attr-defined]
            self._builders[node, arch] = options.remote(self.machines[node].cores)
        builder = self._builders[node, arch]
        self._building[builder.build.remote(module, arch)] = key, node, builder

    def _take(self, answer: Any) -> None:
        if answer in self._installing:
            self._installed(answer)
            return
        key, node, builder = self._building.pop(answer)
        try:
            self._spread(ray.get(answer), answer)
        except RayError as error:  # the process was killed, for want of memory say, or its machine is gone
            if self._builders.get((node, key[0])) is builder and isinstance(error, RayActorError):
                del self._builders[node, key[0]]
            if len(self._tried[key]) < ATTEMPTS:
                self._queue.append(key)
            else:
                self._ended.append(Built(key[1], key[0], 0.0, f"the build's process ended: {words(error)}"))

    def _spread(self, built: Built, stored: Any = None) -> None:
        """Puts a module on every machine whose devices load it; it is told of once all have it."""
        key = (built.arch, built.module)
        joining = [node for node, archs in self._joining.items() if built.arch in archs]
        homes = dict.fromkeys([*self.homes(built.arch), *joining]) if built.library else {}
        if not homes:
            self._ended.append(built)
            return
        self._stored[key] = stored or ray.put(built)
        for node in homes:
            self._installing[_put(node, self._stored[key])] = key

    def _installed(self, answer: Any) -> None:
        key = self._installing.pop(answer)
        try:
            part = ray.get(answer)
        except RayError as error:
            part = Built(key[1], key[0], 0.0, f"it did not reach a machine: {words(error)}")
        self._parts.setdefault(key, []).append(part)
        if key not in self._installing.values():  # one machine that is gone takes nothing from the others
            self._ended.append(min(self._parts.pop(key), key=lambda part: part.error is not None))


def _put(node: str, stored: Any) -> Any:
    return _install.options(scheduling_strategy=on(node)).remote(stored)
