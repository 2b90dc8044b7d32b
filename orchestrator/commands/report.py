"""mode=report, document, dashboard and support: the tables of a dataset in print, in a text and in a browser, and two pages."""

from __future__ import annotations

import sys
from contextlib import suppress

from orchestrator import notes
from orchestrator.commands.invocation import BAD_POINTS, OK, Invocation
from orchestrator.config.settings import NO_SWEEP_PATH, AskSettings, DashboardSettings, DocumentSettings, Settings
from orchestrator.errors import NoRows, UserError
from orchestrator.untrusted.text import for_terminal


def execute(invocation: Invocation[AskSettings]) -> int:
    """Prints the answer to `question`, or the summary. Raises UserError if no row answers the question."""
    from orchestrator.analysis.questions import VIEWS
    from orchestrator.reporting import records
    from orchestrator.reporting.opened import flags_near, located
    from orchestrator.reporting.report import dataset_grids, screen

    if invocation.settings.question == "columns":
        return _columns(invocation)
    try:
        settings = located(invocation.settings, invocation.overrides)
    except NoRows as error:
        of_near = error.near if invocation.settings.question == "one_backend" else {}
        raise NoRows("\n".join((str(error), *flags_near(of_near, invocation.settings, invocation.overrides)))) from None
    if settings.format in ("csv", "json") and settings.question in VIEWS:  # others are several tables, and are written as such
        records.write(settings, sys.stdout)
        return OK
    if settings.columns:
        invocation.show([records.short_table(settings)], title=f"question={settings.question}")
        return OK
    again = "" if settings.results.path == invocation.settings.results.path else invocation.command_with()
    if settings.format == "terminal" and not settings.full:
        screen(invocation.console, settings, settings.question, again)
    else:
        invocation.show(dataset_grids(settings, settings.question), title=f"python -m orchestrator +sweep={settings.sweep.name}")
    return OK


def _columns(invocation: Invocation[AskSettings]) -> int:
    """Prints what the columns of a row mean, all or those that were chosen; all of them as Markdown are the page of the docs."""
    from orchestrator.reporting import columns_page, screen

    settings = invocation.settings
    typed = any(override.startswith("results.path=") for override in invocation.overrides)
    path = settings.results.path if typed else None
    if settings.format == "markdown" and not settings.columns and not settings.where and path is None:
        print(columns_page.page(), end="")
        return OK
    grids = columns_page.grids(settings.columns, settings.where, path)
    if settings.format == "terminal" and not settings.full:
        screen.columns(invocation.console, grids, columns_page.ABOUT["first"], whole=bool(settings.columns or settings.where))
    else:
        invocation.show(grids, title="python -m orchestrator mode=report question=columns")
    return OK


def document(invocation: Invocation[DocumentSettings]) -> int:
    """Prints a person's Markdown with the answers of datasets, and on stderr what it says that is false; the code is then 1."""
    from orchestrator.reporting import document as pages

    settings = invocation.settings
    assert settings.document is not None  # its class checks that
    read = pages.read(settings.document)
    path = settings.results.path
    found = pages.render(read, settings, None if path == NO_SWEEP_PATH else path)
    print(pages.html(found.text, read.head.title) if settings.format == "html" else found.text, end="")
    for failure in found.failures:
        print(for_terminal(f"error: {failure}"), file=sys.stderr)
    return BAD_POINTS if found.failures else OK


def dashboard(invocation: Invocation[DashboardSettings]) -> int:
    """Serves a dataset's plots until Ctrl-C."""
    from orchestrator.reporting.dashboard import serve

    settings, path = invocation.settings, invocation.settings.results.path
    server = serve.PageServer(path, settings.where, settings.dashboard.port)
    port = server.server_port
    invocation.say(f"{server.url} shows {path}, on this machine only; reload for new rows, Ctrl-C to stop")
    invocation.say(f"from elsewhere: ssh -L {port}:{serve.LOOPBACK}:{port} HOST, or export=report.html")
    notes.release()
    with server, suppress(KeyboardInterrupt):
        server.serve_forever()
    return OK


def support(invocation: Invocation[Settings]) -> int:
    """Prints the page docs/support.md. Raises UserError for an entry of `adapters` that is no plugin."""
    from orchestrator.reporting import support_page

    plugins = invocation.settings.adapters
    try:
        print(support_page.page(plugins), end="")
    except (ImportError, ValueError, AttributeError) as error:
        raise UserError(f"adapters={list(plugins)}: {error}; allowed: modules with a tuple ADAPTERS") from None
    return OK
