"""mode=report: the tables of a dataset, or what the columns of every dataset mean."""

from __future__ import annotations

import sys

from orchestrator.commands.invocation import OK, Invocation
from orchestrator.config.settings import AskSettings
from orchestrator.errors import UserError


def execute(invocation: Invocation[AskSettings]) -> int:
    """Prints the answer to `question`, or the summary. Raises UserError if no row answers the question."""
    from orchestrator.reporting import records
    from orchestrator.reporting.opened import located
    from orchestrator.reporting.report import NEEDS, dataset_grids

    if invocation.settings.question == "columns":
        return _columns(invocation)
    settings = located(invocation.settings, invocation.overrides)
    if settings.format in ("csv", "json") and records.has_rows_of_its_own(settings.question):
        records.write(settings, sys.stdout)
        return OK
    if settings.columns:
        invocation.show([records.short_table(settings)], title=f"question={settings.question}")
        return OK
    grids = dataset_grids(settings, settings.question)
    if not any(grid.cells for grid in grids):
        raise UserError(
            f"question={settings.question}: no rows of results.path={settings.results.path!r} answer it; "
            f"it needs {NEEDS[str(settings.question)]}; leave question out to see the questions that they answer"
        )
    invocation.show(grids, title=f"python -m orchestrator +sweep={settings.sweep.name}")
    return OK


def _columns(invocation: Invocation[AskSettings]) -> int:
    """Prints what the columns of a row mean, all or those that were chosen; all of them as Markdown are the page of the docs."""
    from orchestrator.reporting import columns_page

    settings = invocation.settings
    typed = any(override.startswith("results.path=") for override in invocation.overrides)
    path = settings.results.path if typed else None
    if settings.format == "markdown" and not settings.columns and not settings.where and path is None:
        print(columns_page.page(), end="")
    else:
        invocation.show(
            columns_page.grids(settings.columns, settings.where, path), title="python -m orchestrator mode=report question=columns"
        )
    return OK
