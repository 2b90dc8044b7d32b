"""Runs points in this process, one after another: inputs once a group, oracle once, then prepare, check, measure.

Knows nothing of Ray or Parquet. What goes wrong with a point becomes the point's row; this is the one place that
catches everything.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from kernels import registry
from kernels.adapter import Runner
from kernels.device import Device
from kernels.inputs import Inputs
from kernels.problem import Problem
from kernels.stats import summarize
from kernels.timing import Measurement, Timing
from orchestrator import row as rows
from orchestrator.provenance import DeviceWitness
from orchestrator.row import Row, Status
from orchestrator.sweep import Point

if TYPE_CHECKING:
    from torch import Tensor

REASON_CHARS = 600


@dataclass(frozen=True)
class Orders:
    """What every worker of a run is told: how to measure, and what its rows say of the run."""

    timing: Timing
    check: bool
    adapters: tuple[str, ...]
    common: Row  # run_id, sweep, cluster, versions


@dataclass(frozen=True)
class Outcome:
    """What became of a point: its row, or none if this worker could not even try. An unfit worker is to be replaced."""

    row: Row | None
    fit: bool = True


@dataclass
class _Group:
    """Inputs and reference that the points of a group share."""

    inputs: Inputs
    reference: Tensor | None


@dataclass
class PointRunner:
    """A worker on one device."""

    orders: Orders
    device: Device
    node_id: str = ""
    fit: bool = True
    _group: _Group | None = field(default=None, init=False)
    _witness: DeviceWitness | None = field(default=None, init=False)

    def ready(self) -> int:
        """Imports torch, finds the adapters and the device; the process id."""
        import torch

        torch.set_grad_enabled(False)
        registry.adapters(self.orders.adapters)
        self._witness = DeviceWitness(cuda=self.device.kind == "cuda")
        return os.getpid()

    def run(self, point: Point, command: str, attempt: int) -> Outcome:
        """Runs a point. Never raises for what the point does; `fit` is false once the CUDA context is lost."""
        if not self.fit:
            return Outcome(None, fit=False)
        row = {**rows.describe(point), **self.orders.common, "command": command, "attempt": attempt, "node_id": self.node_id}
        row |= self._identity() | {"started_at": rows.now()}
        started = time.perf_counter()
        status, reason = self._attempt(point, row)
        row |= {"total_s": time.perf_counter() - started, "finished_at": rows.now()} | self._state()
        return Outcome(rows.finish(row, status, reason), self.fit)

    def _attempt(self, point: Point, row: Row) -> tuple[Status, str]:
        import torch

        try:
            return self._measure(point, row)
        except torch.OutOfMemoryError as error:
            self._group = None
            return "oom", _words(error)
        except MemoryError as error:
            self._group = None
            return "oom", f"host memory: {_words(error)}"
        except Exception as error:  # a kernel library may raise anything; the row carries its words
            self.fit = self._healthy()
            return "failed", f"{type(error).__name__}: {_words(error)}"

    def _measure(self, point: Point, row: Row) -> tuple[Status, str]:
        from kernels.timing import timer_for

        problem, orders = point.problem, self.orders
        group = self._share(problem, row)
        adapter = registry.get(problem.routine, point.backend, orders.adapters)
        with self._peak_memory(row):
            with _seconds(row, "measure_s"):
                runner = adapter.prepare(group.inputs, self.device)
                timer = timer_for(runner, orders.timing)
            row |= {
                "resolved_backend": runner.resolved_backend,
                "timer": timer.name,
                "cuda_graph": timer.cuda_graph,
                "l2": timer.l2,
                "caller_scale": runner.caller_scale,
            }
            if group.reference is not None:
                with _seconds(row, "check_s"):
                    status, reason = self._check(runner, timer.replay, group.reference, problem, row)
                if status != "ok":
                    return status, reason
            else:
                row["check"] = "not_checked: check.enabled is false"
            with _seconds(row, "measure_s"):
                measurement = timer.measure()
        row |= self._results(problem, runner, measurement)
        return "ok", ""

    def _share(self, problem: Problem, row: Row) -> _Group:
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
            self._group = _Group(drawn, reference)
        return self._group

    def _check(
        self, runner: Runner, replay: Callable[[], None], reference: Tensor, problem: Problem, row: Row
    ) -> tuple[Status, str]:
        """Poisons the output, runs once exactly what will be timed, and compares."""
        from kernels import oracle

        runner.out.fill_(float("nan"))
        replay()
        verdict = oracle.judge(runner.out, reference, problem, runner.compute_dtype, runner.caller_scale)
        row |= {"check": "passed" if verdict.passed else "failed", "oracle": oracle.NAME}
        row |= {"rel_err": verdict.rel_err, "max_abs_err": verdict.max_abs_err, "tolerance": verdict.tolerance}
        return ("ok", "") if verdict.passed else ("mismatch", verdict.reason)

    def _results(self, problem: Problem, runner: Runner, measurement: Measurement) -> Row:
        """Columns of time and rate. `bound` names the larger of the two datasheet times."""
        device, columns = self.device, asdict(measurement) | asdict(summarize(measurement.samples_us))
        seconds = columns["median_us"] / 1e6
        memory_s = problem.bytes / (device.tb_per_sec * 1e12)
        compute_s = problem.flops / (device.peak_tflops(runner.compute_dtype) * 1e12)
        known = device.kind == "cuda" and device.source
        return columns | {
            "tflops": problem.flops / seconds / 1e12,
            "tb_per_sec": problem.bytes / seconds / 1e12,
            "bound": ("memory" if memory_s >= compute_s else "compute") if known else None,
            "frac_of_datasheet": max(memory_s, compute_s) / seconds if known else None,
        }

    def _identity(self) -> Row:
        assert self._witness is not None, "ready() comes first"
        return self._witness.identity(self.device)

    def _state(self) -> Row:
        assert self._witness is not None
        return self._witness.state()

    def _healthy(self) -> bool:
        """Whether the device still answers: after an illegal access every later call of the process fails."""
        try:
            self._synchronize()
        except RuntimeError:
            return False
        return True

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

    @contextmanager
    def _peak_memory(self, row: Row) -> Iterator[None]:
        import torch

        if self.device.kind != "cuda":
            yield
            return
        torch.cuda.reset_peak_memory_stats()
        try:
            yield
        finally:
            row["peak_mem_bytes"] = torch.cuda.max_memory_allocated()


@contextmanager
def _seconds(row: Row, column: str) -> Iterator[None]:
    started = time.perf_counter()
    try:
        yield
    finally:
        row[column] = (row.get(column) or 0.0) + time.perf_counter() - started


def _words(error: BaseException) -> str:
    """The exception's own words, cut to what a table can hold."""
    return " ".join(str(error).split())[:REASON_CHARS]
