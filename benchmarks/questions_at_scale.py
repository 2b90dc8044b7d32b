"""Seconds and peak memory of each question over many rows: `python benchmarks/questions_at_scale.py [--rows N] [--points N]`.

The dataset is synthetic: `--points` different points, each measured rows / points times; as many as rows are the hardest. Each
question has a process of its own, on 2 threads: `open` is what any needs first, `ask` the query and its tables.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import duckdb
import yaml

from orchestrator.analysis.questions import open_views
from orchestrator.analysis.sql import sql_type
from orchestrator.config.draft_cost import Draft
from orchestrator.reporting import report
from orchestrator.storage.row import COLUMNS

THREADS = 2
# name: values, of every axis that varies; a point's number in mixed radix names its values
AXES = {
    "backend": ["auto", "cudnn", "fa2", "fa2_tc", "fa3", "torch_sdpa", "trtllm-gen", "trtllm-native"],
    "s_qo": [1, 2, 3, 4, 5, 6, 8, 16], "batch_size": [1, 2, 4, 8, 16, 32, 64, 128],
    "s_kv": [1024 * n for n in (1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 64, 80, 96, 112, 128, 192)],
    "kv_dtype": ["bf16", "fp8_e4m3"], "routine": ["paged_decode", "paged_prefill"],
    "device_name": ["NVIDIA B200", "NVIDIA H100", "NVIDIA H200", "NVIDIA L40S"], "page_size": [16, 32, 64, 128],
    "model": ["deepseek_v3", "gpt_oss_120b", "llama_3_1_70b", "llama_3_1_8b", "qwen3_32b"], "kv_layout": ["HND", "NHD"],
    "page_order": ["random", "sequential"],
}  # fmt: skip
CONSTANT = {
    "sweep": "synthetic", "twin": 0, "attempt": 1, "cluster": "lab", "tp": 1, "seq_lens": "fixed", "mask": "causal",
    "sinks": False, "num_qo_heads": 64, "num_kv_heads": 8, "head_dim_qk": 128, "head_dim_vo": 128, "q_dtype": "bf16",
    "out_dtype": "bf16", "seed": 0, "timer": "cuda_graph_events", "cuda_graph": True, "check": "passed", "bound": "memory",
    "peak_tb_per_sec": 4.6, "peak_tflops": 798.0, "torch_version": "2.13.0", "flashinfer_version": "0.7.2", "host": "node1",
}  # fmt: skip
COMPUTED = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())


def write(path: Path, rows: int, points: int) -> None:
    """The dataset, in the order in which nights would have appended it."""
    con = duckdb.connect(config={"threads": THREADS})
    axes, stride = [], 1
    for name, values in AXES.items():
        axes.append(f"{values!r}[point // {stride} % {len(values)} + 1] AS {name}")
        stride *= len(values)
    if points > stride:
        raise SystemExit(f"--points={points}: the axes have {stride:,} points; allowed: up to that")
    computed = ", ".join(f"{text} AS {name}" for name, text in COMPUTED.items())
    con.execute(f"""
        COPY (
            WITH numbers AS (SELECT i % {points} AS point, i // {points} AS night FROM range({rows}) AS t(i)),
            problems AS (SELECT *, {", ".join(axes)} FROM numbers),
            measured AS (SELECT *, {computed} FROM problems)
            SELECT {", ".join(map(_column, COLUMNS))} FROM measured)
        TO '{path / "rows.parquet"}' (FORMAT parquet, COMPRESSION zstd)""")


def _column(name: str) -> str:
    kind = sql_type(name)
    if name in AXES or name in COMPUTED:
        return f'"{name}"::{kind} AS "{name}"'
    value = CONSTANT.get(name)
    return f'{"NULL" if value is None else repr(value)}::{kind} AS "{name}"'


def measure(path: str, question: str) -> tuple[float, float, float, int]:
    """One question from nothing, in this process: seconds to open and to ask, GiB at the peak, and lines of the answer."""
    draft = Draft(cost_us=20, layers=80)
    started = time.perf_counter()
    data = open_views(path, draft, threads=THREADS)
    opened = time.perf_counter()
    grids = report.grids(data, None if question == "(in short)" else question)
    asked = time.perf_counter()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return opened - started, asked - opened, peak, sum(len(grid.cells) for grid in grids)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("--rows", type=int, default=10_000_000)
    asked.add_argument("--points", type=int, default=200_000)
    args = asked.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), args.rows, args.points)
        size = (Path(folder) / "rows.parquet").stat().st_size / 1e6
        print(f"{args.rows:,} rows of {args.points:,} points, {size:.0f} MB of Parquet, {THREADS} threads")
        print(f"{'question':12} {'open s':>7} {'ask s':>7} {'both s':>7} {'peak GiB':>9} {'lines':>6}")
        for question in (*report.MODULES, "(in short)"):
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
                opened, ask, peak, lines = process.submit(measure, folder, question).result()
            print(f"{question:12} {opened:7.2f} {ask:7.2f} {opened + ask:7.2f} {peak:9.2f} {lines:6}", flush=True)


if __name__ == "__main__":
    main()
