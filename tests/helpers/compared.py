"""Rows to compare, made by hand: four samples in two blocks, 0.1% apart, so that the noise floor decides."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq

from kernels.problem import Problem
from orchestrator.point import fingerprint
from orchestrator.storage.row import Row, finish, to_table

NIGHT, MORNING = "2026-11-20T22:00:0{}+00:00", "2026-11-21T08:00:0{}+00:00"
HERE: Row = {
    "device_name": "NVIDIA H200",
    "device_uuid": "GPU-1",
    "cluster": "lab",
    "flashinfer_version": "0.7.2.post1",
    "run_id": "r1",
}
TIMING: Row = {
    "timer": "cuda_graph_events",
    "l2": "dirty",
    "icache": "warm",
    "pace": "bursts",
    "cuda_graph": True,
    "throttle_reasons": "none",
    "stop_reason": "ci95",
}
WHAT: Row = {"routine": "paged_decode", "model": "m", "batch_size": 8, "s_qo": 1, "s_kv": 8192, "twin": 0}


def timed(backend: str, us: float, when: str = NIGHT, status: Any = "ok", reason: str = "", **keys: Any) -> Row:
    """A row of four samples around `us`, at 1800 MHz; `keys` change whatever else."""
    samples = [us * off for off in (0.9995, 1.0005, 1.0005, 0.9995)]
    taken = {"samples_us": samples, "block_sizes": [2, 2], "samples_mhz": [1800] * 4, "median_us": us}
    span = {"started_at": when.format(0), "finished_at": when.format(9)}
    problem = {key: value for key, value in {**WHAT, **keys}.items() if key in Problem.model_fields}
    names = {"backend": backend, "point_id": backend, "group_id": fingerprint(problem)}
    return finish({**HERE, **TIMING, **WHAT, **names, **taken, **span, **keys}, status, reason)


def table(*rows: Row) -> pd.DataFrame:
    return to_table(rows).to_pandas()


def dataset(path: Path, rows: Sequence[Row]) -> str:
    """A folder that holds the rows as a dataset."""
    path.mkdir()
    pq.write_table(to_table(rows), path / "rows.parquet")
    return str(path)
