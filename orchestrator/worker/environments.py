"""The environments of a worker: a process in each, which it directs, and the inputs that this process has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from kernels.adapter import Adapter
from kernels.check.answer import Answer
from kernels.contract.runner import said
from kernels.cuda import free_unused
from kernels.device import Device
from kernels.environment.process import Process, ProcessEnded
from kernels.environment.remote import Call, RemoteOutputs, RemoteTimer, prepare
from kernels.inputs.copied_tokens import Copied
from kernels.lazy import Tensor
from orchestrator.environments.make import EnvironmentInfo, make
from orchestrator.worker.messages import WorkerConfig
from orchestrator.worker.prepared import PreparedBackend
from orchestrator.worker.shared_inputs import SharedInputs, in_words

SPARE = 0.9  # of limits.point_seconds: the words of a process that hangs come before the driver ends the whole worker


@dataclass
class EnvironmentInputs(SharedInputs):
    """The inputs in an environment's process, equal by checksum; the right answer and the judged inputs are the worker's."""

    process: Process = field(kw_only=True)
    of_worker: SharedInputs = field(kw_only=True)
    seconds: float = field(kw_only=True)

    @classmethod
    def draw(cls, process: Process, of_worker: SharedInputs, seconds: float) -> EnvironmentInputs:
        """Draws them from the same seed. Raises RuntimeError if that gives others there."""
        problem = of_worker.inputs.problem.model_dump(mode="json", exclude_defaults=True)
        drawn, _ = process.ask("draw", seconds, problem=problem)
        found = cls(of_worker.inputs, of_worker.answer, 0, process=process, of_worker=of_worker, seconds=seconds)
        _require_equal(drawn["sums"], found._right_sums)
        return found

    def __post_init__(self) -> None:
        self._right_sums = self.of_worker.right_sums

    def fill_unused(self, adapter: Adapter | None = None) -> None:
        self.restore_small()
        self._ask("fill", nan=adapter is not None and adapter.skips_unused_in(self.inputs.problem))

    def restore_if_changed(self, outputs_intact: Tensor | bool = True) -> str:
        if self.answer is None:
            return ""
        small_same = self.blame() is None
        found = self._ask("sums")
        if not (same := found["sums"] == _listed(self._right_sums)):
            self._ask("redraw")
        return in_words(same and small_same, found["unused_intact"], judged=True, outside=bool(outputs_intact))

    def with_other_values(self, number: int) -> Answer:
        self.restore_small()
        answer = self.of_worker.with_other_values(number)
        _require_equal(self._ask("draw_other_values", number=number)["sums"], self.of_worker.sums())
        return answer

    @contextmanager
    def copied_tokens(self, copied: Sequence[Copied]) -> Iterator[None]:
        self.restore_small()
        self._ask("copy_tokens", copied=copied)
        try:
            yield
        finally:
            self._ask("restore_tokens")

    def draw_again(self) -> None:
        self.restore_small()
        self.of_worker.draw_again()
        self._ask("redraw")

    def _restore_small(self, wait: bool) -> bool:
        return bool(self._ask("restore_small")["changed"])

    def _ask(self, do: str, **keys: Any) -> dict[str, Any]:
        return self.process.ask(do, self.seconds, **keys)[0]


def _listed(sums: Tensor | None) -> list[int]:
    return [] if sums is None else [int(one) for one in sums.tolist()]


def _require_equal(theirs: list[int], ours: Tensor | None) -> None:
    if theirs != _listed(ours):
        raise RuntimeError(
            "the inputs in its environment differ from the worker's by checksum: its torch draws others from one seed"
        )


def distinct_inputs(prepared: Iterable[PreparedBackend]) -> list[SharedInputs]:
    """The inputs of these backends: the worker's own, and those in environments."""
    return list({id(one.shared): one.shared for one in prepared}.values())


def fill_unused(prepared: Iterable[PreparedBackend]) -> None:
    """Fills slots that hold no token with a number that every backend tolerates."""
    for shared in distinct_inputs(prepared):
        with suppress(ProcessEnded):  # its points learn that their process is gone
            shared.fill_unused()
            shared.blame()  # of nobody: it is no backend's turn


class Environments:
    """The processes of a worker's environments. One that ended is started again by the next point that needs it."""

    def __init__(self, config: WorkerConfig, device: Device, on_start: Callable[[], object] = lambda: None) -> None:
        """Starts all at once; one that cannot costs its own points. `on_start` is called after each that opened the device."""
        self.config, self.device, self.on_start = config, device, on_start
        self.seconds = config.point_seconds * SPARE
        self._made = {one.name: make(one) for one in config.environments}
        self._unusable: dict[str, str] = {}  # why an environment's process cannot start
        here = self._made if config.timing.context != "engine" else {}  # an engine starts in its own, and nothing else does
        self._processes = {name: self._start(name) for name in here}
        self._inputs: dict[str, EnvironmentInputs] = {}  # that their processes have
        for name in here:
            self._open(name)

    def __getitem__(self, name: str) -> EnvironmentInfo:
        return self._made[name]

    def inputs(self, name: str, of_worker: SharedInputs) -> EnvironmentInputs:
        """The worker's inputs in an environment; drawn there if they are not. Raises RuntimeError if its process cannot start."""
        if not self._processes[name].alive and name not in self._unusable:
            self._inputs.pop(name, None)
            self._processes[name] = self._start(name)
            self._open(name)
        if name in self._unusable:
            raise RuntimeError(f"environment {name} cannot be used: {self._unusable[name]}")
        if name not in self._inputs or self._inputs[name].of_worker is not of_worker:
            self._inputs.pop(name, None)
            free_unused(self.device)  # that process is about to need it
            self._inputs[name] = EnvironmentInputs.draw(self._processes[name], of_worker, self.seconds)
        return self._inputs[name]

    def release(self) -> None:
        """Makes the processes forget their inputs and give the memory back."""
        for inputs in self._inputs.values():
            with suppress(ProcessEnded):  # what it had is given back all the same
                inputs.process.ask("release", self.seconds)
        self._inputs.clear()

    def restore(self, name: str) -> str:
        """Draws an environment's inputs again if a failed backend damaged them; what it wrote to, as `restore_if_changed` says."""
        if name in self._inputs:
            with suppress(ProcessEnded):
                return self._inputs[name].restore_if_changed()
        return ""

    def prepare(self, inputs: EnvironmentInputs, backend: str) -> tuple[Call, RemoteTimer, RemoteOutputs, dict[str, Any]]:
        """A backend prepared on inputs of an environment, its timer and outputs, and what `DrawnProblem.prepare` says of it."""
        call, about = prepare(inputs.process, backend, self.config.timing, self.device.arch, self.seconds)
        return call, RemoteTimer(call, about), RemoteOutputs(call, inputs.inputs.device), about

    def close(self) -> None:
        for process in self._processes.values():
            process.close()

    def _start(self, name: str) -> Process:
        return Process(self._made[name].python, self.config.adapters)

    def _open(self, name: str) -> None:
        plugins, imports = list(self.config.adapters), list(self.config.imports)
        device = self.device.model_dump(mode="json")
        try:
            self._processes[name].ask("open", self.config.start_seconds, device=device, plugins=plugins, imports=imports)
        except Exception as error:  # an adapter or a library may raise anything when it is imported
            self._unusable[name] = said(error)
            self._processes[name].close()
        self.on_start()
