"""How far GPUs of one kind differ: each GPU's offset, estimated from points that several GPUs measured.

A GPU is told by its UUID. Its offset is the log of a kernel's time on it over the mean of the GPUs that it was compared with.
If the memory of two H200s differs by 2%, their offsets differ by 2% for every kernel that memory limits. Only points near
the memory's ceiling have an offset: other times do not depend on the card.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from kernels.problem import Problem
from orchestrator.analysis.keys import TIMING_KEYS
from orchestrator.analysis.noise import VERSION_COLUMNS
from orchestrator.analysis.sources import local_datasets
from orchestrator.errors import UserError
from orchestrator.storage import access

if TYPE_CHECKING:
    import pandas as pd

    Floats = np.ndarray[Any, np.dtype[np.float64]]
    Codes = np.ndarray[Any, np.dtype[Any]]  # numbers of GPUs, points or families

CARD = "device_uuid"
# Rows that are equal in these are the same point of the same code, so that only the GPU differs, and the moment.
MADE = ("backend", "resolved_backend", "device_name", "driver", *VERSION_COLUMNS, "cuda_graph")
REPEATED = (*Problem.model_fields, *MADE, *TIMING_KEYS)
# What learning needs of a row.
COLUMNS = (*REPEATED, CARD, "status", "bound", "frac_of_peak", "median_us", "twin", "stop_reason", "measured_as")
NEAR_CEILING = 0.85  # share of the memory's ceiling from which a time follows it
MIN_REPEATED = 20  # points that a GPU shares with others, for an offset of its own
BETWEEN_RUNS = 0.003  # standard error of an offset that more points do not lessen: what a whole run differs by from another
ROUNDS = 20  # of medians by turns; two are enough if every GPU has every point


@dataclass(frozen=True)
class Card:
    """A GPU's offset (log of its time over the mean GPU's) and its standard error, from `points` that others measured too.

    Cards of one `family` are connected by points in common; offsets of two families say nothing about each other.
    """

    uuid: str
    device_name: str
    points: int
    offset: float
    se: float
    family: int


@dataclass(frozen=True)
class Cards:
    """All GPUs with an offset, by UUID, and where they were learned."""

    by_uuid: Mapping[str, Card] = field(default_factory=dict)
    source: str = ""

    def certain(self) -> dict[str, float]:
        """The offsets by which times may be put right: those of the largest family; 0 for one within two standard errors."""
        families = [card.family for card in self.by_uuid.values()]
        largest = max(families, key=families.count, default=None)
        ours = [card for card in self.by_uuid.values() if card.family == largest]
        return {card.uuid: card.offset if abs(card.offset) > 2 * card.se else 0.0 for card in ours}

    def difference(self, a: object, b: object) -> tuple[float, float] | None:
        """How much longer GPU b takes than a, as a log ratio, and its standard error; None if that is not known."""
        first, second = self.by_uuid.get(str(a)), self.by_uuid.get(str(b))
        if first is None or second is None or first.family != second.family or first is second:
            return None
        return second.offset - first.offset, math.hypot(first.se, second.se)


def learn(rows: pd.DataFrame, source: str = "", separate: Codes | None = None) -> Cards:
    """The offset of each GPU that shares at least `MIN_REPEATED` points with others.

    A point's log time is its own level plus its GPU's offset. Both are found by medians in turns (Tukey's median polish), which a
    few points that changed do not move. `separate`, a value for each row, keeps rows with different values from being repeats of
    each other: a comparison must not take its own change for a difference of cards. Throttled and rough rows do not count, nor
    those that have another backend's samples.
    """
    usable = (rows["status"] == "ok") & rows[CARD].notna() & (rows["bound"] == "memory")
    usable &= rows["frac_of_peak"].astype(float) >= NEAR_CEILING
    usable &= ~rows["stop_reason"].isin(["throttled", "decided"]) & rows["measured_as"].isna() & (rows["median_us"] > 0)
    separate = np.zeros(len(rows)) if separate is None else separate
    timed = rows[usable][[name for name in COLUMNS if name in rows]].assign(separate=separate[usable.to_numpy()])
    if timed[CARD].nunique() < 2:
        return Cards(source=source)
    keys = [timed[name].map(str) for name in REPEATED if name in timed]
    point = timed.groupby([*keys, timed["separate"]], sort=False, dropna=False).ngroup().to_numpy()
    timed = timed.assign(point=point, log_us=np.log(timed["median_us"].astype(float)))
    timed = timed.groupby(["point", CARD, "device_name"], sort=True, as_index=False)["log_us"].median()
    shared = timed.groupby("point")[CARD].transform("nunique") > 1
    return Cards(_offsets(_with_enough(timed[shared])), source)


def learn_from(path: str) -> Cards:
    """The GPUs of a dataset, or of all that a pattern such as `results/h200_*` names. Raises UserError if there are no rows."""
    import pandas as pd

    places = [path] if access.in_objects(path) else local_datasets(path)
    tables = [access.read(str(place)) for place in places]
    frames = [table.select(list(COLUMNS)).to_pandas() for table in tables if len(table)]
    if not frames:
        raise UserError(f"cards={path!r}: no rows there; type cards=DIR, or a pattern such as cards='results/h200_*'")
    return learn(pd.concat(frames, ignore_index=True), path)


def to_mean_card_sql(problem: str) -> tuple[str, str]:
    """SQL that divides a time by what its GPU takes over the mean one, and the join for it with the table `cards` of a dataset.

    Only in problems that several GPUs measured, and only near the memory's ceiling: elsewhere times stay as they were measured.
    `problem` is SQL for what tells problems apart.
    """
    ends = (f"{end}(device_uuid) FILTER (status = 'ok') OVER (PARTITION BY {problem})" for end in ("min", "max"))
    applies = f"bound = 'memory' AND frac_of_peak >= {NEAR_CEILING} AND {' <> '.join(ends)}"
    return f" / if({applies}, coalesce(factor, 1), 1)", " LEFT JOIN cards USING (device_uuid)"


def _with_enough(timed: pd.DataFrame) -> pd.DataFrame:
    """Without GPUs that share too few points, and points that are then on one GPU alone."""
    enough = timed.groupby(CARD)["point"].transform("size") >= MIN_REPEATED
    enough &= timed.groupby("point")[CARD].transform("nunique") > 1
    return timed if enough.all() else _with_enough(timed[enough])


def _offsets(timed: pd.DataFrame) -> dict[str, Card]:
    import pandas as pd

    if timed.empty:
        return {}
    names, card = np.unique(timed[CARD].astype(str), return_inverse=True)
    point = np.unique(timed["point"], return_inverse=True)[1]
    of_card = [np.flatnonzero(card == c) for c in range(len(names))]
    log_us, offset = timed["log_us"].to_numpy(), np.zeros(len(names))
    for _ in range(ROUNDS):
        level = pd.Series(log_us - offset[card]).groupby(point).median().to_numpy()
        offset = np.array([np.median((log_us - level[point])[rows]) for rows in of_card])
    left = log_us - level[point] - offset[card]
    family = _families(card, point, len(names))
    offset = offset - np.array([offset[family == of].mean() for of in family])
    kinds = timed["device_name"].to_numpy()
    return {
        name: Card(name, str(kinds[rows[0]]), len(rows), float(offset[c]), _error(left[rows]), int(family[c]))
        for c, (name, rows) in enumerate(zip(names, of_card, strict=True))
    }


def _error(left: Floats) -> float:
    """Standard error of a median of these residuals, at least what a run differs by as a whole. 1.4826 × the median distance is the
    standard deviation of normal values; the median's error is 1.2533 times that of the mean."""
    return math.hypot(1.2533 * 1.4826 * float(np.median(np.abs(left))) / math.sqrt(len(left)), BETWEEN_RUNS)


def _families(card: Codes, point: Codes, count: int) -> Codes:
    """A number for each GPU, equal if points in common connect two GPUs, also over others."""
    family = np.arange(count)
    for _ in range(count):
        of_point = np.full(int(point.max()) + 1, count)
        np.minimum.at(of_point, point, family[card])
        found = family.copy()
        np.minimum.at(found, card, of_point[point])
        if (found == family).all():
            break
        family = found
    return family
