"""The groups of a plan, each released for the scheduler as soon as its own kernel modules are compiled."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kernels.compile.build import Built
from orchestrator.planning.plan import Decision, Group, ModuleKey, Plan, seconds_of
from orchestrator.point import Point
from orchestrator.scheduling.builds import Builds, no_compiler
from orchestrator.scheduling.interfaces import Batch
from orchestrator.worker.messages import Task

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Uncompiled:
    """A task that no kind of device can run, because its modules did not compile; `reason` has the compiler's message."""

    task: Task
    devices: tuple[str, ...]
    reason: str


def modules_in_order(plan: Plan) -> list[ModuleKey]:
    """The distinct modules to compile, those of the longest group first."""
    return list(dict.fromkeys(key for part in _longest_first(plan) for d in part for key in d.modules))


class ReadyGroups:
    """The groups of a plan that still wait for modules of `builds`.

    `archs` has the architecture of each kind of device, `command` gives the replay command of a point.
    `on_built` gets each module as it ends, `on_uncompiled` the tasks that no kind of device is left for.
    If no machine can compile what is left, one is awaited for `wait_seconds`.
    `seconds_there`, by point_id, is what the modules of points took that were compiled in their environments before.
    """

    def __init__(
        self,
        plan: Plan,
        builds: Builds,
        *,
        archs: Mapping[str, str],
        command: Callable[[Point], str],
        on_built: Callable[[Built], None],
        on_uncompiled: Callable[[Sequence[Uncompiled]], None],
        wait_seconds: float = 0.0,
        seconds_there: Mapping[str, float] | None = None,
    ) -> None:
        self.builds, self.archs, self.command, self.wait_seconds = builds, archs, command, wait_seconds
        self.on_built, self.on_uncompiled = on_built, on_uncompiled
        self.seconds_there = seconds_there or {}
        self.expected = Counter(device for group in plan.groups for device in group.devices)
        self._stranded_since: float | None = None  # since when no machine compiles what is left
        self._broken: dict[ModuleKey, str] = {}  # the compiler's message
        self._seconds: dict[ModuleKey, float] = {}
        self._waiting = {i: (part, {key for d in part for key in d.modules}) for i, part in enumerate(_longest_first(plan))}

    @property
    def left(self) -> bool:
        return bool(self._waiting)

    def batches(self, timeout_s: float) -> list[Batch]:
        """The groups that can start now, each once, within `timeout_s`. Raises NoWorkers if no machine is left to compile."""
        self._require_compiler(give_up=timeout_s > 0)  # with a timeout of 0 other points are still at work
        ended = self.builds.wait(timeout_s) if self.builds.left and not self._complete() else []
        for built in ended:
            self._note(built)
        groups = sorted(self._released(), key=lambda group: -group.cost_s)
        self.expected.subtract(device for group in groups for device in group.devices)
        return [Batch(tuple(self._task(decision) for decision in group.decisions), group.devices) for group in groups]

    def _note(self, built: Built) -> None:
        log.info("%s: %s after %.1f s", built.module, "did not compile" if built.error else "compiled", built.seconds)
        self.on_built(built)
        self._seconds[built.key] = built.seconds
        if built.error:
            self._broken[built.key] = built.error
        for _, missing in self._waiting.values():
            missing.discard(built.key)

    def _require_compiler(self, give_up: bool) -> None:
        if not self.builds.stranded:
            self._stranded_since = None
            return
        self._stranded_since = self._stranded_since or time.monotonic()
        if give_up and time.monotonic() - self._stranded_since >= self.wait_seconds:
            waited = f" after cluster.wait_seconds={self.wait_seconds:g}" if self.wait_seconds else ""
            raise no_compiler(self.builds, waited)

    def _complete(self) -> list[int]:
        return [i for i, (_, missing) in self._waiting.items() if not missing]

    def _released(self) -> Iterator[Group]:
        for i in self._complete():
            part, _ = self._waiting.pop(i)
            left, uncompiled = Plan(tuple(part)).without_modules(self._broken, self.archs)
            if uncompiled:
                self.on_uncompiled([Uncompiled(self._task(d), d.devices, reason) for d, reason in uncompiled.items()])
            yield from left.groups

    def _task(self, decision: Decision) -> Task:
        compile_s: dict[str, float] = {}
        for arch, module in decision.modules:
            compile_s[arch] = compile_s.get(arch, 0.0) + self._seconds[arch, module]
        point = decision.point
        if (there := self.seconds_there.get(point.point_id)) is not None:
            compile_s = {self.archs[device]: there for device in decision.devices}
        return Task(point, self.command(point), compile_s=compile_s, forced_rule=decision.reason, not_passed=decision.not_passed)


def _longest_first(plan: Plan) -> list[list[Decision]]:
    return sorted(plan.sharing_inputs(), key=lambda part: -seconds_of(part))
