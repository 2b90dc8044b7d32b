"""mode=bisect: finds the two releases of a library between which something changed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from orchestrator import PROGRAM, libraries, machines
from orchestrator.analysis.compare.comparison import find_noise_floors
from orchestrator.analysis.noise import SAME, NoiseFloors
from orchestrator.bisection import report
from orchestrator.bisection.evidence import Round, pairs_of
from orchestrator.bisection.predicate import Predicate
from orchestrator.bisection.releases import Range, between, find, index, parsed
from orchestrator.bisection.report import Context
from orchestrator.bisection.search import Search, most_looks
from orchestrator.commands.invocation import BAD_POINTS, INTERRUPTED, OK, Invocation, command_line
from orchestrator.config.modes import owner
from orchestrator.config.parts import Releases
from orchestrator.config.settings import BisectSettings, Chosen
from orchestrator.errors import CannotMeasure, UserError
from orchestrator.planning.decide import make_plan
from orchestrator.planning.expand import chosen, expand
from orchestrator.point import Point
from orchestrator.storage import access
from orchestrator.storage.row import to_table

REPORT = "_bisect.md"  # Parquet readers ignore names that begin with an underscore
# Keys of a search, and of the run itself: a step sets the others as they were typed.
NOT_OF_A_STEP = (
    "mode=", "good=", "bad=", "predicate=", "bisect.", "watch.", "format=", "noise=", "rerun=", "results.path=", "sweep.env=",
)  # fmt: skip
PLACE = {  # columns of rows, as the report calls them
    "device_name": "device", "driver": "driver", "cuda": "CUDA of torch", "torch_version": "torch", "timer": "timer",
    "l2": "L2 cache before each sample", "orchestrator_version": "attention-orchestrator",
}  # fmt: skip
PLAIN = re.compile(r"[A-Za-z][\w.:-]*")  # what Hydra reads as a word without quotes


def execute(invocation: Invocation[BisectSettings]) -> int:
    """Prints the report, and writes it beside the rows; 0 if something was found or nothing changed, 1 if it stays open.

    Raises UserError for releases that there are not, if no point is asked about, and if none of the library can run here.
    """
    settings = invocation.settings
    asked = settings.bisect
    points = chosen(expand(settings), settings)
    require_able(settings, points, f"good={settings.good}")
    searched = releases(settings)
    name, versions = searched.distribution, searched.versions
    predicate = Predicate(settings.predicate, asked.slower, most_looks(len(versions), asked.rounds))
    runs = ReleaseRuns(invocation, name, points, asked)
    invocation.say(f"{name}: {len(versions)} releases from {versions[0]} to {versions[-1]}, {runs.count} points")
    try:
        found = Search(
            runs.measure, predicate, asked.rounds, lambda step: invocation.say(f"{step.release}: {step.verdict}, {step.said}")
        ).find(versions)
    except KeyboardInterrupt:
        invocation.say(f"interrupted; rows that were measured are in {settings.results.path}. The same command starts again")
        return INTERRUPTED
    context = runs.context([found.last_good or versions[0], found.first_bad or versions[-1]])
    show(invocation, report.report(found, searched, predicate, context), settings.results.path, REPORT)
    return OK if found.outcome in ("found", "no change") else BAD_POINTS


def show(invocation: Invocation[Any], text: str, path: str, name: str) -> None:
    """Prints a report, and writes it beside the rows that it is of, if they lie in a folder."""
    print(text)
    if "://" not in path:
        file = Path(path) / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        invocation.say(f"also in {file}")


def releases(settings: BisectSettings) -> Range:
    """The releases to search, in order. Raises UserError as `between` does."""
    asked = settings.bisect
    name = parsed("good", settings.good)[0]
    parsed("bad", settings.bad)
    known, where = find(name, "bisect", asked.wheels)
    return between(settings.good, settings.bad, known, pre=asked.pre, yanked=asked.yanked, where=where)


def require_able(settings: Chosen, points: Sequence[Point], typed: str) -> None:
    """Raises UserError if no point of the library can run on this machine: before environments are made and releases asked for.

    `typed` names the release, as `good=flashinfer:0.5.3` does. A Ray cluster is not asked. A library that no backend is made of,
    such as one that others need, is in every point.
    """
    if settings.cluster.kind == "ray":
        return
    key, _, release = typed.partition("=")
    name = parsed(key, release)[0]
    in_some = name in libraries.named_by(settings.adapters)
    ours = [point for point in points if name in point.distributions or not in_some]
    if not ours:
        of_engine = f"of an engine: +sweep=servers 'sweep.env=[{release},NEWER]', then mode=compare (docs/compare.md)"
        raise UserError(f"{typed}: no backend of sweep {settings.sweep.name} is of {name}; type sweep.backend=[...]; {of_engine}")
    devices = machines.describe().devices
    plan = make_plan(ours, devices, settings)
    if not plan.decisions_of("run"):
        ((why, _),) = (plan.reasons("unsupported") or plan.reasons("skipped")).most_common(1)
        why = "it has no GPU" if {device.kind for device in devices} == {"cpu"} else why
        raise UserError(
            f"{typed}: no point of {name} can run on this machine, of the {len(ours)} asked about ({why}); "
            f"type this where there is a GPU, or other points with where={{...}} or sweep.backend=[...]"
        )


@dataclass
class ReleaseRuns:
    """Measures two releases by a run of the sweep with `sweep.env` of both, as a process of its own, and reads its rows.

    A run of its own keeps what breaks in a release away from the search. Ctrl-C reaches both, as one group of processes.
    """

    invocation: Invocation[Any]
    distribution: str
    points: Sequence[Point]
    asked: Releases
    key: str = "good"  # that of the first release
    path: str = ""  # the dataset of the rows

    def __post_init__(self) -> None:
        self.count = len(self.points)
        self.place: dict[str, str] = {}
        self.path = self.path or self.invocation.settings.results.path
        asked = self.asked
        # An environment that has more than its release is one that is typed: `flashinfer-python:0.6.3` is a name without keys.
        self.keys = {"wheels": str(Path(asked.wheels).resolve())} if asked.wheels else {}
        self.keys |= {"shares": asked.shares} if asked.shares != "torch" else {}

    def measure(self, good: str, other: str) -> Round:
        """One interleaved run of both releases, as pairs. Raises as `rows_of` does."""
        return pairs_of(*self.rows_of(good, other), self.floors(), SAME)

    def floors(self) -> NoiseFloors:
        return find_noise_floors([owner(self.path) or self.path], None)

    def rows_of(self, good: str, other: str) -> tuple[pd.DataFrame, pd.DataFrame]:
        """The rows of both releases of one interleaved run.

        Raises CannotMeasure with the last words of a run that ended without rows of the other release, and UserError if no point
        of the good one ran.
        """
        before = set(self.rows()["run_id"])
        started = time.monotonic()
        command = [sys.executable, "-m", PROGRAM, *self._overrides([good, other]), "rerun=all", f"results.path={self.path}"]
        # uv, which reads no file of pip's, then installs from the index that listed the releases.
        env = {**os.environ} if self.asked.wheels else {**os.environ, "UV_DEFAULT_INDEX": index()}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
        if done.returncode == INTERRUPTED:
            raise KeyboardInterrupt
        self.invocation.say(f"  {good} and {other}: {time.monotonic() - started:.0f} s")
        rows = self.rows(before)
        by_env = {release: rows[rows["env"] == self.name_of(release)] for release in (good, other)} if len(rows) else {}
        said = (line.strip() for line in reversed((done.stderr or done.stdout).splitlines()))
        words = next(filter(None, said), "the run ended without a word").removeprefix("error: ")
        if words.startswith(f"env.{self.name_of(good)}:") or (by_env and by_env[good]["status"].ne("ok").all()):
            why = next(iter(by_env[good]["reason"].mode()), words) if by_env else words
            raise UserError(f"{self.key}={self.distribution}:{good}: none of its points ran; {why}")
        if not by_env or by_env[other].empty:
            raise CannotMeasure(words)
        known = {name: rows[name].dropna().unique() for name in PLACE if name in rows}
        self.place = {PLACE[name]: ", ".join(map(str, values)) for name, values in known.items() if len(values)}
        return by_env[good], by_env[other]

    def rows(self, before: Collection[str] = ()) -> pd.DataFrame:
        """All rows but those of these runs."""
        rows = (access.read(self.path) if access.exists(self.path) else to_table([])).to_pandas()
        found: pd.DataFrame = rows[~rows["run_id"].isin(before)]
        return found

    def name_of(self, release: str) -> str:
        """The environment of a release, as `sweep.env` and the column `env` have it."""
        return re.sub(r"\W", "_", f"{self.distribution}_{release}") if self.keys else f"{self.distribution}:{release}"

    def _overrides(self, pair: Sequence[str]) -> list[str]:
        typed = [one for one in self.invocation.overrides if not one.startswith(NOT_OF_A_STEP)]
        for release in pair if self.keys else ():
            keys = {"requirements": [f"{self.distribution}=={release}"], **self.keys}
            typed.append(f"+env.{self.name_of(release)}={hydra_text(keys)}")
        return [*typed, f"sweep.env={hydra_text([self.name_of(release) for release in pair])}"]

    def context(self, pair: Sequence[str]) -> Context:
        """What a report of two releases says beside what was found."""
        of_pair = {"these two releases alone": self.command_of(pair), "their times side by side": self.comparison_of(pair)}
        return Context(self.place, self.invocation.command_with(), of_pair)

    def command_of(self, pair: Sequence[str]) -> str:
        return command_line(self._overrides(pair), f"results.path={self.path}")

    def comparison_of(self, pair: Sequence[str]) -> str:
        baseline, candidate = (f"env:{self.name_of(release)}" for release in pair)
        return command_line(["mode=compare", f"results.path={self.path}", f"baseline={baseline}", f"candidate={candidate}"])


def hydra_text(value: Any) -> str:
    """A text, a list of them or a mapping as Hydra reads it from a command line."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{hydra_text(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(hydra_text, value)) + "]"
    return str(value) if PLAIN.fullmatch(value) else "'" + value.replace("'", "\\'") + "'"
