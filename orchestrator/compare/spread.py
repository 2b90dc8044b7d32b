"""The median of a row's samples and how uncertain it is, for many rows at once. Knows nothing of what they are compared with."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    Floats = np.ndarray[Any, np.dtype[np.float64]]
    Counts = np.ndarray[Any, np.dtype[np.int64]]

BURST = 10  # samples of a block where a row does not say: rows from before blocks were kept


def of_samples(rows: pd.DataFrame) -> pd.DataFrame:
    """`log_us`, `log_se` and `mhz` for each row: log of the median of `samples_us`, its standard error, median clock.

    The number of a block's samples above the median varies from block to block by more than Binomial(n, 1/2) allows where
    samples of a block hang together. The factor by which its variance does so, 1 at least, is the design effect (Kish, Survey
    Sampling, section 8.2), and n over it the effective number of samples: a sample counts as one where blocks agree, a block
    as one where they do not. The standard error is half of what lies between the ranks n/2 -+ sqrt(n)/2 of so many samples
    (Conover, Practical Nonparametric Statistics, section 3.2, at one standard deviation). All three are null without samples.
    """
    import numpy as np
    import pandas as pd

    found = pd.DataFrame(np.nan, index=rows.index, columns=["log_us", "log_se", "mhz"])
    usable = rows["samples_us"].map(_is_usable).astype(bool)
    if usable.any():
        measured = rows[usable]
        samples, blocks = measured["samples_us"], measured["block_sizes"]
        sizes = [_blocks(block, len(times)) for times, block in zip(samples, blocks, strict=True)]
        found.loc[usable, ["log_us", "log_se"]] = np.column_stack(_median(samples.tolist(), sizes))
        found.loc[usable, "mhz"] = [_median_or_nan(clocks) for clocks in measured["samples_mhz"]]
    return found


def _is_usable(samples: Any) -> bool:
    import numpy as np

    return samples is not None and not isinstance(samples, float) and len(samples) > 1 and bool(np.min(samples) > 0)


def _blocks(sizes: Any, count: int) -> list[int]:
    """Sizes of a row's blocks, which must add up to its samples; bursts of `BURST` where it has none."""
    if sizes is not None and not isinstance(sizes, float) and sum(sizes) == count:
        return list(sizes)
    return [min(BURST, count - start) for start in range(0, count, BURST)]


def _median_or_nan(clocks: Any) -> float:
    known = clocks is not None and not isinstance(clocks, float) and len(clocks) > 0
    return float(statistics.median(clocks.tolist())) if known else math.nan


def _median(samples: list[Any], sizes: list[list[int]]) -> tuple[Floats, Floats]:
    """Log medians and their standard errors, of all rows in one pass over their samples."""
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
    reach = 0.5 / np.sqrt(_effective(np.sign(times - median[row]), counts, sizes))
    return median, (quantile(0.5 + reach) - quantile(0.5 - reach)) / 2


def _effective(above: Floats, counts: Counts, sizes: list[list[int]]) -> Floats:
    """How many independent samples each row's are worth: 1 at least, the samples there are at most.

    `above` is +1 for a sample over its row's median, -1 under it, so that its sum over a block has the variance n of the block
    where samples are independent. One block alone says nothing of how blocks differ, and counts as one.
    """
    import numpy as np

    per_row = np.array([len(row) for row in sizes])
    flat = np.concatenate(sizes)
    sums = np.add.reduceat(above, np.cumsum(flat) - flat)
    scatter = np.bincount(np.repeat(np.arange(len(per_row)), per_row), weights=sums**2)
    effect = np.maximum(1.0, scatter / counts * per_row / np.maximum(1, per_row - 1))
    worth: Floats = np.where(per_row == 1, 1.0, np.maximum(1.0, counts / effect))
    return worth
