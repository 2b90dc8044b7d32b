"""`import=`, `export=` and `traffic=`: turns the file that they name into a sweep, or into the mode that reads or writes it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kernels import registry
from kernels.problem import ROUTINES
from orchestrator.analysis import traffic
from orchestrator.config import exports
from orchestrator.config.modes import MODES
from orchestrator.config.parts import todays
from orchestrator.config.settings import MAX_TRAFFIC_POINTS, NO_SWEEP_PATH, PARQUET, TRACES
from orchestrator.errors import UserError
from orchestrator.formats import flashinfer, operatorx, vllm_config
from orchestrator.formats.flashinfer_trace import reader as flashinfer_trace
from orchestrator.notes import note_once
from orchestrator.remainder import Remainder
from orchestrator.untrusted.door import reading
from orchestrator.untrusted.files import expanded, require_plain

Config = dict[str, Any]

Known = Mapping[str, frozenset[str]] | None
# The reader of each suffix. They get the file, the backends of each routine, and the major compute capability of `device=`.
POINT_FILES: dict[str, Callable[[str, Known, int | None], tuple[list[Config], str]]] = {
    ".txt": lambda path, known, _: flashinfer.read_testlist(path, known),
    ".yaml": vllm_config.read,
    ".yml": vllm_config.read,
    TRACES: lambda path, *_: flashinfer_trace.read(path),
    ".json": lambda path, *_: operatorx.read(path),
}
RESULT_FILES = (".csv", PARQUET)
GIVE = "give a whole file of another benchmark"
LENGTH_AXES = ("s_kv", "seq_lens", "batch_spec", "max_seq_len", "graph_batch")  # which points of traffic replace
# Imported points bring their own head shapes and page size, so they are no share of any model.
NO_MODEL = {"name": "custom", "num_qo_heads": 1, "num_kv_heads": 1, "head_dim_qk": 16, "head_dim_vo": 16}


def resolve_files(config: Mapping[str, Any]) -> Config:
    """The configuration with points of `import=` as its sweep, or mode=import or export. Raises UserError if that cannot be."""
    source, export = config.get("import"), config.get("export")
    if config.get("traffic") is not None:
        if export is None or config.get("mode") not in ("run", "export"):
            return with_traffic(config)
        if export not in exports.ENGINES or source is not None:
            words = "traffic weighs flags alone; leave one of them out, or type export=vllm or export=sglang"
            raise UserError(f"export={export} traffic={config['traffic']}: {words}")
    if source is None:
        return {**config} if export is None else _resolve_export(config, str(export))
    if export is not None:
        raise UserError(f"import={source} export={export}: allowed: one of them at a time")
    path = Path(expanded(str(source)))
    if path.suffix not in {*RESULT_FILES, *POINT_FILES}:
        raise UserError(
            f"import={source}: allowed: a test list (.txt), a result file (.csv), a vLLM config (.yaml), workloads of "
            f"flashinfer-trace ({TRACES}), a list of OperatorX (.json), or a table of aiconfigurator ({PARQUET})"
        )
    try:
        if not require_plain(path, follow=True):
            raise UserError(f"import={source}: no such file; give the path of one")
    except OSError as error:
        raise UserError(f"import={source}: {error.strerror}; give the path of another file") from None
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", path.stem)
    is_results = path.suffix in RESULT_FILES or (path.suffix == TRACES and _is_of_results(config, path))
    changes = _import_results(config, name) if is_results else _import_points(config, path, name)
    results_keys = config["results"]
    if results_keys["path"] == NO_SWEEP_PATH:  # the dataset has the file's name unless a path is given
        results_keys = {**results_keys, "path": f"results/{name}"}
    return {**config, "import": str(path), **changes, "results": results_keys}


def _resolve_export(config: Mapping[str, Any], export: str) -> Config:
    mode = str(config.get("mode"))
    if mode not in ("run", "export", *exports.OF_MODES):
        return {**config}
    try:
        return {**config, "mode": "site" if mode == "site" else "export", "export": str(exports.parse(export, mode))}
    except ValueError as error:
        raise UserError(str(error)) from None


def _is_of_results(config: Mapping[str, Any], path: Path) -> bool:
    """Whether the traces of a file become rows: if one was evaluated, and nothing says how to measure their workloads again."""
    if config.get("mode") == "run" and not config.get("sweep"):
        with reading(f"import={path}", GIVE):
            return any(trace.get("evaluation") for _, trace in flashinfer_trace.traces_of(str(path), Remainder(str(path))))
    return config.get("mode") == "import"


def _import_results(config: Mapping[str, Any], name: str) -> Config:
    if config.get("mode") not in ("run", "import"):
        raise UserError(f"mode={config['mode']}: import={config['import']} holds results, not points to run; leave mode out")
    if config.get("device") is None and not str(config["import"]).endswith((PARQUET, TRACES)):
        words = "does not say on which GPU it was measured; type device=h200, or another of conf/device"
        raise UserError(f"device: {config['import']} {words}")
    return {"mode": "import", "sweep": {"name": name}}


def _import_points(config: Mapping[str, Any], path: Path, name: str) -> Config:
    """The file's points as a sweep. Keys given as `+sweep.KEY=VALUE` replace those of every point."""
    own = config.get("sweep") or {}
    if config.get("mode") == "import":
        raise UserError(f"mode=import: import={path} holds points to run, not results; leave mode out, or type mode=plan")
    if conflicts := sorted(own.keys() & {"name", "about", "include", "exclude"}):
        words = "brings its own points; leave +sweep=NAME out, +sweep.KEY=VALUE may stay"
        raise UserError(f"sweep.{conflicts[0]}: import={path} {words}")
    known = _known_backends(config.get("adapters") or ())
    device = config.get("device")
    capability = device.get("compute_capability") if isinstance(device, Mapping) else None
    major = capability[0] if isinstance(capability, list) and capability else None
    with reading(f"import={path}", GIVE):
        rules, about = POINT_FILES[path.suffix](str(path), None if "backend" in own else known, major)
    rules = [{**rule, **own} for rule in rules]
    if routines := sorted({str(rule["routine"]) for rule in rules if "backend" not in rule}):
        options = sorted(frozenset.intersection(*(known[routine] for routine in routines)))
        raise UserError(f"import={path}: a workload names no backend; type +sweep.backend=[{options[0]}], of {', '.join(options)}")
    include = _each_where_it_is(rules, own.get("backend"), known)
    return {"sweep": {"name": name, "about": about, "backend": [], "include": include}, "model": NO_MODEL}


