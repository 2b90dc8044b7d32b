"""The row: its columns, their types, and how one is filled. One point, one row, whatever became of it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, get_args

from orchestrator.sweep import Point

if TYPE_CHECKING:
    import pyarrow as pa

Status = Literal["ok", "unsupported", "skipped", "mismatch", "failed", "timeout", "oom"]
STATUSES: tuple[str, ...] = get_args(Status)
BAD: frozenset[str] = frozenset({"mismatch", "failed", "timeout", "oom"})

Row = dict[str, Any]

COLUMNS: dict[str, str] = {
    # identity
    **dict.fromkeys(("run_id", "sweep", "point_id", "group_id"), "string"),
    **dict.fromkeys(("twin", "attempt"), "int64"),
    **dict.fromkeys(("status", "reason", "command"), "string"),
    # problem
    **dict.fromkeys(("routine", "backend", "resolved_backend", "model"), "string"),
    **dict.fromkeys(("tp", "batch_size", "s_qo", "min_s_qo", "s_kv"), "int64"),
    **dict.fromkeys(("seq_lens", "batch_spec", "mask"), "string"),
    "tree": "integers",
    "window": "int64",
    "sinks": "bool",
    "page_size": "int64",
    **dict.fromkeys(("kv_layout", "page_order"), "string"),
    **dict.fromkeys(("num_qo_heads", "num_kv_heads", "head_dim_qk", "head_dim_vo", "head_dim_ckv", "head_dim_kpe"), "int64"),
    **dict.fromkeys(("q_dtype", "kv_dtype", "out_dtype"), "string"),
    "seed": "int64",
    # time
    **dict.fromkeys(("median_us", "mean_us", "std_us", "min_us", "p05_us", "p95_us", "ci95_rel"), "double"),
    "num_samples": "int64",
    **dict.fromkeys(("within_block_rel", "between_blocks_rel", "lag1_autocorr"), "double"),
    "bimodal": "bool",
    "samples_us": "list",
    "samples_mhz": "integers",
    "block_sizes": "integers",
    "num_set_aside": "int64",
    "set_aside_us": "list",
    "timer": "string",
    "cuda_graph": "bool",
    **dict.fromkeys(("l2", "icache", "stop_reason"), "string"),
    **dict.fromkeys(("working_set_over_l2", "host_us"), "double"),
    # rate
    **dict.fromkeys(("flops", "bytes"), "int64"),
    **dict.fromkeys(("tflops", "tb_per_sec"), "double"),
    "bound": "string",
    **dict.fromkeys(("frac_of_peak", "frac_of_datasheet", "kv_read_amplification", "peak_tb_per_sec"), "double"),
    **dict.fromkeys(("peak_tflops", "launch_us"), "double"),
    # check
    "check": "string",
    **dict.fromkeys(("max_abs_err", "rel_err", "tolerance", "err_over_tolerance"), "double"),
    "oracle": "string",
    "caller_scale": "double",
    # cost
    **dict.fromkeys(("compile_s", "inputs_s", "check_s", "measure_s", "rest_s", "total_s"), "double"),
    "peak_mem_bytes": "int64",
    # provenance
    **dict.fromkeys(("cluster", "device_name", "device_uuid", "compute_capability", "device_modes", "driver", "cuda"), "string"),
    **dict.fromkeys(("torch_version", "flashinfer_version", "ray_version", "orchestrator_version", "host", "node_id"), "string"),
    **dict.fromkeys(("sm_clock_mhz", "mem_clock_mhz", "temperature_c"), "int64"),
    "power_w": "double",
    **dict.fromkeys(("throttle_reasons", "other_processes"), "string"),
    **dict.fromkeys(("started_at", "finished_at"), "timestamp"),
}

# `icache` of a row that is older than the column, by its `l2`: warm on a GPU, on a CPU as little controlled as the L2.
OLD_ICACHE = {"cold": "warm", "warm": "warm"}

# Only an `ok` row has a result: a time of a wrong answer is none.
RESULT_COLUMNS = (
    *(
        "median_us",
        "mean_us",
        "std_us",
        "min_us",
        "p05_us",
        "p95_us",
        "ci95_rel",
        "num_samples",
        "samples_us",
        "samples_mhz",
        "block_sizes",
    ),
    *("within_block_rel", "between_blocks_rel", "lag1_autocorr", "bimodal", "num_set_aside", "set_aside_us"),
    *("tflops", "tb_per_sec", "bound", "frac_of_peak", "frac_of_datasheet", "kv_read_amplification"),
)


@cache
def schema() -> pa.Schema:
    """The Parquet schema of a dataset."""
    import pyarrow as pa

    types = {
        "string": pa.string(),
        "int64": pa.int64(),
        "double": pa.float64(),
        "bool": pa.bool_(),
        "list": pa.list_(pa.float64()),
        "integers": pa.list_(pa.int32()),
        "timestamp": pa.timestamp("us", tz="UTC"),
    }
    return pa.schema([(name, types[kind]) for name, kind in COLUMNS.items()])


def now() -> str:
    """The time in UTC as rows hold it until they reach Parquet."""
    return datetime.now(UTC).isoformat()


def describe(point: Point) -> Row:
    """The identity and problem columns of a point, with its bytes and FLOPs."""
    p = point.problem
    return {
        "point_id": point.point_id,
        "group_id": point.group_id,
        "backend": point.backend,
        "twin": point.twin,
        **p.model_dump(exclude={"out_dtype", "tree"}),
        "tree": None if p.tree is None else list(p.tree),
        "out_dtype": p.output_dtype,
        "flops": p.flops,
        "bytes": p.bytes,
        "check": "not_checked: did not run",
    }


def finish(row: Row, status: Status, reason: str = "") -> Row:
    """The whole row: every column, null where nothing is known; no result unless the status is `ok`.

    Raises KeyError for a column that the schema does not have.
    """
    unknown = set(row) - set(COLUMNS)
    if unknown:
        raise KeyError(f"no such columns: {sorted(unknown)}")
    full = {name: row.get(name) for name in COLUMNS} | {"status": status, "reason": reason}
    if status != "ok":
        full.update(dict.fromkeys(RESULT_COLUMNS))
    full["started_at"] = full["started_at"] or now()
    full["finished_at"] = full["finished_at"] or now()
    return {name: None if isinstance(v, float) and math.isnan(v) else v for name, v in full.items()}


def of_forced(row: Row, rule: str) -> Row:
    """Status and reason of a point that ran although its rule forbids it.

    A refusal, a crash or a wrong answer bears the rule out, a right answer disproves it; no time and no memory say nothing.
    """
    if row["status"] == "ok":
        return {"reason": f"the rule is too strict: it forbids this, and it ran and was right ({rule})"}
    if row["status"] not in ("failed", "mismatch"):
        return {}
    return {"status": "unsupported", "reason": f"{rule} (forced: {row['status']}: {row['reason']})"}


def to_json(row: Mapping[str, Any]) -> str:
    return json.dumps(row)


def to_table(rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """A table of rows whose times are still text."""
    import pyarrow as pa

    times = [name for name, kind in COLUMNS.items() if kind == "timestamp"]
    parsed = [{**row, **{t: datetime.fromisoformat(row[t]) for t in times if row.get(t)}} for row in rows]
    return pa.Table.from_pylist(parsed, schema=schema())
