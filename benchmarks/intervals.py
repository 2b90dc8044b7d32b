"""How often two measurements of a point lie outside both of their 95% intervals, over the committed A/A pairs.

    python -m benchmarks.intervals        # prints the table; about ten seconds

A pair lies outside if its log ratio exceeds the root of both intervals' squares. Of intervals that hold 95% a twentieth do. Points
that stopped at their interval count, once with the interval that takes samples for independent, once with today's.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from kernels.timing.stats import ci95_of_blocks, ci95_of_median
from orchestrator import ROOT
from orchestrator.analysis.noise import aa_pairs, block_sizes
from orchestrator.storage import parquet

PAIRS = ("h200_main/specdec_long_ctx_noise", "h200_studies/study_noise", "h100_studies/study_noise")
SHORT_US = 50.0
HEADER = ("dataset", "pairs", "independent samples", "blocks", "pairs under 50 µs", "independent samples", "blocks")


def outside(name: str) -> pd.DataFrame:
    """A line for each A/A pair of a dataset: its time in µs, and whether it lies outside by either interval."""
    pairs = aa_pairs(parquet.read(ROOT / "results" / f"{name}.parquet").to_pandas())
    pairs = pairs[(pairs["stop_reason_a"] == "ci95") & (pairs["stop_reason_b"] == "ci95")]
    lines = []
    for _, one in pairs.iterrows():
        sides = [_blocks(one[f"samples_us_{side}"], one[f"block_sizes_{side}"]) for side in "ab"]
        independent = math.hypot(*(ci95_of_median(sorted(us for block in blocks for us in block)) for blocks in sides))
        difference = abs(math.log(one["median_us_b"] / one["median_us_a"]))
        lines.append((one["median_us_a"], difference > independent, difference > math.hypot(*map(ci95_of_blocks, sides))))
    return pd.DataFrame(lines, columns=["us", "independent", "blocks"])


def _blocks(samples: np.ndarray, sizes: object) -> list[list[float]]:
    ends = np.cumsum(block_sizes(sizes, len(samples)))
    return [part.tolist() for part in np.split(samples, ends[:-1])]


def main() -> None:
    print(f"| {' | '.join(HEADER)} |\n|{'---|' * len(HEADER)}")
    for name in PAIRS:
        found = outside(name)
        cells = (
            f"{len(part)} | {part['independent'].mean():.1%} | {part['blocks'].mean():.1%}"
            for part in (found, found[found["us"] < SHORT_US])
        )
        print(f"| `{name}` | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
