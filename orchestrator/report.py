"""Tables for a person: a dataset's answers, the main one first; a plan in numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from orchestrator.dataset import Dataset
from orchestrator.draft import Draft
from orchestrator.grid import Grid
from orchestrator.plan import Plan
from orchestrator.questions import best, crossover, fp8, odd, q_len, regret, roofline
from orchestrator.questions import draft as draft_question
from orchestrator.questions.tables import LONGEST
from orchestrator.row import STATUSES
from orchestrator.sweep import Point

MAIN_TABLES = 3  # that come before all else: the others with question=best
TOP_REASONS = 12
BY_SHAPE = ("best", "crossover", "fp8", "q_len", "draft")  # questions whose tables have a cell a shape
# What a dataset must hold for a question to have an answer.
NEEDS = {
    "best": "a point that is ok",
    "crossover": "paged_decode and paged_prefill of problems that differ in nothing else, such as those of +sweep=target_verify",
    "fp8": "the same shapes over 16-bit and over FP8 caches: sweep.dtype=[{q: bf16, kv: bf16}, {q: bf16, kv: fp8_e4m3}]",
    "q_len": "paged_decode or mla with s_qo 1 beside more, such as sweep.s_qo=[1,4]",
    "regret": "the backend auto beside others: sweep.backend=[auto,fa2_tc]",
    "roofline": "points measured after mode=calibrate, which every run on a GPU does first",
    "draft": "causal drafts of two lengths, such as sweep.s_qo=[1,4]",
    "odd": "a row",
}


def grids(data: Dataset, draft: Draft, question: str | None = None, points: Sequence[Point] | None = None) -> list[Grid]:
    """One question at length; without one the main table, every other question in a line, and what became of all points.

    `points` are those of the sweep, where one is named: what of them never ran is told too.
    """
    if question is not None:
        return [*LONG[question](data, draft, points), *_left_out(data, question)]
    main = best.grids(data)[:MAIN_TABLES]
    return [*main, in_short(data, draft, sum(map(_shapes_in, main))), status_grid(data)]


def _shapes_in(grid: Grid) -> int:
    """Cells of a main table that hold an answer, beside draft length and batch."""
    return sum(cell != "–" for line in grid.cells for cell in line[2:])


def _left_out(data: Dataset, question: str) -> list[Grid]:
    """What a terminal was not given, of more shapes than a person reads, and how to have it."""
    if question not in BY_SHAPE or (shapes := int(data.one(f"SELECT count(*) FROM {question}"))) <= LONGEST:
        return []
    others = "fewer of them with where={model: NAME, batch_size: [1, 8]}; all of them in a notebook: docs/report.md"
    return [Grid("not all is shown", ("shapes", "shown", "the others"), ((f"{shapes:,}", f"the first {LONGEST:,}", others),))]


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


def in_short(data: Dataset, draft: Draft, shown: int) -> Grid:
    """Every question that the dataset can answer, in a line, under main tables of `shown` shapes."""
    lines = {
        "best": best.short(data, shown),
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
        cells += [(status, f"{points:,}", reason) for reason, points in found[:TOP_REASONS]]
        if rest := found[TOP_REASONS:]:
            cells.append((status, f"{sum(points for _, points in rest):,}", f"{len(rest)} other reasons"))
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
