"""What each mode does and prints, from settings to an exit code."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from orchestrator.errors import UserError
from orchestrator.settings import BESIDE, Settings

if TYPE_CHECKING:
    from rich.console import Console

    from orchestrator.grid import Grid
    from orchestrator.sweep import Point

OK, BAD_POINTS, INTERRUPTED = 0, 1, 130
WIDE = 160  # columns where the output is no terminal


def execute(settings: Settings, overrides: Sequence[str]) -> int:
    """Runs one mode. Raises UserError for wrong input found before anything starts."""
    from rich.console import Console

    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else WIDE)
    match settings.mode:
        case "plan":
            return _plan(settings, console)
        case "compile":
            return _compile(settings, console)
        case "report":
            return _report(settings, console)
        case "calibrate":
            return _calibrate(settings, console)
    return _run(settings, overrides, console)


def _run(settings: Settings, overrides: Sequence[str], console: Console) -> int:
    from orchestrator import run
    from orchestrator.progress import Progress
    from orchestrator.scheduler import NoWorkers
    from orchestrator.store import CannotStore, Store

    points = run.points_of(settings)
    again = _command(overrides)
    store = Store(settings.results.path)
    started = time.monotonic()
    try:
        with run.connect(settings.cluster) as pool, Progress(console) as progress:
            job = run.Run(settings, overrides, store, pool, progress)
            counts = job.go(points)
    except KeyboardInterrupt:
        _say(console, f"interrupted; every finished row is stored. To go on, type:\n  {again}")
        return INTERRUPTED
    except NoWorkers as error:
        _say(console, f"stopped: {error}; every finished row is stored. To go on, type:\n  {again}")
        return BAD_POINTS
    except CannotStore as error:
        _say(console, f"stopped: {error}; rows that were reported are kept. Make room, then type:\n  {again}")
        return BAD_POINTS
    finally:
        with suppress(CannotStore):  # `go` has sealed what it finished; what could not be merged stays in the journal
            store.close()
    _summarize(settings, console, job.common["run_id"], f"{job.written} rows in {time.monotonic() - started:.1f} s", overrides)
    return run.exit_code(counts, settings.mode)


def _command(overrides: Sequence[str], *more: str) -> str:
    """What to type for the same again with other keys in place of its own."""
    other = tuple(f"{key.partition('=')[0]}=" for key in more)
    return shlex.join(["python", "-m", "orchestrator", *(o for o in overrides if not o.startswith(other)), *more])


def _summarize(settings: Settings, console: Console, run_id: str, effort: str, overrides: Sequence[str]) -> None:
    from orchestrator import grid

    path = settings.results.path
    grid.draw(console, _grids(settings))
    _say(console, f"run {run_id}: {effort}; dataset: {path} (pandas.read_parquet('{path}'))")
    _say(console, "next:")
    beside = [f"results.path={path}"] if settings.mode in BESIDE else []
    for more in (["mode=report", "format=markdown", *beside], ["rerun=failed"], ["mode=plan", "device=b200"]):
        _say(console, f"  {_command(overrides, *more)}")


def _grids(settings: Settings) -> list[Grid]:
    """The tables of a dataset: what was asked of its sweep, or how far it can be trusted."""
    from orchestrator import dataset, questions, report, trust

    data = questions.opened(settings.results.path, settings.draft)
    if trust.is_about_trust(data):
        current = data.current()
        others = dataset.of(current[~trust.is_caught(current)])
        return [*trust.grids(current), report.status_grid(questions.define(others, settings.draft))]
    return report.grids(data, settings.draft, settings.question, _points(settings))


def _points(settings: Settings) -> list[Point] | None:
    """Points of the sweep that was named beside the dataset, if one was."""
    from orchestrator.sweep import expand

    return expand(settings) if settings.sweep.axes and settings.question == "odd" else None


def _say(console: Console, words: str) -> None:
    """Words as they are: a command may hold [lists], which rich would take for its own markup."""
    console.print(words, soft_wrap=True, highlight=False, markup=False)


def _plan(settings: Settings, console: Console) -> int:
    from orchestrator import grid, machines, report
    from orchestrator.plan import make_plan
    from orchestrator.sweep import expand

    points = expand(settings)
    if settings.cluster.kind == "ray" and settings.device is None:
        raise UserError("device: mode=plan starts nothing and cannot ask a cluster; type device=h200, or another of conf/device")
    devices = [settings.device] if settings.device else list(machines.describe().devices)
    plan = make_plan(points, devices, settings)
    names = ", ".join(dict.fromkeys(device.name for device in devices))
    _say(console, f"sweep {settings.sweep.name} on {names}: {settings.sweep.about}")
    grid.draw(console, report.plan_grids(plan, settings.cluster.workers or len(devices)))
    return OK


def _compile(settings: Settings, console: Console) -> int:
    from orchestrator import run
    from orchestrator.grid import Grid, draw
    from orchestrator.plan import make_plan
    from orchestrator.progress import Progress

    points = run.points_of(settings)
    with run.connect(settings.cluster) as pool, Progress(console) as progress:
        plan = make_plan(points, [settings.device] if settings.device else pool.devices, settings)
        built = list(progress.compiling(pool.build(list(plan.modules)), total=len(plan.modules)))
    cells = tuple((b.arch, str(b.module), f"{b.seconds:.1f}", b.error or "ok") for b in built)
    draw(console, [Grid(f"{len(built)} kernel modules", ("arch", "module", "seconds", "result"), cells)])
    return BAD_POINTS if any(b.error for b in built) else OK


def _calibrate(settings: Settings, console: Console) -> int:
    from orchestrator import run
    from orchestrator.grid import Grid, draw
    from orchestrator.scheduler import NoWorkers

    try:
        with run.connect(settings.cluster) as pool:
            found = run.calibrate(pool, settings)
    except NoWorkers as error:
        _say(console, f"stopped: {error}")
        return BAD_POINTS
    for slot, ceilings in found:
        if ceilings is None:
            _say(console, f"{slot.name}: {slot.device_name} has no ceilings to measure; a row's frac_of_peak stays empty there")
            continue
        rates = {"read": ceilings.tb_per_sec, "copy": ceilings.copy_tb_per_sec}
        cells = [(name, f"{rate:.3f} TB/s", ceilings.reached_by[name]) for name, rate in rates.items()]
        cells += [(f"matrix {dtype}", f"{rate:.1f} TFLOP/s", ceilings.reached_by[dtype]) for dtype, rate in ceilings.tflops.items()]
        cells.append(("launch", f"{ceilings.launch_us:.2f} µs", "a graph of one kernel"))
        draw(console, [Grid(f"measured ceilings · {slot.device_name} · {slot.name}", ("what", "at best", "by"), tuple(cells))])
    return OK


def _report(settings: Settings, console: Console) -> int:
    from orchestrator import grid

    grids = _grids(settings)
    if not any(shown.cells for shown in grids):
        raise UserError(f"question={settings.question}: no rows of results.path={settings.results.path!r} answer it; leave it out")
    match settings.format:
        case "markdown":
            print(grid.markdown(grids))
        case "svg":
            print(grid.svg(grids, title=f"python -m orchestrator +sweep={settings.sweep.name}"))
        case "terminal":
            grid.draw(console, grids)
    return OK
