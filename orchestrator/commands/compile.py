"""mode=compile and calibrate: a plan's kernel modules, also on a machine without a GPU, and what every device can reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kernels.compile.build import Built
from kernels.compile.module_cache import Library
from kernels.timing.ceilings import Ceilings
from orchestrator import libraries
from orchestrator.commands.invocation import BAD_POINTS, OK, Invocation
from orchestrator.config.environment import find
from orchestrator.config.settings import CompileSettings, Settings
from orchestrator.environments.modules import CompileRequest
from orchestrator.errors import NoWorkers, WorkerDied
from orchestrator.libraries import LibraryVersions
from orchestrator.machines import require_same_versions
from orchestrator.planning.decide import make_plan
from orchestrator.planning.plan import ModuleKey, Plan
from orchestrator.planning.replay import points_of
from orchestrator.pools import ComputePool, connect
from orchestrator.scheduling import archive
from orchestrator.scheduling.builds import iter_built
from orchestrator.scheduling.progress import Progress
from orchestrator.tables import Grid, draw
from orchestrator.worker.messages import WorkerConfig


@dataclass(frozen=True)
class Compilation:
    """What was compiled in one environment: None is the one that runs the command. `versions` are those of its libraries."""

    env: str | None
    built: list[Built]
    versions: LibraryVersions
    errors: tuple[str, ...] = ()  # of points for which it is not known what to compile


def execute(invocation: Invocation[CompileSettings]) -> int:
    """Compiles each module once in each environment; `modules` is the archive to write. Returns 1 if one does not compile."""
    try:
        parts = _compile(invocation)
    except NoWorkers as error:
        invocation.say(f"stopped: {error}. To go on, type:\n  {invocation.command_with()}")
        return BAD_POINTS
    several = len(parts) > 1
    cells = tuple(
        (*([part.env or "default"] if several else []), b.arch, str(b.module), f"{b.seconds:.1f}", b.error or "ok")
        for part in parts
        for b in part.built
    )
    columns = (*(["environment"] if several else []), "arch", "module", "seconds", "result")
    draw(invocation.console, [Grid(f"{len(cells)} kernel modules", columns, cells)])
    for words in dict.fromkeys(words for part in parts for words in part.errors):
        invocation.say(words)
    if invocation.settings.modules is not None:
        _write(invocation, invocation.settings.modules, parts)
    return BAD_POINTS if any(part.errors or any(b.error for b in part.built) for part in parts) else OK


def _write(invocation: Invocation[CompileSettings], path: str, parts: Sequence[Compilation]) -> None:
    for part in parts:
        counts = archive.write(path, {b.key: b.library for b in part.built if b.library}, part.versions)
    of = ", ".join(f"{count} for {library}" for library, count in counts.items())
    invocation.say(f"{path} has {sum(counts.values())} modules ({of}); on the machine that runs them, type:")
    invocation.say(f"  {invocation.command_with('mode=', 'device=')}")


def _compile(invocation: Invocation[CompileSettings]) -> list[Compilation]:
    """The plan's modules, those of the command's own environment first. Raises NoWorkers if no machine can compile."""
    settings = invocation.settings
    points = points_of(settings)
    wanted = [find(name, settings.env) for name in dict.fromkeys(point.env for point in points) if name is not None]
    names = libraries.named_by(settings.adapters)
    with connect(settings.cluster, names=names) as pool, Progress(invocation.console) as progress:
        there = pool.make_environments(wanted, progress.stage)
        devices = [settings.device] if settings.device else pool.devices
        plan = make_plan(points, devices, settings, environments=there, releases=pool.versions)
        parts = [Compilation(None, _built_here(settings, plan, pool, progress), require_same_versions(pool.versions))]
        for environment in wanted:
            versions = there[environment.name]
            needed = [decision.point for decision in plan.decisions_of("run") if decision.point.env == environment.name]
            archived = _archived(settings, versions, {device.arch for device in devices})
            bring = settings.modules is not None
            asked = CompileRequest(environment, needed, settings.adapters, archived, settings.device, bring=bring)
            found = pool.compile_in(asked, progress.stage)
            errors = () if any(one.error for one in found.built) else tuple(found.errors.values())  # the table has those of modules
            parts.append(Compilation(environment.name, found.built, versions, errors))
        return parts


def _built_here(settings: CompileSettings, plan: Plan, pool: ComputePool, progress: Progress) -> list[Built]:
    """The modules of the points that need no other environment."""
    modules = list(plan.modules)
    found = _archived(settings, pool.versions[0], {arch for arch, _ in modules})
    progress.begin_modules(len(modules), len(found.keys() & set(modules)))
    built = []
    for one in iter_built(pool.build(modules, found)):
        progress.module(one)
        built.append(one)
    return built


def _archived(settings: CompileSettings, versions: LibraryVersions, archs: set[str]) -> dict[ModuleKey, Library]:
    there = settings.modules is not None and Path(settings.modules).exists()
    return archive.read_fitting(settings.modules, versions, archs) if there else {}


def calibrate(invocation: Invocation[Settings]) -> int:
    """Measures anew and prints the ceilings of every device of the cluster; 1 if a worker could not start."""
    settings = invocation.settings
    config = WorkerConfig(settings.timing, settings.check.enabled, settings.adapters, {}, recalibrate=True)
    try:
        with connect(settings.cluster) as pool:
            started = [(slot, *pool.start(slot, config)) for slot in pool.slots]
            try:
                measured = [(slot, ready.result().ceilings) for slot, _, ready in started]
            finally:
                for _, worker, _ in started:
                    worker.kill()
    except (NoWorkers, WorkerDied) as error:
        invocation.say(f"stopped: {error}")
        return BAD_POINTS
    for slot, ceilings in measured:
        if ceilings is None:
            invocation.say(f"{slot.name}: {slot.device_name} has no ceilings to measure; a row's frac_of_peak stays empty there")
        else:
            title = f"measured ceilings · {slot.device_name} · {slot.name}"
            draw(invocation.console, [Grid(title, ("what", "at best", "by"), _cells(ceilings))])
    return OK


def _cells(ceilings: Ceilings) -> tuple[tuple[str, str, str], ...]:
    """Bandwidths, matrix rates by dtype, and the time of a launch; with what reached each."""
    rates, by = {"read": ceilings.tb_per_sec, "copy": ceilings.copy_tb_per_sec}, ceilings.reached_by
    found = [(name, f"{rate:.3f} TB/s", by[name]) for name, rate in rates.items()]
    found += [(f"matrix {dtype}", f"{rate:.1f} TFLOP/s", by[dtype]) for dtype, rate in ceilings.tflops.items()]
    found.append(("launch", f"{ceilings.launch_us:.2f} µs", "a graph of one kernel"))
    if real := ceilings.call_launch_us:
        spread = ceilings.call_launch_spread_us
        found.append(("launch of a call", f"{real:.2f} ± {spread:.2f} µs", "attention: events minus CUPTI"))
    return tuple(found)
