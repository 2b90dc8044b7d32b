"""Workers as Ray actors, one exclusive device each. Beside `ray_builds` the only module that imports Ray."""

from __future__ import annotations

import logging
import os
import signal
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from kernels.device import Device
from kernels.modules import Library
from orchestrator import machines
from orchestrator.builds import Key
from orchestrator.errors import UserError
from orchestrator.machines import Machine
from orchestrator.ray_builds import RayBuilds
from orchestrator.scheduler import Pending, Slot, Task, WorkerDied
from orchestrator.settings import Cluster
from orchestrator.worker import Orders, Outcome, PointRunner

ROOT = Path(__file__).resolve().parent.parent
REACH_SECONDS = 10.0
OBJECT_STORE_BYTES = 128 * 2**20  # rows are all that travels


@ray.remote
class _Actor:
    """A PointRunner in a process of its own."""

    def __init__(self, orders: Orders, device: Device, node_id: str) -> None:
        self.runner = PointRunner(orders, device, node_id)

    def ready(self) -> Outcome:
        return self.runner.ready()

    def run(self, task: Task) -> Outcome:
        return self.runner.run(task.point, task.command, task.attempt)

    def measure(self) -> Outcome:
        return self.runner.measure()


@dataclass(frozen=True)
class _Answer:
    ref: Any

    def result(self) -> Outcome:
        try:
            outcome: Outcome = ray.get(self.ref)
        except RayActorError as error:
            raise WorkerDied(_exit_detail(error)) from None
        except RayError as error:  # an exception in `ready`: run() itself never raises
            raise WorkerDied(_words(error)) from None
        return outcome


@dataclass(frozen=True)
class _RayWorker:
    actor: Any

    def submit(self, task: Task) -> Pending:
        return _Answer(self.actor.run.remote(task))

    def measure(self) -> Pending:
        return _Answer(self.actor.measure.remote())

    def kill(self) -> None:
        ray.kill(self.actor, no_restart=True)


class RayPool:
    """The devices of a Ray cluster."""

    def __init__(self, found: Sequence[Machine], limit: int | None) -> None:
        self.machines = list(found)
        with_gpu = [m for m in found if any(device.kind == "cuda" for device in m.devices)]
        usable = [(m, device) for m in with_gpu or found[:1] for device in m.devices][:limit]
        self._devices = {device.name: device for _, device in usable}
        self.slots = [Slot(f"{m.host}:{i}", device.name, m.node_id) for i, (m, device) in enumerate(usable)]
        self.orders: Orders | None = None

    @property
    def versions(self) -> dict[str, str | None]:
        """What the workers run on. Raises UserError where machines disagree: their times would not compare."""
        first = self.machines[0]
        for other in self.machines[1:]:
            if other.versions != first.versions:
                pair = f"{first.host} has {first.versions}, {other.host} has {other.versions}"
                raise UserError(f"cluster: library versions differ: {pair}; allowed: the same everywhere")
        return first.versions

    @property
    def devices(self) -> list[Device]:
        return list(self._devices.values())

    def start(self, slot: Slot) -> tuple[_RayWorker, Pending]:
        assert self.orders is not None, "a run sets its orders before it starts workers"
        device = self._devices[slot.device_name]
        share = {"num_gpus": 1} if device.kind == "cuda" else {"num_cpus": 1}
        # max_restarts: Ray would revive a dead actor under the tasks still queued for it, and lose those too.
        actor = _Actor.options(  # type: ignore[attr-defined]
            **share, max_restarts=0, max_task_retries=0, scheduling_strategy=_on(slot.node_id)
        ).remote(self.orders, device, slot.node_id)
        return _RayWorker(actor), _Answer(actor.ready.remote())

    def wait(self, pending: Sequence[Pending], timeout_s: float) -> list[Pending]:
        by_ref = {answer.ref: answer for answer in pending if isinstance(answer, _Answer)}
        ready, _ = ray.wait(list(by_ref), num_returns=1, timeout=timeout_s)
        return [by_ref[ref] for ref in ready]

    def build(self, keys: Sequence[Key], found: Mapping[Key, Library]) -> RayBuilds:
        """Compiles each module once, on whatever machines have a compiler, and puts it on every machine whose devices load it."""
        return RayBuilds(keys, found, self.machines, self._nodes_of)

    def _nodes_of(self, arch: str) -> list[str]:
        """Machines with devices of an architecture."""
        return sorted({slot.node_id for slot in self.slots if self._devices[slot.device_name].arch == arch})


