"""Workers that wait on a running cluster for the next run: `cluster.keep_warm_s`. And workers that a run starts early.

    keeper: an actor of its own life, one for each state of this project's code; it holds no GPU and no core
    └─ waiting workers, which the keeper owns: they have loaded their libraries, have run nothing and have opened no device
       └─ lent to a run, as any worker that it starts

A worker that waits has been started for that: none has run a point of an earlier run, so a run measures in a fresh process.
It is given to a run only if the run's code is the same to the byte, and if no file that the worker has loaded, and no folder that
it imports from, has changed since. Its environment is that of every worker there: a driver passes no variables on.

It holds a device in Ray's books. Any run of this project takes it or ends it; other programs wait until its time is over.
A lent worker ends with its run, or once the run has said nothing for a minute. If the keeper dies, Ray ends what it owns.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util import list_named_actors

from orchestrator.code_version import own_version
from orchestrator.pools.ray.actor import new_worker
from orchestrator.pools.ray.nodes import alive
from orchestrator.process import end_with_parent

NAMESPACE = "attention-orchestrator"
LOOK_SECONDS = 0.5
PLACE_SECONDS = 10.0  # within which a new worker has its device, or is given up: somebody else has it
LOAD_SECONDS = 120.0  # within which it has loaded its libraries
UNUSED_SECONDS = 60.0  # a keeper that nobody asks for anything ends after that, and so do workers lent to a run that is silent
SAY_SECONDS = 5.0  # how often a run says that it goes on
ANSWER_SECONDS = 5.0  # a run waits so long for the workers that wait, and then starts its own


@dataclass(frozen=True)
class Spare:
    """A worker that has no work yet: its machine, the kind of device that it holds (cuda or cpu), and Ray's handle of it."""

    node_id: str
    kind: str
    actor: Any


class Spares:
    """The workers of a run that are not in use yet."""

    def __init__(self, spares: Sequence[Spare]) -> None:
        self._spares = list(spares)

    def keep(self, places: Sequence[tuple[str, str]]) -> None:
        """Ends those beyond these places, each a machine and a kind of device: they hold devices that the run will not use."""
        kept = [spare for place in places if (spare := self._find(*place))]
        end_all(self._spares)
        self._spares = kept

    def take(self, node_id: str, kind: str) -> Any | None:
        """The handle of a worker on a machine, which is then in use; None without one."""
        spare = self._find(node_id, kind)
        return spare and spare.actor

    def _find(self, node_id: str, kind: str) -> Spare | None:
        for spare in self._spares:
            if (spare.node_id, spare.kind) == (node_id, kind):
                self._spares.remove(spare)
                return spare
        return None


def started_early(most: int | None, there: Sequence[Spare] = ()) -> list[Spare]:
    """A worker for each device of Ray's nodes (of GPUs alone, if there are any) but those that are `there`, at most so many."""
    resources = {node["NodeID"]: node["Resources"] for node in alive()}
    gpus = [(node_id, "cuda") for node_id, has in resources.items() for _ in range(int(has.get("GPU", 0)))]
    cpus = [(node_id, "cpu") for node_id, has in resources.items() if has.get("CPU", 0)]
    places = (gpus or cpus)[:most]
    left = Spares(there)
    spares = [Spare(*place, actor=left.take(*place)) for place in places]
    left.keep([])
    return [spare if spare.actor else _started(spare) for spare in spares]


def _started(spare: Spare) -> Spare:
    actor = new_worker(spare.kind, spare.node_id)
    actor.load.remote()
    return replace(spare, actor=actor)


def end_all(spares: Sequence[Spare]) -> None:
    for spare in spares:
        ray.kill(spare.actor, no_restart=True)


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


@dataclass
class Lent:
    """What a run has, and when it said last that it goes on."""

    spares: list[Spare]
    heard: float


