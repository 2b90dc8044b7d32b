"""The tables of question=in_engine: isolated times against attention in the steps of a running engine (timing.context=engine)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from orchestrator.analysis.connection import Record
from orchestrator.analysis.dataset import Dataset
from orchestrator.analysis.questions.tables import MAX_SHOWN, formatted, percent
from orchestrator.config.engine import Workload, kernel_names, releases
from orchestrator.tables import Grid

NEEDS = (
    "rows of a running engine (+sweep=in_engine), and isolated rows of the same model, GPU and lengths beside them: "
    "'results.path=[ENGINE_DIR,ISOLATED_DIR]'"
)
# What an isolated time is good for: the error of attention at the median, the share of points within 5% or 2 µs, pairs of one sign.
MEDIAN_ERROR, WITHIN, SAME_SIGN = 0.02, 0.9, 0.98


def create(data: Dataset, points: str) -> None:
    """The tables `engine_points` (the query `points`), `engine_runs` (calls by `conf/engine`) and `kernel_names` (in profiles)."""
    data.execute(f"CREATE TEMP TABLE engine_points AS {points}")
    asked = data.execute("""
        SELECT DISTINCT engine, engine_version, flag, major, of_layers, phase, kv_dtype, sinks FROM engine_points""")
    runs = [(*key, *line) for key in asked for line in _runs(key)]
    data.create_table("""engine_runs(engine VARCHAR, engine_version VARCHAR, flag VARCHAR, major INT, of_layers VARCHAR,
        phase VARCHAR, kv_dtype VARCHAR, sinks BOOLEAN, note VARCHAR, known VARCHAR, turn INT, routine VARCHAR, backend VARCHAR,
        stand_in BOOLEAN, rounds_q BOOLEAN)""", runs)  # fmt: skip
    data.create_table("kernel_names(part VARCHAR, routine VARCHAR, kernel VARCHAR)", kernel_names() if runs else ())


def _runs(key: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """What `conf/engine` says that a flag runs; one line with a note if it names no call here."""
    engine, version, flag, major, layers, phase, kv_dtype, sinks = key
    workload = Workload(major, layers, phase, kv_dtype, sinks=sinks)
    release = next((one for one in releases().values() if (one.engine, one.release) == (engine, version)), None)
    found = None if release is None else release.flagged(flag, workload)
    if release is None or found is None:
        lacks = f"has no release {version} of {engine}" if release is None else f"says nothing of {flag} there"
        yield f"conf/engine {lacks}", None, None, None, None, None, None
        return
    known, calls = release.known(found, workload).known, found.calls.get(workload.phase, ())
    if not calls:
        yield "no backend here makes its call", known, None, None, None, None, None
    for turn, call in enumerate(calls):
        yield "", known, turn, *call, found.stands_in(call), found.rounds_q


def grids(data: Dataset) -> list[Grid]:
    """What holds, in figures; then flags, points, pairs of flags, what starts differ by, and what a step takes beside attention."""
    if not data.scalar("SELECT count(*) FROM engine_points"):
        return []
    found = (data.con.sql(f"SELECT {RELEASE}, {query} LIMIT {MAX_SHOWN}") for query in TABLES.values())
    tables = (formatted(title, of.columns, of.fetchall()) for title, of in zip(TABLES, found, strict=True))
    return [statement(data), *tables]


def statement(data: Dataset) -> Grid:
    """The figures of each GPU and engine, and whether they are what an isolated time is good for."""
    found = data.records("FROM in_engine_figures ORDER BY ALL")
    cells = tuple((r["device_name"], f"{r['engine']} {r['engine_version']}", *line) for r in found for line in _figures(r))
    header = ("device", "engine", "what", "found", "at most or least", "so")
    return Grid("does an isolated time hold inside the engine?", header, cells)


def _figures(r: Record) -> Iterator[tuple[str, str, str, str]]:
    yield "points compared", f"{r['compared']:,} of {r['points']:,}", "", ""
    if not r["compared"]:
        return
    yield "median error of attention", percent(r["median_error"]), percent(MEDIAN_ERROR), _so(r["median_error"] <= MEDIAN_ERROR)
    yield "points with an error of at most 5% or 2 µs", f"{r['within']:.1%}", f"{WITHIN:.0%}", _so(r["within"] >= WITHIN)
    yield "90th percentile of the error, and the largest", f"{percent(r['most_error'])}, {percent(r['worst_error'])}", "", ""
    yield "pairs of flags, and those that are predicted to differ by more", f"{r['pairs'] or 0:,}, {r['decided'] or 0:,}", "", ""
    if not r["decided"]:
        return
    same = r["same_attention"] / r["decided"]
    yield "of these with the same sign in attention", f"{same:.1%}", f"{SAME_SIGN:.0%}", _so(same >= SAME_SIGN)
    yield "with the same sign in all kernels of a step", f"{r['same_kernels'] / r['decided']:.1%}", "", ""
    shown = f"{r['same_step'] / r['decided']:.1%} ({r['shown_same']:,} of {r['shown']:,} where two starts differ by less)"
    yield "with the same sign in steps on the GPU, with their gaps", shown, "", ""
    yield "with the same sign in steps by the wall", f"{r['same_wall'] / r['decided']:.1%}", "", ""


def _so(holds: bool) -> str:
    return "holds" if holds else "missed"


def summary(data: Dataset) -> str | None:
    """The figures of each GPU and engine in a sentence."""
    found = (
        f"{r['engine']} {r['engine_version']} on {r['device_name']}: attention is {percent(r['share'])} of a step "
        f"at the median of {r['points']:,} points"
        + (
            f", and within {percent(r['median_error'])} of its isolated time at that of {r['compared']:,}; "
            f"{r['same_attention'] or 0:,} of {r['decided'] or 0:,} pairs of flags that are predicted "
            "to differ by more than the error have the same sign"
            if r["compared"]
            else ", and no isolated row is beside them: 'results.path=[ENGINE_DIR,ISOLATED_DIR]'"
        )
        for r in data.records("FROM in_engine_figures ORDER BY ALL")
    )
    return "; ".join(found) or None


RELEASE = "device_name AS device, engine || ' ' || engine_version AS engine"
OF_FLAG = "flag, phase, kv_dtype AS cache"
OF_POINT = "kv_dtype AS cache, s_qo - 1 AS drafts, batch_size AS batch, s_kv, layers"
TABLES = {  # of the rest of their queries
    "error of attention by flag: measured inside the engine over predicted, less 1": f"""
        {OF_FLAG}, called AS "predicted by", ran AS "kernels that ran", known AS "conf/engine",
        compared || ' of ' || points AS compared, median_error AS "median|+.1%", most_error AS "90th percentile|.1%",
        most_us AS "µs at most|.1f", share AS "share of a step|.0%"
        FROM in_engine_flags ORDER BY ALL""",
    "not compared": f"""
        {OF_FLAG}, why_not AS why, count(*) AS points, median(measured_us) AS "median µs|.1f"
        FROM in_engine WHERE why_not IS NOT NULL GROUP BY ALL ORDER BY ALL""",
    "attention in a layer, each point": f"""
        flag, {OF_POINT}, kv_tokens AS "KV tokens|,.0f", start, isolated_us AS "isolated µs|,.1f",
        predicted_us AS "predicted µs|,.1f", measured_us AS "measured µs|,.1f", error AS "error|+.1%",
        metadata_us AS "plan µs a step|,.1f", kernels_us AS "kernels µs a step|,.0f", step_us AS "step µs (GPU)|,.0f",
        wall_us AS "step µs (wall)|,.0f", share AS "share of a step|.0%"
        FROM in_engine ORDER BY ALL""",
    "each two flags: what the other takes over the first, less 1": f"""
        flag, other, {OF_POINT}, predicted AS "predicted|+.1%", attention AS "attention|+.1%",
        kernels AS "kernels of a step|+.1%", step AS "step (GPU)|+.1%", wall AS "step (wall)|+.1%", so
        FROM in_engine_pairs ORDER BY ALL""",
    "what starts of one point differ by: the range over the least": f"""
        flag, {OF_POINT}, starts, gpus AS "GPUs", attention_range AS "attention|.1%", step_range AS "step (GPU)|.1%",
        wall_range AS "step (wall)|.1%"
        FROM in_engine_starts ORDER BY ALL""",
    "the kernels of a step beside attention: of each layer, and once a step if several numbers of layers were measured": """
        model, tp, tokens AS "query tokens", array_to_string(layers, ', ') AS "layers measured", layer_us AS "a layer, µs|,.1f",
        if(len(layers) > 1, fixed_us, NULL) AS "once, µs|,.1f"
        FROM engine_rest ORDER BY ALL""",
}
