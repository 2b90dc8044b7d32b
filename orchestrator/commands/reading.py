"""Modes that read a dataset, or bring rows into one, and run nothing."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from orchestrator.commands.call import BAD_POINTS, OK, Call, typed
from orchestrator.errors import UserError
from orchestrator.settings import BESIDE, CSV_TO_STDOUT

if TYPE_CHECKING:
    from orchestrator.grid import Grid
    from orchestrator.settings import Settings
    from orchestrator.sweep import Point


def report(call: Call) -> int:
    """The tables of a dataset."""
    from orchestrator.report import NEEDS

    settings = call.settings
    grids = grids_of(settings, settings.question)
    if not any(grid.cells for grid in grids):
        raise UserError(
            f"question={settings.question}: no rows of results.path={settings.results.path!r} answer it; "
            f"it needs {NEEDS[str(settings.question)]}; leave question out for what they do answer"
        )
    call.show(grids, title=f"python -m orchestrator +sweep={settings.sweep.name}")
    return OK


def grids_of(settings: Settings, question: str | None = None) -> list[Grid]:
    """The tables of a dataset: what was asked of its sweep, or how far it can be trusted.

    Raises UserError for a question to twins or wrong kernels, of which none is the fastest backend of anything.
    """
    from orchestrator import dataset, questions, report, trust

    path = settings.results.path
    data = questions.opened(path, settings.draft, where=settings.where)
    if trust.is_about_trust(data):
        if question is not None:
            whose = next((path.removesuffix(f"_{mode}") for mode in BESIDE if path.endswith(f"_{mode}")), "DIR")
            raise UserError(
                f"question={question}: results.path={path!r} holds rows of mode=noise or mode=check_power, which say how far times "
                f"and checks can be trusted; leave question out, or type results.path={whose} with the sweep's own rows"
            )
        current = data.current()
        others = questions.define(dataset.of(current[~trust.is_caught(current)]), settings.draft)
        return [*trust.grids(current), report.status_grid(others)]
    every_row = question == "odd" and not settings.where  # a point whose row is not shown did run
    return report.grids(data, settings.draft, question, _points(settings) if every_row else None)


def _points(settings: Settings) -> list[Point] | None:
    """Points of the sweep that was named beside the dataset, if one was."""
    from orchestrator.sweep import expand

    return expand(settings) if settings.sweep.axes else None


def compare(call: Call) -> int:
    """What got faster and slower; a regression ends with 1."""
    from orchestrator.compare import tables
    from orchestrator.compare.comparison import compare

    settings = call.settings
    found = compare(settings.baseline, settings.candidate, settings.results.path, noise=settings.noise, same=settings.same)
    headline, notes = tables.headline(found), tables.notes(found)
    if settings.format == "markdown":
        print(f"**{headline}**\n")
    call.show(tables.grids(found), title=headline)
    if settings.format == "markdown":
        print("\n" + "\n".join(f"- {note}" for note in notes))
    elif settings.format == "terminal":
        call.say("\n".join([*notes, headline]))
    return BAD_POINTS if found.regressed else OK


def dashboard(call: Call) -> int:
    """The dataset's plots in a browser: served until Ctrl-C, or as one file."""
    from orchestrator.dashboard import page, serve

    settings, path = call.settings, call.settings.results.path
    if settings.export is not None:
        size = page.export(path, settings.where, settings.export)
        call.say(f"{settings.export}: {size / 1e6:.1f} MB, one file that needs no network; open it in any browser")
        return OK
    server = serve.Server(path, settings.where, settings.dashboard.port)
    call.say(f"{server.url} shows {path}, on this machine alone; reload for new rows, Ctrl-C to stop")
    call.say(f"from elsewhere: ssh -L {server.server_port}:{serve.LOOPBACK}:{server.server_port} HOST, or export=report.html")
    with server, suppress(KeyboardInterrupt):
        server.serve_forever()
    return OK


def import_results(call: Call) -> int:
    """Rows of another benchmark's result file, into the dataset."""
    from orchestrator import places
    from orchestrator.formats import results_csv
    from orchestrator.store import CannotStore

    settings, path = call.settings, call.settings.results.path
    assert settings.source is not None and settings.device is not None  # the door asks for both
    rows = results_csv.read(settings.source, settings.device, settings.sweep.name)
    store = places.opened(path)
    try:
        store.add(rows)
        store.close()
    except CannotStore as error:
        raise UserError(f"{error}; nothing of {settings.source} is taken in; make room, then type it again") from None
    call.say(f"{len(rows)} rows of {settings.source} are in {path}")
    call.say(f"next:\n  {typed([], 'mode=report', f'results.path={path}')}")
    return OK


def export(call: Call) -> int:
    """The dataset in another benchmark's columns."""
    from orchestrator.formats import results_csv_out

    assert call.settings.export is not None  # the door asks for it
    text, left_out = results_csv_out.written(call.rows())
    if call.settings.export == CSV_TO_STDOUT:
        print(text, end="")
    else:
        results_csv_out.save(text, call.settings.export)
    for reason, count in left_out.items():
        print(f"left out: {count} rows: {reason}", file=sys.stderr)
    return OK
