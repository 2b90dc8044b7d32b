"""mode=compare: what got faster and what got slower."""

from __future__ import annotations

from orchestrator.commands.invocation import BAD_POINTS, OK, Invocation


def execute(invocation: Invocation) -> int:
    """Prints the comparison of `baseline` and `candidate`; 1 on a regression. Published times are shown beside, and not judged."""
    from orchestrator.analysis.compare import published, tables
    from orchestrator.analysis.compare.comparison import compare

    settings = invocation.settings
    if beside := published.beside(settings):
        invocation.show(beside, title="published times beside measured ones")
        return OK
    found = compare(settings.baseline, settings.candidate, settings.results.path, noise=settings.noise, same=settings.same)
    headline, notes = tables.headline(found), tables.notes(found)
    if settings.format == "markdown":
        print(f"**{headline}**\n")
    invocation.show(tables.grids(found), title=headline)
    if settings.format == "markdown":
        print("\n" + "\n".join(f"- {note}" for note in notes))
    elif settings.format == "terminal":
        invocation.say("\n".join([*notes, headline]))
    return BAD_POINTS if found.regressed else OK
