"""What the points of a step cost beside the same points alone, and where the seconds go, as a table of docs/evidence/timing.md."""

from __future__ import annotations

import pandas as pd

from benchmarks.rows import frame_of
from orchestrator import ROOT
from orchestrator.tables import Grid

# A dataset of steps, and one that has the same points alone.
PAIRS = (
    ("h200_study_in_step", "h200_specdec_long_ctx"),
    ("h200_study_all_in_step", "h200_specdec_long_ctx"),
    ("h100_study_in_step", "h100_study_dirty"),
    ("h100_study_all_in_step", "h100_study_all_dirty"),
)
POINT = ["backend", "batch_size", "s_kv", "s_qo", "q_dtype", "kv_dtype"]
SECONDS = ("total_s", "rest_s", "measure_s", "check_s", "inputs_s")


def seconds(in_step: str, alone: str) -> pd.DataFrame:
    """By point: the seconds of either dataset (of the second with the suffix ` alone`), and `steps_s` of the steps themselves."""
    found = _right(in_step).join(_right(alone)[["total_s", "rest_s"]], rsuffix=" alone", how="inner")
    return found.assign(steps_s=(found["step_us"] + found["stand_in_us"]) * found["in_step_samples_us"].map(len) / 1e6)


def table() -> Grid:
    """A line for each pair of datasets: seconds of all points in a step, by what they went into, and of the same points alone."""
    cells = []
    for in_step, alone in PAIRS:
        found = seconds(in_step, alone)
        sums = found[["total_s", "rest_s", "measure_s", "steps_s", "check_s", "inputs_s", "total_s alone"]].sum()
        times = sums["total_s"] / sums["total_s alone"]
        without_rests = (found["total_s"] - found["rest_s"]).sum() / (found["total_s alone"] - found["rest_s alone"]).sum()
        cells.append((f"`{in_step}`", str(len(found)), *(f"{one:.0f}" for one in sums), f"{times:.1f}", f"{without_rests:.1f}"))
    header = ("dataset", "points", "in a step, s", "rests", "preparing and measuring", "steps in that", "checks", "inputs")
    return Grid("", (*header, "alone, s", "times as long", "without rests"), tuple(cells))


def _right(dataset: str) -> pd.DataFrame:
    rows = frame_of(ROOT / "results" / dataset).query("status == 'ok'").set_index(POINT, verify_integrity=True)
    return rows.fillna(dict.fromkeys(SECONDS, 0.0))
