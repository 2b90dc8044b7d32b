"""What the rows of any imported file share: where they come from, and when. This project did not measure them."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path

from orchestrator.point import Point
from orchestrator.storage.row import Row, describe
from orchestrator.untrusted.files import written_at

SHORTEST_MS = 1e-6


def microseconds(name: str, value: object) -> float:
    """A time that a file has in milliseconds. Raises ValueError if it is none, or less than a nanosecond."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not SHORTEST_MS <= value < math.inf:
        raise ValueError(f"{name}={value!r:.80}: allowed: a number of milliseconds from {SHORTEST_MS:g}")
    return value * 1000


def common(path: str, content: bytes, sweep: str, origin: str) -> Row:
    """What all rows of a file share, its date as that of measurement; `origin`, their `orchestrator_version`, is who measured."""
    written = written_at(path)
    return {
        "run_id": f"imported-{hashlib.sha256(content).hexdigest()[:12]}",
        "sweep": sweep,
        "cluster": Path(path).name,
        "orchestrator_version": origin,
        "started_at": written,
        "finished_at": written,
    }


def timed(point: Point, us: float | None, common: Row) -> Row:
    """The values of a row with its time, from which its rates follow."""
    found: Row = {**describe(point), **common}
    if us is not None:
        problem, seconds = point.problem, us / 1e6
        found |= {"median_us": us, "tflops": problem.flops / seconds / 1e12, "tb_per_sec": problem.bytes / seconds / 1e12}
    return found
