"""mode=run, replay, noise and check_power: runs a sweep, or one point of it again, and prints what came out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from orchestrator import libraries
from orchestrator.commands import profile
from orchestrator.commands.compare import compared
from orchestrator.commands.invocation import BAD_POINTS, INTERRUPTED, OK, Invocation, command_line
from orchestrator.config.modes import MODES, companion
from orchestrator.config.parts import Results
from orchestrator.config.settings import ReplaySettings, RunSettings, SuspectSettings
from orchestrator.errors import CannotStore, DatasetGone, NoWorkers, UserError
from orchestrator.planning import model_words
from orchestrator.point import Point
from orchestrator.reporting import before_after
from orchestrator.storage import access
from orchestrator.storage.access import DatasetWriter
from orchestrator.storage.row import describe

if TYPE_CHECKING:
    from orchestrator.run import Run

Running = Invocation[RunSettings | ReplaySettings]
SUSPECTS = "suspects"  # the dataset of rerun=suspects is `<results.path>_suspects`


def execute(invocation: Running) -> int:
    """0 if every supported point is `ok`, 1 if one is not or the run had to stop, 130 if it was interrupted."""
    from orchestrator.pools import starting
    from orchestrator.run import Run, exit_code
    from orchestrator.scheduling.progress import Progress

    if isinstance(invocation.settings, ReplaySettings) and invocation.settings.profile is not None:
        return profile.execute(cast(Invocation[ReplaySettings], invocation))
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
        store = access.open_writer(settings.written_path, background=settings.cluster.kind != "inline")
        try:
            with Progress(invocation.console) as progress, reach(progress.stage) as pool:
                if settings.cluster.kind != "inline":  # workers load their libraries meanwhile
                    import_module(".report", before_after.__package__)
                job = Run(settings, invocation.overrides, store, pool, progress)
                if all(point.env is None for point in points):  # an environment may be refused, and then nothing runs
                    _say_without_gpu(invocation, job, ", so only backends that run on a CPU do (Ctrl-C ends it)")
                counts, left_out = job.go(points), pool.left_out
        except (KeyboardInterrupt, NoWorkers, CannotStore) as error:
            return _stopped(invocation, error, store, same_command)
        finally:
            with suppress(CannotStore):  # `go` has stored all finished rows; those not yet merged stay in the journal
                store.close()
    for text in left_out:
        invocation.say(text)
    if isinstance(settings, ReplaySettings):
        return _show_replay(invocation, settings, before)
    broken = _broken_clauses(settings)
    code = exit_code(counts, settings.mode, settings.check.draws) or (BAD_POINTS if broken else OK)
    _summarize(invocation, settings, job, f"{job.written} rows in {time.monotonic() - begun:.1f} s", any_failed=code != OK)
    for clause in broken:
        invocation.say(f"the statement does not hold here: {clause}")
    return code


def _broken_clauses(settings: RunSettings) -> Sequence[str]:
    """The clauses of the statement of the check that the rows of mode=check_power contradict."""
    if settings.mode != "check_power":
        return ()
    from orchestrator.reporting import statement
    from orchestrator.reporting.opened import opened

    return statement.broken(opened(settings, None).current())


def _asked(invocation: Running) -> tuple[Running, list[Point]]:
    """The points to run, and the command that runs them: the suspects of a comparison go to another dataset."""
    from orchestrator.planning.replay import points_of

    if invocation.settings.source is not None:
        invocation.say(invocation.settings.sweep.about)
    points = points_of(invocation.settings)
    if isinstance(invocation.settings, ReplaySettings):  # what it takes from the command of a row is shown before it runs
        invocation.say(f"runs: {invocation.command_with()}")
        if invocation.settings.cluster.kind != "ray" and points[0].env is None:
            profile.plan_here(invocation.settings, points[0])  # before anything starts, or has a folder
    model_words.say(invocation.settings, points, invocation.overrides)
    return narrowed(invocation, points) if isinstance(invocation.settings, SuspectSettings) else (invocation, points)


def _stopped(
    invocation: Running, error: KeyboardInterrupt | NoWorkers | CannotStore, store: DatasetWriter, same_command: str
) -> int:
    """Says why the run ended before its end, what became of its rows, and what to type; returns the exit code."""
    if isinstance(error, KeyboardInterrupt):
        invocation.say(f"interrupted; {_kept(store)}. To go on, type:\n  {same_command}")
        return INTERRUPTED
    after = "; rows that were reported are kept. Make room, then"
    if isinstance(error, DatasetGone | NoWorkers):
        after = ". To begin again," if isinstance(error, DatasetGone) else f"; {_kept(store)}. To go on,"
    invocation.say(f"stopped: {error}{after} type:\n  {same_command}")
    return BAD_POINTS


def _kept(store: DatasetWriter) -> str:
    """What became of the rows so far: somebody may have deleted the dataset."""
    try:
        store.seal()
    except CannotStore as error:
        return str(error)
    return "every finished row is stored"


def _show_replay(invocation: Running, settings: ReplaySettings, before: list[dict[str, Any]]) -> int:
    """Prints the row of the point before and after, and where the new one is. 1 if it was not measured, or was wrong."""
    after = before_after.rows_of(access.read(settings.written_path), settings.point)[-1]
    invocation.show([before_after.grid(before[-1] if before else None, after)], title="replay")
    if after["status"] in ("unsupported", "skipped"):
        invocation.say(f"nothing was measured: {after['status']}, {after['reason']}")
    if before and (change := before_after.change(settings, before[-1], after)):
        invocation.say(change)
    kept = "" if settings.written_path == settings.results.path else f"; {settings.results.path} is as it was"
    invocation.say(f"point {settings.point}: its new row is in {settings.written_path}{kept}")
    return OK if after["status"] == "ok" else BAD_POINTS


def _summarize(invocation: Running, settings: RunSettings, job: Run, effort: str, *, any_failed: bool) -> None:
    """Prints the report of the dataset, where it is, and what to type next."""
    from orchestrator import tables
    from orchestrator.reporting.report import dataset_grids, screen

    path = settings.results.path
    if settings.mode == "run":
        screen(invocation.console, settings)
    else:  # what other modes say of the check is read whole
        tables.draw(invocation.console, dataset_grids(settings))
    invocation.say(f"run {job.common['run_id']}: {effort}; dataset: {path} (pandas.read_parquet('{path}'))")
    invocation.say("next:")
    if isinstance(settings, SuspectSettings):
        for words in next_words(invocation):
            invocation.say(f"  {words}")
        return
    own_dataset = [f"results.path={path}"] if MODES[settings.mode].own_dataset else []
    for overrides in (["mode=report", "format=markdown", *own_dataset], *[["rerun=failed"]] * any_failed):
        invocation.say(f"  {invocation.command_with(*overrides)}")
    _say_without_gpu(invocation, job)


def _say_without_gpu(invocation: Running, job: Run, meanwhile: str = "") -> None:
    """What to type if no worker of a run has a GPU: the committed rows of its sweep and model on an H200, or a plan for one."""
    from orchestrator.analysis.finder import RESULTS
    from orchestrator.storage import parquet

    settings = invocation.settings
    if settings.mode != "run" or any(device.kind != "cpu" for device in job.pool.devices):
        return
    said = f"would run:\n  {invocation.command_with('mode=plan', 'device=h200')}"
    for path in sorted(Path(RESULTS).glob(f"h200_*/{settings.sweep.name}.parquet")):
        if settings.model.name in parquet.read(path).column("model").to_pylist():
            seen = command_line([], "mode=report", f"results.path={path.with_suffix('')}")
            said = f"said:\n  {seen}"
            break
    invocation.say(f"this machine has no GPU{meanwhile}; see what an H200 {said}")


def narrowed(invocation: Invocation[Any], points: Sequence[Point]) -> tuple[Invocation[SuspectSettings], list[Point]]:
    """The command as one that runs the suspects alone: on one worker, into `<results.path>_suspects`, whatever is there already.

    One worker, so that all of them are measured on one card, and those that share inputs interleaved. A dataset of their own, so
    that both sides of an upgrade can be measured into it, one after the other, and so that no row of the comparison is replaced.
    Says so if nothing is suspected. Raises UserError if the sweep has none of the suspects, and for two kinds of GPU.
    """
    settings: SuspectSettings = invocation.settings
    comparison = compared(settings)
    if not comparison.has_gate:
        raise UserError(
            f"rerun=suspects: baseline={comparison.baseline.name} and candidate={comparison.candidate.name} are of two kinds of "
            "GPU, where a slower point is no suspect; type a baseline of the candidate's kind, or rerun=all for every point"
        )
    suspects = _keys(comparison.suspects.to_dict("records"))
    found = [point for point in points if not point.twin and _keys([_columns(point)]) <= suspects]
    if suspects and not found:
        raise UserError(
            f"rerun=suspects: none of the {len(suspects)} suspects is among the {len(points)} points of sweep "
            f"{settings.sweep.name}; type the command that mode=compare prints for them"
        )
    if not found:
        invocation.say("no suspects: the comparison calls no point slower, so nothing was measured again")
    on_one_card = {
        "rerun": "all",
        "cluster": settings.cluster.model_copy(update={"workers": 1}),
        "results": Results(path=companion(settings.results.path, SUSPECTS)),
    }
    return replace(invocation, settings=settings.model_copy(update=on_one_card)), found


def _columns(point: Point) -> dict[str, object]:
    row = dict(describe(point))
    tree = row["tree"]
    return {**row, "tree": " ".join(map(str, tree)) if isinstance(tree, list | tuple) else None}


def _keys(rows: Sequence[dict[str, object]]) -> set[tuple[str, ...]]:
    """What identifies a point in a comparison, as text: Parquet gives other types of numbers and of nothing than a plan."""
    from orchestrator.analysis.compare.pairs import POINT_COLUMNS
    from orchestrator.analysis.sql import text_of

    return {tuple(text_of(row[name]) for name in POINT_COLUMNS) for row in rows}


def next_words(invocation: Invocation[Any]) -> list[str]:
    """What to type once the suspects have been measured again."""
    path = invocation.settings.results.path
    kept = [override for override in invocation.overrides if override.startswith(("noise=", "cards=", "same="))]
    baseline = [override for override in invocation.overrides if override.startswith("baseline=")]
    before = f"results.path={path.removesuffix('_' + SUSPECTS)}"
    again = command_line(["mode=compare", *baseline, f"candidate={path}", before, "missing=allow", *kept])
    upgrade = command_line(["mode=compare", f"results.path={path}", "baseline=KIND:OLD", "candidate=KIND:NEW", *kept])
    return [
        f"whether they are slower again: {again}",
        f"after an upgrade, type this command once more with the old versions, on the same GPU; then: {upgrade}",
    ]
