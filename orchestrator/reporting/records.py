"""The rows of an answer as CSV or JSON, for a program: numbers as they are, and every column of the question's view."""

from __future__ import annotations

import csv
import json
from datetime import datetime
from typing import Any, TextIO

from orchestrator.analysis import traffic
from orchestrator.analysis.questions import VIEWS, open_views
from orchestrator.config.settings import Settings
from orchestrator.errors import UserError
from orchestrator.reporting import quality
from orchestrator.reporting.report import NEEDS, no_question_to_quality

INTERNAL = ("problem", "family", "row", "shape")  # numbers that only hold within one opened dataset


def has_rows_of_its_own(question: str | None) -> bool:
    """Whether the answer is one view. `odd`, the summary and `columns` are several tables, and are written as such."""
    return question in VIEWS


def write(settings: Settings, file: TextIO) -> None:
    """Writes the rows of `question`. Raises UserError if no row answers it, as for a terminal."""
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
    columns = [name for (name, *_) in data.execute(f"DESCRIBE {question}") if name not in INTERNAL]
    names = ", ".join(f'"{name}"' for name in columns)
    rows = data.execute(f"SELECT {names} FROM {question} ORDER BY ALL")
    if not rows:
        raise UserError(
            f"question={question}: no rows of results.path={settings.results.path!r} answer it; it needs {NEEDS[question]}"
        )
    if settings.format == "csv":
        csv.writer(file, lineterminator="\n").writerows([columns, *rows])
    else:
        json.dump([dict(zip(columns, row, strict=True)) for row in rows], file, ensure_ascii=False, indent=1, default=_plain)
        file.write("\n")


def _plain(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
