"""Workers that wait on a running cluster for the next run: `cluster.keep_warm_s`.

    keeper: an actor of its own life, one for each state of this project's code; it holds no GPU and no core
    └─ waiting workers, which the keeper owns: they have loaded their libraries, have run nothing and have opened no device
       └─ lent to a run, as any worker that it starts

A worker that waits has been started for that: none has run a point of an earlier run, so a run measures in a fresh process.
It is given to a run only if the run's code is the same to the byte, and if no file that the worker has loaded, and no folder that
it imports from, has changed since. Its environment is that of every worker there: a driver passes no variables on.

It holds a device in Ray's books. So the keeper looks twice a second at what the cluster is asked for and cannot give, and ends all
that wait as soon as anybody waits for a GPU, or for cores if they hold cores, and when a node is to end, which would wait for them.
If it cannot find that out, it ends them too.
A lent worker ends with its run, as the keeper sees when the run's driver is gone. If the keeper dies, Ray ends what it owns.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError

from orchestrator.code_version import own_version
from orchestrator.pools.ray.actor import new_worker
from orchestrator.pools.ray.nodes import end_with_parent
from orchestrator.pools.ray.spares import Spare

NAMESPACE = "attention-orchestrator"
LOOK_SECONDS = 0.5
PLACE_SECONDS = 10.0  # within which a new worker has its device, or is given up: somebody else has it
LOAD_SECONDS = 120.0  # within which it has loaded its libraries
UNUSED_SECONDS = 60.0  # a keeper that nobody asks for anything ends after that
ANSWER_SECONDS = 5.0  # a run waits so long for the workers that wait, and then starts its own
RESOURCES = {"cuda": "GPU", "cpu": "CPU"}


@dataclass
class Waiting:
    """A worker that waits. `placed` and `loaded` are Ray's references to when it has its device and its libraries, until it has."""

    spare: Spare
    placed: Any
    loaded: Any
    since: float

    def look(self) -> bool:
        """Notes what it has by now. Whether it is alive."""
        try:
            if self.placed is not None and ray.wait([self.placed], timeout=0)[0]:
                ray.get(self.placed)
                self.placed = None
            if self.loaded is not None and ray.wait([self.loaded], timeout=0)[0]:
                ray.get(self.loaded)
                self.loaded = None
        except RayError:
            return False
        return True

    def is_late(self, now: float) -> bool:
        """Whether somebody else has the device, or its libraries do not load."""
        return self.loaded is not None and now - self.since > (LOAD_SECONDS if self.placed is None else PLACE_SECONDS)


class Keeping:
    """The workers that wait, and those that are lent. Ray's functions apart, it does what it is told and knows no clock."""

    def __init__(self, now: float) -> None:
        self.waiting: list[Waiting] = []
        self.lent: dict[str, list[Spare]] = {}  # by the run's job
        self.until = now + UNUSED_SECONDS  # when waiting ends; a keeper that nobody asks for anything ends then, too

    def take(self, job: str) -> list[Spare]:
        """All workers that are ready, which are the run's from now on."""
        ready = [one for one in self.waiting if one.look() and one.loaded is None]
        self.waiting = [one for one in self.waiting if one not in ready]
        self.lent.setdefault(job, []).extend(one.spare for one in ready)
        return [one.spare for one in ready]

    def keep(self, places: Sequence[tuple[str, str]], packages: tuple[str, ...], now: float, seconds: float) -> None:
        """Starts a worker on each of these places, a machine and a kind of device, unless one waits there already."""
        self.until = now + seconds
        missing = list(places)
        for one in self.waiting:
            if (place := (one.spare.node_id, one.spare.kind)) in missing:
                missing.remove(place)
        for node_id, kind in missing:
            actor = new_worker(kind, node_id)
            placed, loaded = actor.process.remote(), actor.load.remote(packages)
            self.waiting.append(Waiting(Spare(node_id, kind, actor), placed, loaded, since=now))

    def look(self, now: float, running: Collection[str], wanted: Collection[str], draining: Collection[str] = ()) -> None:
        """Ends what is lent to runs that are over, and what may wait no longer.

        `running` are the jobs of Ray that go on, `wanted` what the cluster is asked for and cannot give, and `draining` its nodes
        that are to end once nothing runs there.
        """
        for job in [job for job in self.lent if job not in running]:
            end_all(self.lent.pop(job))
        for one in [one for one in self.waiting if not one.look() or one.is_late(now)]:
            end_all([one.spare])
            self.waiting.remove(one)
        reserved = {RESOURCES[one.spare.kind] for one in self.waiting}
        # One that waits for its own device is itself among what the cluster is asked for.
        asked = reserved & set(wanted) and all(one.placed is None for one in self.waiting)
        if now > self.until or asked or draining:
            self.until = min(self.until, now)
            end_all([one.spare for one in self.waiting])
            self.waiting.clear()

    def is_over(self, now: float) -> bool:
        return not self.waiting and not self.lent and now >= self.until


