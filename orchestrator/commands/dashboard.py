"""mode=dashboard: a dataset's plots in a browser."""

from __future__ import annotations

from contextlib import suppress

from orchestrator import notes
from orchestrator.commands.invocation import OK, Invocation


def execute(invocation: Invocation) -> int:
    """Serves the page until Ctrl-C, or writes it to `export` as one file."""
    from orchestrator.reporting.dashboard import page, serve

    settings, path = invocation.settings, invocation.settings.results.path
    if settings.export is not None:
        size = page.export(path, settings.where, settings.export)
        invocation.say(f"{settings.export}: {size / 1e6:.1f} MB, one file that needs no network; open it in any browser")
        return OK
    server = serve.PageServer(path, settings.where, settings.dashboard.port)
    port = server.server_port
    invocation.say(f"{server.url} shows {path}, on this machine only; reload for new rows, Ctrl-C to stop")
    invocation.say(f"from elsewhere: ssh -L {port}:{serve.LOOPBACK}:{port} HOST, or export=report.html")
    notes.release()
    with server, suppress(KeyboardInterrupt):
        server.serve_forever()
    return OK
