"""mode=bisect: finds the two releases of a library between which something changed."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator import PROGRAM
from orchestrator.commands.invocation import BAD_POINTS, INTERRUPTED, OK, Invocation, command_line
from orchestrator.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

    from orchestrator.bisection.evidence import Round
    from orchestrator.config.settings import BisectSettings
    from orchestrator.point import Point

REPORT = "_bisect.md"  # Parquet readers ignore names that begin with an underscore
# Keys of a search, and of the run itself: a step sets the others as they were typed.
NOT_OF_A_STEP = ("mode=", "good=", "bad=", "predicate=", "bisect.", "format=", "noise=", "rerun=", "results.path=", "sweep.env=")
PLACE = {  # columns of rows, as the report calls them
    "device_name": "device",
    "driver": "driver",
    "cuda": "CUDA of torch",
    "torch_version": "torch",
    "timer": "timer",
    "l2": "L2 cache before each sample",
    "orchestrator_version": "attention-orchestrator",
}
PLAIN = re.compile(r"[A-Za-z][\w.:-]*")  # what Hydra reads as a word without quotes
NO_WORDS = ("null", "true", "false", "inf", "nan")


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
    points = chosen(expand(settings), settings)
    require_able(settings, points)
    searched = releases(settings)
    name, versions = searched.distribution, searched.versions
    predicate = Predicate(settings.predicate, asked.slower, most_looks(len(versions), asked.rounds))
    runs = ReleaseRuns(invocation, name, points)
    invocation.say(f"{name}: {len(versions)} releases from {versions[0]} to {versions[-1]}, {runs.count} points")
    try:
        found = Search(
            runs.measure, predicate, asked.rounds, lambda step: invocation.say(f"{step.release}: {step.verdict}, {step.said}")
        ).find(versions)
    except KeyboardInterrupt:
        invocation.say(f"interrupted; rows that were measured are in {settings.results.path}. The same command starts again")
        return INTERRUPTED
    pair = [found.last_good or versions[0], found.first_bad or versions[-1]]
    of_pair = {"these two releases alone": runs.command_of(pair), "their times side by side": runs.comparison_of(pair)}
    context = report.Context(runs.place, invocation.command_with(), of_pair)
    _show(invocation, report.report(found, searched, predicate, context))
    return OK if found.outcome in ("found", "no change") else BAD_POINTS


def _show(invocation: Invocation[BisectSettings], text: str) -> None:
    print(text)
    path = invocation.settings.results.path
    if "://" not in path:
        file = Path(path) / REPORT
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        invocation.say(f"also in {file}")


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


@dataclass
class ReleaseRuns:
    """Measures two releases by a run of the sweep with `sweep.env` of both, as a process of its own, and reads its rows.

    A run of its own keeps what breaks in a release away from the search. Its group of processes is that of this one, so that
    Ctrl-C reaches both.
    """

    invocation: Invocation[BisectSettings]
    distribution: str
    points: Sequence[Point]

    def __post_init__(self) -> None:
        self.count = len(self.points)
        self.place: dict[str, str] = {}
        asked = self.invocation.settings.bisect
        # An environment that has more than its release is one that is typed: `flashinfer-python:0.6.3` is a name without keys.
        self.keys = {"wheels": str(Path(asked.wheels).resolve())} if asked.wheels else {}
        self.keys |= {"shares": asked.shares} if asked.shares != "torch" else {}

    def measure(self, good: str, other: str) -> Round:
        """One interleaved run of both releases.

        Raises CannotMeasure with the last words of a run that ended without rows of the other release, and UserError for one
        without rows of the good one.
        """
        from orchestrator.analysis.compare.comparison import find_noise_floors
        from orchestrator.analysis.noise import SAME
        from orchestrator.bisection.evidence import pairs_of
        from orchestrator.config.modes import owner
        from orchestrator.errors import CannotMeasure

        path, before = self.invocation.settings.results.path, self._run_ids()
        started = time.monotonic()
        command = [sys.executable, "-m", PROGRAM, *self._overrides([good, other]), "rerun=all", f"results.path={path}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == INTERRUPTED:
            raise KeyboardInterrupt
        self.invocation.say(f"  {good} and {other}: {time.monotonic() - started:.0f} s")
        rows = self._rows(path, before)
        by_env = {release: rows[rows["env"] == self.name_of(release)] for release in (good, other)} if len(rows) else {}
        if not by_env or by_env[other].empty:
            raise CannotMeasure(last_words(done.stderr or done.stdout))
        if by_env[good].empty:
            raise UserError(f"good={self.distribution}:{good}: its points have no rows; {last_words(done.stderr)}")
        known = {name: rows[name].dropna().unique() for name in PLACE if name in rows}
        self.place = {PLACE[name]: ", ".join(map(str, values)) for name, values in known.items() if len(values)}
        floors = find_noise_floors([owner(path) or path], None)
        return pairs_of(by_env[good], by_env[other], floors, SAME)

    def _rows(self, path: str, before: set[str]) -> pd.DataFrame:
        """The rows of the runs since."""
        from orchestrator.storage import access
        from orchestrator.storage.row import to_table

        rows = (access.read(path) if access.exists(path) else to_table([])).to_pandas()
        found: pd.DataFrame = rows[~rows["run_id"].isin(before)]
        return found

    def _run_ids(self) -> set[str]:
        return set(self._rows(self.invocation.settings.results.path, set())["run_id"])

    def name_of(self, release: str) -> str:
        """The environment of a release, as `sweep.env` and the column `env` have it."""
        return re.sub(r"\W", "_", f"{self.distribution}_{release}") if self.keys else f"{self.distribution}:{release}"

    def _overrides(self, pair: Sequence[str]) -> list[str]:
        typed = [one for one in self.invocation.overrides if not one.startswith(NOT_OF_A_STEP)]
        for release in pair if self.keys else ():
            keys = {"requirements": [f"{self.distribution}=={release}"], **self.keys}
            typed.append(f"+env.{self.name_of(release)}={hydra_text(keys)}")
        return [*typed, f"sweep.env={hydra_text([self.name_of(release) for release in pair])}"]

    def command_of(self, pair: Sequence[str]) -> str:
        return command_line(self._overrides(pair), f"results.path={self.invocation.settings.results.path}")

    def comparison_of(self, pair: Sequence[str]) -> str:
        baseline, candidate = (f"env:{self.name_of(release)}" for release in pair)
        path = f"results.path={self.invocation.settings.results.path}"
        return command_line(["mode=compare", path, f"baseline={baseline}", f"candidate={candidate}"])


def hydra_text(value: Any) -> str:
    """A value as Hydra reads it from a command line."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{hydra_text(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(hydra_text, value)) + "]"
    if isinstance(value, str):
        if PLAIN.fullmatch(value) and value.lower() not in NO_WORDS:
            return value
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


def last_words(output: str) -> str:
    """The last line of a run that says something."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1] if lines else "the run ended without a word"
