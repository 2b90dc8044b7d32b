"""The tables of question=engine_default: what an engine takes by itself, and its time over the fastest backend's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.analysis.connection import Record
from orchestrator.analysis.dataset import Dataset
from orchestrator.analysis.names import all_shown, shown
from orchestrator.analysis.noise import SAME
from orchestrator.analysis.questions.cache_size import left_out
from orchestrator.analysis.questions.deployments import HERE, PLACE, Part, at, parts
from orchestrator.analysis.questions.exactness import error, named
from orchestrator.analysis.questions.tables import percent
from orchestrator.analysis.rough import legend, mark
from orchestrator.analysis.sql import query
from orchestrator.tables import Grid

Close = Mapping[tuple[Any, ...], float]  # a share of workloads, by place, phase, engine and layers
NEEDS = "what an engine takes by default beside other backends: sweep.backend=[flash_attn_3,fa2_tc,trtllm-native]"

MAX_REGRETS = 10  # workloads in the list
HEADER = ("deployment", "for", "engine", "its name", "runs", "right at", f"within {SAME:.0%} of the fastest", "mean", "worst", "so")
ON_SCREEN = tuple(name for name in HEADER if name not in ("runs", "right at", "so"))


def grids(data: Dataset) -> list[Grid]:
    """For each deployment, phase and engine how far its default is from the fastest backend; and its worst workloads."""
    table = grid_of(parts(data), close(data))
    too_big = tuple((words,) for words in left_out(data).values())
    return [table, _worst(data), Grid("what this does not count", ("what",), too_big)] if table.cells else []


def grid_of(found: Sequence[Part], of_close: Close) -> Grid:
    """A line for each part that has a default. `of_close` is what `close` finds."""
    with_default = [part for part in found if part.who != HERE and part.default is not None]
    rough = legend(*(part.default.record["rough"] for part in with_default if part.default))
    title = f"an engine's default: its time over the fastest backend's{rough}"
    return Grid(title, HEADER, tuple(_line(part, of_close) for part in with_default))


def _line(part: Part, of_close: Close) -> tuple[str, ...]:
    default = part.default
    assert default is not None
    right = f"{default.served:,} of {part.workloads:,}{f' ({default.not_right})' if default.not_right else ''}"
    share = of_close.get((*part.place, part.phase, part.who, default.record["layers"]))
    compared = default.served and not default.is_alone and share is not None
    figures = (f"{share:.0%}", default.mean_words, default.worst_words) if compared else ("–",) * 3
    return (part.title, part.what, part.who, default.flag, default.runs, right, *figures, part.answer.words)


def close(data: Dataset) -> Close:
    """The share of workloads at which the default is within `SAME` of the fastest."""
    keys = ", ".join((*PLACE, "phase", "engine", "layers"))
    found = data.execute(f"SELECT {keys}, avg((regret <= 1 + {SAME})::INT) FROM engine_default GROUP BY ALL")
    return {tuple(values): share for *values, share in found}


def _worst(data: Dataset) -> Grid:
    worst = data.records(query("worst_of_defaults", least=1 + SAME, most=MAX_REGRETS))
    header = ("regret", "engine", "takes", "own_us", "its err", "fastest", "its own_us", "its err", "at", "point_id")
    return Grid("where a default costs most", header, tuple(map(_worst_line, worst)))


def _worst_line(r: Record) -> tuple[str, ...]:
    regret, fastest = f"{mark(r['rough'], r['best_rough'])}{r['regret']:.2f}", named(r["best"], r["best_kernel"])
    taken = f"{r['routine']}/{shown(r['taken'])}", f"{mark(r['rough'])}{r['taken_us']:,.1f}", error(r["taken_rel_err"])
    best = f"{r['best_routine']}/{fastest}", f"{mark(r['best_rough'])}{r['best_us']:,.1f}", error(r["best_rel_err"])
    return (regret, r["engine"], *taken, *best, f"{at(r)}, {r['kv_dtype']} cache", r["point_id"])


def summary(data: Dataset) -> str | None:
    """How often each engine's default is close to the fastest, for decode and for drafts, and its worst workload."""
    engines = data.records(query("defaults_of_engines", most=1 + SAME))
    found = (
        f"{r['engine']}'s default, {r['phase']}: within {SAME:.0%} of the fastest at {percent(r['right'])} of {r['workloads']:,} "
        + "workloads"
        + f", up to {mark(r['worst_rough'])}{r['worst']:.2f} times as long ({all_shown(r['best'])})" * (r["worst"] > 1 + SAME)
        for r in engines
    )
    return "; ".join(found) or None
