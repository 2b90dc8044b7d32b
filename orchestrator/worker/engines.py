"""A point inside a running engine. The engine is started by the first point that needs it, in a process of its own."""

from __future__ import annotations

import sys
import time
from collections.abc import Hashable

from kernels import engines
from kernels.engines.start import EngineStart, point_request
from kernels.environment.process import Process
from kernels.timing.nvml import Telemetry
from orchestrator.config.engine import kernel_names
from orchestrator.point import Point
from orchestrator.storage.row import Row, Status
from orchestrator.worker.environments import SPARE, Environments
from orchestrator.worker.measured_row import shared_note, state_columns
from orchestrator.worker.messages import WorkerConfig
from orchestrator.worker.provenance import Provenance
from orchestrator.worker.task_row import classify_exception


class Engines:
    """The engine of a worker, one at a time. A point that ends it costs its own row alone: the next one starts it again."""

    def __init__(self, config: WorkerConfig, environments: Environments, provenance: Provenance) -> None:
        self.config, self.environments, self.provenance = config, environments, provenance
        self._process: Process | None = None
        self._key: Hashable = None  # of the start that the process is of
        self._about: Row = {}  # columns that all points of the start have
        self._starts = 0
        self._failed: dict[Hashable, tuple[Status, str]] = {}  # starts that did not succeed: nor would they for the next point

    def run(self, point: Point, row: Row) -> tuple[Status, str]:
        """Fills the row of a point; its status and reason. Never raises for what an engine does."""
        try:
            process = self._process
            if self._key != point.shares or process is None or not process.alive:
                if point.shares in self._failed:
                    return self._failed[point.shares]
                process = self._start(point, self.config.engine_starts[point.shares])
            row |= self._about
            return "ok", self._measure(process, point, row)
        except Exception as error:  # an engine may raise anything
            row |= {"engine_start": self._starts}
            return _classified(error)

    def close(self) -> None:
        """Ends the engine and all that it has started."""
        if self._process is not None:
            self._process.close()

    def _start(self, point: Point, wanted: EngineStart) -> Process:
        self.close()
        self._starts += 1
        made, began = None if point.env is None else self.environments[point.env], time.perf_counter()
        process = self._process = Process(sys.executable if made is None else made.python, own_path=made is not None)
        self._key = point.shares
        program = f"{engines.__name__}.{wanted.engine}_steps"
        spec = wanted.spec() | {"main_kernels": list(dict.fromkeys(part for part, _, _ in kernel_names()))}
        try:
            answer, _ = process.ask("start", self.config.start_seconds * SPARE, program=program, spec=spec)
        except Exception as error:
            self._failed[point.shares] = _classified(error)
            self.close()
            raise
        self.provenance.note_own_processes()
        self._about = {"engine_start": self._starts, "engine_start_s": time.perf_counter() - began}
        self._about |= answer["about"] | {"engine_model": wanted.in_words, "step_layers": wanted.layers}
        return process

    def _measure(self, process: Process, point: Point, row: Row) -> str:
        """Fills the columns of a measurement; what limits trust in it."""
        monitor, telemetry = self.provenance.pacer.monitor, list[Telemetry]()
        seconds = self.config.point_seconds * SPARE
        request = point_request(point.problem)
        answer, _ = process.ask("point", seconds, lambda _event: telemetry.extend(monitor.read()), **request)
        uneven = answer["found"].pop("reason")
        causes = sorted({cause for one in telemetry for cause in one.throttled_by})
        row |= {**answer["found"], **state_columns(telemetry, causes)}
        row["other_processes"] = ", ".join(self.provenance.other_processes()) or None
        throttled = f"throttled: {', '.join(causes)}" if causes else ""
        return " | ".join(filter(None, (uneven, throttled, shared_note(row))))


def _classified(error: Exception) -> tuple[Status, str]:
    """Status and reason of a point. What the engine refuses is unsupported."""
    return ("unsupported", str(error)) if type(error).__name__ == "Refused" else classify_exception(error)
