"""mode=import: adds the rows of another benchmark's result file to a dataset."""

from __future__ import annotations

from orchestrator.commands.invocation import OK, Invocation, command_line
from orchestrator.config.settings import PARQUET, ImportSettings
from orchestrator.errors import CannotStore, DatasetGone, UserError
from orchestrator.storage.columns import Row


def execute(invocation: Invocation[ImportSettings]) -> int:
    """Imports all rows or none. Raises UserError if the file cannot be mapped or the dataset cannot be written."""
    from orchestrator.storage import access

    settings, path = invocation.settings, invocation.settings.results.path
    rows = _rows(settings)
    store = access.open_writer(path)
    try:
        store.add(rows)
        store.close()
    except DatasetGone as error:
        raise UserError(str(error)) from None
    except CannotStore as error:
        raise UserError(f"{error}; no row of {settings.source} was imported; make room, then type it again") from None
    invocation.say(f"{len(rows)} rows of {settings.source} are in {path}")
    invocation.say(f"next:\n  {command_line([], 'mode=report', f'results.path={path}')}")
    return OK


def _rows(settings: ImportSettings) -> list[Row]:
    """The rows of a result file, by its suffix. Raises UserError for one that cannot be mapped."""
    assert settings.source is not None  # Settings checks it
    if settings.source.endswith(PARQUET):
        from orchestrator.formats.aiconfigurator import reader

        return reader.read(settings.source, settings.device, settings.model, settings.sweep.name)
    from orchestrator.formats import results_csv

    assert settings.device is not None  # Settings checks it
    return results_csv.read(settings.source, settings.device, settings.sweep.name)
