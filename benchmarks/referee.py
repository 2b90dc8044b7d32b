"""Two rates behind printed times, counted over committed rows: intervals that miss, and what is left of a graph's launch.

    python -m benchmarks.referee        # prints both tables; about ten seconds

An A/A pair lies outside if its log ratio exceeds the root of both 95% intervals' squares, which a twentieth may. Pairs that stopped
at their interval count, once with the interval that takes samples for independent, once with today's.

A call was timed by events around its graph and by CUPTI, which sees its kernels alone, on one GPU. `own_us` less the latter is what
the rule for the launch leaves or takes too much; `spread` is the standard deviation of a normal one with that median distance.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from kernels.timing.stats import ci95_of_blocks, ci95_of_median
from orchestrator import ROOT
from orchestrator.analysis.compare.pairs import POINT_COLUMNS, own_times
from orchestrator.analysis.noise import aa_pairs, block_sizes
from orchestrator.storage import parquet

PAIRS = ("h200_main/specdec_long_ctx_noise", "h200_studies/study_noise", "h100_studies/study_noise")
LAUNCHES = {  # timed by CUPTI, and by events on the same GPU
    "h200_studies/study_cupti": "h200_main/specdec_long_ctx",
    "h200_studies/study_all_cupti": "h200_main/specdec_all_candidates",
    "h100_studies/study_cupti": "h100_main/specdec_long_ctx",
}
SHORT_US, CALL_US, OF_NORMAL = 50.0, 60.0, 1.4826


def rows_of(name: str) -> pd.DataFrame:
    return parquet.read(ROOT / "results" / f"{name}.parquet").to_pandas()


def outside(name: str) -> pd.DataFrame:
    """A line for each A/A pair of a dataset: its time in µs, and whether it lies outside by either interval."""
    pairs = aa_pairs(rows_of(name))
    lines = []
    for _, one in pairs[(pairs["stop_reason_a"] == "ci95") & (pairs["stop_reason_b"] == "ci95")].iterrows():
        sides = [_blocks(one[f"samples_us_{side}"], one[f"block_sizes_{side}"]) for side in "ab"]
        independent = math.hypot(*(ci95_of_median(sorted(us for block in blocks for us in block)) for blocks in sides))
        difference = abs(math.log(one["median_us_b"] / one["median_us_a"]))
        lines.append((one["median_us_a"], difference > independent, difference > math.hypot(*map(ci95_of_blocks, sides))))
    return pd.DataFrame(lines, columns=["us", "independent", "blocks"])


def _blocks(samples: np.ndarray, sizes: object) -> list[list[float]]:
    return [part.tolist() for part in np.split(samples, np.cumsum(block_sizes(sizes, len(samples)))[:-1])]


def left_of_launch(name: str) -> pd.Series:
    """`own_us` less CUPTI's time, µs, of calls under `CALL_US`."""
    sides = [rows_of(dataset).query("status == 'ok'") for dataset in (name, LAUNCHES[name])]
    key = [*(column for column in POINT_COLUMNS if column != "tree"), "device_uuid", "l2"]
    by_cupti, by_events = (rows[key].assign(us=own_times(rows)).drop_duplicates(key) for rows in sides)
    both = by_cupti.merge(by_events, on=key, suffixes=("_cupti", "_events"))
    both = both[both["us_cupti"] < CALL_US]
    return both["us_events"] - both["us_cupti"]


def tables() -> str:
    lines = [f"| A/A pairs{' | pairs | independent samples | blocks' * 2} |", "|---" * 7 + "|"]
    for name in PAIRS:
        found = outside(name)
        parts = (found, found[found["us"] < SHORT_US])
        cells = (f"{len(of)} | {of['independent'].mean():.1%} | {of['blocks'].mean():.1%}" for of in parts)
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    lines += ["", "| `own_us` less CUPTI | calls | median, µs | spread |", "|---" * 4 + "|"]
    for name in LAUNCHES:
        left = left_of_launch(name)
        spread = OF_NORMAL * (left - left.median()).abs().median()
        lines.append(f"| `{name}` | {len(left)} | {left.median():+.2f} | {spread:.2f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(tables())
