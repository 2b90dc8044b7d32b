"""mode=export: a dataset in another benchmark's columns."""

from __future__ import annotations

import sys

from orchestrator.commands.invocation import OK, Invocation
from orchestrator.config.settings import CSV_TO_STDOUT


def execute(invocation: Invocation) -> int:
    """Prints or writes a CSV file, and says on stderr which rows it could not hold."""
    from orchestrator.analysis.dataset import open_dataset
    from orchestrator.formats import results_csv_writer

    settings = invocation.settings
    assert settings.export is not None  # Settings checks it
    table = open_dataset(settings.results.path, where=settings.where).every_row()
    text, left_out = results_csv_writer.to_csv(table)
    if settings.export == CSV_TO_STDOUT:
        print(text, end="")
    else:
        results_csv_writer.save(text, settings.export)
    for reason, count in left_out.items():
        print(f"left out: {count} rows: {reason}", file=sys.stderr)
    return OK
