"""The rows of an answer: as CSV or JSON for a program, with numbers as they are; or some of its columns as a short table."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any, TextIO

from orchestrator.analysis.dataset import Dataset, replay
from orchestrator.analysis.keys import PROBLEM_KEYS
from orchestrator.analysis.questions import traffic_weights
from orchestrator.analysis.questions.tables import in_form
from orchestrator.analysis.sql import quoted, text_of
from orchestrator.config.ranges import several
from orchestrator.config.settings import AskSettings
from orchestrator.errors import UserError, unknown
from orchestrator.notes import note_once
from orchestrator.reporting import quality
from orchestrator.reporting.opened import mix_of, opened
from orchestrator.reporting.report import no_answer, no_question_to_quality
from orchestrator.storage.columns import COLUMNS
from orchestrator.tables import Grid
from orchestrator.untrusted.text import for_csv, for_json

POINT_ID = "point_id"
# What a short table of question=best says of a column that its name does not explain: on a slide nobody looks it up.
EXPLAINED = {
    "margin": "margin: how much longer the next kernel takes, as a share (0.02 is 2%)",
    "above_noise": "above_noise False: that lead is no more than noise",
    "noise_floor": "noise_floor: the difference that two measurements of the same may have, as a share",
    "rel_err": "rel_err: the error of the answer's worst row, as a share of its size",
    "err_ratio": "err_ratio: that error over the next kernel's",
}
INTERNAL = ("problem", "family", "row", "workload", "lengths")  # numbers that only hold within one opened dataset


def write(settings: AskSettings, file: TextIO) -> None:
    """Writes the rows of `question` as CSV or JSON. Raises UserError as `_answer` does."""
    _, columns, rows = _answer(settings)
    if settings.format == "csv":
        csv.writer(file, lineterminator="\n").writerows([list(map(for_csv, line)) for line in (columns, *rows)])
    else:
        found = [dict(zip(columns, row, strict=True)) for row in rows]
        text = json.dumps(
            found, ensure_ascii=False, indent=1, default=lambda v: v.isoformat() if isinstance(v, datetime) else str(v)
        )
        file.write(for_json(text) + "\n")


def short_table(settings: AskSettings) -> Grid:
    """The answer to `question` in the `columns` that were asked for alone, for a slide. Raises UserError as `_answer` does."""
    data, columns, rows = _answer(settings)
    _tell_of_problems_alike(data, str(settings.question), columns, rows)
    of_question = EXPLAINED if settings.question == "best" else {}
    legend = "; ".join(of_question[name] for name in columns if name in of_question)
    if "margin" in columns and "margin" in of_question and "above_noise" not in columns:
        note_once("margin: a lead may be no more than noise; add above_noise to columns, which says where it is more")
    title = " · ".join(filter(None, (f"question={settings.question}", _about(data, settings), legend)))
    cells = (tuple(value if isinstance(value, str) else in_form(value) for value in row) for row in rows)
    return Grid(title, tuple(columns), tuple(cells))


def _about(data: Dataset, settings: AskSettings) -> str:
    """What all rows of a short table have in common: the device, and what `where=` chose."""
    named = "SELECT DISTINCT device_name FROM current WHERE device_name IS NOT NULL ORDER BY ALL"
    devices = [name for (name,) in data.execute(named)]
    chosen = [f"{key} {' or '.join(text_of(one, 'null') for one in several(value))}" for key, value in settings.where.items()]
    return ", ".join([*devices, *chosen])


def _answer(settings: AskSettings) -> tuple[Dataset, list[str], list[tuple[Any, ...]]]:
    """The dataset, columns and rows of `question`. Raises UserError for no rows, and for unknown columns."""
    data = opened(settings, mix_of(settings))
    question = str(settings.question)
    if settings.traffic is not None:
        if question != "one_backend":
            raise UserError(
                f"traffic={settings.traffic}: the rows of question={question} have no weights; type question=one_backend, "
                "or leave columns out and type format=terminal or markdown"
            )
        traffic_weights.tell_of_far(data)
    if quality.is_about_quality(data):
        raise UserError(no_question_to_quality(question, settings.results.path))
    known, source = _columns_and_rows(data, question)
    columns = list(settings.columns) or known
    for name in columns:
        if name not in known:
            raise UserError(_no_column(name, question, known))
    rows = data.execute(f"SELECT {', '.join(map(quoted, columns))} FROM {source} ORDER BY ALL")
    if not rows:
        raise no_answer(data, question, settings.results.path)
    if POINT_ID in settings.columns:
        place = settings.results.path if len(data.sources) == 1 else "DIR"  # the dataset that has it
        note_once(f"one point again: {replay('ID', place)}")
    return data, columns, rows


def _columns_and_rows(data: Dataset, question: str) -> tuple[list[str], str]:
    """The columns of an answer, and where SQL finds its rows. An answer whose rows are points has their `point_id` too."""
    names = [name for (name, *_) in data.execute(f"DESCRIBE {question}")]
    known = [name for name in names if name not in INTERNAL]
    if "row" not in names:
        return known, question
    with_id = f"(SELECT answer.*, rows.{POINT_ID} FROM {question} AS answer LEFT JOIN rows USING (row))"
    return (known, question) if POINT_ID in known else ([*known, POINT_ID], with_id)


def _no_column(name: str, question: str, known: Sequence[str]) -> str:
    if name != POINT_ID:
        values = f"columns=[{name}]: its values are in question=columns 'columns=[{name}]' results.path=DIR; " * (name in COLUMNS)
        return values + unknown("columns", name, known)
    return (
        f"columns: a row of question={question} is of several points, so it has no {POINT_ID}; type question=best for the fastest "
        f"points, or question=roofline for all that were timed, with 'where={{s_qo: 1}}' to choose"
    )


def _tell_of_problems_alike(data: Dataset, question: str, columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> None:
    """A note if several rows look like one problem, since `columns` leaves out what tells them apart. It names those keys."""
    shown = [name for name in columns if name in _keys_of(question)]
    alike = {tuple(row[i] for i, name in enumerate(columns) if name in shown) for row in rows}
    if not set(shown) & set(PROBLEM_KEYS) or len(alike) == len(rows) or POINT_ID in columns:
        return
    if differing := _keys_that_differ(data, question, shown):
        note_once(
            f"{len(rows)} rows stand for {len(alike)} values of {', '.join(shown)}: the others differ in {', '.join(differing)}; "
            f"add {'it' if len(differing) == 1 else 'them'} to columns=, or choose with where={{{differing[0]}: VALUE}}"
        )


def _keys_of(question: str) -> tuple[str, ...]:
    """The columns that tell rows of an answer apart. The backend is one, unless it is the answer itself."""
    return PROBLEM_KEYS if question == "best" else (*PROBLEM_KEYS, "backend")


def _keys_that_differ(data: Dataset, question: str, shown: Sequence[str]) -> list[str]:
    """The keys with several values among the rows of `question` that agree in `shown`."""
    known, source = _columns_and_rows(data, question)
    hidden = [name for name in _keys_of(question) if name in known and name not in shown]
    if not hidden:
        return []
    counts = ", ".join(f"count(DISTINCT coalesce({quoted(name)}::VARCHAR, '')) AS {quoted(name)}" for name in hidden)
    most = ", ".join(f"max({quoted(name)})" for name in hidden)
    found = data.single_row(f"SELECT {most} FROM (SELECT {counts} FROM {source} GROUP BY {', '.join(map(quoted, shown))})")
    return [name for name, values in zip(hidden, found, strict=True) if values > 1]
