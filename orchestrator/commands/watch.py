"""mode=watch: measures new releases of the libraries that backends come from, each in turns with the one before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from orchestrator import libraries
from orchestrator.analysis.compare.comparison import compare_rows
from orchestrator.analysis.compare.selection import Selection
from orchestrator.analysis.noise import SAME
from orchestrator.bisection.evidence import pairs_of
from orchestrator.bisection.releases import Range, find, parsed, since
from orchestrator.bisection.upgrade import Upgrade
from orchestrator.commands.bisect import ReleaseRuns, require_able, show
from orchestrator.commands.export import write_site
from orchestrator.commands.invocation import BAD_POINTS, INTERRUPTED, OK, Invocation
from orchestrator.config.settings import WatchSettings
from orchestrator.errors import CannotMeasure, UserError
from orchestrator.planning.expand import chosen, expand
from orchestrator.point import Point

REPORT = "_watch.md"  # Parquet readers ignore names that begin with an underscore
WITH_TORCH = ("torch", "triton")  # every environment shares them; a watch of these must name them


def execute(invocation: Invocation[WatchSettings]) -> int:
    """Prints a report of each new release, keeps it beside its rows, and writes the site.

    1 if something became slower, wrong or another kernel, or could not be measured. Raises UserError for a library that is not
    there or that no point is of, and as an index or a folder of wheels does.
    """
    settings, path = invocation.settings, invocation.settings.results.path
    points = chosen(expand(settings), settings)
    try:
        upgrades = [one for of in _ranges(settings, points) for one in _watched(invocation, of, points)]
    except KeyboardInterrupt:
        invocation.say("interrupted; releases that have a report are kept. The same command goes on with the others")
        return INTERRUPTED
    if any(Path(path).glob("*/rows.parquet")):
        write_site(invocation, settings.watch.site or f"{path}_site")
    for one in upgrades:
        invocation.say(one.headline)
    return BAD_POINTS if any(one.problems for one in upgrades) else OK


def _ranges(settings: WatchSettings, points: Sequence[Point]) -> list[Range]:
    """The releases to watch, of each library from the one that it begins with."""
    asked, names = settings.watch, sorted({name for point in points for name in point.distributions} - {*WITH_TORCH})
    here = [f"{name}:{version}" for name in names if (version := libraries.installed(name))]
    if not (asked.since or here):
        raise UserError(
            f"watch.since: no library of sweep {settings.sweep.name} is installed here ({', '.join(names) or 'it has none'}); "
            f"type the release to begin with: watch.since=[{names[0] if names else 'LIBRARY'}:VERSION]"
        )
    found = []
    for one in asked.since or here:
        require_able(settings, points, f"watch.since={one}")
        known, where = find(parsed("watch.since", one)[0], "watch", asked.wheels)
        found.append(since(one, known, pre=asked.pre, yanked=asked.yanked, where=where))
    return found


def _watched(invocation: Invocation[WatchSettings], of: Range, points: Sequence[Point]) -> Iterator[Upgrade]:
    """Measures the releases that have no report yet, each beside the last one before it that ran.

    Each has a dataset of its own with its report, so the rows of an earlier comparison stay. One without rows, such as one that
    cannot be installed, is tried again by the next watch.
    """
    name, (old, *newer) = of.distribution, of.versions
    for version, why in of.left_out:
        invocation.say(f"{name} {version} is left out: {why}")
    invocation.say(f"{name}: {len(newer)} releases after {old}, {len(points)} points")
    for new in newer:
        place = Path(invocation.settings.results.path) / f"{name}_{new}"
        runs = ReleaseRuns(invocation, name, points, invocation.settings.watch, "watch.since", str(place))
        if not (place / REPORT).exists() or runs.rows().empty:
            yield (upgrade := _measured(runs, old, new))
            show(invocation, upgrade.report(runs.context([old, new])), str(place), REPORT)
        rows = runs.rows()
        old = new if ((rows["env"] == runs.name_of(new)) & (rows["status"] == "ok")).any() else old


def _measured(runs: ReleaseRuns, old: str, new: str) -> Upgrade:
    try:
        rows = runs.rows_of(old, new)
    except CannotMeasure as error:
        return Upgrade(runs.distribution, old, new, why=str(error))
    sides = [Selection(f"{runs.distribution}:{name}", runs.path, side) for name, side in zip((old, new), rows, strict=True)]
    return Upgrade(runs.distribution, old, new, compare_rows(*sides), pairs_of(*rows, runs.floors(), SAME))
