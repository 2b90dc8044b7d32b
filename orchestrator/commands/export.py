"""mode=export: a dataset in another program's format."""

from __future__ import annotations

import sys
from collections import Counter

from orchestrator.commands.invocation import OK, Invocation
from orchestrator.config import exports
from orchestrator.config.settings import Settings
from orchestrator.untrusted.text import for_terminal


def execute(invocation: Invocation) -> int:
    """Prints or writes a format, and says on stderr which rows it could not hold."""
    settings = invocation.settings
    assert settings.export is not None  # Settings checks it
    asked = exports.parse(settings.export)
    if asked.path is not None and asked.format in exports.FOLDERS:
        left_out, notes = _folder(invocation, asked.format, asked.path)
    else:
        text, left_out, notes = _text(settings, asked.format)
        if asked.path is None:
            print(text, end="")
        else:
            from orchestrator.formats import results_csv_writer

            results_csv_writer.save(text, asked.path)
    for reason, count in left_out.items():
        print(for_terminal(f"left out: {count} rows: {reason}"), file=sys.stderr)
    for note in notes:
        print(for_terminal(note), file=sys.stderr)
    return OK


def _text(settings: Settings, name: str) -> tuple[str, Counter[str], list[str]]:
    """A format as text, the number of rows that it cannot hold, by reason, and notes on its times."""
    path = settings.results.path
    if name == exports.CSV:
        from orchestrator.analysis.dataset import open_dataset
        from orchestrator.formats import results_csv_writer

        data = open_dataset(path, where=settings.where)
        return *results_csv_writer.to_csv(data.every_row()), results_csv_writer.notes_on(data.current().to_dict("records"))
    from orchestrator.analysis.questions import open_views
    from orchestrator.formats.engine_config import config_text

    data = open_views(path, settings.draft, where=settings.where)
    return config_text(data, "vllm" if name == "vllm" else "sglang", settings.draft, path), Counter(), []


def _folder(invocation: Invocation, name: str, folder: str) -> tuple[Counter[str], list[str]]:
    """Writes the files of a format to a folder and names them. Returns the rows that it cannot hold, by reason, and notes."""
    from orchestrator.analysis.dataset import open_dataset

    settings = invocation.settings
    rows = open_dataset(settings.results.path, where=settings.where).current().to_dict("records")
    if name == "aiconfigurator":
        from orchestrator.formats.aiconfigurator import writer as tables

        of_tables, left_out = tables.to_tables(rows)
        notes = tables.notes_on(rows)
        for file in tables.save(of_tables, folder, notes):
            count = of_tables.get(file.removesuffix(".parquet"))
            invocation.say(f"{folder}/{file}" + (f": {len(count)} rows" if count else ""))
        return left_out, notes
    from orchestrator.formats.flashinfer_trace import writer as traces

    of_definitions, left_out = traces.to_traces(rows)
    for file, lines in traces.save(of_definitions, folder).items():
        invocation.say(f"{folder}/{file}: {lines} traces")
    return left_out, traces.notes_on(rows)
