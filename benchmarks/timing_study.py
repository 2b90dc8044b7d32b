"""Which isolated time says best what attention costs in a step: the main sweep's candidates in five settings, on one card.

The cost in a step is `in_step_us` of `timing.context=step`. Isolated times are `median_us` without the launch of the graph
(`launch_us`); CUPTI's begin at the kernel, so nothing is taken off them.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import pandas as pd

from benchmarks.rows import frame_of
from orchestrator import ROOT
from orchestrator.analysis.names import shown
from orchestrator.tables import Grid

RESULTS = ROOT / "results"
CARD = "h200"  # with this prefix: the datasets of a kind of GPU
IN_STEP = "study_in_step"
ISOLATED = {  # name in the tables: dataset
    "dirty": "study_dirty",
    "clean": "specdec_long_ctx",
    "clean, in the run of the steps": IN_STEP,
    "clean, cold code": "study_cold_code",
    "clean, CUPTI": "study_cupti",
}
DEFAULT, ALL = "clean", "_all"  # the second, after the prefix of a card: the study of all candidates and shapes of the main sweep
DEFAULT_OF_ALL = "clean, in the run of the steps"
OF_ALL = {  # by kind of GPU: the settings that its steps are compared with, each only if it was measured
    "h100": {
        "dirty": "study_all_dirty",
        DEFAULT_OF_ALL: "study_all_in_step",
        "clean, cold code": "study_all_cold_code",
        "clean, on other cards": "specdec_long_ctx",
        "clean, CUPTI, on another card": "study_all_cupti",
    },
    "h200": {
        "dirty, on another card": "study_all_dirty",
        DEFAULT_OF_ALL: "study_all_in_step",
        "clean, cold code, on another card": "study_all_cold_code",
        "clean, on another card": "specdec_all_candidates",
        "clean, CUPTI, on another card": "study_all_cupti",
    },
}
PARTS = {"h200_study_all_in_step": ("h200_study_all_in_step", "h200_study_in_step")}  # each adds the points that those before lack
ON_CARD = ("dirty", "clean, cold code")  # of a study of `ALL`: compared at the points whose step ran on the same card
FACTS = ["step", "low", "high", "kernel", "capped"]  # the columns of `times` that are no setting
PROBLEM = ["batch_size", "s_kv", "s_qo", "q_dtype", "kv_dtype"]
POINT = [*PROBLEM, "backend"]
RANGES_US = (0.0, 20.0, 50.0, 100.0, 1000.0, float("inf"))
US, REL = 2.0, 0.03  # the error that is allowed: 2 µs or 3%, whichever is larger
SHORT_US = 100.0
AHEAD = 0.02  # a choice is another one if it costs so much more in the step
SETTINGS_HEADER = (
    "isolated setting",
    "points",
    "mean error, µs",
    "median size, µs",
    "90th percentile, µs",
    "median, of the cost",
    f"within {US:g} µs or {REL:.0%}",
    f"shapes where its choice costs over {AHEAD:.0%} more",
    "most",
)


@cache
def ok_rows(name: str) -> pd.DataFrame:
    """The right rows of a dataset by point, with those of its other `PARTS`."""
    every = pd.concat([frame_of(RESULTS / part) for part in PARTS.get(name, (name,))])
    ok = every[every["status"] == "ok"]
    return (ok.drop_duplicates(POINT) if name in PARTS else ok).set_index(POINT, verify_integrity=True).sort_index()


def is_there(name: str) -> bool:
    """Whether a dataset has its first folder."""
    return (RESULTS / PARTS.get(name, (name,))[0]).exists()


def own_us(rows: pd.DataFrame) -> pd.Series:
    """The isolated median without the launch of the graph."""
    graph = rows["timer"].eq("cuda_graph_events")
    return rows["median_us"] - rows["launch_us"].where(graph, 0.0).fillna(0.0)


@cache
def times(card: str = CARD) -> pd.DataFrame:
    """By point: `FACTS` (what it costs in the step and the interval of that, in µs, its kernel, and whether the step met the power
    cap), and the µs of each isolated setting.

    A point of a study has every setting. One of a study of `ALL` has those that were measured: of `ON_CARD` on the step's own card,
    of names that say "on another card" or "on other cards" not on it. It has NaN for the others.
    """
    kind, of_all = card.removesuffix(ALL), card.endswith(ALL)
    wanted = OF_ALL[kind] if of_all else ISOLATED
    step = ok_rows(f"{kind}_{wanted[DEFAULT_OF_ALL] if of_all else IN_STEP}")
    capped = step["throttle_reasons"].fillna("none").str.contains("SwPowerCap")
    facts = [step["in_step_us"], step["in_step_low_us"], step["in_step_high_us"], step["resolved_backend"], capped]
    known = pd.concat(dict(zip(FACTS, facts, strict=True)), axis=1).dropna(subset=["step"])
    chosen = {name: f"{kind}_{dataset}" for name, dataset in wanted.items()}
    there = {name: dataset for name, dataset in chosen.items() if not of_all or is_there(dataset)}
    isolated = {name: own_us(ok_rows(dataset)).rename(name) for name, dataset in there.items()}
    if of_all:
        for name in set(there) - {DEFAULT_OF_ALL}:
            same = ok_rows(there[name])["device_uuid"].eq(step["device_uuid"].reindex(isolated[name].index))
            isolated[name] = isolated[name].where(same if name in ON_CARD else ~same)
    return known.join(list(isolated.values()), how="left" if of_all else "inner")


def settings_of(us: pd.DataFrame) -> list[str]:
    """The isolated settings that are in a table of times."""
    return [str(name) for name in us.columns if name not in (*FACTS, *POINT)]


def is_near(error_us: pd.Series, step_us: pd.Series) -> pd.Series:
    """Whether an error is within the one that is allowed."""
    return error_us.abs() <= (REL * step_us).clip(lower=US)


def wrong_choices(us: pd.DataFrame, setting: str) -> pd.Series:
    """By problem of two backends or more: what the one that `setting` ranks first costs in the step over the best, minus 1."""
    several = us[us.groupby(PROBLEM)["step"].transform("size") > 1].reset_index()
    by_problem = several.groupby(PROBLEM)
    taken = several.loc[by_problem[setting].idxmin()].set_index(PROBLEM)["step"]
    return taken / by_problem["step"].min() - 1


def settings(card: str = CARD) -> Grid:
    """How far each isolated setting is from the step, and how often it would choose a slower backend."""
    return Grid("", SETTINGS_HEADER, tuple(settings_at(times(card))))


def settings_at(every: pd.DataFrame) -> list[tuple[str, ...]]:
    """A line for each isolated setting of a table of times, if it has any."""
    cells = []
    for setting in settings_of(every):
        us = every.dropna(subset=[setting])
        if us.empty:
            continue
        error_us = us[setting] - us["step"]
        loss = wrong_choices(us, setting)
        cells.append(
            (
                setting,
                str(len(us)),
                f"{error_us.mean():+.1f}",
                f"{error_us.abs().median():.1f}",
                f"{error_us.abs().quantile(0.9):.1f}",
                f"{(error_us.abs() / us['step']).median():.1%}",
                f"{is_near(error_us, us['step']).mean():.0%}",
                f"{int((loss > AHEAD).sum())} of {len(loss)}",
                f"{loss.max():.0%}" if len(loss) else "–",
            )
        )
    return cells


def by_kernel(setting: str | None = None, card: str = CARD) -> Grid:
    """The error of one setting by kernel, keys and draft."""
    setting = setting or default_of(card)
    us = times(card).dropna(subset=[setting]).reset_index()
    us = us.assign(difference=us[setting] - us["step"], drafts=us["s_qo"].gt(1).map({False: "1", True: "2 to 8"}))
    cells = []
    for (kernel, q, kv, drafts), part in us.groupby(["kernel", "q_dtype", "kv_dtype", "drafts"]):
        rel = part["difference"] / part["step"]
        near = is_near(part["difference"], part["step"])
        cells.append(
            (
                shown(str(kernel)),
                f"{q}, {kv}",
                str(drafts),
                str(len(part)),
                f"{part['difference'].median():+.1f}",
                f"{part['difference'].min():+.1f} to {part['difference'].max():+.1f}",
                f"{rel.median():+.1%}",
                f"{near.mean():.0%}",
            )
        )
    header = (
        "kernel",
        "queries, keys",
        "s_qo",
        "points",
        "median error, µs",
        "least to most",
        "median",
        f"within {US:g} µs or {REL:.0%}",
    )
    return Grid("", header, tuple(cells))


def default_of(card: str) -> str:
    """The setting that is the default, by its name in the tables of a card's study."""
    return DEFAULT_OF_ALL if card.endswith(ALL) else DEFAULT


