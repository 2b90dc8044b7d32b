"""The machines of a Ray cluster as they come, fall silent and go. Only this, `ray_pool` and `ray_builds` import Ray.

A machine that joins is asked what it has and is brought the kernel modules, and then it counts as one of the others.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from orchestrator import machines
from orchestrator.errors import UserError
from orchestrator.machines import Machine

PR_SET_PDEATHSIG = 1  # linux/prctl.h
ANSWER_SECONDS = 30.0  # within which a machine that is there runs a task that does nothing
END_SECONDS = 60.0  # within which a process ends after SIGKILL; a driver takes seconds to give tens of GB back

Prepare = Callable[[Machine], list[Any]]  # what a machine that joins is brought, as Ray's references to `Built`


class LeftOut(Exception):
    """A machine that joined cannot be used; the message says why."""


class Nodes:
    """The machines that are there now, by Ray's node id in the order in which they came.

    `refuse` says why a machine that joins cannot be used, or nothing; `prepare` brings it the modules that the others have.
    """

    def __init__(self, local: bool, prepare: Prepare, refuse: Callable[[Machine], str]) -> None:
        self.local, self.prepare, self.refuse = local, prepare, refuse
        self.machines: dict[str, Machine] = {}
        self.left_out: dict[str, str] = {}  # why a machine that joined is not used, by its node id
        self._arriving: dict[str, tuple[Iterator[list[Any]], list[Any]]] = {}  # the rest of its way in, and what is awaited
        self._oom_kills: dict[str, int] = {}
        for machine, kills in self._first():
            self._admit(machine, kills)

    def _first(self) -> list[tuple[Machine, int]]:
        here = _alive()
        if self.local:
            return [(machines.describe(node["NodeID"]), oom_kills()) for node in here[:1]]
        try:
            found = ray.get([_greet(node) for node in here])
        except RayError as error:
            raise UserError(
                f"cluster: a node cannot say what it has; are the packages of requirements.txt there? {words(error)}"
            ) from None
        return [(_within(node, machine), kills) for node, (machine, kills) in zip(here, found, strict=True)]

    def _admit(self, machine: Machine, kills: int) -> None:
        self.machines[machine.node_id] = machine
        self._oom_kills[machine.node_id] = kills

    def look(self) -> None:
        """Lets go of machines that are gone, and takes in those that have joined and are ready."""
        alive = {node["NodeID"]: node for node in _alive()}
        for node_id in [node_id for node_id in self.machines if node_id not in alive]:
            del self.machines[node_id]
        for node_id, node in () if self.local else alive.items():
            if node_id not in self.machines and node_id not in self.left_out:
                self._go_on(node_id, *self._arriving.pop(node_id, (self._way_in(node), [])))

    def _go_on(self, node_id: str, way_in: Iterator[list[Any]], awaited: list[Any]) -> None:
        """The next step of a machine that joins, if the last one is done; nothing is waited for."""
        if not awaited or len(ray.wait(awaited, num_returns=len(awaited), timeout=0)[0]) == len(awaited):
            try:
                awaited = next(way_in)
            except StopIteration:
                return
            except (LeftOut, RayError) as error:
                lost = "" if isinstance(error, LeftOut) else f"node {node_id[:12]} joined and did not answer: "
                self.left_out[node_id] = lost + words(error)
                return
        self._arriving[node_id] = way_in, awaited

    def _way_in(self, node: dict[str, Any]) -> Iterator[list[Any]]:
        """What a machine that joins is asked, step by step; each is done before the next begins."""
        greeting = _greet(node)
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
        if self.local:  # where this process runs, so does the machine; what may be gone is Ray on it
            return _lives(node_id)
        return not self.is_gone(node_id)

    def is_gone(self, node_id: str) -> bool:
        """Whether a machine answers nobody; it is none of them then.

        The one that this process runs on never joins again, and is there while Ray says so: what asks may be killed for memory too.
        """
        if answers(node_id) or (self.local and _lives(node_id)):
            return False
        self.machines.pop(node_id, None)
        return True

    def killed_for_memory(self, node_id: str) -> bool:
        """Whether the system has ended a process of this machine for want of memory since this was asked last."""
        count = (oom_kills() if self.local else _ask(node_id, oom_kills)) or 0
        before, self._oom_kills[node_id] = self._oom_kills.get(node_id, count), count
        return count > before


def answers(node_id: str) -> bool:
    """Whether a machine runs a task that does nothing."""
    return _ask(node_id, oom_kills) is not None


def _ask(node_id: str, function: Callable[[], int]) -> int | None:
    """What a function says on a machine; None where there is no answer."""
    ref = ray.remote(function).options(num_cpus=0, max_retries=0, scheduling_strategy=on(node_id)).remote()
    with suppress(RayError):
        answer: int = ray.get(ref, timeout=ANSWER_SECONDS)
        return answer
    return None


def _lives(node_id: str) -> bool:
    return node_id in {node["NodeID"] for node in _alive()}


def _alive() -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]


def _greet(node: dict[str, Any]) -> Any:
    return ray.remote(_describe).options(num_cpus=0, scheduling_strategy=on(node["NodeID"])).remote(node["NodeID"])


def _describe(node_id: str) -> tuple[Machine, int]:
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # Ray hides the GPUs from a task that asked for none
    return machines.describe(node_id), oom_kills()


def _within(node: dict[str, Any], machine: Machine) -> Machine:
    """No more GPUs than Ray may give away there, and no worker on a machine whose CPUs it may not give away either."""
    offered = node["Resources"]
    if machines.mixed(machine):  # which of them Ray may give away is not known, and the pool refuses it
        return machine
    compiling = machine.with_cores(int(offered.get("CPU", 0)))
    return compiling.with_gpus(int(offered.get("GPU", 0))) if offered.keys() & {"GPU", "CPU"} else replace(compiling, devices=())


def on(node_id: str) -> NodeAffinitySchedulingStrategy:
    return NodeAffinitySchedulingStrategy(node_id, soft=False)


def words(error: Exception) -> str:
    """The end of Ray's words, where the cause stands."""
    return " ".join(str(error).split())[-600:]


def oom_kills() -> int:
    """How often the kernel of this machine has ended a process for want of memory."""
    with suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def identity(pid: int) -> tuple[int, str] | None:
    """A process and when it was started, since numbers come again; None once it has ended and given back what it held."""
    with suppress(OSError, IndexError):
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if state in "ZX" else (pid, rest[18])
    return None


def end_with_parent() -> None:
    """Ends this process as soon as the one that started it ends. Ray only asks it to go, which a kernel that hangs does not hear,
    and it would keep its GPU from the next run."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def end(process: tuple[int, str]) -> None:
    """Ends a process, whatever it is doing, and returns once it is gone with its memory and the GPU's.

    Raises TimeoutError for one that survives, as in a GPU driver that hangs.
    """
    deadline = time.monotonic() + END_SECONDS
    while identity(process[0]) == process:
        with suppress(ProcessLookupError):
            os.kill(process[0], signal.SIGKILL)
        if time.monotonic() > deadline:
            raise TimeoutError(f"process {process[0]} is still there {END_SECONDS:g} s after SIGKILL")
        time.sleep(0.02)
