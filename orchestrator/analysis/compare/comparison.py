"""A whole comparison: selects the rows of both sides, finds the noise floor, and judges each pair and each group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypedDict, Unpack

import numpy as np
import pandas as pd

from orchestrator.analysis.cards import COLUMNS, Cards, learn, learn_from
from orchestrator.analysis.compare.gate import decide_gate, evidence, is_of_two_kinds, red_points
from orchestrator.analysis.compare.pairs import POINT_COLUMNS, pair
from orchestrator.analysis.compare.selection import Selection, choices, read, select, to_measure
from orchestrator.analysis.compare.verdicts import judge, judge_groups
from orchestrator.analysis.noise import MIN_PAIRS_TO_FIT, SAME, NoiseFloors, fitted_floors
from orchestrator.analysis.sources import listed
from orchestrator.analysis.sql import Where
from orchestrator.config import environment
from orchestrator.config.modes import companion, owner
from orchestrator.errors import UserError
from orchestrator.storage import access

MEDIAN_TOLERANCE = 1e-6  # a stored median may differ from that of its samples by rounding
# Points are grouped by each of these columns that varies among the comparable pairs.
GROUP_COLUMNS = ("routine", "backend", "model", "s_kv", "batch_size", "s_qo", "mask", "page_size", "q_dtype", "kv_dtype")


@dataclass(frozen=True)
class Comparison:
    """Both sides, the frames of pairs and of groups (`compare/__init__.py` lists their columns), and how they were judged."""

    baseline: Selection
    candidate: Selection
    points: pd.DataFrame
    groups: pd.DataFrame
    floors: NoiseFloors
    cards: Cards
    same: float
    missing_allowed: bool = False

    @property
    def has_gate(self) -> bool:
        """Whether the gate was applied. It is not to two kinds of GPU: then nothing that is slower is red or a suspect."""
        return not is_of_two_kinds(self.points)

    @property
    def regressed(self) -> bool:
        """Whether the comparison is red, its exit code 1: a point or a group by the gate, or a point that has no time any more."""
        return bool(self.points["red"].any() or (len(self.groups) and self.groups["red"].any()))

    @property
    def red_groups(self) -> dict[str, float]:
        """The groups that the gate found slower, as people read them, and their `adjusted` change."""
        return {f"{of['by']} {of['value']}".strip(): of["adjusted"] for of in self.groups.to_dict("records") if of["red"]}

    @property
    def suspects(self) -> pd.DataFrame:
        """Points that look slower by themselves, whether the gate found them red or not: what `rerun=suspects` measures again."""
        return self.points[(self.points["verdict"] == "slower") & self.has_gate]


class Judging(TypedDict, total=False):
    """How points are judged."""

    noise: str | None  # a dataset of mode=noise; else the one beside the candidate's or the baseline's is used (`<its path>_noise`)
    same: float  # the largest change that counts as none, as a share of the time
    missing: str  # "allow" lets points of the baseline have no row in the candidate
    cards: str | None  # a dataset, or a pattern of several, that tells how GPUs of one kind differ


def compare(
    baseline: Sequence[str], candidate: Sequence[str], path: str, *, where: Where | None = None, **judging: Unpack[Judging]
) -> Comparison:
    """Compares the rows that the conditions select from the dataset under `path`, or from a dataset that they name.

    Raises UserError if the conditions select nothing, the same rows, or no common point, or a median is not its samples'.
    """
    sides = select("baseline", baseline, path, where), select("candidate", candidate, path, where)
    if sides[0].path == sides[1].path and sides[0].rows.index.equals(sides[1].rows.index):
        others = choices("candidate", read(sides[1].path))
        raise UserError(f"candidate={sides[1].name}: it selects the same rows as baseline={sides[0].name}; {others}")
    hint = partial(_hint, *sides, where or {}, partial(map, select, ("baseline", "candidate"), (baseline, candidate), (path, path)))
    return compare_rows(*sides, hint=hint, **judging)


def _hint(baseline: Selection, candidate: Selection, where: Where, every: Callable[[], Iterable[Selection]]) -> str:
    """Of sides without a common point: what each has, what both have without `where`, and what measures two releases."""
    told = {baseline.name: baseline.rows, candidate.name: candidate.rows}
    releases = [(environment.parsed(name), rows["libraries"].str) for name, rows in told.items()]
    if where:
        pairs = pair(*(side.rows for side in every()))
        told["both, without where"] = pairs[(pairs["status_a"] == "ok") & (pairs["status_b"] == "ok")]
    columns = ["model", "tp", "q_dtype", "kv_dtype", "backend"]
    lines = [f"\n{name}: {listed(rows[columns].to_dict('list'))}" for name, rows in told.items() if len(rows)]
    if all(one and text.contains(one.distribution, regex=False).all() for one, text in releases):
        lines.append(f"\n{to_measure(baseline.rows, [baseline.name, candidate.name], where)}")
    return "".join(lines)


def compare_rows(
    baseline: Selection, candidate: Selection, *, hint: Callable[[], str] = str, **judging: Unpack[Judging]
) -> Comparison:
    """As `compare`, of rows that are chosen already. `hint` says more of sides without a common point."""
    sides, same, missing = (baseline, candidate), judging.get("same", SAME), judging.get("missing", "fail")
    for side in sides:
        require_own_medians(side)
    floors = find_noise_floors([side.path for side in reversed(sides)], judging.get("noise"))
    points = judge(pair(sides[0].rows, sides[1].rows), floors, same)
    if "dataset_a" in points and points[["dataset_a", "dataset_b"]].stack().nunique() > 1 and baseline.path == candidate.path:
        elsewhere = (points["verdict"] == "missing") & ~points["run_id_a"].isin(candidate.rows["run_id"])
        points.loc[elsewhere, "verdict"] = "not measured"
    _require_comparable(points, *sides, hint)
    by = [name for name in GROUP_COLUMNS if points.loc[points["counted"], name].nunique(dropna=False) > 1]
    groups, learned = judge_groups(points, by, same), find_cards(sides, judging.get("cards"))
    decided = decide_gate(given := evidence(points, by, floors, learned))
    points = points.assign(red=red_points(points, decided, missing), limit=np.nan, adjusted=np.nan)
    points.loc[points["counted"], ["adjusted", "limit"]] = np.expm1(np.column_stack([decided.changes, decided.limits]))
    if len(groups):
        adjusted = [np.expm1(np.median(decided.changes[of > 0])) for of in given.members]
        groups = groups.assign(red=decided.by_group & (not is_of_two_kinds(points)), adjusted=adjusted)
    return Comparison(*sides, points, groups, floors, learned, same, missing == "allow")


def require_own_medians(side: Selection) -> None:
    """Raises UserError if a row's `median_us` is not the median of its `samples_us`: then one of them was changed by hand."""
    rows = side.rows[side.rows["status"] == "ok"]
    sampled = rows[rows["samples_us"].map(lambda samples: isinstance(samples, np.ndarray) and len(samples) > 0).astype(bool)]
    own = np.array([np.median(samples) for samples in sampled["samples_us"]])
    wrong = ~(np.abs(sampled["median_us"].astype(float).to_numpy() - own) <= MEDIAN_TOLERANCE * np.abs(own))
    if wrong.any():
        first = sampled[wrong].iloc[0]
        raise UserError(
            f"{side.name}: {wrong.sum()} rows of {side.path} have a median that is not that of their own samples, the first is "
            f"point_id {first['point_id']} ({first['backend']}): median_us {first['median_us']:.6g}, samples {own[wrong][0]:.6g}; "
            f"such a row is not as it was measured: type its sweep again with rerun=all"
        )