def by_queries(cards: tuple[str, ...] = ("h200", "h200_all", "h100", "h100_all")) -> Grid:
    """The median error in µs of short calls by the dtype of their queries, which the stand-in of the step copies."""
    cells = []
    for card in cards:
        us = times(card)
        shown_settings = (default_of(card), *(name for name in settings_of(us) if "CUPTI" in name))
        short = us[us["step"] < SHORT_US]
        name = card.removesuffix(ALL).upper() + (", all shapes" if card.endswith(ALL) else "")
        for dtype, part in short.groupby("q_dtype"):
            errors = (f"{(part[setting] - part['step']).median():+.1f}" for setting in shown_settings)
            cells.append((name, str(dtype), str(len(part)), *errors))
    return Grid("", ("study", "queries", "points", DEFAULT, "clean, CUPTI"), tuple(cells))


def by_length(card: str = CARD) -> Grid:
    """The median size of the error in µs, by what a call costs in the step."""
    us, cells = times(card), []
    for low, high in pairwise(RANGES_US):
        part = us[us["step"].between(low, high, inclusive="left")]
        if len(part):
            errors = ((part[setting] - part["step"]).abs().median() for setting in settings_of(us))
            cells.append((f"{low:g} to {high:g} µs", str(len(part)), *(f"{error:.1f}" for error in errors)))
    return Grid("", ("cost in the step", "points", *settings_of(us)), tuple(cells))


