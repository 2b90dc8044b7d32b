"""Tables for a person: a dataset's answers, the main one first; a plan in numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from orchestrator.dataset import Dataset
from orchestrator.grid import Grid
from orchestrator.plan import Plan
from orchestrator.questions import best, crossover, fp8, odd, q_len, regret, roofline
from orchestrator.questions import draft as draft_question
from orchestrator.row import STATUSES
from orchestrator.settings import Draft
from orchestrator.sweep import Point

MAIN_TABLES = 3  # that come before all else: the others with question=best
TOP_REASONS = 12


def grids(data: Dataset, draft: Draft, question: str | None = None, points: Sequence[Point] | None = None) -> list[Grid]:
    """One question at length; without one the main table, every other question in a line, and what became of all points.

    `points` are those of the sweep, where one is named: what of them never ran is told too.
    """
    if question is not None:
        return LONG[question](data, draft, points)
    main = best.grids(data)
    return [*main[:MAIN_TABLES], in_short(data, draft, len(main)), status_grid(data)]


LONG: dict[str, Callable[[Dataset, Draft, Sequence[Point] | None], list[Grid]]] = {
    "best": lambda data, draft, points: best.grids(data),
    "crossover": lambda data, draft, points: crossover.grids(data),
    "fp8": lambda data, draft, points: fp8.grids(data),
    "q_len": lambda data, draft, points: q_len.grids(data),
    "regret": lambda data, draft, points: regret.grids(data),
    "roofline": lambda data, draft, points: roofline.grids(data),
    "draft": lambda data, draft, points: draft_question.grids(data, draft),
    "odd": lambda data, draft, points: odd.grids(data, points),
}


def in_short(data: Dataset, draft: Draft, tables: int) -> Grid:
    """Every question that the dataset can answer, in a line, under the first of `tables` main tables."""
    lines = {
        "best": best.short(data, MAIN_TABLES, tables),
        "crossover": crossover.short(data),
        "fp8": fp8.short(data),
        "q_len": q_len.short(data),
        "regret": regret.short(data),
        "roofline": roofline.short(data),
        "draft": draft_question.short(data, draft),
        "odd": odd.short(data),
    }
    cells = tuple((question, line) for question, line in lines.items() if line)
    return Grid("in short; at length with mode=report question=...", ("question", "answer"), cells)


def status_grid(data: Dataset) -> Grid:
    """How many points have which status, and why."""
    cells = []
    for status in STATUSES:
        found = data.con.execute(
            "SELECT reason, points FROM statuses WHERE status = ? ORDER BY points DESC, reason", [status]
        ).fetchall()
        cells += [(status, str(points), reason) for reason, points in found[:TOP_REASONS]]
        if rest := found[TOP_REASONS:]:
            cells.append((status, str(sum(points for _, points in rest)), f"{len(rest)} other reasons"))
    return Grid("points by status", ("status", "points", "reason"), tuple(cells))


def plan_grids(plan: Plan, workers: int) -> list[Grid]:
    """A plan in numbers: points, reasons, modules, memory, time."""
    verdicts = [(verdict, plan.of(verdict)) for verdict in ("run", "unsupported", "skipped")]
    counts = [(verdict, str(len(decisions))) for verdict, decisions in verdicts]
    reasons = [
        (verdict, str(count), reason)
        for verdict in ("unsupported", "skipped")
        for reason, count in plan.reasons(verdict).most_common()
    ]
    modules = [(arch, str(module), str(len(points))) for (arch, module), points in plan.modules.items()]
    cost = [
        ("groups that share inputs", str(len(plan.groups))),
        ("largest point", f"{plan.peak_memory_bytes / 1e9:.3g} GB of device memory"),
        ("workers", str(workers)),
        ("estimated time, without compilation", _duration(plan.eta_s(workers))),
    ]
    return [
        Grid(f"plan: {len(plan.decisions)} points", ("verdict", "points"), tuple(counts)),
        Grid("why not", ("verdict", "points", "reason"), tuple(reasons)),
        Grid(f"kernel modules to compile: {len(modules)}", ("arch", "module", "points"), tuple(modules)),
        Grid("cost", ("what", "value"), tuple(cost)),
    ]


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
