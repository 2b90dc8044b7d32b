"""The tables of mode=report: a dataset's answers, the main one first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from types import ModuleType
from typing import get_args

from rich.console import Console

from orchestrator.analysis import how_timed, questions
from orchestrator.analysis.dataset import Dataset, from_table
from orchestrator.analysis.questions import best, cache_size, define_views, exactness, pad_up, traffic_weights
from orchestrator.analysis.questions.tables import MAX_SHOWN
from orchestrator.analysis.sources import few
from orchestrator.analysis.traffic import Mix
from orchestrator.config.modes import owner
from orchestrator.config.settings import FOR_DEPLOYMENT, Answers, Question
from orchestrator.errors import UserError
from orchestrator.planning.expand import expand
from orchestrator.point import Point
from orchestrator.reporting import brief, quality, statement
from orchestrator.reporting.opened import OF_ADVICE, mix_of, opened
from orchestrator.storage.row import STATUSES
from orchestrator.tables import Grid, draw

TOP_REASONS, FILES = 12, 2  # that are named
MODULES: dict[str, ModuleType] = {  # `columns` is about the columns of every dataset
    name: import_module(f"{questions.__name__}.{name}") for name in get_args(Question) if name != "columns"
}
NEEDS = {name: module.NEEDS for name, module in MODULES.items()}
AXES = ("tp", "batch_size", "s_kv", "s_qo", "page_size")  # fields of a problem that are a column of the same name
STALE_UNSEEN = "of these: an answer kept from before would not have shown in some request (check_stale_covered < 1)"


def dataset_grids(settings: Answers, question: str | None = None) -> list[Grid]:
    """The tables of a dataset's measurements, or of quality. Raises UserError for no answer, and for a question to quality."""
    mix = mix_of(settings)
    return _grids_of(settings, opened(settings, mix), mix, question)


def _grids_of(settings: Answers, data: Dataset, mix: Mix | None, question: str | None) -> list[Grid]:
    if not quality.is_about_quality(data):
        # Points that never ran are listed too, but not if `where` hides rows: a hidden point did run.
        points = _points(settings)
        data.points = points if question == "odd" and points and not settings.where else None
        by_traffic = traffic_weights.grids if question == "one_backend" else traffic_weights.shares
        found = [*([] if mix is None else by_traffic(data, mix)), *grids(data, question)]
        if question is not None and not any(grid.cells for grid in found):
            raise no_answer(data, question, settings.results.path)
        return [*not_measured(data, points), *found, *sweeps(data)]
    if question is not None:
        raise UserError(no_question_to_quality(question, settings.results.path))
    current = data.current()
    others = define_views(from_table(current[~quality.is_caught(current)]), settings.draft)
    return [*statement.grids(current), *quality.grids(current), status_grid(others)]


def no_answer(data: Dataset, question: str, path: str) -> UserError:
    """That no row answers a question: what it needs, and which caches are too large for it."""
    too_big = cache_size.left_out(data).values() if question in (*FOR_DEPLOYMENT, "draft") else ()
    why = "; ".join((f"it needs {NEEDS[question]}", *too_big, "leave question out to see the questions that they answer"))
    return UserError(f"question={question}: no rows of results.path={path!r} answer it; {why}")


def _points(settings: Answers) -> list[Point]:
    return expand(settings) if settings.mode == "report" and settings.sweep.axes else []


def screen(console: Console, settings: Answers, question: str | None = None, again: str = "") -> None:
    """Prints what a dataset says on one screen: a map, or the answer to a question. Raises UserError if no row answers it.

    `again` is the command, if it found the dataset by a deployment.
    """
    mix, path = mix_of(settings), settings.results.path
    data = opened(settings, mix)
    if question is None and not quality.is_about_quality(data) and data.scalar("SELECT count(*) FROM best"):
        draw(console, not_measured(data, _points(settings)))
        notes = [f"{grid.title}: {', '.join(' '.join(cells) for cells in grid.cells)}" for grid in sweeps(data)]
        brief.show(console, data, path, [name for name, module in MODULES.items() if module.summary(data)], notes, again=again)
        return
    module = MODULES.get(question or "")
    found = [grid.named(getattr(module, "ON_SCREEN", ())) for grid in _grids_of(settings, data, mix, question)]
    brief.answer(console, data, path, "" if module is None else module.summary(data) or "", found, again=again)


def no_question_to_quality(question: str, path: str) -> str:
    return (
        f"question={question}: results.path={path!r} holds rows of mode=noise or mode=check_power, which say how far times "
        f"and checks can be trusted; leave question out, or type results.path={owner(path) or 'DIR'} with the sweep's own rows"
    )