@ray.remote(num_cpus=0, max_restarts=0)
class Keeper:
    """`Keeping` as an actor, which looks by itself and ends once there is nothing to keep."""

    def __init__(self) -> None:
        end_with_parent()
        self._lock = threading.Lock()
        self._keeping = Keeping(time.monotonic())
        threading.Thread(target=self._watch, name="watch", daemon=True).start()

    def take(self, job: str) -> list[Spare]:
        """Lends nothing if Ray does not say who runs and what is asked for: nobody would end it."""
        running_jobs(), demand()
        with self._lock:
            return self._keeping.take(job)

    def keep(self, places: Sequence[tuple[str, str]], packages: tuple[str, ...], seconds: float) -> None:
        with self._lock:
            self._keeping.keep(places, packages, time.monotonic(), seconds)

    def end_lent(self, job: str) -> None:
        """Ends what a run was lent and does not use."""
        with self._lock:
            end_all(self._keeping.lent.get(job, []))

    def _watch(self) -> None:
        while not self._keeping.is_over(time.monotonic()):
            time.sleep(LOOK_SECONDS)
            with self._lock:
                try:
                    self._keeping.look(time.monotonic(), running_jobs(), *demand())
                except Exception:  # Ray's own functions for this are not public: without an answer nothing may wait
                    self._keeping.look(time.monotonic(), self._keeping.lent, RESOURCES.values())
        ray.kill(ray.get_runtime_context().current_actor)


def end_all(spares: Sequence[Spare]) -> None:
    for spare in spares:
        ray.kill(spare.actor, no_restart=True)


def running_jobs() -> set[str]:
    """The jobs of Ray whose drivers are there."""
    from ray._private.state import state

    return {job["JobID"] for job in state.job_table() if not job["IsDead"]}


def demand() -> tuple[set[str], set[str]]:
    """The resources that the cluster is asked for and cannot give now, by name, and its nodes that are to end."""
    from ray._private.worker import global_worker
    from ray.core.generated.autoscaler_pb2 import GetClusterResourceStateReply, NodeStatus

    reply = GetClusterResourceStateReply()
    reply.ParseFromString(global_worker.gcs_client.get_cluster_resource_state())
    state = reply.cluster_resource_state
    requests = [one.request for one in state.pending_resource_requests if one.count]
    requests += [request for gang in state.pending_gang_resource_requests for request in gang.requests]
    wanted = {name for request in requests for name, amount in request.resources_bundle.items() if amount}
    return wanted, {node.node_id.hex() for node in state.node_states if node.status == NodeStatus.Value("DRAINING")}


class Warm:
    """A run's side of the keeper of its own code."""

    def __init__(self) -> None:
        context = ray.get_runtime_context()
        code = context.get_runtime_env_string()  # has what travels with the run, by its content
        name = hashlib.sha256(f"{own_version()} {code}".encode()).hexdigest()[:32]
        self.job = context.get_job_id()
        try:
            self.keeper, self.is_new = ray.get_actor(name, namespace=NAMESPACE), False
        except ValueError:
            options = {"name": name, "namespace": NAMESPACE, "lifetime": "detached", "get_if_exists": True}
            self.keeper, self.is_new = Keeper.options(**options).remote(), True  # type: ignore[attr-defined]

    def take(self) -> list[Spare]:
        """The workers that wait for this run, each of which is still what it would be if it started now."""
        answer = self.keeper.take.remote(self.job)
        if self.is_new:  # its process starts meanwhile
            return []
        try:
            spares: list[Spare] = ray.get(answer, timeout=ANSWER_SECONDS)
            same = ray.get([spare.actor.is_unchanged.remote() for spare in spares], timeout=ANSWER_SECONDS)
        except RayError:
            self.keeper.end_lent.remote(self.job)
            return []
        end_all([spare for spare, is_same in zip(spares, same, strict=True) if not is_same])
        return [spare for spare, is_same in zip(spares, same, strict=True) if is_same]

    def keep(self, places: Sequence[tuple[str, str]], packages: tuple[str, ...], seconds: float) -> None:
        """Lets workers wait for the next run, on these machines and kinds of devices."""
        with suppress(RayError):  # the next run then starts its own
            ray.get(self.keeper.keep.remote(list(places), packages, seconds), timeout=ANSWER_SECONDS)
