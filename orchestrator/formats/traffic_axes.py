"""`traffic=FILE` with a sweep: the file's quantile points take the place of the axes `batch_size` and `s_kv`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.analysis import traffic
from orchestrator.config.modes import MODES
from orchestrator.config.settings import MAX_TRAFFIC_POINTS
from orchestrator.errors import UserError

Config = dict[str, Any]

LENGTH_AXES = ("s_kv", "seq_lens", "batch_spec", "max_seq_len", "graph_batch")  # which the points replace


def with_traffic(config: Mapping[str, Any]) -> Config:
    """The composed configuration with the traffic's points as its sweep's axes; unchanged for modes that read them.

    Raises UserError for a file that cannot be read, and for keys that contradict it.
    """
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
        words = "it gives the lengths of a sweep; type +sweep=NAME with it, such as +sweep=specdec_long_ctx"
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