@contextmanager
def connect(cluster: Cluster) -> Iterator[RayPool]:
    """The cluster's devices while it lasts. Raises UserError where the cluster cannot be reached."""
    # Hugging Face publishes a package `kernels` too: ours must come first on the path of every worker.
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]))
    quiet: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
    logging.getLogger("ray").setLevel(logging.ERROR)
    on_terminate = signal.getsignal(signal.SIGTERM)  # Ray puts its own in place, which ends the process with rows unsealed
    try:
        if cluster.kind == "local":
            here = machines.describe()
            gpus = sum(device.kind == "cuda" for device in here.devices)
            # address="local": never somebody else's cluster that happens to run here
            ray.init(address="local", include_dashboard=False, num_gpus=gpus, object_store_memory=OBJECT_STORE_BYTES, **quiet)
        else:
            _require_reachable(str(cluster.address))
            packages = [str(ROOT / name) for name in ("conf", "kernels", "orchestrator")]
            ray.init(address=cluster.address, runtime_env={"py_modules": packages}, **quiet)
    except (ConnectionError, ValueError, RuntimeError, OSError) as error:
        words = " ".join(str(error).split())[:400]
        where = (
            "cluster=local: Ray does not start here"
            if cluster.kind == "local"
            else f"cluster.address={cluster.address!r}: no Ray answers"
        )
        hint = "to run without Ray, type cluster=inline; for a cluster's address and token, see docs/clusters.md"
        raise UserError(f"{where} ({words}); {hint}") from None
    signal.signal(signal.SIGTERM, on_terminate)
    # A thread of Ray prints every worker's death into whatever stands in sys.stdout; rows say it, and Ray's own logs.
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
        try:
            yield RayPool(_machines(cluster), cluster.workers)
        finally:
            ray.shutdown()


def _require_reachable(address: str) -> None:
    """OSError at once for HOST:PORT where nobody listens, which Ray would wait minutes for."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=REACH_SECONDS).close()


def _machines(cluster: Cluster) -> list[Machine]:
    """Every node that is alive, as it describes itself; a node shows no more GPUs than Ray may give away there."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    if cluster.kind == "local":
        return [machines.describe(node["NodeID"]) for node in nodes[:1]]
    refs = [ray.remote(_describe).options(num_cpus=0, scheduling_strategy=_on(n["NodeID"])).remote(n["NodeID"]) for n in nodes]
    try:
        found = ray.get(refs)
    except RayError as error:
        raise UserError(
            f"cluster: a node cannot say what it has; are the packages of requirements.txt there? {_words(error)}"
        ) from None
    shares = [{name: int(node["Resources"].get(name, 0)) for name in ("GPU", "CPU")} for node in nodes]
    return [machine.with_gpus(share["GPU"]).with_cores(share["CPU"]) for share, machine in zip(shares, found, strict=True)]


def _describe(node_id: str) -> Machine:
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # Ray hides the GPUs from a task that asked for none
    return machines.describe(node_id)


def _on(node_id: str) -> NodeAffinitySchedulingStrategy:
    return NodeAffinitySchedulingStrategy(node_id, soft=False)


def _words(error: Exception) -> str:
    """The end of Ray's words, where the cause stands."""
    return " ".join(str(error).split())[-600:]


def _exit_detail(error: RayActorError) -> str:
    """Ray's words on how a process ended, without the frame around them."""
    text = " ".join(str(error).split())
    for mark in ("Worker exit detail: ", "The actor is dead because "):
        if mark in text:
            return text.partition(mark)[2][:600]
    return text[:600]
