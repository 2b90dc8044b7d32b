"""mode=dashboard: a dataset's plots in a browser."""

from __future__ import annotations

from contextlib import suppress

from orchestrator import notes
from orchestrator.commands.invocation import OK, Invocation
from orchestrator.config.settings import DashboardSettings


def execute(invocation: Invocation[DashboardSettings]) -> int:
    """Serves the page until Ctrl-C."""
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
