"""The machines of a Ray cluster as they join, fall silent and leave. One that joins gets the kernel modules first."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from orchestrator import machines
from orchestrator.errors import LeftOut, UserError
from orchestrator.machines import Machine
from orchestrator.process import start_time

ANSWER_SECONDS = 30.0  # within which a machine that is there runs a task that does nothing
END_SECONDS = 60.0  # within which a process ends after SIGKILL; a driver takes seconds to give tens of GB back

Prepare = Callable[[Machine], list[Any]]  # Ray's references to the `Built` modules that a machine which joins gets


class Nodes:
    """The machines that are there now, by Ray's node id in the order in which they came.

    `refuse` says why a machine that joins cannot be used, or nothing; `prepare` brings it the modules that the others have. `names`
    are libraries that it reports because plugins need them. `ready` are workers that can answer for their machines at once.
    """

    def __init__(
        self,
        local: bool,
        prepare: Prepare,
        refuse: Callable[[Machine], str],
        names: tuple[str, ...] = (),
        *,
        ready: Mapping[str, Any] | None = None,
    ) -> None:
        self.local, self.prepare, self.refuse, self.names, self.ready = local, prepare, refuse, names, dict(ready or {})
        self.machines: dict[str, Machine] = {}
        self.left_out: dict[str, str] = {}  # why a machine that joined is not used, by node id
        self._arriving: dict[str, tuple[Iterator[list[Any]], list[Any]]] = {}  # steps left, and what is awaited
        self._oom_kills: dict[str, int] = {}
        for machine, kills in self._first():
            self._admit(machine, kills)

    def _first(self) -> list[tuple[Machine, int]]:
        here = alive()
        if self.local:
            return [(machines.describe(node["NodeID"], self.names), oom_kills()) for node in here[:1]]
        while True:
            try:
                found = ray.get([self._greet_first(node) for node in here])
                return [(_within(node, machine), kills) for node, (machine, kills) in zip(here, found, strict=True)]
            except RayError as error:
                left = {node["NodeID"] for node in alive()}  # Ray lists a node for a moment after it has died
                here, asked = [node for node in here if node["NodeID"] in left], len(here)
                if len(here) == asked:
                    raise UserError(
                        f"cluster: a node cannot report what it has; are the packages of requirements.txt installed there? "
                        f"{words(error)}"
                    ) from None

    def _greet_first(self, node: dict[str, Any]) -> Any:
        """Asks a worker that is there already: the process of a task would take a second or more to start."""
        ready = self.ready.pop(node["NodeID"], None)
        return ready.describe.remote(node["NodeID"], self.names) if ready else _greet(node, self.names)

    def _admit(self, machine: Machine, kills: int) -> None:
        self.machines[machine.node_id] = machine
        self._oom_kills[machine.node_id] = kills

    def look(self) -> None:
        """Drops machines that are gone, and adds those that have joined and are ready."""
        here = {node["NodeID"]: node for node in alive()}
        for node_id in [node_id for node_id in self.machines if node_id not in here]:
            del self.machines[node_id]
        for node_id, node in () if self.local else here.items():
            if node_id not in self.machines and node_id not in self.left_out:
                self._go_on(node_id, *self._arriving.pop(node_id, (self._way_in(node), [])))

    def _go_on(self, node_id: str, way_in: Iterator[list[Any]], awaited: list[Any]) -> None:
        """Takes the next step of a machine that joins, if the last one is done; never waits."""
        if not awaited or len(ray.wait(awaited, num_returns=len(awaited), timeout=0)[0]) == len(awaited):
            try:
                awaited = next(way_in)
            except StopIteration:
                return
            except (LeftOut, RayError) as error:
                prefix = "" if isinstance(error, LeftOut) else f"node {node_id[:12]} joined and did not answer: "
                self.left_out[node_id] = prefix + words(error)
                return
        self._arriving[node_id] = way_in, awaited

    def _way_in(self, node: dict[str, Any]) -> Iterator[list[Any]]:
        """The steps by which a machine joins. Each yields what must be finished before the next."""
        greeting = _greet(node, self.names)
        yield [greeting]
        found, kills = ray.get(greeting)
        machine = _within(node, found)
        if why := self.refuse(machine):
            raise LeftOut(f"{machine.host} joined and is left out: {why}")
        builds = self.prepare(machine)
        yield builds
        if broken := [built for built in ray.get(builds) if built.error]:
            raise LeftOut(f"{machine.host} joined and is left out: {broken[0].module}: {broken[0].error}")
        self._admit(machine, kills)

    def reaches(self, node_id: str) -> bool:
        """Whether a machine answers. One that does not is gone until it answers again."""
        if self.local:  # this process runs on that machine, so only Ray on it can be gone
            return _lives(node_id)
        return not self.is_gone(node_id)

    def is_gone(self, node_id: str) -> bool:
        """Whether a machine does not answer. Then it is dropped, but for this process's own, which could never join again."""
        if answers(node_id) or (self.local and _lives(node_id)):
            return False
        self.machines.pop(node_id, None)
        return True

    def killed_for_memory(self, node_id: str) -> bool:
        """Whether the machine's kernel has killed a process because memory ran out, since the last call."""
        count = (oom_kills() if self.local else _ask(node_id, oom_kills)) or 0
        before, self._oom_kills[node_id] = self._oom_kills.get(node_id, count), count
        return count > before


