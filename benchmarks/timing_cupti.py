"""CUPTI's times beside graph replays without the launch, of the main sweep on one H200: tables of docs/timing.md.

Both ran on one card, one after the other, so what differs is not the card. There is no time in a step for all of these shapes.
"""

from __future__ import annotations

from itertools import pairwise

import pandas as pd

from benchmarks.timing_study import RANGES_US, ok_rows, own_us
from orchestrator.analysis.names import shown
from orchestrator.tables import Grid

REPLAYS, CUPTI = "h200_specdec_all_candidates", "h200_study_all_cupti"
SHAPE = ["batch_size", "s_kv", "s_qo", "kv_dtype"]
MIDDLE = (0.05, 0.95)  # quantiles: 90% of the points lie between


def both() -> pd.DataFrame:
    """By point: µs of `replays` without the launch and of `cupti`, their `difference`, and `rel`, that over the replays."""
    us = pd.concat({"replays": own_us(ok_rows(REPLAYS)), "cupti": own_us(ok_rows(CUPTI))}, axis=1, join="inner")
    difference = us["cupti"] - us["replays"]
    return us.assign(difference=difference, rel=difference / us["replays"])


def one_card() -> bool:
    """Whether all points of both are of one card."""
    return len({uuid for name in (REPLAYS, CUPTI) for uuid in ok_rows(name)["device_uuid"]}) == 1


def differences() -> Grid:
    """By what a call takes: the median difference and the range of 90% of the points."""
    us = both()
    parts = [
        (f"{low:g} to {high:g} µs", us[us["replays"].between(low, high, inclusive="left")]) for low, high in pairwise(RANGES_US)
    ]
    cells = [
        (name, str(len(part)), *_figures(part["difference"], "{:+.1f}"), *_figures(part["rel"], "{:+.1%}"))
        for name, part in (*parts, ("all", us))
    ]
    header = (
        "graph replay",
        "points",
        "CUPTI − replay, µs, median",
        "90% of the points",
        "of the time, median",
        "90% of the points",
    )
    return Grid("", header, tuple(cells))


def _figures(values: pd.Series, form: str) -> tuple[str, str]:
    least, most = (form.format(values.quantile(share)) for share in MIDDLE)
    return form.format(values.median()), f"{least} to {most}"


def firsts() -> pd.DataFrame:
    """By shape: the fastest backend by `replays` and by `cupti`, and what each choice costs in the other's times.

    Over an FP8 cache queries are in bf16 or FP8, whichever are faster.
    """
    us = both().reset_index()
    by_shape = us.groupby(SHAPE)
    replays, cupti = (us.loc[by_shape[name].idxmin()].set_index(SHAPE) for name in ("replays", "cupti"))
    return pd.DataFrame(
        {
            "replays": replays["backend"],
            "cupti": cupti["backend"],
            "cost_in_cupti": replays["cupti"] / cupti["cupti"] - 1,
            "cost_in_replays": cupti["replays"] / replays["replays"] - 1,
        }
    )


def choices() -> Grid:
    """The shapes at which the fastest backend is another one."""
    found = firsts()
    other = found[found["replays"] != found["cupti"]].reset_index()
    cells = [
        (
            f"{row['batch_size']} x {row['s_kv']:,}",
            str(row["s_qo"]),
            row["kv_dtype"],
            shown(row["replays"]),
            shown(row["cupti"]),
            f"{row['cost_in_cupti']:.1%}",
            f"{row['cost_in_replays']:.1%}",
        )
        for row in other.to_dict("records")
    ]
    title = f"Shapes with another fastest backend, {len(other)} of {len(found)}"
    header = ("batch x s_kv", "s_qo", "keys", "by replays", "by CUPTI", "the first costs, by CUPTI", "the second costs, by replays")
    return Grid(title, header, tuple(cells))
