"""Best against best: the fastest backend of each shape on either side of a comparison, whichever it is. For devices and versions.

A point is compared with itself elsewhere; here the best of one side stands against the best of the other, as two servers would.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from orchestrator.analysis.compare.pairs import PLACE_COLUMNS, tree_texts
from orchestrator.analysis.keys import OWN_US, PROBLEM_KEYS, RANKED_US
from orchestrator.analysis.names import of_references
from orchestrator.analysis.noise import first_of_aa_pairs
from orchestrator.analysis.sql import literal
from orchestrator.analysis.value_text import text_of

if TYPE_CHECKING:
    import pandas as pd

    from orchestrator.analysis.compare.selection import Selection

ALIKE = 0.05  # neighbouring batches whose ratios differ by less are one range
MEASURED = ("backend", "resolved_backend", "median_us", "in_step_us", "launch_us", "rel_err")
OF_LINE = ("model", "q_dtype", "kv_dtype", "l2")  # each combination is a line of the answer


@dataclass(frozen=True)
class BestOfSides:
    """`names` of baseline and candidate; `shapes`: a row for each shape that both sides have a time for.

    Its columns are the keys of a problem, `_a` and `_b` of `backend`, `kernel`, `us`, `own_us` and `rel_err`, and
    speed_up   the time of the baseline's best over that of the candidate's best, both without the launch of the graph
    keeping    on the candidate, the time of the baseline's best kernel over that of the best; null if it has no time there
    """

    names: tuple[str, str]
    of_devices: bool
    shapes: pd.DataFrame

    @property
    def changed(self) -> pd.DataFrame:
        """Shapes whose best kernel is another one on the candidate, those first where keeping it costs most."""
        other = self.shapes[self.shapes["kernel_a"] != self.shapes["kernel_b"]]
        return other.sort_values(["keeping", "speed_up"], ascending=False, na_position="first", kind="stable")


def best_of(baseline: Selection, candidate: Selection, max_rel_err: float | None = None) -> BestOfSides:
    """Both sides' best backends, shape by shape. If both have several devices or clusters, each is compared with itself."""
    import pandas as pd

    sides = baseline.rows, candidate.rows
    places = [place for place in PLACE_COLUMNS if min(rows[place].nunique() for rows in sides) > 1]
    keys = [key for key in PROBLEM_KEYS if key not in PLACE_COLUMNS or key in places]
    first, second = (_kernels(rows, max_rel_err) for rows in sides)
    second = second.astype({key: first[key].dtype for key in keys}) if second.empty else second  # of no rows they are not known
    first = first.astype({key: second[key].dtype for key in keys}) if first.empty else first
    shapes = first[first["rank"] == 1].merge(second[second["rank"] == 1], on=keys, suffixes=("_a", "_b"))
    of_first = second[[*keys, "kernel", "own_us"]].rename(columns={"kernel": "kernel_a", "own_us": "kept_us"})
    shapes = shapes.merge(of_first, on=[*keys, "kernel_a"], how="left")
    shapes = shapes.assign(speed_up=shapes["own_us_a"] / shapes["own_us_b"], keeping=shapes["kept_us"] / shapes["own_us_b"])
    devices = [_only(rows["device_name"]) for rows in sides]
    of_devices = None not in devices and devices[0] != devices[1]
    names = (str(devices[0]), str(devices[1])) if of_devices else (baseline.name, candidate.name)
    return BestOfSides(names, of_devices, pd.DataFrame(shapes))


def _only(values: pd.Series) -> str | None:
    found = values.dropna().unique()
    return str(found[0]) if len(found) == 1 else None


def _kernels(rows: pd.DataFrame, max_rel_err: float | None) -> pd.DataFrame:
    """Each kernel's time at each shape, with `rank` by it. A kernel counts once, under the backend of its name if there is one.

    Keys are text, so that null equals null in a merge.
    """
    import duckdb

    ordered = first_of_aa_pairs(rows).sort_values("finished_at", kind="stable")
    newest = ordered.drop_duplicates(["point_id", "cluster", "device_name"], keep="last")
    ok = newest[newest["status"] == "ok"]
    masks = [mask if tree is None else f"{mask} {tree}" for mask, tree in zip(ok["mask"], tree_texts(ok), strict=True)]
    keys = ", ".join(f'"{key}"' for key in PROBLEM_KEYS)
    with duckdb.connect() as con:
        con.register("ok", _keys_as_text(ok[[*PROBLEM_KEYS, *MEASURED]].assign(mask=masks)))
        ranked = con.sql(f"""
            WITH launches AS (SELECT device_name, min(launch_us) AS share_us FROM ok GROUP BY device_name),
            timed AS (
                SELECT {keys}, backend, coalesce(resolved_backend, backend) AS kernel, rel_err,
                       {RANKED_US} AS us, {OWN_US} AS own_us
                FROM ok LEFT JOIN launches USING (device_name)
                WHERE NOT regexp_matches(backend, {literal(of_references())})
                  AND coalesce(rel_err <= {literal(max_rel_err)}, {max_rel_err is None})
            ), kernels AS (
                FROM timed QUALIFY row_number() OVER (PARTITION BY {keys}, kernel ORDER BY backend = kernel DESC, us) = 1
            )
            SELECT *, row_number() OVER (PARTITION BY {keys} ORDER BY us, kernel) AS rank FROM kernels""")
        return ranked.df()


def _keys_as_text(frame: pd.DataFrame) -> pd.DataFrame:
    as_they_are = ("batch_size", "s_kv", "s_qo", "timer", "context")  # numbers, and what SQL reads
    return frame.assign(**{key: frame[key].map(partial(text_of, nothing="–")) for key in PROBLEM_KEYS if key not in as_they_are})


@dataclass(frozen=True)
class BatchRange:
    """Neighbouring batch sizes with about the same ratio: its geometric mean, the least and the most of a shape."""

    first: int
    last: int
    mean: float
    least: float
    most: float


def by_batch(part: pd.DataFrame) -> list[BatchRange]:
    """The ratios of a line in as few ranges of batch sizes as tell them."""
    found: list[tuple[list[int], list[float]]] = []
    for batch, rows in part.groupby("batch_size"):
        ratios = rows["speed_up"].tolist()
        if found and abs(_mean(found[-1][1]) / _mean(ratios) - 1) < ALIKE:
            found[-1][0].append(int(batch))
            found[-1][1].extend(ratios)
        else:
            found.append(([int(batch)], list(ratios)))
    return [BatchRange(batches[0], batches[-1], _mean(ratios), min(ratios), max(ratios)) for batches, ratios in found]


def _mean(ratios: list[float]) -> float:
    """The geometric mean."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios))
