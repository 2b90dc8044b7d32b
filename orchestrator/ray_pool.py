"""Workers as Ray actors, one exclusive device each. Only this, `ray_nodes` and `ray_builds` import Ray."""

from __future__ import annotations

import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import OutOfMemoryError, RayActorError, RayError, RayTaskError

from kernels.device import Device
from kernels.modules import Library
from orchestrator import machines
from orchestrator.builds import Key
from orchestrator.errors import UserError
from orchestrator.machines import Machine, differences, mixed
from orchestrator.pool import Pending, Slot, Task, WorkerDied
from orchestrator.ray_builds import RayBuilds
from orchestrator.ray_head import watched
from orchestrator.ray_nodes import Nodes, end, end_with_parent, identity, on, words
from orchestrator.settings import Cluster, Versions
from orchestrator.worker import Orders, Outcome, PointRunner

ROOT = Path(__file__).resolve().parent.parent
REACH_SECONDS = 10.0
CLIENT_PORT = 10001  # Ray's own default
OBJECT_STORE_BYTES = 128 * 2**20  # rows are all that travels


@ray.remote
class _Actor:
    """A PointRunner in a process of its own."""

    def __init__(self, orders: Orders, device: Device, node_id: str, after: None) -> None:
        """`after` is there once the device is free: Ray creates no actor before its arguments."""
        end_with_parent()
        self.runner = PointRunner(orders, device, node_id)

    def process(self) -> tuple[int, str] | None:
        return identity(os.getpid())

    def ready(self) -> Outcome:
        return self.runner.ready()

    def run(self, task: Task) -> Outcome:
        return self.runner.run(task.point, task.command, task.attempt)

    def measure(self) -> Outcome:
        return self.runner.measure()


@dataclass(frozen=True)
class _Answer:
    ref: Any
    slot: Slot
    nodes: Nodes

    def result(self) -> Outcome:
        try:
            outcome: Outcome = ray.get(self.ref)
        except RayError as error:  # also an exception in `ready`; run() itself never raises
            raise self._death(error) from None
        return outcome

    def _death(self, error: RayError) -> WorkerDied:
        detail = _exit_detail(error) if isinstance(error, RayActorError) else words(error)
        if isinstance(error, RayTaskError):
            return WorkerDied(detail)
        if not self.nodes.reaches(self.slot.node_id):
            return WorkerDied(f"its machine is gone or cut off: {detail}", "machine")
        starved = isinstance(error, OutOfMemoryError) or self.nodes.killed_for_memory(self.slot.node_id)
        return WorkerDied(detail, "memory" if starved else "point")


@dataclass(frozen=True)
class _RayWorker:
    actor: Any
    process: Any  # what it is on its machine, once it has said so
    answer: Callable[[Any], _Answer]

    def submit(self, task: Task) -> Pending:
        return self.answer(self.actor.run.remote(task))

    def measure(self) -> Pending:
        return self.answer(self.actor.measure.remote())

    def kill(self) -> None:
        ray.kill(self.actor, no_restart=True)