class Keeping:
    """The workers that wait, and those that are lent. Ray's functions apart, it does what it is told and knows no clock."""

    def __init__(self, now: float) -> None:
        self.waiting: list[Waiting] = []
        self.lent: dict[str, Lent] = {}  # by the run's job
        self.until = now + UNUSED_SECONDS  # when waiting ends; a keeper that nobody asks for anything ends then, too

    def take(self, job: str, now: float) -> list[Spare]:
        """All workers that are ready, which are the run's from now on."""
        ready = [one for one in self.waiting if one.look() and one.loaded is None]
        self.waiting = [one for one in self.waiting if one not in ready]
        self.lent[job] = Lent([one.spare for one in ready], now)
        return self.lent[job].spares

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

    def hear(self, job: str, now: float) -> None:
        if job in self.lent:
            self.lent[job].heard = now

    def end_lent(self, job: str) -> None:
        if lent := self.lent.pop(job, None):
            end_all(lent.spares)

    def look(self, now: float) -> None:
        """Ends what is lent to runs that are silent, and what may wait no longer."""
        for job in [job for job, lent in self.lent.items() if now - lent.heard > UNUSED_SECONDS]:
            self.end_lent(job)
        over = now > self.until
        for one in [one for one in self.waiting if over or not one.look() or one.is_late(now)]:
            end_all([one.spare])
            self.waiting.remove(one)

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
        with self._lock:
            return self._keeping.take(job, time.monotonic())

    def keep(self, places: Sequence[tuple[str, str]], packages: tuple[str, ...], seconds: float) -> None:
        with self._lock:
            self._keeping.keep(places, packages, time.monotonic(), seconds)

    def hear(self, job: str) -> None:
        with self._lock:
            self._keeping.hear(job, time.monotonic())

    def end_lent(self, job: str) -> None:
        with self._lock:
            self._keeping.end_lent(job)

    def end_waiting(self) -> None:
        """Gives the devices to a run that has no use for these workers."""
        with self._lock:
            self._keeping.until = 0.0
            self._keeping.look(time.monotonic())

    def _watch(self) -> None:
        while not self._keeping.is_over(time.monotonic()):
            time.sleep(LOOK_SECONDS)
            with self._lock:
                self._keeping.look(time.monotonic())
        ray.kill(ray.get_runtime_context().current_actor)


def end_others(own: str = "") -> None:
    """Ends the workers that wait for runs of other code than the keeper `own` has, since they hold devices."""
    names = [one["name"] for one in list_named_actors(all_namespaces=True) if one["namespace"] == NAMESPACE]
    for name in names:
        with suppress(ValueError, RayError):  # it has ended meanwhile
            if name != own:
                ray.get(ray.get_actor(name, namespace=NAMESPACE).end_waiting.remote(), timeout=ANSWER_SECONDS)


class Warm:
    """A run's side of the keeper of its own code."""

    def __init__(self) -> None:
        context = ray.get_runtime_context()
        code = context.get_runtime_env_string()  # has what travels with the run, by its content
        self.name = hashlib.sha256(f"{own_version()} {code}".encode()).hexdigest()[:32]
        self.job = context.get_job_id()
        self._over = threading.Event()
        try:
            self.keeper, self.is_new = ray.get_actor(self.name, namespace=NAMESPACE), False
        except ValueError:
            options = {"name": self.name, "namespace": NAMESPACE, "lifetime": "detached", "get_if_exists": True}
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
        threading.Thread(target=self._say, name="warm", daemon=True).start()
        return [spare for spare, is_same in zip(spares, same, strict=True) if is_same]

    def _say(self) -> None:
        while not self._over.wait(SAY_SECONDS):
            with suppress(RayError):
                self.keeper.hear.remote(self.job)

    def keep(self, places: Sequence[tuple[str, str]], packages: tuple[str, ...], seconds: float) -> None:
        """Lets workers wait for the next run, on these machines and kinds of devices."""
        with suppress(RayError):  # the next run then starts its own
            ray.get(self.keeper.keep.remote(list(places), packages, seconds), timeout=ANSWER_SECONDS)

    def end(self) -> None:
        """Ends what was lent to this run."""
        self._over.set()
        with suppress(RayError):
            ray.get(self.keeper.end_lent.remote(self.job), timeout=ANSWER_SECONDS)
