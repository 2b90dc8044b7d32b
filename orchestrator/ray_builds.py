"""Kernel modules compiled once each on the machines of a Ray cluster that have a compiler, and put where the devices are."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from kernels.adapter import Module
from kernels.build import Built, build, builds_at_once, share_cores
from kernels.modules import Library
from orchestrator.builds import Key, install
from orchestrator.machines import Machine

ATTEMPTS = 2  # at a module whose compilers may have taken all memory
THREADS = 256  # Ray's bound on the calls that an actor serves together; ours is `builds_at_once`


@ray.remote(num_cpus=0, max_restarts=0, max_concurrency=THREADS)
class _Builder:
    """Compiles for one architecture on one machine, in a process that sees no other."""

    def __init__(self, cores: int) -> None:
        share_cores(cores)

    def build(self, module: Module, arch: str) -> Built:
        return build(module, arch)


_install: Any = ray.remote(num_cpus=0)(install)


class RayBuilds:
    """`found` is compiled already, elsewhere; `homes` gives the nodes whose devices load modules of an architecture."""

    def __init__(
        self, keys: Sequence[Key], found: Mapping[Key, Library], machines: Sequence[Machine], homes: Callable[[str], list[str]]
    ) -> None:
        self.machines = {machine.node_id: machine for machine in machines}
        self.homes = homes
        self._queue = deque(key for key in keys if key not in found)
        self._attempts: Counter[Key] = Counter()
        self._builders: dict[tuple[str, str], Any] = {}  # by node and architecture
        self._building: dict[Any, tuple[Key, str]] = {}  # by answer, the module and its node
        self._installing: dict[Any, Key] = {}
        self._parts: dict[Key, list[Built]] = {}  # as each machine that needs it has it
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

    def close(self) -> None:
        for builder in self._builders.values():
            ray.kill(builder)

    def _fill(self) -> None:
        """Gives modules to the machines that have room for one more."""
        for _ in range(len(self._queue)):
            key = self._queue.popleft()
            if node := self._least_busy(key[0]):
                self._start(key, node)
            else:
                self._queue.append(key)

    def _least_busy(self, arch: str) -> str | None:
        busy = Counter(node for _, node in self._building.values())
        free = [m for m in self._compilers(arch) if busy[m.node_id] < builds_at_once(m.cores)]
        return min(free, key=lambda m: busy[m.node_id] / m.cores).node_id if free else None

    def _compilers(self, arch: str) -> list[Machine]:
        """Machines that can compile for the machines of these devices; where there is none, those say what is missing."""
        at_home = [self.machines[node] for node in self.homes(arch)] or list(self.machines.values())
        able = [m for m in self.machines.values() if m.has_nvcc and m.isa in {home.isa for home in at_home}]
        return able or at_home

    def _start(self, key: Key, node: str) -> None:
        arch, module = key
        self._attempts[key] += 1
        if (node, arch) not in self._builders:
            alone = {"env_vars": {"FLASHINFER_CUDA_ARCH_LIST": arch}}
            on_node = NodeAffinitySchedulingStrategy(node, soft=False)
            options = _Builder.options(runtime_env=alone, scheduling_strategy=on_node)  # type: ignore[attr-defined]
            self._builders[node, arch] = options.remote(self.machines[node].cores)
        self._building[self._builders[node, arch].build.remote(module, arch)] = key, node

    def _take(self, answer: Any) -> None:
        if answer in self._installing:
            self._installed(answer)
            return
        key, node = self._building.pop(answer)
        try:
            self._spread(ray.get(answer), answer)
        except RayError as error:  # the process was killed, for want of memory say, or its machine is gone
            if isinstance(error, RayActorError):
                self._builders.pop((node, key[0]), None)
            if self._attempts[key] < ATTEMPTS:
                self._queue.append(key)
            else:
                self._ended.append(Built(key[1], key[0], 0.0, f"the build's process ended: {' '.join(str(error).split())[-600:]}"))

    def _spread(self, built: Built, stored: Any = None) -> None:
        """Puts a module on every machine whose devices load it; it is told of once all have it."""
        key = (built.arch, built.module)
        homes = self.homes(built.arch) if built.library else []
        if not homes:
            self._ended.append(built)
            return
        stored = stored or ray.put(built)
        for node in homes:
            on_node = NodeAffinitySchedulingStrategy(node, soft=False)
            self._installing[_install.options(scheduling_strategy=on_node).remote(stored)] = key

    def _installed(self, answer: Any) -> None:
        key = self._installing.pop(answer)
        try:
            part = ray.get(answer)
        except RayError as error:
            part = Built(key[1], key[0], 0.0, f"it did not reach a machine: {' '.join(str(error).split())[-600:]}")
        self._parts.setdefault(key, []).append(part)
        if key not in self._installing.values():
            self._ended.append(max(self._parts.pop(key), key=lambda part: part.error is not None))