def grids(data: Dataset, question: str | None = None) -> list[Grid]:
    """The answer to one question; else of `best`, each question in a line, and statuses. `odd` lists `points` that never ran."""
    how = [*how_timed.grids(data), *gpu_grids(data)]
    if question is not None:
        answer = [*MODULES[question].grids(data), *(pad_up.grids(data) if question in pad_up.BESIDE else [])]
        read = few([path.removesuffix(".parquet") for path in data.path.split(",")], FILES)
        if read and question in (*FOR_DEPLOYMENT, *OF_ADVICE):  # whose figures depend on the dataset that says most
            answer[:1] = [replace(grid, title=f"{grid.title}; of {read}") for grid in answer[:1]]
        return [*answer, *_left_out(data, question), *exactness.left_out(data), *(how if answer else [])]
    return [*best.grids(data), in_short(data), *exactness.left_out(data), *how, status_grid(data)]


def _left_out(data: Dataset, question: str) -> list[Grid]:
    """How many problems, or lines of them, are not shown, and how to see them; nothing if all are shown."""
    what = getattr(MODULES[question], "EACH", None)
    if what is None or (count := int(data.scalar(f"SELECT count(*) FROM {question}"))) <= MAX_SHOWN:
        return []
    others = "fewer of them with where={model: NAME, batch_size: [1, 8]}; all of them in a notebook: docs/commands.md"
    return [Grid("not all is shown", (what, "shown", "the others"), ((f"{count:,}", f"the first {MAX_SHOWN:,}", others),))]


def in_short(data: Dataset) -> Grid:
    """One line for each question that the dataset can answer."""
    lines = {name: module.summary(data) for name, module in MODULES.items()}
    lines = {"best": lines.pop("best"), "best, draft": pad_up.summary(data), **lines}
    cells = tuple((question, line) for question, line in lines.items() if line)
    return Grid("in short; at length with mode=report question=...", ("question", "answer"), cells)


def not_measured(data: Dataset, points: Sequence[Point]) -> list[Grid]:
    """A line for each axis of which no row has a value that the sweep's points have: the answers are about other points then."""
    asked: dict[str, set[object]] = {axis: {getattr(point.problem, axis) for point in points} for axis in AXES}
    asked["backend"] = {point.backend for point in points}
    cells = []
    for axis, values in asked.items():
        there = [value for (value,) in data.execute(f"SELECT DISTINCT {axis} FROM rows ORDER BY 1")]
        if values and values.isdisjoint(there):
            cells.append((f"sweep.{axis}", few(sorted(values, key=str)), few(there)))
    title = "not measured: no row has what the sweep asks for, so the tables are about others; to measure, leave out mode=report"
    return [Grid(title, ("axis", "asked for", "the rows have"), tuple(cells))] if cells else []


def sweeps(data: Dataset) -> list[Grid]:
    found = "SELECT coalesce(nullif(sweep, ''), 'no name') AS name, format('{:,}', count(*)) FROM current GROUP BY ALL"
    cells = data.execute(f"{found} ORDER BY count(*) DESC, name")
    title = "rows of several sweeps are together in these tables; for one alone, type where={sweep: NAME}"
    return [Grid(title, ("sweep", "rows"), tuple(cells))] if len(cells) > 1 else []


def gpu_grids(data: Dataset) -> list[Grid]:
    """How far GPUs of one kind differ, if the rows are of several and that is known."""
    factors = dict(data.execute("SELECT device_uuid, factor FROM cards"))
    cells = tuple(
        (
            card.uuid,
            card.device_name,
            f"{card.points:,}",
            f"{math.expm1(card.offset):+.2%} ± {card.se:.2%}",
            "taken off" if factors[uuid] != 1 else "nothing: no more than its error",
        )
        for uuid, card in data.cards.by_uuid.items()
        if uuid in factors
    )
    header = ("GPU", "device", "points that others measured too", "takes over the mean", "in tables of several GPUs")
    return [Grid(f"GPUs of one kind differ, by {data.cards.source} (docs/compare.md)", header, cells)] if cells else []


def status_grid(data: Dataset) -> Grid:
    cells = []
    for status in STATUSES:
        found = data.execute("SELECT reason, points FROM statuses WHERE status = ? ORDER BY points DESC, reason", [status])
        cells += [(status, f"{points:,}", reason) for reason, points in found[:TOP_REASONS]]
        if rest := found[TOP_REASONS:]:
            cells.append((status, f"{sum(points for _, points in rest):,}", f"{len(rest)} other reasons"))
        if blind := data.scalar(f"SELECT count(*) FROM current WHERE check_stale_covered < 1 AND status = '{status}'"):
            cells.append((status, f"{blind:,}", STALE_UNSEEN))
    return Grid("points by status", ("status", "points", "reason"), tuple(cells))
