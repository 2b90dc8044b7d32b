"""mode=run, replay, noise and check_power: runs a sweep, or one point of it again, and prints what came out."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

from orchestrator.commands.invocation import BAD_POINTS, INTERRUPTED, OK, Invocation
from orchestrator.config.modes import MODES
from orchestrator.config.settings import ReplaySettings, RunSettings, SuspectSettings
from orchestrator.errors import CannotStore, DatasetGone, NoWorkers
from orchestrator.point import Point
from orchestrator.storage.access import DatasetWriter

Running = Invocation[RunSettings | ReplaySettings]


def execute(invocation: Running) -> int:
    """0 if every supported point is `ok`, 1 if one is not or the run had to stop, 130 if it was interrupted."""
    from orchestrator import libraries
    from orchestrator.pools import starting
    from orchestrator.reporting import before_after
    from orchestrator.run import Run, exit_code
    from orchestrator.scheduling.progress import Progress
    from orchestrator.storage import access

    same_command = invocation.command_with()
    invocation, points = _asked(invocation)
    if not points:
        return OK
    settings = invocation.settings
    libraries.require_to_measure(with_ray=settings.cluster.kind != "inline")
    begun = time.monotonic()
    with starting(settings.cluster, settings.versions, libraries.named_by(settings.adapters)) as reach:
        before = []
        if isinstance(settings, ReplaySettings):
            before = before_after.rows_of(access.read(before_after.source_of(settings)), settings.point)
        store = access.open_writer(settings.written_path)
        try:
            with Progress(invocation.console) as progress, reach(progress.stage) as pool:
                job = Run(settings, invocation.overrides, store, pool, progress)
                counts = job.go(points)
                left_out = pool.left_out
        except (KeyboardInterrupt, NoWorkers, CannotStore) as error:
            return _stopped(invocation, error, store, same_command)
        finally:
            with suppress(CannotStore):  # `go` has stored all finished rows; those not yet merged stay in the journal
                store.close()
    for text in left_out:
        invocation.say(text)
    if isinstance(settings, ReplaySettings):
        return _show_replay(invocation, settings, before)
    code = exit_code(counts, settings.mode, settings.check.draws)
    effort = f"{job.written} rows in {time.monotonic() - begun:.1f} s"
    _summarize(invocation, settings, job.common["run_id"], effort, any_failed=code != OK)
    return code


def _asked(invocation: Running) -> tuple[Running, list[Point]]:
    """The points to run, and the command that runs them: the suspects of a comparison go to another dataset."""
    from orchestrator.commands import suspects
    from orchestrator.planning.replay import points_of

    if invocation.settings.source is not None:
        invocation.say(invocation.settings.sweep.about)
    points = points_of(invocation.settings)
    return suspects.narrowed(invocation, points) if isinstance(invocation.settings, SuspectSettings) else (invocation, points)


def _stopped(
    invocation: Running, error: KeyboardInterrupt | NoWorkers | CannotStore, store: DatasetWriter, same_command: str
) -> int:
    """Says why the run ended before its end, what became of its rows, and what to type; returns the exit code."""
    if isinstance(error, KeyboardInterrupt):
        invocation.say(f"interrupted; {_kept(store)}. To go on, type:\n  {same_command}")
        return INTERRUPTED
    invocation.say(f"stopped: {error}{_after(error, store)} type:\n  {same_command}")
    return BAD_POINTS


def _after(error: NoWorkers | CannotStore, store: DatasetWriter) -> str:
    """What became of the rows of a run that had to stop, and what its command would do now."""
    if isinstance(error, DatasetGone):
        return ". To begin again,"
    if isinstance(error, CannotStore):
        return "; rows that were reported are kept. Make room, then"
    return f"; {_kept(store)}. To go on,"


def _kept(store: DatasetWriter) -> str:
    """What became of the rows so far: somebody may have deleted the dataset."""
    try:
        store.seal()
    except CannotStore as error:
        return str(error)
    return "every finished row is stored"


def _show_replay(invocation: Running, settings: ReplaySettings, before: list[dict[str, Any]]) -> int:
    """Prints the row of the point before and after, and where the new one is. 1 if it was not measured, or was wrong."""
    from orchestrator.reporting import before_after
    from orchestrator.storage import access

    after = before_after.rows_of(access.read(settings.written_path), settings.point)[-1]
    invocation.show([before_after.grid(before[-1] if before else None, after)], title="replay")
    if after["status"] in ("unsupported", "skipped"):
        invocation.say(f"nothing was measured: {after['status']}, {after['reason']}")
    if before and (change := before_after.change(settings, before[-1], after)):
        invocation.say(change)
    kept = "" if settings.written_path == settings.results.path else f"; {settings.results.path} is as it was"
    invocation.say(f"point {settings.point}: its new row is in {settings.written_path}{kept}")
    return OK if after["status"] == "ok" else BAD_POINTS


def _summarize(invocation: Running, settings: RunSettings, run_id: str, effort: str, *, any_failed: bool) -> None:
    """Prints the report of the dataset, where it is, and what to type next."""
    from orchestrator import tables
    from orchestrator.commands import suspects
    from orchestrator.reporting.report import dataset_grids

    path = settings.results.path
    tables.draw(invocation.console, dataset_grids(settings))
    invocation.say(f"run {run_id}: {effort}; dataset: {path} (pandas.read_parquet('{path}'))")
    invocation.say("next:")
    if isinstance(settings, SuspectSettings):
        for words in suspects.next_words(invocation):
            invocation.say(f"  {words}")
        return
    own_dataset = [f"results.path={path}"] if MODES[settings.mode].own_dataset else []
    again = [["rerun=failed"]] if any_failed else []
    for overrides in (["mode=report", "format=markdown", *own_dataset], *again, ["mode=plan", "device=b200"]):
        invocation.say(f"  {invocation.command_with(*overrides)}")
