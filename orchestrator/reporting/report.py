"""The tables of mode=report: a dataset's answers, the main one first."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from orchestrator.analysis import how_timed
from orchestrator.analysis.dataset import Dataset, from_table
from orchestrator.analysis.questions import (
    best,
    crossover,
    define_views,
    energy,
    engine_default,
    exactness,
    fp8,
    odd,
    one_backend,
    pad_up,
    padding,
    q_len,
    regret,
    roofline,
    step,
    traffic_share,
    traffic_weights,
)
from orchestrator.analysis.questions import draft as draft_question
from orchestrator.analysis.questions.tables import MAX_SHAPES
from orchestrator.config.draft_cost import Draft
from orchestrator.config.modes import owner
from orchestrator.config.settings import Answers
from orchestrator.errors import UserError
from orchestrator.planning.expand import expand
from orchestrator.point import Point
from orchestrator.reporting import not_measured, quality, together
from orchestrator.reporting.opened import mix_of, opened
from orchestrator.storage.row import STATUSES
from orchestrator.tables import Grid

MAIN_TABLES = 3  # of question=best that the summary shows
TOP_REASONS = 12
BY_SHAPE = ("best", "crossover", "fp8", "q_len", "draft", "energy", "step", "padding")  # whose tables have a cell a shape
# What a dataset must contain for a question to have an answer.
NEEDS = {
    "best": "a point that is ok",
    "crossover": "paged_decode and paged_prefill of problems that differ in nothing else, such as those of +sweep=target_verify",
    "fp8": "the same shapes over 16-bit and over FP8 caches: sweep.dtype=[{q: bf16, kv: bf16}, {q: bf16, kv: fp8_e4m3}]",
    "q_len": "paged_decode or mla with s_qo 1 beside more, such as sweep.s_qo=[1,4]",
    "regret": "the backend auto beside others: sweep.backend=[auto,fa2_tc]",
    "engine_default": "what an engine takes by default beside other backends: sweep.backend=[flash_attn_3,fa2_tc,trtllm-native]",
    "one_backend": "points that are ok on backends other than torch_sdpa, of shapes whose KV cache fits the GPU "
    "(draft.layers says how many layers one GPU has), and that have a weight if weights or traffic are given",
    "roofline": "points measured after mode=calibrate, which every run on a GPU does first",
    "draft": "causal drafts of two lengths, such as sweep.s_qo=[1,4]; with draft.rest, in batches that it was measured for",
    "padding": "a batch in a padded graph beside the same batch alone, such as those of +sweep=padded_graphs",
    "energy": "points that were measured with timing.energy=true on a GPU whose NVML counts energy",
    "step": "points that were measured with timing.host=true on a GPU, and are not reference implementations",
    "odd": "a row",
}


def dataset_grids(settings: Answers, question: str | None = None) -> list[Grid]:
    """The tables of the dataset at `results.path`: of its measurements, or of the quality of measurements and checks.

    Raises UserError if there are no rows, or for a question to A/A pairs or mutants: they are no candidates for the fastest
    backend.
    """
    mix = mix_of(settings)
    data = opened(settings, mix)
    if not quality.is_about_quality(data):
        # Points that never ran are listed too, but not if `where` hides rows: a hidden point did run.
        points = expand(settings) if settings.mode == "report" and settings.sweep.axes else []
        never_ran = points if question == "odd" and points and not settings.where else None
        by_traffic = traffic_weights if question == "one_backend" else traffic_share
        found = [
            *([] if mix is None else by_traffic.grids(data, mix)),
            *grids(data, settings.draft, question, never_ran),
        ]
        if not any(grid.cells for grid in found):
            return found
        return [*not_measured.grids(data, points), *found, *together.grids(data)]
    if question is not None:
        raise UserError(no_question_to_quality(question, settings.results.path))
    current = data.current()
    others = define_views(from_table(current[~quality.is_caught(current)]), settings.draft)
    return [*quality.grids(current), status_grid(others)]


def no_question_to_quality(question: str, path: str) -> str:
    return (
        f"question={question}: results.path={path!r} holds rows of mode=noise or mode=check_power, which say how far times "
        f"and checks can be trusted; leave question out, or type results.path={owner(path) or 'DIR'} with the sweep's own rows"
    )


def grids(data: Dataset, draft: Draft, question: str | None = None, points: Sequence[Point] | None = None) -> list[Grid]:
    """The full answer to one question; without one the main tables, each other question in a line, and the count of statuses.

    `points` are those of the sweep, if one is named: the question `odd` then also lists points that never ran.
    """
    if question is not None:
        answer = LONG[question](data, draft, points)
        how = [*how_timed.grids(data), *card_grids(data)] if answer else []
        return [*answer, *_left_out(data, question), *exactness.left_out(data), *how]
    main = best.grids(data)[:MAIN_TABLES]
    short, how = in_short(data, draft, sum(map(_shapes_in, main))), [*how_timed.grids(data), *card_grids(data)]
    return [*main, short, *exactness.left_out(data), *how, status_grid(data)]


def _shapes_in(grid: Grid) -> int:
    """The number of cells with an answer in a main table; its first two columns are draft length and batch size."""
    return sum(cell != "–" for line in grid.cells for cell in line[2:])


def _left_out(data: Dataset, question: str) -> list[Grid]:
    """How many shapes, or lines of them, are not shown, and how to see them; nothing if all are shown."""
    if question not in BY_SHAPE or (shapes := int(data.scalar(f"SELECT count(*) FROM {question}"))) <= MAX_SHAPES:
        return []
    others = "fewer of them with where={model: NAME, batch_size: [1, 8]}; all of them in a notebook: docs/report.md"
    what = "lines" if question == "step" else "shapes"
    return [Grid("not all is shown", (what, "shown", "the others"), ((f"{shapes:,}", f"the first {MAX_SHAPES:,}", others),))]


LONG: dict[str, Callable[[Dataset, Draft, Sequence[Point] | None], list[Grid]]] = {
    "best": lambda data, draft, points: [*best.grids(data), *pad_up.grids(data)],
    "crossover": lambda data, draft, points: crossover.grids(data),
    "fp8": lambda data, draft, points: fp8.grids(data),
    "q_len": lambda data, draft, points: q_len.grids(data),
    "regret": lambda data, draft, points: regret.grids(data),
    "engine_default": lambda data, draft, points: engine_default.grids(data),
    "one_backend": lambda data, draft, points: one_backend.grids(data),
    "roofline": lambda data, draft, points: roofline.grids(data),
    "draft": lambda data, draft, points: [
        *draft_question.in_short(data, draft),
        *draft_question.grids(data, draft),
        *pad_up.grids(data),
    ],
    "energy": lambda data, draft, points: energy.grids(data, draft),
    "padding": lambda data, draft, points: padding.grids(data),
    "step": lambda data, draft, points: step.grids(data),
    "odd": lambda data, draft, points: [*odd.grids(data, points), *pad_up.grids(data)],
}


def in_short(data: Dataset, draft: Draft, shown: int) -> Grid:
    """One line for each question that the dataset can answer. The main tables above it show `shown` shapes."""
    lines = {
        "best": best.summary(data, shown),
        "best, draft": pad_up.summary(data),
        "crossover": crossover.summary(data),
        "fp8": fp8.summary(data),
        "q_len": q_len.summary(data),
        "regret": regret.summary(data),
        "engine_default": engine_default.summary(data),
        "one_backend": one_backend.summary(data),
        "roofline": roofline.summary(data),
        "draft": draft_question.summary(data, draft),
        "energy": energy.summary(data),
        "padding": padding.summary(data),
        "step": step.summary(data),
        "odd": odd.summary(data),
    }
    cells = tuple((question, line) for question, line in lines.items() if line)
    return Grid("in short; at length with mode=report question=...", ("question", "answer"), cells)


def card_grids(data: Dataset) -> list[Grid]:
    """How far GPUs of one kind differ, if the rows are of several and that is known."""
    factors = dict(data.execute("SELECT device_uuid, factor FROM cards"))
    cells = tuple(
        (
            card.uuid,
            card.device_name,
            f"{card.points:,}",
            f"{math.expm1(card.offset):+.2%} ± {card.se:.2%}",
            _taken_off(factors[uuid]),
        )
        for uuid, card in data.cards.by_uuid.items()
        if uuid in factors
    )
    header = ("GPU", "device", "points that others measured too", "takes over the mean", "in tables of several GPUs")
    return [Grid(f"GPUs of one kind differ, by {data.cards.source} (docs/report.md)", header, cells)] if cells else []


def _taken_off(factor: float) -> str:
    return "taken off" if factor != 1 else "nothing: no more than its error"


def status_grid(data: Dataset) -> Grid:
    """The number of points by status and reason."""
    cells = []
    for status in STATUSES:
        found = data.execute("SELECT reason, points FROM statuses WHERE status = ? ORDER BY points DESC, reason", [status])
        cells += [(status, f"{points:,}", reason) for reason, points in found[:TOP_REASONS]]
        if rest := found[TOP_REASONS:]:
            cells.append((status, f"{sum(points for _, points in rest):,}", f"{len(rest)} other reasons"))
    return Grid("points by status", ("status", "points", "reason"), tuple(cells))
