"""mode=site: a folder of static pages from many datasets."""

from __future__ import annotations

from orchestrator.commands.invocation import OK, Invocation


def execute(invocation: Invocation) -> int:
    """Writes the folder that `export` names, and says what is in it."""
    from orchestrator.reporting.site.build import build
    from orchestrator.storage import checksum

    settings = invocation.settings
    assert settings.export is not None  # Settings checks it
    with checksum.noted_together():
        built = build(settings.results.path, settings.where, settings.export)
    left_out = f"; {built.without_rows} datasets have no such rows" if built.without_rows else ""
    invocation.say(
        f"{settings.export}: {built.datasets} datasets, {built.comparisons} comparisons, {built.histories} pages of history, "
        f"{built.bytes / 1e6:.1f} MB{left_out}"
    )
    invocation.say(
        f"open {settings.export}/index.html in a browser, or put the folder on any web server; the same command updates it"
    )
    return OK
