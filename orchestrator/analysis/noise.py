"""Noise: how far two measurements of the same kernel differ. A/A pairs, and the two noise floors that are computed from them.

An A/A pair is one point measured twice in one run, interleaved (`mode=noise`; the column `twin` is 0 and 1).

There are two floors because a report and a comparison ask different things of the same pairs.
`mode=report` compares medians of one run and wants one percentage to remember: the percentile floor, by range of times.
`mode=compare` judges thousands of pairs, also between runs, and adds the noise to each pair's own samples: the fitted floor.
Both come from the same A/A pairs, and a test checks that they agree; docs/report.md has the figures.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from orchestrator.analysis.sql import query
from orchestrator.config.settings import Compared

if TYPE_CHECKING:
    import pandas as pd

    Floats = np.ndarray[Any, np.dtype[np.float64]]
    Counts = np.ndarray[Any, np.dtype[np.int64]]

VERSION_COLUMNS = ("torch_version", "libraries", "orchestrator_version")
PAIR_KEYS = ("cluster", "device_name", "group_id", "backend", *VERSION_COLUMNS)  # what both rows of an A/A pair share

SAME: float = Compared.model_fields["same"].default  # times closer than this share count as equal: 0.02, `same=` of mode=compare

# The percentile floor.
RANGES_US = (0.0, 20.0, 100.0, 1000.0, float("inf"))  # noise depends on how long a kernel takes
PERCENTILE = 0.99
MIN_PAIRS_OF_RANGE = 50  # for a percentile of its own; a range with fewer takes that of the whole device
DEFAULT_NOISE_FLOOR = 0.02  # without A/A pairs. On three H200s, 99% of 576 pairs lay within 1.1%, the worst at 1.8 to 2.7%.

MIN_PAIRS_TO_FIT = 20  # for the two numbers of the fitted floor


@dataclass(frozen=True)
class NoiseFloor:
    """The fitted floor: the standard deviation of the log of a ratio of two times, as two parts that add up in squares.

    `us` is a number of microseconds, which comes from launching and matters for short kernels. `rel` is a share of the time,
    which comes from clocks and memory placement.
    """

    us: float
    rel: float

    def variance(self, times_us: Floats) -> Floats:
        return (self.us / times_us) ** 2 + self.rel**2

    def __str__(self) -> str:
        return f"{self.us:.2g} µs and {self.rel:.2%}"


# Defaults of the fitted floor, from H200s, rounded up. docs/timing.md says how they were found.
# Interleaved: the A/A pairs of one H200 (results/h200_main/specdec_long_ctx_noise) gave 0.18 µs and 0.01%, of another 0.04%.
# Between runs: what the same points differed by, beyond that, in two runs on two H200s: 0.55 µs and 0.45%.
INTERLEAVED = NoiseFloor(0.2, 0.0005)
BETWEEN_RUNS = NoiseFloor(0.6, 0.005)
# For rows without the clocks of their samples: root mean squares of what the same points differed by in two runs on two H200s, if
# only one run stored clocks. 4.6% for points whose row names a cause of throttling, 1.4% for the others.
THROTTLED_CLOCK, UNKNOWN_CLOCK = 0.05, 0.015


@dataclass(frozen=True)
class NoiseFloors:
    """The fitted floor of interleaved measurements by kind of device, and where it was read; `INTERLEAVED` for others."""

    by_device: Mapping[str, NoiseFloor]
    source: str = ""

    def parts(self, device_names: pd.Series) -> tuple[Floats, Floats]:
        """`us` and `rel` for each row."""
        found = [self.by_device.get(str(name), INTERLEAVED) for name in device_names]
        return np.array([floor.us for floor in found]), np.array([floor.rel for floor in found])


def aa_pairs_sql(table: str) -> str:
    """A query for the A/A pairs of a table: `PAIR_KEYS`, `row_a`, `row_b`, `a_us`, `b_us`, and `rel_diff` = |b_us / a_us - 1|.

    The table has a row's columns and `row`, a number that identifies each. Both halves are of one run and attempt,
    so that they were measured interleaved. Of several pairs of a point the newest one counts. Rough times and times of another
    backend's samples are no independent measurements of full precision.
    """
    keys = ", ".join(PAIR_KEYS)
    halves = (
        f"first({column} ORDER BY finished_at DESC NULLS LAST) FILTER (twin = {twin}) AS {name}"
        for twin, side in ((0, "a"), (1, "b"))
        for column, name in (("row", f"row_{side}"), ("median_us", f"{side}_us"))
    )
    return query("aa_pairs", keys=keys, halves=", ".join(halves), table=table)


def aa_pairs(rows: pd.DataFrame) -> pd.DataFrame:
    """The A/A pairs among `rows`: the columns of both rows, with the suffixes `_a` and `_b`, and `rel_diff` of their medians."""
    import duckdb
    import pandas as pd

    columns = [*PAIR_KEYS, "twin", "status", "median_us", "finished_at", "run_id", "attempt", "stop_reason", "measured_as"]
    numbered = rows[columns].assign(row=range(len(rows)))
    with duckdb.cursor() as con:  # a new database takes 15 ms
        con.register("numbered", numbered)
        found = con.sql(f"SELECT row_a, row_b, rel_diff FROM ({aa_pairs_sql('numbered')}) ORDER BY row_a").fetchnumpy()
    sides = (rows.iloc[found[f"row_{side}"]].reset_index(drop=True).add_suffix(f"_{side}") for side in "ab")
    return pd.concat(sides, axis=1).assign(rel_diff=found["rel_diff"])


def first_of_aa_pairs(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows without the second half of each A/A pair. Rows that are second halves alone stay: somebody selected them."""
    twin = rows["twin"].fillna(0)
    return rows[twin == twin.min()]