def find_cards(sides: Sequence[Selection], path: str | None) -> Cards:
    """How GPUs of one kind differ: from the datasets of `cards=`, or from each side's rows, which are no repeats of the other's."""
    if path is not None:
        return learn_from(path)
    rows = pd.concat([side.rows[list(COLUMNS)] for side in sides], ignore_index=True)
    side_of_row = np.repeat([0, 1], [len(side.rows) for side in sides])
    return learn(rows, " and ".join(dict.fromkeys(side.path for side in sides)), side_of_row)


def find_noise_floors(paths: Sequence[str], noise: str | None) -> NoiseFloors:
    """The fitted floors under `noise` (UserError if it has too few pairs), or beside the first of the paths that has enough."""
    for path in [noise] if noise else [companion(owner(path) or path, "noise") for path in paths]:
        if len(table := access.read(path).to_pandas()) and (found := fitted_floors(table, path)).by_device:
            return found
    if noise:
        raise UserError(
            f"noise={noise!r}: fewer than {MIN_PAIRS_TO_FIT} points measured twice; "
            f"type python -m orchestrator +sweep=NAME mode=noise, which writes them to results/NAME_noise, or leave noise out"
        )
    return NoiseFloors({})


def _require_comparable(points: pd.DataFrame, baseline: Selection, candidate: Selection, hint: Callable[[], str]) -> None:
    words = f"baseline={baseline.name} and candidate={candidate.name}"
    in_both = points[(points["status_a"] == "ok") & points["status_b"].notna()]
    if in_both.empty:
        disjoint = [name for name in POINT_COLUMNS if not set(baseline.rows[name].map(str)) & set(candidate.rows[name].map(str))]
        differ = f"; no {', no '.join(disjoint)} is in both" if disjoint else ""
        raise UserError(f"{words}: no point that the baseline has a time for is in both{differ}; type others{hint()}")
    unlike = points[(points["status_a"] == "ok") & (points["status_b"] == "ok") & ~points["comparable"]]
    if len(unlike) == len(in_both):
        raise UserError(f"{words}: none of {len(unlike)} points can be compared: {unlike['note'].iloc[0]}; type others")
