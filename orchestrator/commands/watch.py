"""mode=watch: measures new releases of the libraries that backends come from, each in turns with the one before it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from orchestrator import libraries
from orchestrator.analysis.compare import tables
from orchestrator.analysis.compare.comparison import Comparison, compare_rows
from orchestrator.analysis.compare.pairs import POINT_COLUMNS
from orchestrator.analysis.compare.selection import Selection
from orchestrator.analysis.noise import SAME
from orchestrator.bisection.evidence import Round, pairs_of
from orchestrator.bisection.predicate import Predicate
from orchestrator.bisection.releases import Range, find, parsed, since
from orchestrator.bisection.report import Context, lines_of, typed_below
from orchestrator.commands.bisect import ReleaseRuns, require_able, show
from orchestrator.commands.export import write_site
from orchestrator.commands.invocation import BAD_POINTS, INTERRUPTED, OK, Invocation
from orchestrator.config.settings import WatchSettings
from orchestrator.errors import CannotMeasure, NoRows, UserError
from orchestrator.planning.expand import chosen, expand
from orchestrator.point import Point
from orchestrator.tables import markdown
from orchestrator.untrusted.text import for_markdown

REPORT = "_watch.md"  # Parquet readers ignore names that begin with an underscore
WITH_TORCH = ("torch", "triton")  # every environment shares them; a watch of these must name them
OF_STATUS = {"mismatch": "wrong", "failed": "failing", "timeout": "too slow to end", "oom": "out of memory"}


@dataclass(frozen=True)
class Upgrade:
    """Two releases that were measured in turns. Without a comparison the new one could not be measured, and `why` says why."""

    library: str
    old: str
    new: str
    found: Comparison | None = None
    pairs: Round = ()
    why: str = ""

    @property
    def problems(self) -> dict[str, str]:
        """What became worse or other: a word with a sentence. Slower is what the gate calls so; another kernel always counts."""
        if self.found is None:
            return {"cannot be measured": self.why}
        words, points, of = dict[str, str](), self.found.points, f"of {len(self.pairs)} points"
        for status, word in OF_STATUS.items():
            reasons = Counter(pair.other.reason for pair in self.pairs if (pair.good.status, pair.other.status) == ("ok", status))
            if reasons:
                words[word] = f"{reasons.total()} {of} are {status}: {reasons.most_common(1)[0][0]}"
        if lost := int((points["red"] & points["verdict"].isin(["lost", "missing"])).sum()):
            words["unsupported"] = f"{lost} {of} ran before and do not now"
        if self.found.red_groups or (points["red"] & points["comparable"]).any():
            words["slower"] = tables.headline(self.found)
        ran = tuple(pair for pair in self.pairs if pair.good.status == pair.other.status == "ok")
        if ran and (found := Predicate("resolved_backend").judge([ran])).verdict == "bad":
            words["another kernel"] = found.words
        return words

    @property
    def headline(self) -> str:
        found = ", ".join(self.problems) or "nothing slower, wrong or another kernel"
        return f"{self.library} {self.new} beside {self.old}: {found}"

    def report(self, context: Context) -> str:
        """The whole report: what changed, where it was measured, the tables of mode=compare, and commands."""
        said = [f"- {word}: {for_markdown(words)}" for word, words in self.problems.items()]
        parts = [f"### {self.headline}", "\n".join(said)]
        if self.found is not None:
            gate = " ".join(f"{for_markdown(words)}." for words in tables.of_gate(self.found))
            parts.append(lines_of(context, self.pairs))
            parts.append(f"Both were measured in turns, on the same device and inputs. The gate: {gate}")
            parts.append(markdown(tables.of_points(self.found)))
        return "\n\n".join(filter(None, [*parts, typed_below({"the watch": context.command, **context.commands})])) + "\n"


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
    try:
        if any(Path(path).glob("*/rows.parquet")):
            write_site(invocation, settings.watch.site or f"{path}_site")
    except NoRows:  # no release could be measured
        pass
    except UserError as error:
        raise UserError(str(error).replace("export=", "watch.site=")) from None
    finally:
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
        name, version = parsed("watch.since", one)
        known, where = find(name, "watch", asked.wheels)
        found.append(since(one, known, libraries.installed(name) == version, where, pre=asked.pre, yanked=asked.yanked))
    return found


def _watched(invocation: Invocation[WatchSettings], of: Range, points: Sequence[Point]) -> Iterator[Upgrade]:
    """Measures the releases that have no report yet, each beside the last one before it that ran, and no point wrong or failing.

    Each has a dataset of its own with its report, so the rows of an earlier comparison stay. One without rows, such as one that
    cannot be installed, is tried again by the next watch.
    """
    name, (old, *newer) = of.distribution, of.versions
    for version, why in of.left_out:
        invocation.say(f"{name} {version} is left out: {why}")
    invocation.say(f"{name}: {len(newer)} releases after {old} (watch.since=[{name}:VERSION] begins earlier), {len(points)} points")
    for new in newer:
        place = Path(invocation.settings.results.path) / f"{name}_{new}"
        runs = ReleaseRuns(invocation, name, points, invocation.settings.watch, "watch.since", str(place))
        if not (place / REPORT).exists() or runs.rows().empty:
            yield (upgrade := _measured(runs, old, new))
            show(invocation, upgrade.report(runs.context([old, new])), str(place), REPORT)
        old = new if may_follow(runs.rows(), runs.name_of(old), runs.name_of(new)) else old


def may_follow(rows: pd.DataFrame, old: str, new: str) -> bool:
    """Whether the next release is measured beside the new one: it ran, and no point that was right is wrong or failing.

    Beside a wrong one, a release that is right and slower would only be `fixed`.
    """

    def points(env: str, *statuses: str) -> set[str]:
        found = rows.loc[(rows["env"] == env) & rows["status"].isin(statuses), list(POINT_COLUMNS)]
        return set(map(str, found.to_dict("records")))

    return bool(points(new, "ok")) and not points(old, "ok") & points(new, *OF_STATUS)


def _measured(runs: ReleaseRuns, old: str, new: str) -> Upgrade:
    try:
        rows = runs.rows_of(old, new)
    except CannotMeasure as error:
        return Upgrade(runs.distribution, old, new, why=str(error))
    sides = [Selection(f"{runs.distribution}:{name}", runs.path, side) for name, side in zip((old, new), rows, strict=True)]
    return Upgrade(runs.distribution, old, new, compare_rows(*sides), pairs_of(*rows, runs.floors(), SAME))
