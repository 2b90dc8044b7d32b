"""The input of the gate: the comparable pairs of a judged frame as arrays, with the sizes of all random effects.

All sizes are standard deviations of log ratios, or microseconds. They are from what the same points differed by in several runs on
three H200s, rounded up; `benchmarks/gate.py` holds them to the error rates that docs/timing.md shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.analysis.cards import Cards
from orchestrator.analysis.compare.gate import GateEvidence
from orchestrator.analysis.compare.pairs import CEILINGS, is_interleaved, is_rough
from orchestrator.analysis.compare.verdicts import ROUGH_SE, clock_uncertainty
from orchestrator.analysis.noise import NoiseFloor, NoiseFloors

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    Floats = np.ndarray[Any, np.dtype[np.float64]]
    Flags = np.ndarray[Any, np.dtype[np.bool_]]

# One pair by itself, if its sides are two runs on one card, or two cards; of code that fills the instruction cache, which may find
# more or less of it there, in either case.
SAME_CARD, OTHER_CARD, LONG_CODE = NoiseFloor(0.3, 0.003), NoiseFloor(0.3, 0.005), NoiseFloor(0.9, 0.005)
LONG_CODE_KERNELS = "xqa"  # their names begin so; with drafts their code fills the cache (docs/timing.md)
# All pairs of two runs on one card; of two cards whose difference is not known. `us` is what each launch costs more or less.
SAME_RUN, OTHER_RUN = NoiseFloor(0.15, 0.002), NoiseFloor(0.25, 0.002)
UNKNOWN_CARD = 0.012  # how far two H200s of a kind differ where memory binds
OF_CEILINGS, OF_CEILINGS_SHARE = 0.004, 0.4  # what the ceilings leave open: so much, and this share of what they say
SAME_GROUP, OTHER_GROUP, INTERLEAVED_GROUP = 0.002, 0.003, 0.0005  # all pairs of a group
DISTURBED = ("max_samples", "max_seconds")  # such a median did not settle: other work may have lengthened half of its samples


def evidence(judged: pd.DataFrame, by: Sequence[str], floors: NoiseFloors, cards: Cards) -> GateEvidence:
    """The pairs that count of a frame that `verdicts.judge` has filled in. `by` are the columns whose values are groups."""
    import numpy as np

    pairs = judged[judged["counted"]]
    separate, other = ~is_interleaved(pairs), is_other_card(pairs)
    time = np.exp((pairs["log_us_a"] + pairs["log_us_b"]).to_numpy() / 2)
    offset, devices = _devices(pairs, cards, time, separate, other)
    of_group = np.where(separate, np.where(other, OTHER_GROUP, SAME_GROUP), INTERLEAVED_GROUP)
    members = group_members(pairs, by)
    return GateEvidence(
        log_ratio=pairs["log_ratio"].to_numpy(),
        offset=offset,
        own=_own(pairs, floors, time, separate, other),
        devices=devices,
        groups=members[1:].T * of_group[:, None],
        members=members,
    )


def group_members(pairs: pd.DataFrame, by: Sequence[str]) -> Floats:
    """Which pairs each group has: all pairs first, then those of each value of each column, in the order of `judge_groups`."""
    import numpy as np

    found = [np.ones(len(pairs))]
    for name in by:
        codes = pairs.groupby(name, dropna=False, sort=True).ngroup().to_numpy()
        found += [(codes == code).astype(float) for code in range(int(codes.max(initial=-1)) + 1)]
    return np.array(found)


def is_other_card(pairs: pd.DataFrame) -> Flags:
    """Two GPUs of one kind. Two kinds are compared as they are: there the difference is the question."""
    known = pairs["device_uuid_a"].notna() & pairs["device_uuid_b"].notna()
    other = known & (pairs["device_name_a"] == pairs["device_name_b"]) & (pairs["device_uuid_a"] != pairs["device_uuid_b"])
    found: Flags = other.to_numpy(dtype=bool)
    return found


def _own(pairs: pd.DataFrame, floors: NoiseFloors, time: Floats, separate: Flags, other: Flags) -> Floats:
    """The variance of each pair by itself: samples, floors, and clocks that were throttled."""
    import numpy as np

    total = (pairs["log_se_a"] ** 2 + pairs["log_se_b"] ** 2).to_numpy()
    for side in "ab":
        us, rel = floors.parts(pairs[f"device_name_{side}"])
        total = total + ((us / time) ** 2 + rel**2) / 2 + _disturbance(pairs, side) ** 2
        total = total + np.where(is_rough(pairs, side), ROUGH_SE**2, 0.0)
    between = np.select(
        [is_long_code(pairs), other], [LONG_CODE.variance(time), OTHER_CARD.variance(time)], default=SAME_CARD.variance(time)
    )
    found: Floats = total + np.where(separate, between + clock_uncertainty(pairs) ** 2, 0.0)
    return found


def is_long_code(pairs: pd.DataFrame) -> Flags:
    """Pairs whose kernel, on a side, is one of `LONG_CODE_KERNELS` with drafts."""
    kernels = (pairs[f"resolved_backend_{side}"].fillna(pairs["backend"]).astype(str) for side in "ab")
    long_a, long_b = (kernel.str.startswith(LONG_CODE_KERNELS) for kernel in kernels)
    found: Flags = ((long_a | long_b) & (pairs["s_qo"].astype(str) != "1")).to_numpy(dtype=bool)
    return found


def _disturbance(pairs: pd.DataFrame, side: str) -> Floats:
    """What other work on the machine may have added to a median that did not settle: half the way down to its 5th percentile."""
    import numpy as np

    low = pairs[f"p05_us_{side}"].astype(float)
    way = (pairs[f"log_us_{side}"] - np.log(low.where(low > 0))).clip(lower=0.0).fillna(0.0)
    found: Floats = np.where(pairs[f"stop_reason_{side}"].isin(DISTURBED), way / 2, 0.0)
    return found


def _devices(pairs: pd.DataFrame, cards: Cards, time: Floats, separate: Flags, other: Flags) -> tuple[Floats, Floats]:
    """What is known of the cards for each pair, and the columns of E for cards and runs."""
    import numpy as np

    offset, columns = np.zeros(len(pairs)), [np.where(separate, clock_uncertainty(pairs), 0.0)]
    bound = pairs["bound_a"].where(pairs["bound_a"] == pairs["bound_b"]).to_numpy()
    for of in _card_pairs(pairs, separate):
        first = pairs.iloc[int(np.flatnonzero(of)[0])]
        run = OTHER_RUN if other[of][0] else SAME_RUN
        columns += [np.where(of, run.rel, 0.0), np.where(of, run.us / time, 0.0)]
        if other[of][0]:
            for kind in CEILINGS:
                binds = of & (bound == kind)
                known, spread, _ = known_difference(first, cards, kind)
                offset = np.where(binds, known, offset)
                columns.append(np.where(binds, spread, 0.0))
    kept = [column for column in columns if np.any(column)]
    return offset, np.column_stack(kept) if kept else np.zeros((len(pairs), 0))


def _card_pairs(pairs: pd.DataFrame, separate: Flags) -> list[Flags]:
    """The separate pairs of each two cards."""
    codes = pairs.groupby(["device_uuid_a", "device_uuid_b"], dropna=False, sort=True).ngroup().to_numpy()
    found = [separate & (codes == code) for code in range(int(codes.max(initial=-1)) + 1)]
    return [of for of in found if of.any()]


def known_difference(pair: pd.Series, cards: Cards, bound: str) -> tuple[float, float, str]:
    """The log ratio that two cards explain where `bound` binds, its standard error, and what tells it."""
    import math

    if learned := cards.difference(pair["device_uuid_a"], pair["device_uuid_b"]):
        return *learned, f"points that both measured ({cards.source})"
    a, b = (pair[f"{CEILINGS[bound][0]}_{side}"] for side in "ab")
    if a is None or b is None or not (a > 0 and b > 0):
        return 0.0, UNKNOWN_CARD, "nothing (no ceilings, and no points that both measured)"
    ratio = math.log(a / b)
    return ratio, math.hypot(OF_CEILINGS, OF_CEILINGS_SHARE * ratio), "their measured ceilings"