class RayPool:
    """The devices of a Ray cluster, as its machines come and go. The kinds of devices are those of its beginning."""

    def __init__(self, cluster: Cluster, versions: Versions) -> None:
        self.workers, self.allowed = cluster.workers, versions
        self.builds: RayBuilds | None = None  # what a machine that joins must have too
        self.nodes = Nodes(cluster.kind == "local", self._prepare, self._refuse)
        self.machines = list(self.nodes.machines.values())
        for words_of_mixed in filter(None, map(mixed, self.machines)):
            raise UserError(f"cluster: {words_of_mixed}")
        with_gpu = [m for m in self.machines if any(device.kind == "cuda" for device in m.devices)]
        self._devices = {device.name: device for m in with_gpu or self.machines for device in m.devices}
        if not self._devices:
            at = f"cluster.address={cluster.address!r}" if cluster.address else "cluster"
            raise UserError(
                f"{at}: no machine there gives a GPU or a CPU away; start one: ray start --address=..., see docs/clusters.md"
            )
        self._last: dict[Slot, _RayWorker] = {}
        self.orders: Orders | None = None

    @property
    def slots(self) -> list[Slot]:
        """One for each device of the machines that are there now."""
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
        """What the workers run on, none twice."""
        return list({tuple(m.versions.items()): m.versions for m in self.machines if m.devices}.values())

    @property
    def left_out(self) -> list[str]:
        """Why machines that joined are not used."""
        return list(self.nodes.left_out.values())

    @property
    def devices(self) -> list[Device]:
        return list(self._devices.values())

    def reaches(self, slot: Slot) -> bool:
        return self.nodes.reaches(slot.node_id)

    def start(self, slot: Slot) -> tuple[_RayWorker, Pending]:
        assert self.orders is not None, "a run sets its orders before it starts workers"
        device = self._devices[slot.device_name]
        share = {"num_gpus": 1} if device.kind == "cuda" else {"num_cpus": 1}
        orders = replace(self.orders, common={**self.orders.common, **slot.versions})
        # max_restarts: Ray would revive a dead actor under the tasks still queued for it, and lose those too.
        actor = _Actor.options(  # type: ignore[attr-defined]
            **share, max_restarts=0, max_task_retries=0, scheduling_strategy=on(slot.node_id)
        ).remote(orders, device, slot.node_id, self._end_of_last(slot))
        worker = self._last[slot] = _RayWorker(actor, actor.process.remote(), partial(_Answer, slot=slot, nodes=self.nodes))
        return worker, worker.answer(actor.ready.remote())

    def _end_of_last(self, slot: Slot) -> Any:
        """What a new worker waits for: that the process which held its device is gone, and has given back its memory.

        Ray asks a process to go, and one that is stopped or hangs in a driver does not hear it.
        """
        last = self._last.pop(slot, None)
        if last is None or not ray.wait([last.process], timeout=0)[0]:
            return None
        try:
            process = ray.get(last.process)
        except RayError:  # it died before it could say
            return None
        return ray.remote(end).options(num_cpus=0, max_retries=0, scheduling_strategy=on(slot.node_id)).remote(process)

    def wait(self, pending: Sequence[Pending], timeout_s: float) -> list[Pending]:
        by_ref = {answer.ref: answer for answer in pending if isinstance(answer, _Answer)}
        ready, _ = ray.wait(list(by_ref), num_returns=1, timeout=timeout_s)
        return [by_ref[ref] for ref in ready]

    def build(self, keys: Sequence[Key], found: Mapping[Key, Library]) -> RayBuilds:
        """Compiles each module once, on whatever machines have a compiler, and puts it on every machine whose devices load it."""
        self.builds = RayBuilds(keys, found, self.nodes.machines, self._nodes_of, self.nodes.is_gone)
        return self.builds

    def _nodes_of(self, arch: str) -> list[str]:
        """Machines with devices of an architecture, also those beyond `cluster.workers`, which stand in for one that is lost."""
        self.nodes.look()
        used = {name for name, device in self._devices.items() if device.arch == arch}
        return sorted(m.node_id for m in self.nodes.machines.values() if any(device.name in used for device in m.devices))

    def _prepare(self, machine: Machine) -> list[Any]:
        return self.builds.bring(machine.node_id, {device.arch for device in machine.devices}) if self.builds else []

    def _refuse(self, machine: Machine) -> str:
        planned = self.machines[0].versions
        if self.allowed == "same" and machine.versions != planned:
            return f"{differences(planned, machine.versions)}; to record it in each row instead, type versions=any"
        return mixed(machine)


@contextmanager
def connect(cluster: Cluster, versions: Versions = "same") -> Iterator[RayPool]:
    """The cluster's devices while it lasts. Raises UserError where the cluster cannot be reached."""
    # Hugging Face publishes a package `kernels` too: ours must come first on the path of every worker.
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]))
    quiet: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
    logging.getLogger("ray").setLevel(logging.ERROR)
    on_terminate = signal.getsignal(signal.SIGTERM)  # Ray puts its own in place, which ends the process with rows unsealed
    here = machines.describe()
    try:
        if cluster.kind == "local":
            gpus = sum(device.kind == "cuda" for device in here.devices)
            # address="local": never somebody else's cluster that happens to run here
            ray.init(address="local", include_dashboard=False, num_gpus=gpus, object_store_memory=OBJECT_STORE_BYTES, **quiet)
        else:
            _require_reachable(str(cluster.address))
            packages = [str(ROOT / name) for name in ("conf", "kernels", "orchestrator")]
            ray.init(address=cluster.address, runtime_env={"py_modules": packages}, **quiet)
    except Exception as error:  # where its processes die at their start, Ray raises no class of its own
        told = " ".join(str(error).split())[:400]
        where = (
            "cluster=local: Ray does not start here"
            if cluster.kind == "local"
            else f"cluster.address={cluster.address!r}: no Ray answers"
        )
        hint = "to run without Ray, type cluster=inline; for a cluster's address and token, see docs/clusters.md"
        raise UserError(f"{where} ({told}); {hint}") from None
    signal.signal(signal.SIGTERM, on_terminate)
    # A thread of Ray prints every worker's death into whatever stands in sys.stdout; rows say it, and Ray's own logs.
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
        try:
            with watched(_head(cluster)):
                yield RayPool(cluster, versions)
        finally:
            ray.shutdown()


def _head(cluster: Cluster) -> str:
    """HOST:PORT of the head's store, or of its server for clients."""
    scheme, _, client = str(cluster.address).rpartition("://")
    if scheme == "ray":
        return client if ":" in client else f"{client}:{CLIENT_PORT}"
    return str(ray.get_runtime_context().gcs_address)


def _require_reachable(address: str) -> None:
    """OSError at once for HOST:PORT where nobody listens, which Ray would wait minutes for."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=REACH_SECONDS).close()


def _exit_detail(error: RayActorError) -> str:
    """Ray's words on how a process ended, without the frame around them."""
    text = " ".join(str(error).split())
    for mark in ("Worker exit detail: ", "The actor is dead because "):
        if mark in text:
            return text.partition(mark)[2][:600]
    return text[:600]
