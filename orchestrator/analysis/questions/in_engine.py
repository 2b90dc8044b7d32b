"""The tables of question=in_engine: isolated times against attention in the steps of a running engine (timing.context=engine)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from orchestrator.analysis.connection import Record
from orchestrator.analysis.dataset import Dataset
from orchestrator.analysis.questions.tables import MAX_SHOWN, percent
from orchestrator.config.engine import Workload, kernel_names, releases
from orchestrator.tables import Grid

NEEDS = (
    "rows of a running engine (+sweep=in_engine), and isolated rows of the same model, GPU and lengths beside them: "
    "results.path=ENGINE_DIR,ISOLATED_DIR"
)
# What an isolated time is good for: the error of attention at the median, the share of points within 5% or 2 µs, pairs of one sign.
MEDIAN_ERROR, WITHIN, SAME_SIGN = 0.02, 0.9, 0.98
IDLE = 0.1  # of a step in which the GPU waits: from here on the wall shows the host
RANGES = ("attention", "step", "wall")


def create(data: Dataset, points: str) -> None:
    """The tables that the views of this question read: `engine_points`, of the query `points`, and

    `engine_runs`, the calls here that are what `conf/engine` says of the flags of these rows, and `kernel_names`, how profiles name
    kernels.
    """
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
    return [statement(data), *(_table(data, *one) for one in TABLES)]


def statement(data: Dataset) -> Grid:
    """The figures of each GPU and engine, and whether they are what an isolated time is good for."""
    found = data.records("FROM in_engine_figures ORDER BY ALL")
    cells = tuple((r["device_name"], _release(r), *line) for r in found for line in _figures(r))
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
    shown = f"{r['same_step'] / r['decided']:.1%} ({r['shown_same']:,} of {r['shown']:,} where two starts differ by less)"
    yield "with the same sign in whole steps on the GPU", shown, "", ""
    yield "with the same sign in whole steps by the wall", f"{r['same_wall'] / r['decided']:.1%}", "", ""


def _so(holds: bool) -> str:
    return "holds" if holds else "missed"


def summary(data: Dataset) -> str | None:
    """The figures of each GPU and engine in a sentence."""
    found = (
        f"{_release(r)} on {r['device_name']}: attention is within {percent(r['median_error'])} of its isolated time at the median "
        f"of {r['compared']:,} points, and {r['same_attention'] or 0:,} of {r['decided'] or 0:,} pairs of flags that are predicted "
        "to differ by more than the error have the same sign"
        for r in data.records("FROM in_engine_figures WHERE compared > 0 ORDER BY ALL")
    )
    return "; ".join(found) or None


def _release(r: Record) -> str:
    return f"{r['engine']} {r['engine_version']}"


Columns = Mapping[str, Callable[[Record], str]]


def _table(data: Dataset, title: str, view: str, order: str, columns: Columns) -> Grid:
    """A line for each record of a view, with its GPU and engine first; `columns` gives the text of each other cell."""
    found = data.records(f"FROM {view} ORDER BY device_name, engine, engine_version, {order} LIMIT {MAX_SHOWN}")
    cells = ((r["device_name"], _release(r), *(cell(r) for cell in columns.values())) for r in found)
    return Grid(title, ("device", "engine", *columns), tuple(cells))


def _us(name: str) -> Callable[[Record], str]:
    return lambda r: "–" if r[name] is None else f"{r[name]:,.1f}"


def _share(name: str, sign: str = "") -> Callable[[Record], str]:
    """A share as `1.4%`; with the sign `+` as `+1.4%`."""
    return lambda r: "–" if r[name] is None else f"{r[name]:{sign}.1%}"


def _text(name: str) -> Callable[[Record], str]:
    return lambda r: "–" if r[name] is None else f"{r[name]:,}" if isinstance(r[name], int) else str(r[name])


def _verdict(r: Record) -> str:
    """What became of a predicted difference, and where a whole step does not show it, why."""
    if not r["decided"]:
        return f"predicted to differ by less than the error ({percent(r['limit_error'])})"
    if not r["same_attention"]:
        return "the other sign"
    if r["same_step"] and r["same_wall"]:
        return "the same sign"
    hidden = "hidden by a step" if not r["same_step"] else "hidden by the wall"
    if r["idle_share"] > IDLE:
        hosts = f"{r['host_us']:,.0f} and {r['other_host_us']:,.0f} µs"
        return f"{hidden}: the GPU waits {r['idle_share']:.0%} of it, and the host takes {hosts}"
    floor = r["step_floor"] if not r["same_step"] else r["wall_floor"]
    why = f"and two starts differ by {floor:.1%}" if r["shown"] < floor else "which is not explained"
    return f"{hidden}: it is {r['shown']:.1%} of one, {why}"


FLAG: Columns = {"flag": _text("flag"), "for": lambda r: f"{r['phase']}, {r['kv_dtype']}"}
WORKLOAD: Columns = {
    "cache": _text("kv_dtype"),
    "drafts": lambda r: str(r["s_qo"] - 1),
    "batch": _text("batch_size"),
    "s_kv": _text("s_kv"),
    "layers": _text("layers"),
}
OF_FLAG, OF_WORKLOAD = "flag, phase, kv_dtype", "kv_dtype, s_qo, batch_size, s_kv, layers"
TABLES: tuple[tuple[str, str, str, Columns], ...] = (
    (
        "error of attention by flag: measured inside the engine over predicted, less 1",
        "in_engine_flags",
        OF_FLAG,
        {
            **FLAG,
            "predicted by": _text("called"),
            "kernels that ran": _text("ran"),
            "conf/engine": _text("known"),
            "compared": lambda r: f"{r['compared']:,} of {r['points']:,}",
            "median": _share("median_error", "+"),
            "90th percentile": _share("most_error"),
            "µs at most": _us("most_us"),
            "share of a step": _share("share"),
        },
    ),
    (
        "not compared",
        f"""(SELECT device_name, engine, engine_version, {OF_FLAG}, why_not, count(*) AS points, median(measured_us) AS us
            FROM in_engine WHERE why_not IS NOT NULL GROUP BY ALL)""",
        f"{OF_FLAG}, why_not",
        {**FLAG, "points": _text("points"), "median µs": _us("us"), "why": _text("why_not")},
    ),
    (
        "attention in a layer, each point",
        "(FROM in_engine WHERE error IS NOT NULL)",
        f"flag, {OF_WORKLOAD}, start, row",
        {
            "flag": _text("flag"),
            **WORKLOAD,
            "KV tokens": lambda r: f"{r['kv_tokens']:,.0f}",
            "start": _text("start"),
            "isolated µs": _us("isolated_us"),
            "predicted µs": _us("predicted_us"),
            "measured µs": _us("measured_us"),
            "error": _share("error", "+"),
            "plan µs a step": _us("metadata_us"),
            "step µs (GPU, wall)": lambda r: f"{r['step_us']:,.0f}, {r['wall_us']:,.0f}",
            "share of it": _share("share"),
        },
    ),
    (
        "each two flags: what the other takes over the first, less 1",
        "in_engine_pairs",
        f"flag, other, {OF_WORKLOAD}",
        {
            "flag": _text("flag"),
            "other": _text("other"),
            **WORKLOAD,
            "predicted": _share("predicted", "+"),
            "attention": _share("attention", "+"),
            "step (GPU)": _share("step", "+"),
            "step (wall)": _share("wall", "+"),
            "so": _verdict,
        },
    ),
    (
        "what starts of one point differ by: the range over the least",
        "in_engine_starts",
        f"flag, {OF_WORKLOAD}",
        {"flag": _text("flag"), **WORKLOAD, "starts": _text("starts"), **{of: _share(f"{of}_range") for of in RANGES}},
    ),
    (
        "a step beside attention, on the GPU: of each layer, and once a step",
        "engine_rest",
        "model, tp, tokens",
        {
            "model": lambda r: f"{r['model']} (tp {r['tp']})",
            "query tokens": _text("tokens"),
            "layers measured": lambda r: ", ".join(map(str, r["layers"])),
            "a layer, µs": _us("layer_us"),
            "once, µs": lambda r: _us("fixed_us")(r) if len(r["layers"]) > 1 else "in the layers'",
        },
    ),
)