def answers(node_id: str) -> bool:
    """Whether a machine runs a task that does nothing."""
    return _ask(node_id, oom_kills) is not None


def _ask(node_id: str, function: Callable[[], int]) -> int | None:
    """The result of a function on a machine; None if there is no answer."""
    ref = ray.remote(function).options(num_cpus=0, max_retries=0, scheduling_strategy=pinned_to(node_id)).remote()
    with suppress(RayError):
        answer: int = ray.get(ref, timeout=ANSWER_SECONDS)
        return answer
    return None


def _lives(node_id: str) -> bool:
    return node_id in {node["NodeID"] for node in alive()}


def alive() -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]


def _greet(node: dict[str, Any], names: tuple[str, ...]) -> Any:
    return ray.remote(describe).options(num_cpus=0, scheduling_strategy=pinned_to(node["NodeID"])).remote(node["NodeID"], names)


def describe(node_id: str, names: tuple[str, ...]) -> tuple[Machine, int]:
    """The machine that this runs on, and how often memory ran out there."""
    visible = os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # Ray hides from a task the GPUs that it did not request
    try:
        return machines.describe(node_id, names), oom_kills()
    finally:
        if visible is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = visible


def _within(node: dict[str, Any], machine: Machine) -> Machine:
    """The machine with no more GPUs and cores than Ray offers there, and without devices if Ray offers neither GPUs nor CPUs."""
    resources = node["Resources"]
    if machines.mixed(machine):  # it is not known which of its GPUs Ray offers; the pool refuses it
        return machine
    cores = int(resources.get("CPU", 0))
    # A node that gives no core has no compiler to offer.
    compiling = replace(machine, cores=max(1, cores), has_nvcc=machine.has_nvcc and cores > 0)
    offers = resources.keys() & {"GPU", "CPU"}
    return compiling.with_gpus(int(resources.get("GPU", 0))) if offers else replace(compiling, devices=())


def pinned_to(node_id: str) -> NodeAffinitySchedulingStrategy:
    return NodeAffinitySchedulingStrategy(node_id, soft=False)


def words(error: Exception) -> str:
    """The end of Ray's message, which has the cause."""
    return " ".join(str(error).split())[-600:]


def oom_kills() -> int:
    """How many processes the kernel of this machine has killed because memory ran out."""
    with suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def identity(pid: int) -> tuple[int, str] | None:
    """A process id with its start time, since ids are reused; None once the process has ended and its memory is free."""
    started = start_time(pid)
    return None if started is None else (pid, started)


def end(process: tuple[int, str]) -> None:
    """Kills a process; returns once its memory and GPU memory are free. Raises TimeoutError if it hangs, as in a driver."""
    deadline = time.monotonic() + END_SECONDS
    while identity(process[0]) == process:
        with suppress(ProcessLookupError):
            os.kill(process[0], signal.SIGKILL)
        if time.monotonic() > deadline:
            raise TimeoutError(f"process {process[0]} is still there {END_SECONDS:g} s after SIGKILL")
        time.sleep(0.02)
