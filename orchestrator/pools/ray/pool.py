"""Workers as Ray actors, one exclusive device each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import ray
from ray.exceptions import RayError

from kernels.compile.module_cache import Library
from kernels.device import Device
from orchestrator.config.environment import Environment
from orchestrator.config.parts import Cluster, VersionRule
from orchestrator.environments.make import EnvironmentInfo, Say, make
from orchestrator.environments.modules import Compiled, CompileRequest, compile_there, merged
from orchestrator.errors import UserError
from orchestrator.libraries import LibraryVersions
from orchestrator.machines import Machine, differences, mixed
from orchestrator.planning.plan import ModuleKey
from orchestrator.pools.ray.actor import RayPending, RayWorker, new_worker
from orchestrator.pools.ray.builds import RayBuilds
from orchestrator.pools.ray.keeper import Spares, Warm, end_others, started_early
from orchestrator.pools.ray.nodes import Nodes, end, pinned_to
from orchestrator.scheduling.interfaces import PendingResult, Slot
from orchestrator.storage.row import version_columns
from orchestrator.worker.messages import WorkerConfig


class RayPool:
    """The devices of a Ray cluster, as its machines come and go. Only the kinds of devices that were there at first are used."""

    def __init__(self, cluster: Cluster, versions: VersionRule, names: tuple[str, ...] = (), early: bool = False) -> None:
        """With `early`, workers start to load their libraries before the machines have said what they have."""
        self.workers, self.allowed = cluster.workers, versions
        self._builds: list[RayBuilds] = []  # a machine that joins gets the modules of all of them
        self._warm = Warm() if early and cluster.keep_warm_s else None
        self._keep_warm_s = cluster.keep_warm_s
        self._packages: tuple[str, ...] = ()  # kernel libraries of the run's points
        if cluster.kind == "ray":
            end_others(self._warm.name if self._warm else "")
        there = self._warm.take() if self._warm else []
        self._ready = {spare.node_id: spare.actor for spare in there}  # they can answer at once
        self._spares = Spares(started_early(cluster.workers, there) if early else [])
        self.nodes = Nodes(cluster.kind == "local", self._prepare, self._refuse, names, ready=self._ready)
        self.machines = list(self.nodes.machines.values())
        for words_of_mixed in filter(None, map(mixed, self.machines)):
            raise UserError(f"cluster: {words_of_mixed}")
        with_gpu = [m for m in self.machines if any(device.kind == "cuda" for device in m.devices)]
        self._devices = {device.name: device for m in with_gpu or self.machines for device in m.devices}
        if not self._devices:
            at = f"cluster.address={cluster.address!r}" if cluster.address else "cluster"
            raise UserError(
                f"{at}: no machine there offers a GPU or a CPU; start one: ray start --address=..., see docs/clusters.md"
            )
        self._last: dict[Slot, RayWorker] = {}
        self._spares.keep([(slot.node_id, self._devices[slot.device_name].kind) for slot in self.slots])

    @property
    def slots(self) -> list[Slot]:
        self.nodes.look()
        found = [
            Slot(f"{machine.host}:{i}", device.name, machine.node_id, machine.versions)
            for machine in self.nodes.machines.values()
            for i, device in enumerate(machine.devices)
            if device.name in self._devices
        ]
        return found[: self.workers]

    @property
    def versions(self) -> list[dict[str, str | None]]:
        """The library versions of the machines with devices, without duplicates."""
        return list({tuple(m.versions.items()): m.versions for m in self.machines if m.devices}.values())

    @property
    def left_out(self) -> list[str]:
        return list(self.nodes.left_out.values())

    @property
    def devices(self) -> list[Device]:
        return list(self._devices.values())

    def reaches(self, slot: Slot) -> bool:
        return self.nodes.reaches(slot.node_id)

    def start(self, slot: Slot, config: WorkerConfig) -> tuple[RayWorker, PendingResult]:
        device = self._devices[slot.device_name]
        config = replace(config, common={**config.common, **version_columns(slot.versions)})
        after, self._packages = self._end_of_last(slot), config.imports
        actor = self._spares.take(slot.node_id, device.kind) or new_worker(device.kind, slot.node_id, after)
        worker = self._last[slot] = RayWorker(actor, actor.process.remote(), partial(RayPending, slot=slot, nodes=self.nodes))
        return worker, worker.answer(actor.ready.remote(config, device, slot.node_id))

    def keep_warm(self) -> None:
        """After a run that has ended well: lets workers wait for the next one, if `cluster.keep_warm_s` asks for it."""
        if self._warm and self._last:
            places = [(slot.node_id, self._devices[slot.device_name].kind) for slot in self._last]
            self._warm.keep(places, self._packages, self._keep_warm_s)

    def end_lent(self) -> None:
        """Ends the workers that waited for this run."""
        if self._warm:
            self._warm.end()

    def _end_of_last(self, slot: Slot) -> Any:
        """What a new worker waits for: its predecessor is gone, with its memory. Ray only asks a process to end."""
        last = self._last.pop(slot, None)
        if last is None or not ray.wait([last.process], timeout=0)[0]:
            return None
        try:
            process = ray.get(last.process)
        except RayError:  # it died before it could answer
            return None
        return ray.remote(end).options(num_cpus=0, max_retries=0, scheduling_strategy=pinned_to(slot.node_id)).remote(process)

    def wait(self, pending: Sequence[PendingResult], timeout_s: float) -> list[PendingResult]:
        by_ref = {answer.ref: answer for answer in pending if isinstance(answer, RayPending)}
        ready, _ = ray.wait(list(by_ref), num_returns=1, timeout=timeout_s)
        return [by_ref[ref] for ref in ready]

    def make_environments(self, wanted: Sequence[Environment], say: Say) -> dict[str, LibraryVersions]:
        """On this machine here, with progress; on others in a task of Ray's. One that joins later makes them for its worker."""
        if self.nodes.local:
            return {one.name: make(one, say).versions(self.versions[0]) for one in wanted}
        found: dict[str, LibraryVersions] = {}
        for one in wanted:
            say(f"environment {one.name}: made on each machine, where it is not there yet")
            for machine in [machine for machine in self.machines if machine.devices]:
                task = ray.remote(make_there).options(num_cpus=0, max_retries=0, scheduling_strategy=pinned_to(machine.node_id))
                made = ray.get(task.remote(one))
                if isinstance(made, str):
                    raise UserError(f"{machine.host}: {made}")
                versions = made.versions(machine.versions)
                if other := differences(found.setdefault(one.name, versions), versions):
                    raise UserError(f"env.{one.name}: {machine.host} has {other}; give requirements that say which versions")
        return found

    def compile_in(self, wanted: CompileRequest, say: Say) -> Compiled:
        """Here with progress; else by tasks, where devices load the modules, or where one can compile if no machine has them."""
        archs = [wanted.device] if wanted.device else list({device.arch: device for device in self.devices}.values())
        if self.nodes.local:
            return merged([compile_there(make(wanted.environment), wanted, device, say) for device in archs])
        task: Any = ray.remote(num_cpus=0, max_retries=0)(compile_on_machine)
        stored = ray.put(wanted)  # with what an archive has
        asked = [
            task.options(scheduling_strategy=pinned_to(node)).remote(stored, device)
            for device in archs
            for node in self._nodes_of(device.arch) or self._compilers()[:1]
        ]
        return merged(ray.get(asked))

    def _compilers(self) -> list[str]:
        """The machines, those first that have a compiler."""
        return [machine.node_id for machine in sorted(self.nodes.machines.values(), key=lambda machine: not machine.has_nvcc)]

    def build(self, keys: Sequence[ModuleKey], found: Mapping[ModuleKey, Library]) -> RayBuilds:
        """Compiles each module once, on whatever machines have a compiler, and puts it on every machine whose devices load it."""
        builds = RayBuilds(
            keys, found, self.nodes.machines, self._nodes_of, self.nodes.is_gone, local=self.nodes.local, ready=self._ready
        )
        self._builds.append(builds)
        return builds

    def _nodes_of(self, arch: str) -> list[str]:
        """Machines with devices of an architecture, including those beyond `cluster.workers`, which replace one that is lost."""
        self.nodes.look()
        used = {name for name, device in self._devices.items() if device.arch == arch}
        return sorted(m.node_id for m in self.nodes.machines.values() if any(device.name in used for device in m.devices))

    def _prepare(self, machine: Machine) -> list[Any]:
        archs = {device.arch for device in machine.devices}
        return [brought for builds in self._builds for brought in builds.bring(machine.node_id, archs)]

    def _refuse(self, machine: Machine) -> str:
        planned = self.machines[0].versions
        if self.allowed == "same" and machine.versions != planned:
            return f"{differences(planned, machine.versions)}; to record it in each row instead, type versions=any"
        return mixed(machine)


def make_there(environment: Environment) -> EnvironmentInfo | str:
    """An environment on the machine that this runs on; an error in words, since Ray would raise another class."""
    try:
        return make(environment)
    except UserError as error:
        return str(error)


def compile_on_machine(wanted: CompileRequest, device: Device) -> Compiled:
    """The modules of an environment's points for a device, on the machine that this runs on."""
    return compile_there(make(wanted.environment), wanted, device)
