"""The median of each row's samples and its standard error, for many rows at once. Knows nothing of comparisons."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    Floats = np.ndarray[Any, np.dtype[np.float64]]
    Counts = np.ndarray[Any, np.dtype[np.int64]]

DEFAULT_BLOCK = 10  # samples per block, for rows written before block sizes were stored


def summarise_samples(rows: pd.DataFrame) -> pd.DataFrame:
    """`log_us`, `log_se` and `mhz` for each row: log of the median of `samples_us`, its standard error, and the median SM clock.

    Samples of one block may resemble each other. Then the number of a block's samples above the median varies more from block to
    block than Binomial(n, 1/2) allows. The factor by which its variance is larger, at least 1, is the design effect (Kish, Survey
    Sampling, section 8.2). The effective number of samples is n over the design effect: each sample counts as one if blocks
    agree, and each block as one if they do not. The standard error is half the distance between the ranks n/2 -+ sqrt(n)/2 for
    that many samples (Conover, Practical Nonparametric Statistics, section 3.2, at one standard deviation). All three are null
    for a row without samples.
    """
    import numpy as np
    import pandas as pd

    found = pd.DataFrame(np.nan, index=rows.index, columns=["log_us", "log_se", "mhz"])
    usable = rows["samples_us"].map(_is_usable).astype(bool)
    if usable.any():
        measured = rows[usable]
        samples, blocks = measured["samples_us"], measured["block_sizes"]
        sizes = [_block_sizes(block, len(times)) for times, block in zip(samples, blocks, strict=True)]
        found.loc[usable, ["log_us", "log_se"]] = np.column_stack(_log_medians(samples.tolist(), sizes))
        found.loc[usable, "mhz"] = [_median_or_nan(clocks) for clocks in measured["samples_mhz"]]
    return found


def _is_usable(samples: Any) -> bool:
    import numpy as np

    return samples is not None and not isinstance(samples, float) and len(samples) > 1 and bool(np.min(samples) > 0)


def _block_sizes(sizes: Any, count: int) -> list[int]:
    """Sizes of a row's blocks, which must add up to its samples; blocks of `DEFAULT_BLOCK` if the row has none."""
    if sizes is not None and not isinstance(sizes, float) and sum(sizes) == count:
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
    import numpy as np

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
    import numpy as np

    per_row = np.array([len(row) for row in sizes])
    flat = np.concatenate(sizes)
    sums = np.add.reduceat(above, np.cumsum(flat) - flat)
    scatter = np.bincount(np.repeat(np.arange(len(per_row)), per_row), weights=sums**2)
    effect = np.maximum(1.0, scatter / counts * per_row / np.maximum(1, per_row - 1))
    effective: Floats = np.where(per_row == 1, 1.0, np.maximum(1.0, counts / effect))
    return effective