def other_choices(setting: str | None = None, card: str = CARD) -> Grid:
    """Problems where the setting's choice costs over 2% more in the step than the best there, worst first."""
    setting = setting or default_of(card)
    us = times(card).dropna(subset=[setting]).reset_index()
    cells = []
    for _, part in us.groupby(PROBLEM):
        taken, best = (part.loc[part[column].idxmin()] for column in (setting, "step"))
        loss = taken["step"] / best["step"] - 1
        if loss > AHEAD:
            shape = (f"{taken['batch_size']} x {taken['s_kv']:,}", str(taken["s_qo"]), f"{taken['q_dtype']}, {taken['kv_dtype']}")
            figures = (f"{part[us_of].loc[at]:.1f}" for at in (taken.name, best.name) for us_of in (setting, "step"))
            alone_1, step_1, alone_2, step_2 = figures
            cells.append(
                (loss, (*shape, shown(taken["kernel"]), alone_1, step_1, shown(best["kernel"]), alone_2, step_2, f"{loss:.0%}"))
            )
    header = (
        "batch x s_kv",
        "s_qo",
        "queries, keys",
        "first alone",
        "alone",
        "in step",
        "first in step",
        "alone",
        "in step",
        "more",
    )
    return Grid("", header, tuple(cell for _, cell in sorted(cells, key=lambda cell: -cell[0])))


def misses(setting: str | None = None, card: str = CARD) -> Grid:
    """Points where the setting is off by more than is allowed, worst first."""
    setting = setting or default_of(card)
    us = times(card).dropna(subset=[setting]).reset_index()
    error_us = us[setting] - us["step"]
    far = us.assign(difference=error_us)[~is_near(error_us, us["step"])]
    far = far.sort_values("difference", key=lambda column: -column.abs())
    us_of_cupti = next((far[name] for name in settings_of(us) if "CUPTI" in name), pd.Series(index=far.index, dtype=float))
    cells = [
        (
            f"{row['batch_size']} x {row['s_kv']:,}",
            str(row["s_qo"]),
            f"{row['q_dtype']}, {row['kv_dtype']}",
            shown(row["kernel"]),
            f"{row[setting]:.1f}",
            "–" if pd.isna(row["cupti"]) else f"{row['cupti']:.1f}",
            f"{row['step']:.1f} ({row['low']:.1f} to {row['high']:.1f})",
            f"{row['difference']:+.1f}",
        )
        for row in far.assign(cupti=us_of_cupti).to_dict("records")
    ]
    header = (
        "batch x s_kv",
        "s_qo",
        "queries, keys",
        "kernel",
        "alone, µs",
        "alone, CUPTI, µs",
        "in step, µs (95% interval)",
        "error",
    )
    return Grid("", header, tuple(cells))


def twins(card: str = CARD) -> Grid:
    """|B / A - 1| of two interleaved measurements of one call: alone over clean lines, and in a step."""
    cells = []
    for name, dataset, column in (("alone, clean", "study_noise", "median_us"), ("in step", f"{IN_STEP}_noise", "in_step_us")):
        table = frame_of(RESULTS / f"{card}_{dataset}")
        pairs = table[table["status"] == "ok"].pivot_table(index=["group_id", "backend"], columns="twin", values=column).dropna()
        rel_diff = (pairs[1] / pairs[0] - 1).abs()
        cells.append(
            (name, str(len(pairs)), *(f"{rel_diff.quantile(share):.2%}" for share in (0.5, 0.95, 0.99)), f"{rel_diff.max():.2%}")
        )
    return Grid("", ("time", "points", "median", "95th percentile", "99th", "worst"), tuple(cells))
