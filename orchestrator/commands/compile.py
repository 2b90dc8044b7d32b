"""mode=compile: compiles the plan's kernel modules, also on a machine without a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.commands.invocation import BAD_POINTS, OK, Invocation
from orchestrator.errors import NoWorkers

if TYPE_CHECKING:
    from kernels.compile.build import Built
    from orchestrator.libraries import LibraryVersions


def execute(invocation: Invocation) -> int:
    """Compiles each module once; with `modules`, also writes them into that archive. 1 if a module does not compile."""
    from orchestrator.scheduling import archive
    from orchestrator.tables import Grid, draw

    settings = invocation.settings
    try:
        built, versions = _compile(invocation)
    except NoWorkers as error:
        invocation.say(f"stopped: {error}. To go on, type:\n  {invocation.command_with()}")
        return BAD_POINTS
    cells = tuple((b.arch, str(b.module), f"{b.seconds:.1f}", b.error or "ok") for b in built)
    draw(invocation.console, [Grid(f"{len(built)} kernel modules", ("arch", "module", "seconds", "result"), cells)])
    if settings.modules is not None:
        counts = archive.write(settings.modules, {(b.arch, b.module): b.library for b in built if b.library}, versions)
        of = ", ".join(f"{count} for {library}" for library, count in counts.items())
        invocation.say(f"{settings.modules} has {sum(counts.values())} modules ({of}); on the machine that runs them, type:")
        invocation.say(f"  {invocation.command_with('mode=', 'device=')}")
    return BAD_POINTS if any(b.error for b in built) else OK


def _compile(invocation: Invocation) -> tuple[list[Built], LibraryVersions]:
    """The plan's modules, and the library versions of the machines that they are compiled on.

    Raises NoWorkers if no machine is left that could compile.
    """
    from orchestrator.machines import require_same_versions
    from orchestrator.planning.decide import make_plan
    from orchestrator.planning.replay import points_of
    from orchestrator.pools import connect
    from orchestrator.scheduling.archive import load_archive
    from orchestrator.scheduling.builds import iter_built
    from orchestrator.scheduling.progress import Progress

    settings = invocation.settings
    points = points_of(settings)
    with connect(settings.cluster) as pool, Progress(invocation.console) as progress:
        plan = make_plan(points, [settings.device] if settings.device else pool.devices, settings, releases=pool.versions)
        archived = settings.modules is not None and Path(settings.modules).exists()
        modules = list(plan.modules)
        found = load_archive(settings.modules, pool.versions, modules) if archived else {}
        progress.begin_modules(len(modules), len(found))
        built = []
        for one in iter_built(pool.build(modules, found)):
            progress.module(one)
            built.append(one)
        return built, require_same_versions(pool.versions)