def percentile_floor_sql(pairs: str) -> str:
    """A query for `device_name`, `from_us`, `to_us`, `noise_floor`: the 99th percentile of `rel_diff`, from_us < a_us <= to_us."""
    ranges = ", ".join(f"({low}::DOUBLE, '{high}'::DOUBLE)" for low, high in pairwise(RANGES_US))
    return query("percentile_floor", pairs=pairs, ranges=ranges, least=MIN_PAIRS_OF_RANGE, percentile=PERCENTILE)


def fitted_floors(rows: pd.DataFrame, source: str) -> NoiseFloors:
    """The fitted floor of each kind of device that has at least `MIN_PAIRS_TO_FIT` A/A pairs with samples in `rows`."""
    ok = rows[rows["status"] == "ok"]
    pairs = aa_pairs(ok.join(summarise_samples(ok)))
    pairs = pairs[pairs["log_se_a"].notna() & pairs["log_se_b"].notna()]
    found = {}
    for device, part in pairs.groupby("device_name_a"):
        if len(part) >= MIN_PAIRS_TO_FIT:
            times_us = np.exp((part["log_us_a"] + part["log_us_b"]).to_numpy() / 2)
            variance = (part["log_se_a"] ** 2 + part["log_se_b"] ** 2).to_numpy()
            found[str(device)] = fitted_floor((part["log_us_b"] - part["log_us_a"]).to_numpy(), variance, times_us)
    return NoiseFloors(found, source)


def fitted_floor(log_ratio: Floats, variance: Floats, times_us: Floats) -> NoiseFloor:
    """The likeliest floor of normal log ratios with their samples' `variance`, of 61 values each: 0.01 to 10 µs, 0.01% to 10%."""

    def unlikeliness(floor: NoiseFloor) -> float:
        total = variance + floor.variance(times_us) + 1e-12  # so that equal pairs without any spread do not divide by zero
        return float(np.sum(np.log(total) + log_ratio**2 / total))

    tried = (NoiseFloor(us, rel) for us in np.geomspace(0.01, 10, 61) for rel in np.geomspace(1e-4, 0.1, 61))
    best = min(tried, key=unlikeliness)
    return NoiseFloor(float(best.us), float(best.rel))


DEFAULT_BLOCK = 10  # samples per block, for rows written before block sizes were stored


