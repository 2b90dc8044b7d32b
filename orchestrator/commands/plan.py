"""mode=plan: what would run, what would not and why, and how long it would take. Starts nothing."""

from __future__ import annotations

from orchestrator.commands.invocation import OK, Invocation
from orchestrator.config.settings import PlanSettings
from orchestrator.errors import UserError
from orchestrator.planning import model_words

ELSEWHERE: tuple[int, ...] = (16, 2)  # cores of machines that may compile, if the plan is not for this one


def execute(invocation: Invocation[PlanSettings]) -> int:
    """Prints the plan for `device`, or for the devices of this machine. Raises UserError for a cluster without `device`."""
    from orchestrator import libraries, machines
    from orchestrator.planning.decide import make_plan
    from orchestrator.planning.expand import chosen, expand
    from orchestrator.reporting import plan_tables, screen

    settings = invocation.settings
    points = chosen(expand(settings), settings)
    model_words.say(settings, points, invocation.overrides)
    if settings.cluster.kind == "ray" and settings.device is None:
        raise UserError("device: mode=plan starts nothing and cannot ask a cluster; type device=h200, or another of conf/device")
    if settings.device:
        devices, cores = [settings.device], ELSEWHERE
    else:
        here = machines.describe()
        devices, cores = list(here.devices), (here.cores,)
    versions = () if settings.device else [machines.versions(libraries.named_by(settings.adapters))]
    plan = make_plan(points, devices, settings, versions)
    names = ", ".join(dict.fromkeys(device.name for device in devices))
    about = f"sweep {settings.sweep.name} on {names}{f': {settings.sweep.about}' * bool(settings.sweep.about)}"
    grids = plan_tables.grids(plan, settings.cluster.workers or len(devices), cores)
    why = plan_tables.why_nothing_runs(plan, settings.sweep)
    if settings.format == "terminal" and not settings.full:
        screen.plan(invocation.console, about, grids, why)
        return OK
    invocation.remark(about)
    invocation.show(grids, title=f"plan of {settings.sweep.name}")
    if why:
        invocation.remark(why)
    return OK
