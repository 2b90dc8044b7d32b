"""The rows of an answer: as CSV or JSON for a program, with numbers as they are; or some of its columns as a short table."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any, TextIO

from orchestrator.analysis import traffic
from orchestrator.analysis.keys import PROBLEM_KEYS
from orchestrator.analysis.questions import VIEWS, open_views
from orchestrator.analysis.sql import quoted
from orchestrator.config.settings import Settings
from orchestrator.errors import UserError, unknown
from orchestrator.notes import note_once
from orchestrator.reporting import quality
from orchestrator.reporting.report import NEEDS, no_question_to_quality
from orchestrator.tables import Grid

INTERNAL = ("problem", "family", "row", "shape")  # numbers that only hold within one opened dataset


def has_rows_of_its_own(question: str | None) -> bool:
    """Whether the answer is one view. `odd`, the summary and `columns` are several tables, and are written as such."""
    return question in VIEWS


def write(settings: Settings, file: TextIO) -> None:
    """Writes the rows of `question` as CSV or JSON. Raises UserError as `_answer` does."""
    columns, rows = _answer(settings)
    if settings.format == "csv":
        csv.writer(file, lineterminator="\n").writerows([columns, *rows])
    else:
        json.dump([dict(zip(columns, row, strict=True)) for row in rows], file, ensure_ascii=False, indent=1, default=_plain)
        file.write("\n")


def short_table(settings: Settings) -> Grid:
    """The answer to `question` in the `columns` that were asked for alone, for a slide. Raises UserError as `_answer` does."""
    columns, rows = _answer(settings)
    _tell_of_shapes_alike(columns, rows)
    return Grid(f"question={settings.question}", tuple(columns), tuple(tuple(map(_in_short, row)) for row in rows))


def _answer(settings: Settings) -> tuple[list[str], list[tuple[Any, ...]]]:
    """The columns and rows of `question`. Raises UserError if no row answers it, as for a terminal, and for unknown columns."""
    data = open_views(
        settings.results.path,
        settings.draft,
        where=settings.where,
        max_rel_err=settings.best.max_rel_err,
        weights=settings.weights,
        traffic=None if settings.traffic is None else traffic.read(settings.traffic),
    )
    question = str(settings.question)
    if quality.is_about_quality(data):
        raise UserError(no_question_to_quality(question, settings.results.path))
    known = [name for (name, *_) in data.execute(f"DESCRIBE {question}") if name not in INTERNAL]
    columns = list(settings.columns) or known
    for name in columns:
        if name not in known:
            raise UserError(unknown("columns", name, known))
    rows = data.execute(f"SELECT {', '.join(map(quoted, columns))} FROM {question} ORDER BY ALL")
    if not rows:
        raise UserError(
            f"question={question}: no rows of results.path={settings.results.path!r} answer it; it needs {NEEDS[question]}"
        )
    return columns, rows


def _tell_of_shapes_alike(columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> None:
    """A note if several rows look like one shape, since `columns` leaves out what tells them apart."""
    keys = [i for i, name in enumerate(columns) if name in PROBLEM_KEYS]
    shapes = {tuple(row[i] for i in keys) for row in rows}
    if keys and len(shapes) < len(rows):
        shown = ", ".join(columns[i] for i in keys)
        note_once(
            f"{len(rows)} rows stand for {len(shapes)} values of {shown}: the others differ in keys that "
            "columns= leaves out, such as s_qo or kv_dtype; add them, or choose: 'where={s_qo: 1, kv_dtype: bf16}'"
        )


def _in_short(value: Any) -> str:
    """A value for people: three digits or more, and one behind the point of large numbers."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _plain(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
