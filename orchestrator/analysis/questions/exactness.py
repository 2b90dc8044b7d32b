"""The kernel that ran and how exact its answer was, in the words of every table of the fastest backend."""

from __future__ import annotations

from math import isnan

from orchestrator.analysis.dataset import Dataset
from orchestrator.analysis.names import mark, shown
from orchestrator.analysis.questions.tables import formatted
from orchestrator.analysis.sql import query
from orchestrator.tables import Grid

COARSE = 2  # from this many times the error of the runner-up on, a cell says so


def named(backend: str, kernel: str | None) -> str:
    """A backend and the kernel that it ran, if the name does not tell it (`flash_attn_3_32_splits` does): `auto(fa2_tc)`."""
    if kernel is None or "(" in backend or backend.startswith(kernel) or kernel.startswith(backend):
        return shown(backend)
    return f"{backend}({kernel}){mark(backend) or mark(kernel)}"


def error(rel_err: float | None, ratio: float | None = None, than: str = "the next's") -> str:
    """The relative error of an answer's worst row, and by what factor it is over another one (`than`), if that is much."""
    if rel_err is None or isnan(rel_err):  # as a frame holds None
        return "unchecked"
    worse = f", {ratio:.0f}× {than}" if ratio is not None and ratio >= COARSE else ""
    return f"err {share(rel_err)}{worse}"


def share(rel_err: float) -> str:
    """A relative error in two digits: `0.26%`, `8.1%`."""
    return f"{100 * rel_err:.2g}%"


def left_out(data: Dataset) -> list[Grid]:
    """What best.max_rel_err leaves out, by kernel; nothing without it."""
    limit, found = data.scalar("SELECT getvariable('max_rel_err')"), data.execute(query("left_out_by_error"))
    title = f"left out by best.max_rel_err={limit}: points with a larger error, or whose answer was not checked"
    grid = formatted(title, ("kernel", "points", "largest err", "not checked"), found)
    return [grid] if grid.cells else []
