"""What changed between two selections of rows: chooses them, finds the noise floor, has each pair and each group judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator import places
from orchestrator.compare import noise_floor
from orchestrator.compare.noise_floor import Floors
from orchestrator.compare.pairs import MEASURED, pair
from orchestrator.compare.selection import Selection, select
from orchestrator.compare.verdicts import groups, judge
from orchestrator.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

REGRESSIONS = ("slower", "failing", "lost")
# What a group may be of; one that does not vary among the pairs tells nothing.
GROUPS = ("routine", "backend", "model", "s_kv", "batch_size", "s_qo", "mask", "page_size", "q_dtype", "kv_dtype")


@dataclass(frozen=True)
class Comparison:
    """Two sides, their pairs and groups of pairs with verdicts, and by which floor and bound these were judged."""

    baseline: Selection
    candidate: Selection
    points: pd.DataFrame
    groups: pd.DataFrame
    floors: Floors
    same: float

    @property
    def regressed(self) -> bool:
        """Whether a point or a group is slower, or a point has no time any more."""
        by_group = not self.groups.empty and bool((self.groups["verdict"] == "slower").any())
        return by_group or bool(self.points["verdict"].isin(REGRESSIONS).any())


def compare(
    baseline: Sequence[str], candidate: Sequence[str], path: str, *, noise: str | None = None, same: float = 0.02
) -> Comparison:
    """Compares what the conditions select from the dataset under `path`, or from those that they name.

    `noise` is a dataset of mode=noise; without it, one beside either dataset is used, `<its path>_noise`. Raises UserError where
    the conditions select nothing, the same rows twice, or rows without a point in common.
    """
    sides = select("baseline", baseline, path), select("candidate", candidate, path)
    if sides[0].path == sides[1].path and sides[0].rows.index.equals(sides[1].rows.index):
        raise UserError(f"candidate={sides[1].name}: it selects the rows that baseline={sides[0].name} does; type another")
    floors = find_floors([side.path for side in reversed(sides)], noise)
    points = judge(pair(sides[0].rows, sides[1].rows), floors, same)
    _check_common(points, *sides)
    by = [name for name in GROUPS if points.loc[points["told"], name].nunique(dropna=False) > 1]
    return Comparison(*sides, points=points, groups=groups(points, by, same), floors=floors, same=same)


def find_floors(paths: Sequence[str], noise: str | None) -> Floors:
    """Floors from the twins under `noise`, or beside the first of the paths that has some.

    Raises UserError where `noise` holds too few.
    """
    for path in [noise] if noise else [path if path.endswith("_noise") else f"{path}_noise" for path in paths]:
        table = places.read(path).to_pandas()
        found = noise_floor.from_twins(table, path) if len(table) else Floors({})
        if found.by_device:
            return found
    if noise:
        raise UserError(
            f"noise={noise!r}: fewer than {noise_floor.LEAST_TWINS} points measured twice; "
            f"type python -m orchestrator +sweep=NAME mode=noise, which writes them to results/NAME_noise, or leave noise out"
        )
    return Floors({})


def _check_common(points: pd.DataFrame, baseline: Selection, candidate: Selection) -> None:
    words = f"baseline={baseline.name} and candidate={candidate.name}"
    in_both = points[(points["status_a"] == "ok") & points["status_b"].notna()]
    if in_both.empty:
        apart = [name for name in MEASURED if not set(baseline.rows[name].map(str)) & set(candidate.rows[name].map(str))]
        differ = f"; no {', no '.join(apart)} is in both" if apart else ""
        raise UserError(f"{words}: no point that the baseline has a time for is in both{differ}; type others")
    unlike = points[(points["status_a"] == "ok") & (points["status_b"] == "ok") & ~points["told"]]
    if len(unlike) == len(in_both):
        raise UserError(f"{words}: none of {len(unlike)} points can be compared: {unlike['why'].iloc[0]}; type others")
