"""The tables of question=engine_default: its time over the best backend's, and the worst points."""

from __future__ import annotations

from orchestrator.analysis.dataset import Dataset
from orchestrator.analysis.names import all_shown, shown
from orchestrator.analysis.noise import SAME
from orchestrator.analysis.questions.cache_size import left_out
from orchestrator.analysis.questions.exactness import error, named
from orchestrator.analysis.questions.tables import describe_point, percent
from orchestrator.analysis.rough import legend, mark
from orchestrator.tables import Grid

MAX_REGRETS = 10  # points in the list


def grids(data: Dataset) -> list[Grid]:
    """For each engine how far its default is from the best backend, by routine and dtypes; and its worst points."""
    by_kind = data.records(f"""
        SELECT engine, string_agg(DISTINCT name, ', ' ORDER BY name) AS names, routine, q_dtype, kv_dtype, device_name, l2,
               count(*) AS points, string_agg(DISTINCT taken, ', ' ORDER BY taken) AS backends,
               avg((regret <= 1 + {SAME})::INT) AS right, median(regret) AS middle, max(regret) AS worst,
               arg_max(rough OR best_rough, regret) AS worst_rough
        FROM engine_default GROUP BY engine, routine, q_dtype, kv_dtype, device_name, l2 ORDER BY ALL""")
    if not by_kind:
        return []
    places = ("engine", "names", "backends", "routine", "q_dtype", "kv_dtype", "device_name", "l2")
    cells = [
        (
            *(all_shown(r[place]) if place == "backends" else str(r[place] or "–") for place in places),
            str(r["points"]),
            f"{r['right']:.0%}",
            f"{r['middle']:.2f}",
            f"{mark(r['worst_rough'])}{r['worst']:.2f}",
        )
        for r in by_kind
    ]
    header = (
        "engine",
        "its name",
        "here",
        "routine",
        "q",
        "kv",
        "device",
        "L2",
        "points",
        f"within {SAME:.0%} of the best",
        "median",
        "worst",
    )
    title = f"an engine's default: its time over the best backend's{legend(*(r['worst_rough'] for r in by_kind))}"
    too_big = tuple((words,) for words in left_out(data, ["device_name", "model"]).values())
    return [Grid(title, header, tuple(cells)), _worst(data), Grid("what this does not count", ("what",), too_big)]


def _worst(data: Dataset) -> Grid:
    worst = data.records(f"""
        SELECT worst.*, rows.point_id
        FROM (FROM engine_default WHERE regret > 1 + {SAME} ORDER BY regret DESC, row, engine LIMIT {MAX_REGRETS}) AS worst
        JOIN rows USING (row)
        ORDER BY regret DESC, row, engine""")
    cells = tuple(
        (
            f"{mark(r['rough'], r['best_rough'])}{r['regret']:.2f}",
            r["engine"],
            shown(r["taken"]),
            f"{mark(r['rough'])}{r['taken_us']:,.1f}",
            error(r["taken_rel_err"]),
            named(r["best"], r["best_kernel"]),
            f"{mark(r['best_rough'])}{r['best_us']:,.1f}",
            error(r["best_rel_err"]),
            describe_point(r),
            r["point_id"],
        )
        for r in worst
    )
    return Grid(
        "where a default costs most",
        ("regret", "engine", "takes", "µs", "its err", "best", "µs of it", "its err", "at", "point_id"),
        cells,
    )


def summary(data: Dataset) -> str | None:
    """How often each engine's default is close to the best, and its worst point."""
    engines = data.records(f"""
        SELECT engine, count(*) AS points, avg((regret <= 1 + {SAME})::INT) AS right, max(regret) AS worst,
               arg_max(best, regret) AS best, arg_max(rough OR best_rough, regret) AS worst_rough
        FROM engine_default GROUP BY engine ORDER BY engine DESC""")
    parts = (
        f"{r['engine']}'s default is within {SAME:.0%} of the best at {percent(r['right'])} of {r['points']:,} shapes"
        + (
            f", and takes up to {mark(r['worst_rough'])}{r['worst']:.2f} times as long ({shown(r['best'])})"
            if r["worst"] > 1 + SAME
            else ""
        )
        for r in engines
    )
    return "; ".join(parts) or None
