"""mode=replay with `profile=`: one point's call and its flush under a profiler, which sees nothing else of the command.

The command starts itself again under the profiler, with `profile=marks`. That prepares and checks the point in its own process, as
a worker does, and then launches the timed call between cudaProfilerStart and cudaProfilerStop. The profiler collects between these
alone, so kernels that draw inputs or compute the reference are not in the report, and none need be named. Times under a profiler
are no measurement: no row is stored.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from orchestrator import PROGRAM, machines
from orchestrator.commands.invocation import BAD_POINTS, OK, Invocation
from orchestrator.config.modes import companion
from orchestrator.config.settings import ReplaySettings
from orchestrator.errors import UserError
from orchestrator.planning.decide import make_plan
from orchestrator.planning.plan import Plan
from orchestrator.point import Point

LAUNCHES = 3  # of the call: the first one under a profiler may differ
NCU = ["ncu", "--profile-from-start=off", "--target-processes=all", "--graph-profiling=node", "--set=full", "--force-overwrite"]
NSYS = ["nsys", "profile", "--capture-range=cudaProfilerApi", "--capture-range-end=stop", "--trace=cuda,nvtx"]
NSYS += ["--cuda-graph-trace=node", "--force-overwrite=true"]
REPORTS = {"ncu": ("ncu-rep", [*NCU, "--export"], "ncu --import"), "nsys": ("nsys-rep", [*NSYS, "--output"], "nsys stats")}
INSTALL = {"ncu": "NVIDIA Nsight Compute", "nsys": "NVIDIA Nsight Systems"}


def execute(invocation: Invocation[ReplaySettings]) -> int:
    """Writes a report of the point to `<results.path>_profiles` or `into`, or launches it for a profiler that is there already.

    Returns 0, or 1 if the point is not right or the profiler fails. Raises UserError without a profiler, and if it is unsupported.
    """
    settings = invocation.settings
    if settings.profile == "marks":
        return _launch(invocation)
    name = str(settings.profile)
    ending, arguments, reader = REPORTS[name]
    if shutil.which(name) is None:
        raise UserError(f"profile={name}: there is no program {name} here; install {INSTALL[name]}, or add its folder to PATH")
    folder = Path(settings.into or companion(settings.results.path, "profiles"))
    if "://" in str(folder):
        raise UserError(f"profile={name}: its report is a file on this machine; type into=FOLDER")
    folder.mkdir(parents=True, exist_ok=True)
    report = folder / f"{settings.point}.{ending}"
    kept = [word for word in invocation.overrides if not word.lstrip("+").startswith(("profile=", "cluster=", "cluster.", "into="))]
    command = [*arguments, str(report), sys.executable, "-m", PROGRAM, *kept, "profile=marks", "cluster=inline"]
    if (code := subprocess.run(command, check=False).returncode) != OK:
        invocation.say(f"{name} ended with {code}; its own message is above")
        return BAD_POINTS
    invocation.say(f"point {settings.point}: {LAUNCHES} launches of its call are in {report}; to read it, type: {reader} {report}")
    return OK


def plan_here(settings: ReplaySettings, point: Point) -> Plan:
    """The plan of one point on this machine. Raises UserError if no device here can run it."""
    here = machines.describe()
    plan = make_plan([point], here.devices, settings, [here.versions])
    if (one := plan.decisions[0]).kind != "run":
        raise UserError(f"point={point.point_id}: nothing was measured or stored, {one.kind} here: {one.reason}")
    return plan


def _launch(invocation: Invocation[ReplaySettings]) -> int:
    from orchestrator.planning.replay import points_of
    from orchestrator.run import imports_of, worker_config
    from orchestrator.worker.messages import Task
    from orchestrator.worker.point_runner import PointRunner

    settings, point = invocation.settings, points_of(invocation.settings)[0]
    if point.env is not None:
        raise UserError(f"profile=marks: the point runs in environment {point.env}; type the command with the Python of that one")
    plan, device = plan_here(settings, point), machines.describe().devices[0]
    worker = PointRunner.create(worker_config(settings, {}, (), imports_of(plan, settings.adapters), plan), device)
    if wrong := worker.prepare(Task(point, "")).rows:
        invocation.say(f"nothing was launched: {wrong[0]['status']}, {wrong[0]['reason']}")
        return BAD_POINTS
    worker.launch_marked(LAUNCHES)
    invocation.say(f"{LAUNCHES} launches of {point.backend} between cudaProfilerStart and cudaProfilerStop")
    return OK
