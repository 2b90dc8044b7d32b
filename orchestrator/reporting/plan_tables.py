"""The tables of mode=plan: points, why some do not run, modules to compile, memory and time."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from kernels import registry
from kernels.engines.start import START_S as START_S_OF_ENGINE
from orchestrator.config.sweep import Sweep
from orchestrator.planning.cost import HOST_CORES, compile_seconds, not_measured
from orchestrator.planning.plan import DecisionKind, Plan, headline
from orchestrator.tables import Grid

START_S = 15  # until the first point runs: 11.6 s in this process, 15.0 s through Ray (docs/clusters.md)
VERDICTS: tuple[DecisionKind, ...] = ("run", "unsupported", "skipped", "failed")


def grids(plan: Plan, workers: int, cores: Sequence[int] = (HOST_CORES,)) -> list[Grid]:
    """A plan in numbers: points, why some do not run, modules to compile and how long on so many cores, memory, time."""
    counts = [(verdict, str(len(plan.decisions_of(verdict)))) for verdict in _verdicts(plan)]
    reasons = [
        (verdict, str(count), reason) for verdict in _verdicts(plan)[1:] for reason, count in plan.reasons(verdict).most_common()
    ]
    largest = max((d.cost.memory_bytes for d in plan.decisions_of("run")), default=0)
    cost = [
        *_starts(plan),
        ("largest point", f"{largest / 1e9:.3g} GB of device memory, the check included"),
        ("workers", str(workers)),
        ("estimated time, without compilation", _time(plan, workers)),
        *_compiling(plan, cores),
    ]
    return [
        _heads_grid(plan),
        Grid(f"plan: {len(plan.decisions)} points", ("verdict", "points"), tuple(counts)),
        _backends_grid(plan),
        Grid("why not", ("verdict", "points", "reason"), tuple(reasons)),
        _modules_grid(plan),
        Grid("cost", ("what", "value"), tuple(cost)),
    ]


def _starts(plan: Plan) -> list[tuple[str, str]]:
    """What is paid once for several points: their inputs, or the start of their engine."""
    starts = sum(group.points[0].engine is not None for group in plan.groups)
    of_engine = [("engine starts, each for all points of a flag", f"{starts}, of about {START_S_OF_ENGINE:.0f} s (25 to 40 s)")]
    return of_engine if starts else [("groups that share inputs", str(len(plan.groups)))]


def _time(plan: Plan, workers: int) -> str:
    """From the command to the last row. The start is the same for any number of workers; more of them than groups do not help."""
    if not plan.groups:
        return "none"
    idle = f"; {workers - len(plan.groups)} workers have no group" if workers > len(plan.groups) else ""
    return f"{_duration(START_S + plan.eta_s(workers))}, of which {START_S} s until workers have started{idle}"


def _verdicts(plan: Plan) -> Sequence[DecisionKind]:
    """`failed` only if there is one: a plugin is at fault then."""
    return VERDICTS if plan.decisions_of("failed") else VERDICTS[:-1]


def why_nothing_runs(plan: Plan, sweep: Sweep) -> str:
    """Why a plan of a sweep runs no point, and what to type; empty if it runs one."""
    if plan.decisions_of("run") or not plan.decisions:
        return ""
    routine, devices = plan.decisions[0].point.problem.routine, plan.decisions[0].devices
    (kind, reason), _ = Counter((d.kind, headline(d.kind, d.reason)) for d in plan.decisions).most_common(1)[0]
    words = f"no point runs on {', '.join(devices)}: {kind}, {reason}"
    on_cpu = [name for of, name in registry.registered() if of == routine and name.startswith("torch")]
    if (
        devices != ("cpu",)
        or plan.decisions[0].point.engine
        or {d.point.backend for d in plan.decisions} & set(on_cpu)
        or not on_cpu
    ):
        return words
    axes = [axis for axis, values in sweep.axes.items() if any(isinstance(one, dict) and "backend" in one for one in values)]
    typed = f"'sweep.{axes[0]}=[{{routine: {routine}, backend: {on_cpu[0]}}}]'" if axes else f"'sweep.backend=[{on_cpu[0]}]'"
    return f"{words}; a CPU runs torch's backends: type {typed if axes or sweep.axes.get('backend') else '+sweep=smoke'}"


def _backends_grid(plan: Plan) -> Grid:
    """How many points of each backend run and do not, in the order of the sweep, and the packages that it is from."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    known, packages = registry.adapters(), dict[str, str]()
    for point, kind in ((decision.point, decision.kind) for decision in plan.decisions):
        found[point.backend][kind] += 1
        if adapter := known.get((point.problem.routine, point.backend)):
            packages[point.backend] = ", ".join(adapter.distributions)
    verdicts = _verdicts(plan)
    cells = ((name, *(str(kinds[verdict]) for verdict in verdicts), packages.get(name, "–")) for name, kinds in found.items())
    return Grid("which backends run", ("backend", *verdicts, "needs"), tuple(cells))


def _modules_grid(plan: Plan) -> Grid:
    found = plan.modules_of_environments
    several = any(env is not None for env, _ in found)
    cells = tuple(
        (*([env or "default"] if several else []), arch, str(module), str(len(points)))
        for (env, (arch, module)), points in found.items()
    )
    as_here = "; for other environments, those that the versions here would load" if several else ""
    columns = (*(["environment"] if several else []), "arch", "module", "points")
    return Grid(f"kernel modules to compile: {len(cells)}{as_here}", columns, cells)


def _compiling(plan: Plan, cores: Sequence[int]) -> list[tuple[str, str]]:
    """What the modules take on a machine that has none of them yet; nothing if there are none."""
    modules = [module for _, (_, module) in plan.modules_of_environments]
    if not modules:
        return []
    times = ", ".join(f"about {_duration(compile_seconds(modules, count))} on {count} cores" for count in cores)
    unknown = not_measured(modules)
    usual = f"; a guess for {unknown} of {len(modules)} modules: no committed run has compiled their kind"
    return [("compilation, once, if none is cached", times + (usual if unknown else ""))]


def _heads_grid(plan: Plan) -> Grid:
    """The model of the points and what one GPU has of it: a sweep that names no model takes the default one."""
    found: Counter[tuple[str, ...]] = Counter()
    problems = (decision.point.problem for decision in plan.decisions)
    for problem in (one for one in problems if hasattr(one, "num_qo_heads")):  # else it is refused, as of another kind of model
        heads = (problem.num_qo_heads, problem.num_kv_heads, problem.head_dim_qk, problem.head_dim_vo, problem.page_size)
        found[(str(problem.model), str(problem.tp), *map(str, heads))] += 1
    header = ("model", "tp", "query heads", "KV heads", "head_dim_qk", "head_dim_vo", "page_size", "points")
    return Grid(
        "what one GPU has of the model (model=NAME, sweep.tp=)", header, tuple((*keys, f"{n:,}") for keys, n in found.items())
    )


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