def summarise_samples(rows: pd.DataFrame) -> pd.DataFrame:
    """`log_us`, `log_se` and `mhz` for each row: log of the median of `samples_us`, its standard error, and the median SM clock.

    Samples of one block may resemble each other. Then the number of a block's samples above the median varies more from block to
    block than Binomial(n, 1/2) allows. The factor by which its variance is larger, at least 1, is the design effect (Kish, Survey
    Sampling, section 8.2). The effective number of samples is n over the design effect: each sample counts as one if blocks
    agree, and each block as one if they do not. The standard error is half the distance between the ranks n/2 -+ sqrt(n)/2 for
    that many samples (Conover, Practical Nonparametric Statistics, section 3.2, at one standard deviation). Null without samples.
    """
    import pandas as pd

    found = pd.DataFrame(np.nan, index=rows.index, columns=["log_us", "log_se", "mhz"])
    several = (of is not None and not isinstance(of, float) and len(of) > 1 and np.min(of) > 0 for of in rows["samples_us"])
    usable = pd.Series(several, rows.index, dtype=bool)
    if usable.any():
        measured = rows[usable]
        samples, blocks = measured["samples_us"], measured["block_sizes"]
        sizes = [block_sizes(block, len(times)) for times, block in zip(samples, blocks, strict=True)]
        found.loc[usable, ["log_us", "log_se"]] = np.column_stack(_log_medians(samples.tolist(), sizes))
        found.loc[usable, "mhz"] = [_median_or_nan(clocks) for clocks in measured["samples_mhz"]]
    return found


def block_sizes(sizes: Any, count: int) -> list[int]:
    """Sizes of a row's blocks, which must add up to its samples; blocks of `DEFAULT_BLOCK` if the row has none."""
    if sizes is not None and not isinstance(sizes, float) and len(sizes) and min(sizes) > 0 and sum(sizes) == count:
        return list(sizes)
    return [min(DEFAULT_BLOCK, count - start) for start in range(0, count, DEFAULT_BLOCK)]


def _median_or_nan(clocks: Any) -> float:
    """The median of the samples' clocks; blocks whose clock was not known have none."""
    if clocks is None or isinstance(clocks, float):
        return math.nan
    known = [clock for clock in clocks.tolist() if clock is not None and not math.isnan(clock)]
    return statistics.median(known) if known else math.nan


def _log_medians(samples: list[Any], sizes: list[list[int]]) -> tuple[Floats, Floats]:
    """Log medians and their standard errors, for all rows in one pass over their samples."""
    counts = np.array([len(row) for row in samples])
    times = np.log(np.concatenate(samples))
    row = np.repeat(np.arange(len(counts)), counts)
    ordered = times[np.lexsort((times, row))]
    first = np.cumsum(counts) - counts

    def quantile(q: Floats) -> Floats:
        position = q * (counts - 1)
        low = np.floor(position).astype(int)
        high = np.minimum(low + 1, counts - 1)
        below, above = ordered[first + low], ordered[first + high]
        found: Floats = below + (above - below) * (position - low)
        return found

    median = quantile(np.full(len(counts), 0.5))
    reach = 0.5 / np.sqrt(_effective_counts(np.sign(times - median[row]), counts, sizes))
    return median, (quantile(0.5 + reach) - quantile(0.5 - reach)) / 2


def _effective_counts(above: Floats, counts: Counts, sizes: list[list[int]]) -> Floats:
    """The effective number of samples of each row: at least 1, at most the number of its samples.

    `above` is +1 for a sample above its row's median and -1 for one below. If samples are independent, its sum over a block of n
    has the variance n. A single block says nothing about how blocks differ, so it counts as one sample.
    """
    per_row = np.array([len(row) for row in sizes])
    flat = np.concatenate(sizes)
    sums = np.add.reduceat(above, np.cumsum(flat) - flat)
    scatter = np.bincount(np.repeat(np.arange(len(per_row)), per_row), weights=sums**2)
    effect = np.maximum(1.0, scatter / counts * per_row / np.maximum(1, per_row - 1))
    effective: Floats = np.where(per_row == 1, 1.0, np.maximum(1.0, counts / effect))
    return effective
