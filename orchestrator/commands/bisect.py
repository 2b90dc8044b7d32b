"""mode=bisect: finds the two releases of a library between which something changed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.commands.invocation import BAD_POINTS, INTERRUPTED, OK, Invocation
from orchestrator.commands.release_runs import ReleaseRuns
from orchestrator.errors import UserError

if TYPE_CHECKING:
    from orchestrator.bisection.search import ReleaseStep
    from orchestrator.config.settings import BisectSettings
    from orchestrator.point import Point

REPORT = "_bisect.md"  # Parquet readers ignore names that begin with an underscore


def execute(invocation: Invocation[BisectSettings]) -> int:
    """Prints the report, and writes it beside the rows; 0 if something was found or nothing changed, 1 if it stays open.

    Raises UserError for releases that there are not, if no point is asked about, and if none of the library can run here.
    """
    from orchestrator.bisection import report
    from orchestrator.bisection.predicate import Predicate
    from orchestrator.bisection.search import Search, most_looks
    from orchestrator.planning.expand import chosen, expand

    settings = invocation.settings
    asked = settings.bisect
    require_environments()
    points = chosen(expand(settings), settings)
    require_able(settings, points)
    searched = releases(settings)
    name, versions = searched.distribution, searched.versions
    predicate = Predicate(settings.predicate, asked.slower, most_looks(len(versions), asked.rounds))
    runs = ReleaseRuns(invocation, name, points)
    invocation.say(f"{name}: {len(versions)} releases from {versions[0]} to {versions[-1]}, {runs.count} points")
    try:
        found = Search(runs.measure, predicate, asked.rounds, lambda step: invocation.say(_line(step))).find(versions)
    except KeyboardInterrupt:
        invocation.say(f"interrupted; rows that were measured are in {settings.results.path}. The same command starts again")
        return INTERRUPTED
    pair = [found.last_good or versions[0], found.first_bad or versions[-1]]
    of_pair = {"these two releases alone": runs.command_of(pair), "their times side by side": runs.comparison_of(pair)}
    context = report.Context(runs.place, invocation.command_with(), of_pair)
    _show(invocation, report.report(found, searched, predicate, context))
    return OK if found.outcome in ("found", "no change") else BAD_POINTS


def _show(invocation: Invocation[BisectSettings], text: str) -> None:
    """Prints the report, and writes it to a file beside the rows if these are on a disk."""
    print(text)
    path = invocation.settings.results.path
    if "://" not in path:
        file = Path(path) / REPORT
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        invocation.say(f"also in {file}")


def require_environments() -> None:
    """Raises UserError if sweeps have no axis `env`."""
    from orchestrator.config.sweep import SWEEP_KEYS

    if "env" not in SWEEP_KEYS:
        raise UserError(
            "mode=bisect: it measures each release in an environment of its own, and this version has no axis sweep.env for that; "
            "type mode=compare with two datasets instead, each measured with one of the releases installed"
        )


def releases(settings: BisectSettings) -> Any:
    """The releases to search, in order (`orchestrator.bisection.releases.Range`). Raises UserError as that does."""
    from orchestrator.bisection.releases import between, of_folder, of_index, parsed

    asked = settings.bisect
    name = parsed("good", settings.good)[0]
    parsed("bad", settings.bad)
    known = of_folder(name, asked.wheels) if asked.wheels else of_index(name)
    where = asked.wheels or "the package index"
    return between(settings.good, settings.bad, known, pre=asked.pre, yanked=asked.yanked, where=where)


def require_able(settings: BisectSettings, points: Sequence[Point]) -> None:
    """Raises UserError if no point of the library can run on this machine: before environments are made and releases asked for.

    A Ray cluster is not asked. A library that no backend is made of, such as one that others need, is in every point.
    """
    from orchestrator import libraries, machines
    from orchestrator.bisection.releases import parsed
    from orchestrator.planning.decide import make_plan

    if settings.cluster.kind == "ray":
        return
    name = parsed("good", settings.good)[0]
    in_some = name in libraries.named_by(settings.adapters)
    ours = [point for point in points if name in point.distributions or not in_some]
    if not ours:
        raise UserError(f"good={settings.good}: no backend of sweep {settings.sweep.name} is of {name}; type sweep.backend=[...]")
    plan = make_plan(ours, machines.describe().devices, settings)
    if not plan.decisions_of("run"):
        why = (plan.reasons("unsupported") or plan.reasons("skipped")).most_common(1)[0][0]
        raise UserError(
            f"good={settings.good}: no point of {name} can run on this machine, of the {len(ours)} asked about ({why}); "
            f"type this where there is a GPU, or other points with where={{...}} or sweep.backend=[...]"
        )


def _line(step: ReleaseStep) -> str:
    words = step.judgement.words if step.judgement else step.words
    return f"{step.release}: {step.verdict}, {words}"
