"""mode=export, site and import: a dataset in another form, such as a page or a folder of pages, and another program's rows."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.analysis.rough import counted
from orchestrator.commands.invocation import OK, Invocation, command_line
from orchestrator.config import exports
from orchestrator.config.settings import PARQUET, TRACES, Chosen, ExportSettings, ImportSettings, SiteSettings
from orchestrator.errors import CannotStore, DatasetGone, UserError
from orchestrator.storage.columns import Row
from orchestrator.untrusted.door import reading
from orchestrator.untrusted.text import for_line, for_terminal

LeftOut = Counter[str]  # the number of rows that a format cannot hold, by reason


def execute(invocation: Invocation[ExportSettings]) -> int:
    """Prints or writes a format, and says on stderr which rows it could not hold."""
    from orchestrator.reporting.opened import located

    invocation = replace(invocation, settings=located(invocation.settings, invocation.overrides))
    name, path = invocation.settings.export
    if path is not None and (write := WRITERS.get(name)):
        left_out, notes = write(invocation, path)
    else:
        text, left_out, notes = _text(invocation.settings, name)
        if path is None:
            print(text, end="")
        else:
            from orchestrator.storage.exported import save_file

            save_file(path, text.encode())
    for line in (*(f"left out: {count} rows: {reason}" for reason, count in left_out.items()), *notes):
        print(for_terminal(line), file=sys.stderr)
    return OK


def _text(settings: ExportSettings, name: str) -> tuple[str, LeftOut, list[str]]:
    if name == exports.CSV:
        from orchestrator.formats import results_csv

        rows = _rows(settings)
        return *results_csv.to_csv(rows), counted(row for row in rows if not results_csv.inexpressible(row))
    from orchestrator.analysis.questions import open_views, traffic_weights
    from orchestrator.formats.engine_config import config_text
    from orchestrator.reporting.opened import mix_of

    (engine,), path, mix, drafts = settings.engines, settings.results.path, mix_of(settings), settings.drafts
    data = open_views(path, settings.draft, where=settings.where, engines=[engine], drafts=drafts, traffic=mix)
    text = config_text(data, engine, data.draft if settings.draft.rest else settings.draft, path)
    if mix:
        far = (f"{grid.title}: {', '.join(cells)}" for grid in traffic_weights.grids(data, mix)[1:] for cells in grid.cells)
        told = (f"weighed by traffic={settings.traffic}", *mix.notes, *far)
        text = "\n".join([*(f"# {for_line(line)}" for line in told), "", text])
    return text, Counter(), []


def _rows(settings: ExportSettings) -> list[dict[str, Any]]:
    """The newest row of each point that is written. Its command names the dataset here, and no folder of who measured it."""
    from orchestrator.analysis.dataset import again, open_dataset

    data = open_dataset(settings.results.path, where=settings.where)
    numbered = zip(data.execute("SELECT row FROM current ORDER BY row"), data.current().to_dict("records"), strict=True)
    return [{**one, "command": one["command"] and again(data, {**one, "row": row})} for (row,), one in numbered]


def _page(invocation: Invocation[ExportSettings], file: str) -> tuple[LeftOut, list[str]]:
    from orchestrator.reporting.dashboard import page

    size = page.export(invocation.settings.results.path, invocation.settings.where, file)
    invocation.say(f"{file}: {size / 1e6:.1f} MB, one file that needs no network; open it in any browser")
    return Counter(), []


def _site(invocation: Invocation[ExportSettings], folder: str) -> tuple[LeftOut, list[str]]:
    write_site(invocation, folder)
    return Counter(), []


def write_site(invocation: Invocation[Chosen], folder: str) -> None:
    """Writes the site of the datasets at `results.path`, as mode=site does, and says what it has."""
    from orchestrator.reporting.site.build import build
    from orchestrator.scheduling.progress import Progress
    from orchestrator.storage import checksum

    with checksum.noted_together(), Progress(invocation.console, "site") as progress:
        settings = invocation.settings
        document = settings.document if isinstance(settings, SiteSettings) else None
        built = build(settings.results.path, settings.where, folder, progress.stage, document)
    left_out = f"; {built.without_rows} datasets have no such rows" if built.without_rows else ""
    invocation.say(
        f"{folder}: {built.datasets} datasets, {built.comparisons} comparisons, {built.histories} pages of history, "
        f"{built.bytes / 1e6:.1f} MB{left_out}"
    )
    invocation.say(f"open {folder}/index.html in a browser, or put the folder on any web server; the same command updates it")


def _aiconfigurator(invocation: Invocation[ExportSettings], folder: str) -> tuple[LeftOut, list[str]]:
    from orchestrator.formats.aiconfigurator import writer

    of_tables, left_out, notes = writer.to_tables(_rows(invocation.settings))
    for file in writer.save(of_tables, folder, notes):
        count = of_tables.get(file.removesuffix(".parquet"))
        invocation.say(f"{folder}/{file}" + (f": {len(count)} rows" if count else ""))
    return left_out, notes


def _traces(invocation: Invocation[ExportSettings], folder: str) -> tuple[LeftOut, list[str]]:
    from orchestrator.formats.flashinfer_trace import writer

    rows = _rows(invocation.settings)
    of_definitions, left_out = writer.to_traces(rows)
    for file, lines in writer.save(of_definitions, folder).items():
        invocation.say(f"{folder}/{file}: {lines} traces")
    return left_out, counted(row for row in rows if not writer.inexpressible(row))


WRITERS = {"aiconfigurator": _aiconfigurator, "flashinfer_trace": _traces, exports.PAGE: _page, exports.SITE: _site}


def import_rows(invocation: Invocation[ImportSettings]) -> int:
    """Imports the rows of a file. Raises UserError if it has none, or the dataset cannot be written; then none is imported."""
    from orchestrator.analysis.finder import RESULTS, beside
    from orchestrator.storage import access

    settings, path = invocation.settings, invocation.settings.results.path
    rows = _rows_of(settings)
    store = access.open_writer(path)
    try:
        store.add(rows)
        store.close()
    except DatasetGone as error:
        raise UserError(str(error)) from None
    except CannotStore as error:
        raise UserError(f"{error}; no row of {settings.source} was imported; make room, then type it again") from None
    invocation.say(f"{len(rows)} rows of {settings.source} are in {path}")
    measured = beside(rows)
    words = ("mode=compare", f"baseline={path}", f"candidate={measured}") if measured else ("mode=report", f"results.path={path}")
    invocation.say(f"next:\n  {command_line([], *words)}")
    if measured is None:
        whole = [f"results.path={Path(path).resolve()}"] if "://" not in path else []
        again = invocation.command_with("mode=import", f"import={Path(str(settings.source)).resolve()}", *whole)
        invocation.say(
            f"{RESULTS}/ here has no times of its workloads; in a checkout, this names a dataset to compare with:\n  {again}"
        )
    return OK


def _rows_of(settings: ImportSettings) -> list[Row]:
    """The rows of a result file, by its suffix. Raises UserError for one that cannot be mapped."""
    assert settings.source is not None  # Settings checks it
    with reading(f"import={settings.source}", "give a whole result file of another benchmark"):
        if settings.source.endswith(PARQUET):
            from orchestrator.formats.aiconfigurator import reader

            return reader.read(settings.source, settings.device, settings.model, settings.sweep.name)
        if settings.source.endswith(TRACES):
            from orchestrator.formats.flashinfer_trace import reader as flashinfer_trace

            return flashinfer_trace.rows_of(settings.source, settings.device, settings.sweep.name)
        from orchestrator.formats import results_csv

        assert settings.device is not None  # Settings checks it
        return results_csv.read(settings.source, settings.device, settings.sweep.name)
