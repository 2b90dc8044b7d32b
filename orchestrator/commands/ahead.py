"""What can be done before a sweep runs: plan it, compile for it, measure the device it will run on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.commands.call import BAD_POINTS, OK, Call
from orchestrator.errors import UserError

if TYPE_CHECKING:
    from kernels.build import Built


def plan(call: Call) -> int:
    """What would run, where not and why, how long; starts nothing."""
    from orchestrator import grid, machines, report
    from orchestrator.plan import make_plan
    from orchestrator.sweep import expand

    settings = call.settings
    points = expand(settings)
    if settings.cluster.kind == "ray" and settings.device is None:
        raise UserError("device: mode=plan starts nothing and cannot ask a cluster; type device=h200, or another of conf/device")
    devices = [settings.device] if settings.device else list(machines.describe().devices)
    plan = make_plan(points, devices, settings)
    names = ", ".join(dict.fromkeys(device.name for device in devices))
    call.say(f"sweep {settings.sweep.name} on {names}: {settings.sweep.about}")
    grid.draw(call.console, report.plan_grids(plan, settings.cluster.workers or len(devices)))
    return OK


def compile_modules(call: Call) -> int:
    """The plan's kernel modules, each once; with `modules`, also into that archive."""
    from orchestrator import archive
    from orchestrator.grid import Grid, draw
    from orchestrator.pool import NoWorkers

    settings = call.settings
    try:
        built, version = _compiled(call)
    except NoWorkers as error:
        call.say(f"stopped: {error}. To go on, type:\n  {call.again()}")
        return BAD_POINTS
    cells = tuple((b.arch, str(b.module), f"{b.seconds:.1f}", b.error or "ok") for b in built)
    draw(call.console, [Grid(f"{len(built)} kernel modules", ("arch", "module", "seconds", "result"), cells)])
    if settings.modules is not None:
        held = archive.write(settings.modules, {(b.arch, b.module): b.library for b in built if b.library}, version)
        call.say(f"{settings.modules} holds {held} modules for flashinfer {version}; where they are to run, type:")
        call.say(f"  {call.again('mode=', 'device=')}")
    return BAD_POINTS if any(b.error for b in built) else OK


def _compiled(call: Call) -> tuple[list[Built], str | None]:
    """The plan's modules, and the FlashInfer that they are of. Raises NoWorkers where no machine is left to compile."""
    from orchestrator import run
    from orchestrator.plan import make_plan
    from orchestrator.progress import Progress

    settings = call.settings
    points = run.points_of(settings)
    with run.connect(settings.cluster) as pool, Progress(call.console) as progress:
        plan = make_plan(points, [settings.device] if settings.device else pool.devices, settings)
        found = run.given(settings, pool, list(plan.modules)) if _exists(settings.modules) else {}
        progress.begin_modules(len(plan.modules), len(found))
        built = list(run.built_of(pool.build(list(plan.modules), found), progress))
        return built, run.agreed(pool.versions)["flashinfer_version"]


def _exists(path: str | None) -> bool:
    from pathlib import Path

    return path is not None and Path(path).exists()


def calibrate(call: Call) -> int:
    """The measured ceilings of every device of the cluster."""
    from orchestrator import run
    from orchestrator.grid import Grid, draw
    from orchestrator.pool import NoWorkers

    try:
        with run.connect(call.settings.cluster) as pool:
            found = run.calibrate(pool, call.settings)
    except NoWorkers as error:
        call.say(f"stopped: {error}")
        return BAD_POINTS
    for slot, ceilings in found:
        if ceilings is None:
            call.say(f"{slot.name}: {slot.device_name} has no ceilings to measure; a row's frac_of_peak stays empty there")
            continue
        rates = {"read": ceilings.tb_per_sec, "copy": ceilings.copy_tb_per_sec}
        cells = [(name, f"{rate:.3f} TB/s", ceilings.reached_by[name]) for name, rate in rates.items()]
        cells += [(f"matrix {dtype}", f"{rate:.1f} TFLOP/s", ceilings.reached_by[dtype]) for dtype, rate in ceilings.tflops.items()]
        cells.append(("launch", f"{ceilings.launch_us:.2f} µs", "a graph of one kernel"))
        draw(call.console, [Grid(f"measured ceilings · {slot.device_name} · {slot.name}", ("what", "at best", "by"), tuple(cells))])
    return OK
