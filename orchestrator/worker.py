"""Runs the points of a group in this process: inputs and oracle once, each backend prepared and checked, all measured in turns.

Knows nothing of Ray or Parquet. What goes wrong with a point becomes the point's row; this is the one place that
catches everything.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from kernels import modules, registry
from kernels.ceilings import Ceilings
from kernels.device import Device
from kernels.inputs import decoy
from kernels.problem import Problem
from kernels.timing import Series, Timing, measure_in_turns
from orchestrator import machines
from orchestrator import row as rows
from orchestrator.blame import blame
from orchestrator.held import Group, Held
from orchestrator.provenance import Provenance
from orchestrator.results import caveats, held_down, rate_columns, time_columns
from orchestrator.row import Row, Status
from orchestrator.settings import Versions
from orchestrator.sweep import Point


class OtherVersions(Exception):
    """The libraries of a worker are not those that the run was planned with."""


@dataclass(frozen=True)
class Orders:
    """What every worker of a run is told: how to measure, and what its rows say of the run."""

    timing: Timing
    check: bool
    adapters: tuple[str, ...]
    common: Row  # run_id, sweep, cluster, versions
    recalibrate: bool = False  # measures the device's ceilings anew
    versions: Versions = "same"


@dataclass(frozen=True)
class Outcome:
    """What came of a step: the rows that are finished. An unfit worker is to be replaced.

    A point without a row is kept for `measure`, was refused by an unfit worker, or wants to be `alone` on the device.
    """

    rows: tuple[Row, ...] = ()
    fit: bool = True
    alone: bool = False
    ceilings: Ceilings | None = None


@dataclass
class PointRunner:
    """A worker on one device."""

    orders: Orders
    device: Device
    node_id: str = ""
    fit: bool = True
    _group: Group | None = field(default=None, init=False)
    _held: list[Held] = field(default_factory=list, init=False)
    _provenance: Provenance | None = field(default=None, init=False)

    def ready(self) -> Outcome:
        """Imports torch, finds the adapters, the device and its ceilings. Raises OtherVersions before any point is touched."""
        import torch

        planned = {name: self.orders.common[name] for name in self._versions}
        if (other := machines.differences(planned, self._versions)) and self.orders.versions == "same":
            raise OtherVersions(f"this worker has {other}; to record it in each row instead, type versions=any")
        torch.set_grad_enabled(False)
        registry.adapters(self.orders.adapters)
        self._provenance = Provenance(self.device, self.orders.recalibrate)
        if self.device.kind == "cuda":
            _load_ahead()
        return Outcome(ceilings=self._provenance.ceilings)

    @property
    def _versions(self) -> Row:
        """Those of this very process, under the names that a run asks for."""
        return {name: version for name, version in machines.versions().items() if name in self.orders.common}

    @property
    def provenance(self) -> Provenance:
        assert self._provenance is not None, "ready() comes first"
        return self._provenance

    def run(self, point: Point, command: str, attempt: int) -> Outcome:
        """Prepares and checks a point, and keeps it for `measure` if it is right. Never raises for what the point does."""
        if not self.fit:
            return Outcome(fit=False)
        row = {**rows.describe(point), **self.orders.common, "command": command, "attempt": attempt, "node_id": self.node_id}
        row |= self.provenance.identity | self._versions | {"started_at": rows.now()}
        with _seconds(row, "total_s"):
            status, reason = self._attempt(point, row)
        if status == "ok":
            return Outcome()
        if status == "oom" and self._held:  # what is kept for others leaves too little room
            return Outcome(fit=self.fit, alone=True)
        return Outcome((_finish(row, status, reason),), self.fit)

    def measure(self) -> Outcome:
        """Measures what is kept in turns, checks it again, returns its rows: once the device is lost none after the culprit's."""
        held, self._held = self._held, []
        if not self.fit or not held:
            return Outcome(fit=self.fit)
        seed = held[0].group.inputs.problem.seed
        before = self.provenance.others()
        measure_in_turns([one.series for one in held], self.provenance.pace, seed)
        others = ", ".join(dict.fromkeys([*before, *self.provenance.others()]))
        failed = [one for one in held if one.series.error]
        if failed and not self._healthy():
            return Outcome((self._measured(failed[0], others),), self.fit)
        finished = []
        for one in held:
            self._check_again(one)
            finished.append(self._measured(one, others))
            if one.series.error and not self._healthy():
                break
        return Outcome(tuple(finished), self.fit)

    def _attempt(self, point: Point, row: Row) -> tuple[Status, str]:
        try:
            return self._prepare(point, row)
        except Exception as error:  # a kernel library may raise anything; the row carries its words
            status, reason = blame(error)
            if status == "oom" and not self._held:
                self._group = None
            self._healthy()
            return status, reason

    def _prepare(self, point: Point, row: Row) -> tuple[Status, str]:
        from kernels.timers import timer_for

        problem, timing = point.problem, self.orders.timing
        adapter = registry.get(problem.routine, point.backend, self.orders.adapters)
        if adapter.modules(problem, self.device) and self.device.kind == "cuda":
            modules.load_from(modules.folder_of(self.device.arch))  # put there before this group was given out
        with self._peak_memory(row):
            group = self._share(problem, row)
            # What a kernel keeps from its preparation is then the answer to other queries.
            with _seconds(row, "measure_s"), decoy(group.inputs):
                runner = adapter.prepare(group.inputs, self.device)
                timer = timer_for(runner, timing.timer, timing.warmup, timing.caches)
            row |= {"resolved_backend": runner.resolved_backend, "caller_scale": runner.caller_scale, "host_us": timer.host_us}
            row |= {"timer": timer.name, "cuda_graph": timer.cuda_graph, "l2": timer.l2, "icache": timer.icache}
            held = Held(adapter, runner, Series(timer, timing), group, row)
            with _seconds(row, "check_s"):
                verdict = held.check()
        if verdict and not verdict.passed:
            return "mismatch", verdict.reason
        self._held.append(held)
        return "ok", ""

    def _share(self, problem: Problem, row: Row) -> Group:
        """Inputs and reference of the problem, kept until the next problem comes; the point that needs them first pays."""
        from kernels import drawing, oracle

        if self._group is None or self._group.inputs.problem != problem:
            self._group = None
            self._free()
            with _seconds(row, "inputs_s"):
                drawn = drawing.draw(problem, self.device.kind)
                self._synchronize()
            with _seconds(row, "check_s"):
                reference = oracle.reference(drawn) if self.orders.check else None
                self._synchronize()
            self._group = Group(drawn, reference, self._allocated())
        return self._group

    def _check_again(self, one: Held) -> None:
        """A kernel may be right once and wrong after many runs, as where it leaves its counters other than it found them."""
        if one.series.error:
            return
        try:
            with _seconds(one.row, "check_s"), _seconds(one.row, "total_s"):
                one.check()
        except Exception as error:  # as in `_attempt`
            one.series.error = error

    def _measured(self, one: Held, others: str) -> Row:
        """The row of a point whose series has ended."""
        row, series = one.row, one.series
        row["measure_s"] += series.wall_s
        row["rest_s"] = series.rested_s
        row["total_s"] += series.wall_s + series.rested_s
        if series.error:
            return _finish(row, *blame(series.error))
        measurement = series.result()
        if one.verdict and not one.verdict.passed:
            return _finish(row, "mismatch", f"right before it was timed, and then: {one.verdict.reason}")
        if not measurement.of_free_clock and self.orders.timing.throttled == "refuse":
            return _finish(row, "failed", f"{held_down(measurement)}; timing.throttled=refuse")
        row |= time_columns(measurement) | {"other_processes": others or None}
        l2 = self.provenance.l2_bytes
        row["working_set_over_l2"] = one.group.inputs.problem.bytes / l2 if l2 else None
        row |= rate_columns(
            one.group.inputs.problem, row["median_us"], one.runner.compute_dtype, self.device, self.provenance.ceilings
        )
        return _finish(row, "ok", caveats(row, measurement))

    def _healthy(self) -> bool:
        """Whether the device still answers: after an illegal access every later call of the process fails, and it is unfit."""
        try:
            self._synchronize()
        except RuntimeError:
            self.fit = False
        return self.fit

    def _synchronize(self) -> None:
        import torch

        if self.device.kind == "cuda":
            torch.cuda.synchronize()

    def _free(self) -> None:
        import torch

        gc.collect()
        gc.freeze()  # what lives now lives long: the next collection need not look at all of torch again
        if self.device.kind == "cuda":
            torch.cuda.empty_cache()

    def _allocated(self) -> int:
        import torch

        return int(torch.cuda.memory_allocated()) if self.device.kind == "cuda" else 0

    @contextmanager
    def _peak_memory(self, row: Row) -> Iterator[None]:
        """Bytes at the peak, less what other points of the group hold meanwhile."""
        import torch

        if self.device.kind != "cuda":
            yield
            return
        others = self._allocated() - self._group.device_bytes if self._held and self._group else 0
        torch.cuda.reset_peak_memory_stats()
        try:
            yield
        finally:
            row["peak_mem_bytes"] = torch.cuda.max_memory_allocated() - others


def _load_ahead() -> None:
    """Loads what the first point would wait for while its modules are on their way. What fails here fails there again, in words."""
    from kernels.clock import clock_of_device

    with suppress(Exception):
        import flashinfer  # noqa: F401
    clock_of_device()


def _finish(row: Row, status: Status, reason: str) -> Row:
    return rows.finish(row | {"finished_at": rows.now()}, status, reason)


@contextmanager
def _seconds(row: Row, column: str) -> Iterator[None]:
    started = time.perf_counter()
    try:
        yield
    finally:
        row[column] = (row.get(column) or 0.0) + time.perf_counter() - started
