"""A whole comparison: selects the rows of both sides, finds the noise floor, and judges each pair and each group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.analysis.compare.pairs import POINT_COLUMNS, pair
from orchestrator.analysis.compare.selection import Selection, select
from orchestrator.analysis.compare.verdicts import judge, judge_groups
from orchestrator.analysis.noise import MIN_PAIRS_TO_FIT, SAME, NoiseFloors, fitted_floors
from orchestrator.config.companions import companion, owner
from orchestrator.errors import UserError
from orchestrator.storage import access

if TYPE_CHECKING:
    import pandas as pd

REGRESSIONS = ("slower", "failing", "lost")
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
    same: float

    @property
    def regressed(self) -> bool:
        """Whether a point or a group is slower, or a point lost its time."""
        by_group = not self.groups.empty and bool((self.groups["verdict"] == "slower").any())
        return by_group or bool(self.points["verdict"].isin(REGRESSIONS).any())


def compare(
    baseline: Sequence[str], candidate: Sequence[str], path: str, *, noise: str | None = None, same: float = SAME
) -> Comparison:
    """Compares the rows that the conditions select from the dataset under `path`, or from a dataset that they name.

    `noise` is a dataset of mode=noise. Without it the one beside the candidate's or the baseline's dataset is used
    (`<its path>_noise`). `same` is the largest change that counts as none, as a share of the time. Raises UserError if the
    conditions select nothing, the same rows twice, or rows without a common point.
    """
    sides = select("baseline", baseline, path), select("candidate", candidate, path)
    if sides[0].path == sides[1].path and sides[0].rows.index.equals(sides[1].rows.index):
        raise UserError(f"candidate={sides[1].name}: it selects the rows that baseline={sides[0].name} does; type another")
    floors = find_noise_floors([side.path for side in reversed(sides)], noise)
    points = judge(pair(sides[0].rows, sides[1].rows), floors, same)
    _require_comparable(points, *sides)
    by = [name for name in GROUP_COLUMNS if points.loc[points["comparable"], name].nunique(dropna=False) > 1]
    return Comparison(*sides, points=points, groups=judge_groups(points, by, same), floors=floors, same=same)


def find_noise_floors(paths: Sequence[str], noise: str | None) -> NoiseFloors:
    """The fitted floors of the A/A pairs under `noise`, or of those beside the first of the paths that has enough.

    Raises UserError if `noise` has too few pairs.
    """
    for path in [noise] if noise else [path if owner(path) else companion(path, "noise") for path in paths]:
        table = access.read(path).to_pandas()
        found = fitted_floors(table, path) if len(table) else NoiseFloors({})
        if found.by_device:
            return found
    if noise:
        raise UserError(
            f"noise={noise!r}: fewer than {MIN_PAIRS_TO_FIT} points measured twice; "
            f"type python -m orchestrator +sweep=NAME mode=noise, which writes them to results/NAME_noise, or leave noise out"
        )
    return NoiseFloors({})


def _require_comparable(points: pd.DataFrame, baseline: Selection, candidate: Selection) -> None:
    words = f"baseline={baseline.name} and candidate={candidate.name}"
    in_both = points[(points["status_a"] == "ok") & points["status_b"].notna()]
    if in_both.empty:
        disjoint = [name for name in POINT_COLUMNS if not set(baseline.rows[name].map(str)) & set(candidate.rows[name].map(str))]
        differ = f"; no {', no '.join(disjoint)} is in both" if disjoint else ""
        raise UserError(f"{words}: no point that the baseline has a time for is in both{differ}; type others")
    unlike = points[(points["status_a"] == "ok") & (points["status_b"] == "ok") & ~points["comparable"]]
    if len(unlike) == len(in_both):
        raise UserError(f"{words}: none of {len(unlike)} points can be compared: {unlike['note'].iloc[0]}; type others")