def _each_where_it_is(rules: list[Config], names: object, known: Mapping[str, frozenset[str]]) -> list[Config]:
    """Rules with the backends that the command names where their routine has them; all as they are if a name is of none."""
    if not isinstance(names, list) or len(names) < 2:
        return rules
    of_rules = [[name for name in names if todays(str(name)) in known.get(str(rule["routine"]), ())] for rule in rules]
    if {str(name) for few in of_rules for name in few} != set(map(str, names)):
        return rules
    given = list(zip(rules, of_rules, strict=True))
    for routine, count in Counter(str(rule["routine"]) for rule, few in given if not few).items():
        note_once(f"left out: {count:,} workloads of {routine}, which has none of +sweep.backend=[{','.join(map(str, names))}]")
    return [{**rule, "backend": few} for rule, few in given if few]


def _known_backends(adapters: str | list[str] | tuple[str, ...]) -> Mapping[str, frozenset[str]]:
    """The backends of each routine, those of plugins included. Raises UserError for an entry that is no plugin."""
    plugins = (adapters,) if isinstance(adapters, str) else tuple(adapters)
    try:
        known = registry.adapters(plugins)
    except (ImportError, ValueError, AttributeError) as error:
        raise UserError(f"adapters={list(plugins)}: {error}; allowed: modules with a tuple ADAPTERS") from None
    return {routine: frozenset(name for of, name in known if of == routine) for routine in ROUTINES}


def with_traffic(config: Mapping[str, Any]) -> Config:
    """The configuration with the traffic's points as axes; unchanged for modes that read them. UserError if they do not fit."""
    path, mode = str(config["traffic"]), str(config.get("mode"))
    if config.get("import") is not None:
        words = "allowed: one of them at a time; an imported file has lengths of its own"
        raise UserError(f"traffic={path} import={config['import']}: {words}")
    if mode in ("report", "compare"):
        return {**config}
    if mode in MODES and (MODES[mode].needs != "sweep" or mode == "import"):
        words = "type mode=plan or run with +sweep=NAME, mode=report question=one_backend, or mode=compare"
        raise UserError(f"traffic={path}: mode={mode} measures nothing; {words}")
    sweep = config.get("sweep")
    if not isinstance(sweep, dict):
        words = "it gives lengths to a sweep; type +sweep=NAME with it, such as +sweep=specdec_long_ctx, or question=one_backend"
        raise UserError(f"traffic={path}: {words}")
    count = config.get("traffic_points")
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= MAX_TRAFFIC_POINTS:
        allowed = f"a whole number from 1 to {MAX_TRAFFIC_POINTS:,}, such as traffic_points=5"
        raise UserError(f"traffic_points={count!r}: allowed: {allowed}")
    mix = traffic.read(path)
    routine = sweep.get("routine")
    rules = [_with_points(rule, rule.get("routine", routine), mix, count) for rule in sweep.get("include") or []]
    found = _with_points(sweep, routine, mix, count)
    points = traffic.points(mix, count, prompts=_is_of_prompts(routine))
    sizes = ["" if p.batch_size is None else f"batch {p.batch_size}, " for p in points]
    said = (f"{size}s_kv {p.s_kv:,.0f} ({p.weight:.0%})" for size, p in zip(sizes, points, strict=True))
    about = [str(sweep.get("about") or ""), f"traffic of {path}: {', '.join(said)}", *mix.notes]
    return {**config, "sweep": {**found, "include": rules, "about": "; ".join(filter(None, about))}}


def _is_of_prompts(routine: object) -> bool:
    return routine in ("ragged_prefill", ["ragged_prefill"])


def _with_points(axes: Mapping[str, Any], routine: object, mix: traffic.Mix, count: int) -> Config:
    """Axes with the points in place of their lengths. A sweep of `ragged_prefill` gets prompts, any other one decode steps."""
    prompts = _is_of_prompts(routine)
    if prompts and not mix.prompts:
        raise UserError("traffic: its lines have s_kv, of decode steps, and no input_length, which a sweep of ragged_prefill needs")
    found = traffic.points(mix, count, prompts=prompts)
    given = ["s_kv", *(["batch_size"] if found[0].batch_size is not None else []), *(["s_qo"] if prompts else [])]
    kept = {key: value for key, value in axes.items() if key not in (*LENGTH_AXES, *given)}
    points = [{"batch_size": p.batch_size, "s_kv": int(p.s_kv), "s_qo": int(p.s_kv)} for p in found]
    return {**kept, "traffic": [{key: point[key] for key in given} for point in points]}
