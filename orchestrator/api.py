"""What the package `attention_orchestrator` offers to Python: datasets, questions, comparisons and runs, without a command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.config.settings import Compared
from orchestrator.errors import UserError, unknown

if TYPE_CHECKING:
    import pandas as pd

    from orchestrator.analysis.compare.comparison import Comparison
    from orchestrator.analysis.dataset import Dataset

__all__ = ["UserError", "ask", "compare", "open", "run", "version"]
SAME: float = Compared.model_fields["same"].default


def open(path: str | Path | Sequence[str], *, where: Mapping[str, Any] | None = None) -> Dataset:
    """The dataset in a folder, a bucket (s3://...) or a Parquet file, or those of a list, with a view for every question.

    `where` keeps only the rows with these values, as `where=` does on the command line: {"s_qo": [1, 4]}. Raises UserError if
    there are no rows, or if they cannot be read.
    """
    from orchestrator.analysis.questions import open_views
    from orchestrator.composing.compose import from_words
    from orchestrator.config.settings import AskSettings, load

    given = str(path) if isinstance(path, str | Path) else list(path)
    settings = load({**from_words(["mode=report"]), "results": {"path": given}, "where": where})
    assert isinstance(settings, AskSettings)
    data = open_views(settings.results.path, where=settings.where)
    data.create_later()
    return data


def ask(data: Dataset, question: str) -> pd.DataFrame:
    """The answer to a question as a table: `best`, `regret`, `q_len` and the like. Raises UserError for a question there is not."""
    from orchestrator.analysis import questions

    if question not in questions.VIEWS:
        raise UserError(unknown("question", question, questions.VIEWS))
    return questions.ask(data, question).df()


def compare(
    baseline: str | Sequence[str], candidate: str | Sequence[str], path: str | Path = "", *, same: float = SAME
) -> Comparison:
    """What got faster and slower between two sets of rows.

    Each side is a condition on the dataset under `path`, such as "run:ID" or "flashinfer:0.7.2", or a dataset's folder; a list
    of conditions holds all of them. `same` is the largest change that counts as none, as a share of the time. Raises UserError
    if a side has no rows, or if they have no common point.
    """
    from orchestrator.analysis.compare.comparison import compare as compared

    first, second = ([side] if isinstance(side, str) else list(side) for side in (baseline, candidate))
    return compared(first, second, str(path), same=same)


def run(*overrides: str) -> int:
    """Runs a command, given its words: run("+sweep=smoke", "cluster=inline"). Returns its exit code (docs/commands.md).

    The rows are in the dataset that `results.path` names. Raises UserError for wrong input, before anything starts.
    """
    from orchestrator.commands import execute
    from orchestrator.composing.compose import from_words
    from orchestrator.composing.overrides import with_models
    from orchestrator.config.read_keys import mode_meant

    return execute(from_words(overrides), [*with_models(overrides), *mode_meant(overrides)])


def version() -> str:
    """This project's version with the commit it runs from, as rows name it."""
    from orchestrator.code_version import own_version

    return own_version()
