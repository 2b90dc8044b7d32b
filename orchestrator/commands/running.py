"""Runs a sweep, or one point of it again, and says what became of it."""

from __future__ import annotations

import time
from contextlib import suppress

from orchestrator.commands.call import BAD_POINTS, INTERRUPTED, Call
from orchestrator.commands.reading import grids_of
from orchestrator.settings import BESIDE


def run(call: Call) -> int:
    """Modes run, replay, noise and check_power."""
    from orchestrator import places, run
    from orchestrator.pool import NoWorkers
    from orchestrator.progress import Progress
    from orchestrator.store import CannotStore

    settings = call.settings
    if settings.source is not None:
        call.say(settings.sweep.about)
    points = run.points_of(settings)
    store = places.opened(settings.results.path)
    started = time.monotonic()
    try:
        with run.connect(settings.cluster, settings.versions) as pool, Progress(call.console) as progress:
            job = run.Run(settings, call.overrides, store, pool, progress)
            counts = job.go(points)
    except KeyboardInterrupt:
        call.say(f"interrupted; every finished row is stored. To go on, type:\n  {call.again()}")
        return INTERRUPTED
    except NoWorkers as error:
        why = "; ".join([str(error), *pool.left_out])
        call.say(f"stopped: {why}; every finished row is stored. To go on, type:\n  {call.again()}")
        return BAD_POINTS
    except CannotStore as error:
        call.say(f"stopped: {error}; rows that were reported are kept. Make room, then type:\n  {call.again()}")
        return BAD_POINTS
    finally:
        with suppress(CannotStore):  # `go` has sealed what it finished; what could not be merged stays in the journal
            store.close()
    for words in pool.left_out:
        call.say(words)
    _summarize(call, job.common["run_id"], f"{job.written} rows in {time.monotonic() - started:.1f} s")
    return run.exit_code(counts, settings.mode)


def _summarize(call: Call, run_id: str, effort: str) -> None:
    from orchestrator import grid

    path = call.settings.results.path
    grid.draw(call.console, grids_of(call.settings))
    call.say(f"run {run_id}: {effort}; dataset: {path} (pandas.read_parquet('{path}'))")
    call.say("next:")
    beside = [f"results.path={path}"] if call.settings.mode in BESIDE else []
    for more in (["mode=report", "format=markdown", *beside], ["rerun=failed"], ["mode=plan", "device=b200"]):
        call.say(f"  {call.again(*more)}")
