"""Two rates behind printed times, over committed rows: intervals that miss, and what is left of a graph's launch.

    python -m benchmarks.referee        # prints both tables; two seconds

An A/A pair lies outside if its log ratio exceeds the root of both 95% intervals' squares, which a twentieth may: once of intervals
that take samples for independent, once of today's. `own_us` less CUPTI's time of the same call on the same GPU is what the rule for
the launch leaves or takes too much; `spread` is the standard deviation of a normal one with that median distance.
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
    return parquet.read(ROOT / "results" / f"{name}.parquet").to_pandas().query("status == 'ok'")


def outside(name: str) -> pd.DataFrame:
    """A line for each A/A pair that stopped at its interval: its time in µs, and whether it lies outside by either interval."""
    pairs, lines = aa_pairs(rows_of(name)).query("stop_reason_a == 'ci95' and stop_reason_b == 'ci95'"), []
    for _, one in pairs.iterrows():
        samples = [one[f"samples_us_{side}"] for side in "ab"]
        ends = [np.cumsum(block_sizes(one[f"block_sizes_{side}"], len(one[f"samples_us_{side}"])))[:-1] for side in "ab"]
        today = math.hypot(
            *(ci95_of_blocks([block.tolist() for block in np.split(us, at)]) for us, at in zip(samples, ends, strict=True))
        )
        apart = abs(math.log(one["median_us_b"] / one["median_us_a"]))
        lines.append((one["median_us_a"], apart > math.hypot(*(ci95_of_median(sorted(us)) for us in samples)), apart > today))
    return pd.DataFrame(lines, columns=["us", "independent", "blocks"])


def left_of_launch(name: str) -> pd.Series:
    """`own_us` less CUPTI's time, µs, of calls under `CALL_US`."""
    key = [*(column for column in POINT_COLUMNS if column != "tree"), "device_uuid", "l2"]
    sides = (rows[key].assign(us=own_times(rows)).drop_duplicates(key) for rows in map(rows_of, (name, LAUNCHES[name])))
    both = pd.merge(*sides, on=key).query(f"us_x < {CALL_US}")
    return both["us_y"] - both["us_x"]


def tables() -> str:
    lines = ["| A/A pairs | pairs | independent samples | blocks | under 50 µs | independent samples | blocks |", "|---" * 7 + "|"]
    for name in PAIRS:
        found = outside(name)
        parts = (found, found[found["us"] < SHORT_US])
        cells = (f"{len(of)} | {of['independent'].mean():.1%} | {of['blocks'].mean():.1%}" for of in parts)
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    lines += ["", "| `own_us` less CUPTI | calls | median, µs | spread |", "|---" * 4 + "|"]
    for name, left in ((name, left_of_launch(name)) for name in LAUNCHES):
        spread = OF_NORMAL * (left - left.median()).abs().median()
        lines.append(f"| `{name}` | {len(left)} | {left.median():+.2f} | {spread:.2f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(tables())
