"""mode=document: prints a person's Markdown with the answers of datasets in it."""

from __future__ import annotations

import sys

from orchestrator.commands.invocation import BAD_POINTS, OK, Invocation
from orchestrator.config.settings import NO_SWEEP_PATH, DocumentSettings
from orchestrator.untrusted.text import for_terminal


def execute(invocation: Invocation[DocumentSettings]) -> int:
    """Prints the document, and on stderr what it says that is false; the exit code is then 1."""
    from orchestrator.reporting import document

    settings = invocation.settings
    assert settings.document is not None  # its class checks that
    read = document.read(settings.document)
    path = settings.results.path
    found = document.render(read, settings, None if path == NO_SWEEP_PATH else path)
    print(document.html(found.text, read.head.title) if settings.format == "html" else found.text, end="")
    for failure in found.failures:
        print(for_terminal(f"error: {failure}"), file=sys.stderr)
    return BAD_POINTS if found.failures else OK
