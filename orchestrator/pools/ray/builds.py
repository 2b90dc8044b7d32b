"""Compiles each kernel module once, on machines of a Ray cluster that have a compiler, and puts it where the devices are."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError

from kernels.adapter import Module
from kernels.compile.build import Built, build, builds_at_once, install, share_cores
from kernels.compile.module_cache import Library
from kernels.compile.records import found_again
from orchestrator.machines import Machine
from orchestrator.planning.plan import ModuleKey
from orchestrator.pools.ray.nodes import pinned_to, words
from orchestrator.process import end_with_parent

MAX_ATTEMPTS = 2  # at a module whose compilers may have run out of memory
MAX_THREADS = 256  # Ray's limit on calls that one actor serves at a time; ours is `builds_at_once`


@ray.remote(num_cpus=0, max_restarts=0, max_concurrency=MAX_THREADS)
class _Builder:
    """Compiles for one architecture on one machine. The process must never see another architecture."""

    def __init__(self, cores: int) -> None:
        end_with_parent()
        share_cores(cores)

    def build(self, module: Module, arch: str) -> Built:
        return build(module, arch)


_install: Any = ray.remote(num_cpus=0)(install)
_found_again: Any = ray.remote(num_cpus=0)(found_again)


class RayBuilds:
    """Modules that are compiled on a cluster.

    `found` holds modules that an archive has compiled already; `homes` gives the nodes whose devices load an architecture.

    `machines` are those that are there now, by node; `is_gone` takes out one that answers nobody. With `local`, the only one is
    that of this process. `ready` are workers that can answer for their machines at once.
    """

    def __init__(
        self,
        keys: Sequence[ModuleKey],
        found: Mapping[ModuleKey, Library],
        machines: Mapping[str, Machine],
        homes: Callable[[str], list[str]],
        is_gone: Callable[[str], bool],
        *,
        local: bool = False,
        ready: Mapping[str, Any] | None = None,
    ) -> None:
        self.machines, self.homes, self.is_gone = machines, homes, is_gone
        archs = {arch for arch, _ in keys}
        self._isas = {arch: {machine.isa for machine in self._at_home(arch)} for arch in archs}
        self._loaded = {arch for arch in archs if homes(arch)}  # architectures of devices in the cluster at its start
        self._had_compilers = {arch for arch in archs if self._able(arch)}
        self._builders: dict[tuple[str, str], Any] = {}  # by node and architecture
        self._building: dict[Any, tuple[ModuleKey, str, Any]] = {}  # by answer, the module, its node and builder
        self._installing: dict[Any, tuple[Built, str]] = {}  # by answer, the module and the node that it is put on
        self._parts: dict[ModuleKey, list[Built]] = {}  # one for each machine on which the module was installed
        self._joining: dict[str, Collection[str]] = {}  # the architectures of machines that have joined, by node
        new = [key for key in keys if key not in found]
        self._ended = self._there(new, local, ready or {})
        # Compiled modules in Ray's store, for machines that join.
        self._stored: dict[ModuleKey, Any] = {built.key: ray.put(built) for built in self._ended}
        self._queue = deque(key for key in new if key not in self._stored)
        self._tried: dict[ModuleKey, list[str]] = {key: [] for key in self._queue}  # the nodes that a module was given to
        for arch, module in keys:
            if library := found.get((arch, module)):
                self._spread(Built(module, arch, 0.0, library=library))

    def _there(self, keys: Sequence[ModuleKey], local: bool, ready: Mapping[str, Any]) -> list[Built]:
        """Those of the modules that every machine whose devices load them has already, from a run before."""
        homes = {arch: self.homes(arch) for arch in {arch for arch, _ in keys} & self._loaded}
        wanted = {node: [key for key in keys if node in homes.get(key[0], ())] for nodes in homes.values() for node in nodes}
        on_node: dict[str, Mapping[ModuleKey, Library]] = {}
        if local:
            on_node = {node: found_again(its) for node, its in wanted.items()}
        else:
            asked = {
                node: ready[node].found_again.remote(its)
                if node in ready
                else _found_again.options(scheduling_strategy=pinned_to(node)).remote(its)
                for node, its in wanted.items()
            }
            for node, answer in asked.items():
                with suppress(RayError):  # it is gone; its modules are looked at as any other
                    on_node[node] = ray.get(answer)
        found = {}
        for key in keys:
            libraries = [on_node.get(node, {}).get(key) for node in homes.get(key[0], ())]
            if libraries and all(libraries):
                found[key] = libraries[0]
        return [Built(module, arch, 0.0, library=library) for (arch, module), library in found.items()]

    @property
    def left(self) -> int:
        return len(self._queue) + len(self._building) + len(self._on_their_way()) + len(self._ended)

    @property
    def stranded(self) -> bool:
        return bool(self._queue) and not self._building and not any(self._compilers(arch) for arch, _ in self._queue)

    def wait(self, timeout_s: float) -> list[Built]:
        for key in [self._queue.popleft() for _ in range(len(self._queue))]:
            if node := self._least_busy(key):
                self._start(key, node)
            else:
                self._queue.append(key)
        answers = [*self._building, *self._installing]
        if answers and not self._ended:
            ready, _ = ray.wait(answers, num_returns=1, timeout=timeout_s)
            for answer in ready:
                self._take(answer)
        elif not self._ended:  # until a machine with a compiler joins
            time.sleep(timeout_s)
        ended, self._ended = self._ended, []
        return ended

    def bring(self, node: str, archs: Collection[str]) -> list[Any]:
        """Installs what was compiled so far on a machine that joins; returns Ray's references. Later modules reach it too."""
        self._joining[node] = archs
        return [_put(node, stored) for (arch, _), stored in self._stored.items() if arch in archs]

    def close(self) -> None:
        for builder in self._builders.values():
            ray.kill(builder)

    def _least_busy(self, key: ModuleKey) -> str | None:
        """The machine to compile a module on, if one has room."""
        busy = Counter(node for _, node, _ in self._building.values())
        free = [m for m in self._compilers(key[0]) if busy[m.node_id] < builds_at_once(m.cores)]
        return min(free, key=lambda m: (m.node_id in self._tried[key], busy[m.node_id] / m.cores)).node_id if free else None

    def _compilers(self, arch: str) -> list[Machine]:
        """Machines that can compile for an architecture; if there never was one, those whose error says what is missing."""
        return self._able(arch) or ([] if arch in self._had_compilers else self._at_home(arch))

    def _able(self, arch: str) -> list[Machine]:
        return [machine for machine in self.machines.values() if machine.has_nvcc and machine.isa in self._isas[arch]]

    def _at_home(self, arch: str) -> list[Machine]:
        """Machines with devices of an architecture; all machines if there is none."""
        return [self.machines[node] for node in self.homes(arch) if node in self.machines] or list(self.machines.values())

    def _start(self, key: ModuleKey, node: str) -> None:
        arch, module = key
        self._tried[key].append(node)
        if (node, arch) not in self._builders:
            options = _Builder.options(scheduling_strategy=pinned_to(node))  # type: ignore[attr-defined]
            self._builders[node, arch] = options.remote(self.machines[node].cores)
        builder = self._builders[node, arch]
        self._building[builder.build.remote(module, arch)] = key, node, builder

    def _take(self, answer: Any) -> None:
        if answer in self._installing:
            self._installed(answer)
            return
        key, node, builder = self._building.pop(answer)
        try:
            built = ray.get(answer)
        except RayError as error:  # its process was killed, for instance because memory ran out, or its machine is gone
            self._once_more(key, node, builder, error)
        else:
            self._spread(built, answer)

    def _once_more(self, key: ModuleKey, node: str, builder: Any, error: RayError) -> None:
        """Queues a module again unless it has had its attempts; a machine that is gone costs none."""
        if self._builders.get((node, key[0])) is builder and isinstance(error, RayActorError):
            del self._builders[node, key[0]]
        if self.is_gone(node):
            self._tried[key].remove(node)
        if len(self._tried[key]) < MAX_ATTEMPTS:
            self._queue.append(key)
        else:
            self._ended.append(Built(key[1], key[0], 0.0, f"the build's process ended: {words(error)}"))

    def _spread(self, built: Built, stored: Any = None) -> None:
        """Puts a module on every machine whose devices load it; `wait` returns it once all have it."""
        joining = [node for node, archs in self._joining.items() if built.arch in archs]
        if built.library is None or built.arch not in self._loaded:
            self._ended.append(built)
            return
        self._stored[built.key] = stored or ray.put(built)
        without_library = replace(built, library=None)
        homes = dict.fromkeys([*self.homes(built.arch), *joining])
        self._installing |= {_put(node, self._stored[built.key]): (without_library, node) for node in homes}
        if not homes:  # a machine that joins will get it
            self._ended.append(without_library)

    def _installed(self, answer: Any) -> None:
        without_library, node = self._installing.pop(answer)
        parts = self._parts.setdefault(without_library.key, [])
        try:
            parts.append(ray.get(answer))
        except RayError as error:
            if not self.is_gone(node):
                parts.append(replace(without_library, error=f"it did not reach a machine: {words(error)}"))
        if without_library.key not in self._on_their_way():  # a machine that is gone does not make the module fail on the others
            self._ended.append(min(parts, key=lambda part: part.error is not None, default=without_library))
            del self._parts[without_library.key]

    def _on_their_way(self) -> set[ModuleKey]:
        return {without_library.key for without_library, _ in self._installing.values()}


def _put(node: str, stored: Any) -> Any:
    return _install.options(scheduling_strategy=pinned_to(node)).remote(stored)
