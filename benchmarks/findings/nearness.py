"""How near a run's times are to those of an earlier run of the same points, on another card of the same kind."""

from __future__ import annotations

import pandas as pd

from benchmarks.findings.frames import rows, span
from benchmarks.findings.page import checked

POINT = [
    *("routine", "backend", "q_dtype", "kv_dtype", "mask", "s_qo", "min_s_qo", "batch_size", "s_kv", "num_qo_heads"),
    *("num_kv_heads", "page_size", "kv_layout", "page_order", "timer", "l2"),
]
ROUGH = "decided"  # the `stop_reason` of a time that was cut short: it is known within a few percent
NEAR = 0.03  # medians further apart than this need a reason


def again(dataset: str, earlier: str) -> pd.Series:
    """The time in `dataset` over that in `earlier`, of shared points."""
    both = shared(dataset, earlier)
    return both["own_us"] / both["own_us_before"]


def shared(dataset: str, earlier: str) -> pd.DataFrame:
    """The points that both have and that were not cut short; columns of `earlier` end in `_before`."""
    now, before = (rows(name).query("stop_reason != @ROUGH") for name in (dataset, earlier))
    return now.merge(before, on=POINT, suffixes=("", "_before"), validate="one_to_one")


def sentence(dataset: str, *earlier: str) -> str:
    """How near it is to each of these, which are of other cards."""
    card = set(rows(dataset)["device_uuid"])
    found = {name: again(dataset, name) for name in earlier}
    words = (
        f"{ratios.median():.2f} times as long as in `{name}` at the median of {len(ratios)} shared points ({span(ratios)})"
        for name, ratios in found.items()
    )
    return checked(
        "On the H200 a kernel took " + ".\nIt took ".join(words) + ". Those are of another card.",
        all(abs(ratios.median() - 1) < NEAR for ratios in found.values()),
        not any(card & set(rows(name)["device_uuid"]) for name in earlier),
    )
