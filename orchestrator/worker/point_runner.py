"""Runs points on one device, in this process.

The points of a group share their inputs and reference. Each backend is prepared and checked; then all are measured, interleaved.
Knows nothing of Ray or Parquet. Whatever goes wrong with a point becomes the point's row: this is the one place that
catches every exception.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field

from kernels import registry
from kernels.adapter import Adapter
from kernels.check import oracle
from kernels.compile import module_cache
from kernels.cuda import allocated_bytes, answers, free_unused, synchronize
from kernels.device import Device
from kernels.environment.process import ProcessEnded, ProcessGone
from kernels.inputs import generate
from kernels.lazy import torch
from kernels.problem import Problem
from kernels.timed_call import LocalOutputs, Outputs, prepare_timer
from kernels.timing.config import Timing
from kernels.timing.series import Series, measure_interleaved
from kernels.timing.sm_clock import clock_of_device
from kernels.timing.timers import Timer
from orchestrator import gc_pause, libraries, machines
from orchestrator.errors import OtherVersions, WroteInputs
from orchestrator.point import Point
from orchestrator.storage.row import Row, Status, library_column, now, version_columns
from orchestrator.worker.contest import Contest
from orchestrator.worker.engines import Engines
from orchestrator.worker.environments import EnvironmentInputs, Environments, distinct_inputs, fill_unused
from orchestrator.worker.measured_row import measure_energy, measure_host, measured_row
from orchestrator.worker.messages import Task, WorkerConfig, WorkResult
from orchestrator.worker.output_check import start_check
from orchestrator.worker.preload import import_all
from orchestrator.worker.prepared import PreparedBackend
from orchestrator.worker.provenance import Provenance
from orchestrator.worker.shared_inputs import SharedInputs
from orchestrator.worker.shared_step import make_step
from orchestrator.worker.step_part import prepare_step, start_part
from orchestrator.worker.task_row import begin_row, classify_exception, finish_row, peak_memory_into, seconds_into


@dataclass
class PointRunner:
    """A worker on one device. It is `healthy` until a kernel breaks the device's context; then it touches no further point."""

    config: WorkerConfig
    device: Device
    node_id: str
    provenance: Provenance
    environments: Environments
    healthy: bool = True
    _shared: SharedInputs | None = field(default=None, init=False)
    _prepared: list[PreparedBackend] = field(default_factory=list, init=False)

    @classmethod
    def create(cls, config: WorkerConfig, device: Device, node_id: str = "") -> PointRunner:
        """Imports torch, opens the device. Raises OtherVersions for other libraries than planned if `versions` is "same"."""
        with gc_pause.paused():  # a sixth of the time that the import takes
            import torch

        found = _planned_versions(config)
        planned = {name: config.common.get(name) for name in found}
        if (other := machines.differences(planned, found)) and config.versions == "same":
            raise OtherVersions(f"this worker has {other}; to record it in each row instead, type versions=any")
        torch.set_grad_enabled(False)
        registry.adapters(config.adapters)
        provenance = Provenance(device, config.recalibrate)
        if device.kind == "cuda":  # what the first point would wait for: an import that fails fails again there, and is its row
            import_all(config.imports)
            clock_of_device()
        return cls(config, device, node_id, provenance, Environments(config, device, provenance.note_own_processes))

    def __post_init__(self) -> None:
        self.engines = Engines(self.config, self.environments, self.provenance)

    def close(self) -> None:
        """Ends the processes of its environments, and its engine."""
        self.environments.close()
        self.engines.close()

    def ready(self) -> WorkResult:
        """The result of the start item: the ceilings of the device."""
        return WorkResult(ceilings=self.provenance.ceilings)

    def prepare(self, task: Task) -> WorkResult:
        """Prepares and checks the task's point and, if it is right, keeps it for `measure`. Never raises for what a point does."""
        if not self.healthy:
            return WorkResult(healthy=False)
        row = begin_row(task, self.config.common, self.device.arch, self.node_id)
        versions = self._versions_of(task.point)
        row |= {**self.provenance.identity, **version_columns(versions), "started_at": now()}
        row |= library_column(task.point, versions)
        if task.point.engine:
            with seconds_into(row, "total_s"):
                status, reason = self.engines.run(task.point, row)
            return WorkResult((finish_row(row, task, status, reason),))
        with seconds_into(row, "total_s"):
            status, reason = self._attempt(task, row)
        if status == "ok":
            return WorkResult()
        if status == "oom" and self._prepared:  # the other prepared backends leave too little room
            return WorkResult(healthy=self.healthy, exclusive=True)
        return WorkResult((finish_row(row, task, status, reason),), self.healthy)

    def launch_marked(self, times: int) -> None:
        """Launches the call of the prepared point so often, between marks that profilers take as begin and end. Times nothing."""
        timer = self._prepared[0].series.timer
        synchronize(self.device)
        with torch.cuda.profiler.profile() if self.device.kind == "cuda" else nullcontext():
            for _ in range(times):
                timer.replay()
            synchronize(self.device)

    def measure(self) -> WorkResult:
        """Measures all interleaved, checks each again, and returns their rows: none behind one that broke the device's context."""
        prepared, self._prepared = self._prepared, []
        if not self.healthy or not prepared:
            return WorkResult(healthy=self.healthy)
        before = self.provenance.other_processes()
        contest = Contest(prepared, self.config.timing)
        fill_unused(prepared)
        while contest.turn:
            if (culprit := self._take_samples(contest)) is not None:
                return WorkResult(self._rows_of([culprit], before), self.healthy)
            if len(prepared) > 1:  # a lone one is blamed for whatever the check after this finds
                self._restore_inputs(prepared)
            unchecked = contest.to_check()
            while unchecked:
                self._check_again(one := unchecked.pop(0))
                if one.series.error and not self._is_still_healthy():
                    return WorkResult(self._rows_of(contest.finished(unchecked), before), self.healthy)
            contest.next_turn()
        return WorkResult(self._rows_of(prepared, before), self.healthy)

    def _take_samples(self, contest: Contest) -> PreparedBackend | None:
        """Takes all samples of those whose turn it is. Returns the one that broke the device, if one did."""
        turn, pacer, seed = contest.turn, self.provenance.pacer, contest.prepared[0].shared.inputs.problem.seed
        measure_interleaved([one.series for one in turn], pacer, seed, contest.race)
        if steps := [one.step.series for one in turn if one.step and not one.series.error]:
            measure_interleaved(steps, pacer, seed)
        for one in turn:
            one.series.error = one.series.error or (one.step.series.error if one.step else None)
        culprit = self._who_broke_the_device(turn)
        if self.config.timing.energy and culprit is None:
            timed = [one for one in turn if one.series.error is None]
            measure_energy(timed, pacer.monitor)
            culprit = self._who_broke_the_device(timed)
        if self.config.timing.host and culprit is None:
            timed = [one for one in contest.to_check() if one.series.error is None and "host_note" not in one.row]
            measure_host(timed)
            culprit = self._who_broke_the_device(timed)
        return culprit

    def _rows_of(self, measured: Sequence[PreparedBackend], before: Sequence[str]) -> tuple[Row, ...]:
        """The rows of those that were measured; none of a point whose process another one ended: it runs once more, alone."""
        others = ", ".join(dict.fromkeys([*before, *self.provenance.other_processes()]))
        here = (others, self.config.timing, self.device, self.provenance)
        return tuple(measured_row(one, *here) for one in measured if not isinstance(one.series.error, ProcessGone))

    def _attempt(self, task: Task, row: Row) -> tuple[Status, str]:
        try:
            return self._prepare_backend(task, row)
        except Exception as error:  # a kernel library may raise anything; the row carries its message
            status, reason = classify_exception(error)
            if status == "oom" and not self._prepared:
                self._shared = None
            if self._is_still_healthy() and self._shared and (wrote := self._restore(self._shared, task.point.env)):
                row["check"] = "failed"
                return "mismatch", f"{wrote}, and then: {reason}"
            return status, reason

    def _restore(self, shared: SharedInputs, env: str | None) -> str:
        """Draws inputs again if a backend damaged them before it failed, which may be why. What it wrote to, in words."""
        here = shared.restore_if_changed()
        return here if env is None else self.environments.restore(env) or here

    def _prepare_backend(self, task: Task, row: Row) -> tuple[Status, str]:
        problem, timing, env = task.point.problem, self.config.timing, task.point.env
        adapter = registry.get(problem.routine, task.point.backend, self.config.adapters)
        versions = self._versions_of(task.point)
        adapter = adapter.for_versions(versions)  # its rule and modules are those of the release there
        if lacking := libraries.missing(adapter, versions, problem=problem):  # versions=any: another machine has it
            return "unsupported", lacking
        if self.device.kind == "cuda" and env is None:  # compiled modules are there before a group is given to a worker
            module_cache.look_for(adapter.modules(problem, self.device), self.device.arch)
        with peak_memory_into(row, self.device, self._others_bytes()):
            shared = self._share_inputs(problem, row)
            if env is not None:
                with seconds_into(row, "inputs_s"):
                    shared = self.environments.inputs(env, shared)
            with seconds_into(row, "measure_s"):
                call = prepared_call(adapter, shared, self.device, timing, self.environments)
            timer, runner = call.timer, call.timer.runner
            row |= {"kernel_config": call.kernel_config or None}
            row |= {"resolved_backend": runner.resolved_backend, "caller_scale": runner.caller_scale, "host_us": timer.host_us}
            row |= {"timer": timer.name, "cuda_graph": timer.cuda_graph, "l2": timer.l2, "icache": timer.icache}
            row |= {"context": timing.context, "pace": timing.pace}
            coin = random.Random(task.point.point_id)
            with seconds_into(row, "check_s"):
                check = start_check(shared, adapter, timer, call.outputs, coin)
            series = Series(timer, timing, check.after_block, shared.blame) if check else Series(timer, timing)
            prepared = PreparedBackend(task, adapter, runner, series, shared, check, row)
            if not prepared.failed_check:
                with seconds_into(row, "measure_s"):
                    step = prepare_step(shared, adapter, runner, self.device)
                if step is not None:
                    with seconds_into(row, "check_s"):
                        prepared.add_step(start_part(step, timing, coin))
        if env is not None:
            row["peak_mem_bytes"] = call.peak_mem_bytes
        if prepared.verdict and prepared.failed_check:
            with suppress(ProcessEnded):
                call.forget()
            return "mismatch", prepared.verdict.reason
        self._prepared.append(prepared)
        return "ok", ""

    def _share_inputs(self, problem: Problem, row: Row) -> SharedInputs:
        """Inputs and reference of the problem, kept until the next problem. The first point on a problem pays their seconds."""
        if self._shared is None or self._shared.inputs.problem != problem:
            self._shared = None
            self.environments.release()
            free_unused(self.device)
            with seconds_into(row, "inputs_s"):
                drawn = generate.draw(problem, self.device.kind)
                step = make_step(drawn, self.config.timing, self.config.layer, self.device, self.config.memory_fraction)
                synchronize(self.device)
            with seconds_into(row, "check_s"):
                answer = oracle.answer(drawn) if self.config.check else None
                self._shared = SharedInputs(drawn, answer, allocated_bytes(self.device), step)
                synchronize(self.device)
        return self._shared

    def _others_bytes(self) -> int:
        """Bytes that the prepared backends occupy now."""
        if self._prepared and self._shared:
            return allocated_bytes(self.device) - self._shared.device_bytes
        if self._shared:  # what the check keeps of a backend that failed would count as the next one's
            self._shared.forget_kept()
        return 0

    def _restore_inputs(self, prepared: list[PreparedBackend]) -> None:
        """Draws inputs again if a backend damaged them while it was timed. The check after that finds out which."""
        with seconds_into(prepared[0].row, "check_s"), seconds_into(prepared[0].row, "total_s"):
            for shared in distinct_inputs(prepared):
                with suppress(ProcessEnded):  # its points then learn that its process is gone
                    if shared.restore_if_changed():
                        for one in prepared:
                            if one.shared is shared:
                                one.inputs_were_damaged()

    def _check_again(self, one: PreparedBackend) -> None:
        """Checks after the last sample: a kernel that leaves its counters changed may be right once and wrong after many runs."""
        if one.series.error:
            return
        try:
            with seconds_into(one.row, "check_s"), seconds_into(one.row, "total_s"):
                one.check_again()
                one.check_more_inputs(self.config.max_inputs)
                if self.config.batch_invariance:
                    one.check_batch_mates(self.device)
        except Exception as error:  # as in `_attempt`
            one.series.error = error
            if self._is_still_healthy():
                with suppress(ProcessEnded):  # a new process draws inputs of its own
                    if wrote := one.shared.restore_if_changed():  # or the next backend would be blamed
                        one.series.error = WroteInputs(f"{wrote}; then it failed: {classify_exception(error)[1]}")

    def _who_broke_the_device(self, prepared: list[PreparedBackend]) -> PreparedBackend | None:
        """The first that failed, if the device no longer answers: those after it failed because of that."""
        failed = [one for one in prepared if one.series.error and not isinstance(one.series.error, WroteInputs)]
        return failed[0] if failed and not self._is_still_healthy() else None

    def _versions_of(self, point: Point) -> dict[str, str | None]:
        """The library versions that a point runs with: of its environment, or of this very process."""
        here = {**_planned_versions(self.config), **machines.versions(point.distributions)}
        return here if point.env is None else self.environments[point.env].versions(here)

    def _is_still_healthy(self) -> bool:
        self.healthy = self.healthy and answers(self.device)
        return self.healthy


def _planned_versions(config: WorkerConfig) -> dict[str, str | None]:
    """The library versions of this very process that the plan has too."""
    return {name: version for name, version in machines.versions().items() if name in config.common}


@dataclass(frozen=True)
class PreparedCall:
    """`forget` gives back what it has in another process. `peak_mem_bytes` is what it took there while it was prepared."""

    timer: Timer
    outputs: Outputs
    kernel_config: str
    peak_mem_bytes: int | None = None
    forget: Callable[[], object] = lambda: None


def prepared_call(
    adapter: Adapter, shared: SharedInputs, device: Device, timing: Timing, environments: Environments
) -> PreparedCall:
    """Prepares a backend on inputs where these are. Whatever the backend raises comes through."""
    problem = shared.inputs.problem
    if isinstance(shared, EnvironmentInputs):
        call, timer, outputs, about = environments.prepare(shared, adapter.name)
        return PreparedCall(timer, outputs, about["kernel_config"], about["peak_mem_bytes"], lambda: call.ask("drop"))
    here = prepare_timer(adapter, shared.inputs, device, timing)
    return PreparedCall(here, LocalOutputs(here, problem.has_second_output), adapter.config_of(here.runner, problem))
