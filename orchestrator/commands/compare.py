"""mode=compare: what got faster and what got slower."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from orchestrator.commands.invocation import BAD_POINTS, OK, Invocation, command_line
from orchestrator.planning.replay import without_folder
from orchestrator.untrusted.text import for_markdown

if TYPE_CHECKING:
    from orchestrator.analysis.compare.comparison import Comparison
    from orchestrator.config.settings import Compared, CompareSettings

# What a command to measure suspects again takes from the comparison; the rest is of the candidate's rows.
OF_COMPARISON = ("baseline=", "candidate=", "where=", "noise=", "same=", "cards=", "missing=")
EVERY = "every line of every table: full=true"
MORE = "each workload, every point, and how the verdicts were reached: full=true"
BY_YOURS = "by your requests: traffic=FILE or weights=[...]"
NOT_OF_ROWS = ("mode=", "point=", "rerun=", "cluster.workers=", "modules=")


def execute(invocation: Invocation[CompareSettings]) -> int:
    """Prints the comparison of `baseline` and `candidate`; 1 on a regression. Published times are not judged."""
    from orchestrator.analysis.compare import best_of, published, tables
    from orchestrator.reporting import screen
    from orchestrator.reporting.opened import mix_of, sides_found

    settings = sides_found(invocation.settings, invocation.overrides)
    if published_tables := published.published_grids(settings):
        if settings.format == "terminal" and not settings.full:
            screen.comparison(invocation.console, "", published_tables, [EVERY], [], most=screen.LINES)
        else:
            invocation.show(published_tables, title="published times")
        return OK
    found = compared(settings)
    best = best_of.best_of(found.baseline, found.candidate, settings.best.max_rel_err)
    best = best_of.weighed(best, settings.weights, mix_of(settings))
    of_devices, commands = best.of_devices and len(best.problems), _again(invocation, found)
    headline = best_of.headline(best) if of_devices else tables.headline(found)
    if settings.format == "terminal" and not settings.full:
        counted = [*best_of.too_small(found.baseline, found.candidate), tables.headline(found)] if of_devices else []
        more = MORE if "weight" in best.problems else f"{MORE}; {BY_YOURS}"
        notes = [*best_of.not_counted(best), *tables.lacking(found, screen.LACKS), *tables.of_gate(found), *counted, more]
        largest, rest = ([], []) if of_devices else tables.of_screen(found)
        most = best_of.FEW if len(best.problems) <= best_of.FEW else screen.FEW
        screen.comparison(invocation.console, headline, [*largest, *best_of.grids(best), *rest], notes, commands, most=most)
        return BAD_POINTS if found.regressed else OK
    notes = [*best_of.not_counted(best), *tables.lacking(found, len(found.points)), *tables.notes(found), *commands]
    if settings.format == "markdown":
        print(f"**{for_markdown(headline)}**\n")
    elif settings.format == "terminal":  # and at the end, which is in sight
        invocation.say(f"{headline}\n")
    invocation.show([*best_of.grids(best, full=settings.full), *tables.grids(found)], title=headline)
    if settings.format == "markdown":
        print("\n" + "\n".join(f"- {for_markdown(note)}" for note in notes))
    elif settings.format == "terminal":
        invocation.say("\n".join([*notes, headline]))
    return BAD_POINTS if found.regressed else OK


def compared(settings: Compared) -> Comparison:
    from orchestrator.analysis.compare.comparison import compare

    keys = {name: getattr(settings, name) for name in ("noise", "same", "missing", "cards", "where")}
    return compare(settings.baseline, settings.candidate, settings.results.path, **keys)


def _again(invocation: Invocation[CompareSettings], found: Comparison) -> list[str]:
    """The commands that measure the suspects again, one for each sweep that they come from."""
    suspects = found.suspects
    asked = [override for override in invocation.overrides if override.startswith(OF_COMPARISON)]
    typed = dict.fromkeys(filter(None, (_sweep_of(command) for command in suspects["command_b"])))
    place = f"results.path={found.candidate.path}"  # a row's own command names no folder of the machine that measured
    commands = [command_line(overrides, *asked, place, "rerun=suspects") for overrides in typed]
    on = suspects["device_uuid_a"].dropna().unique()
    card = f"; the baseline ran on {on[0]}" if len(on) == 1 else ""
    return [f"to measure the suspects again, interleaved, on one GPU{card}: {command}" for command in commands]


def _sweep_of(command: object) -> tuple[str, ...]:
    """The overrides of a row's command that name its sweep and how it was measured; none if the row has no command."""
    overrides = shlex.split(command)[3:] if isinstance(command, str) else []  # after python -m PROGRAM
    return tuple(without_folder(override) for override in overrides if not override.startswith(NOT_OF_ROWS))
