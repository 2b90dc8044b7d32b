"""Writes a dataset as aiconfigurator's tables: one row for each workload, with the time of the fastest backend there.

aiconfigurator finds a decode by its KV tokens, `isl + step`, and not by its query tokens. In the table of decodes, a draft would
take the place of a decode over as many tokens. So drafts have tables of their own, `draft_*_perf.parquet`, in the same columns:
`isl` is the number of query tokens.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from orchestrator.analysis.connection import Record
from orchestrator.analysis.names import libraries_of, of_references
from orchestrator.analysis.questions import ranked_by, ranking_of
from orchestrator.analysis.rough import counted
from orchestrator.analysis.sql import text_of
from orchestrator.config.engine import MAX_DRAFT
from orchestrator.errors import UserError
from orchestrator.formats.aiconfigurator.reader import DTYPES
from orchestrator.grouped import grouped
from orchestrator.storage.exported import save_files

FRAMEWORK = "attention-orchestrator"  # no engine ran these calls
THEIR_DTYPES = {ours: theirs for theirs, ours in DTYPES.items()}
# Keys that a workload here may have, its tables have no column for, and times depend on: on a softmax scale they do not.
DEFAULTS = {"mask": "causal", "seq_lens": "fixed", "sinks": False, "return_lse": False, "kv_memory": "paired"}
EMPTY = ("min_s_qo", "batch_spec", "max_seq_len", "graph_batch", "shared_prefix", "num_states", "soft_cap")
# What its tables tell apart.
LENGTHS, HEADS = ("batch_size", "s_qo", "s_kv"), ("num_qo_heads", "num_kv_heads", "head_dim_qk", "head_dim_ckv")
KEYS = (*LENGTHS, *HEADS, "q_dtype", "kv_dtype", "window")


def to_tables(rows: Sequence[Mapping[str, Any]]) -> tuple[dict[str, list[dict[str, Any]]], Counter[str], list[str]]:
    """The rows of each table by its name; the number of rows that they cannot hold, by reason; notes on rough and credited times.

    `rows` has each point once. Raises UserError for several GPUs or ways of timing: a table has one time for a workload.
    """
    reasons = [_inexpressible(row) for row in rows]
    left_out = Counter(filter(None, reasons))
    expressible = [row for row, reason in zip(rows, reasons, strict=True) if not reason]
    for column in ("device_name", "context", "l2"):
        found = sorted({str(row[column]) for row in expressible})
        if len(found) > 1:
            several = f"the rows have several values of {column} ({', '.join(found)}), and a table has one time for a workload"
            raise UserError(f"export=aiconfigurator: {several}; type where={{{column}: {found[0]}}}")
    fastest = _ranked_first(expressible)
    if slower := len(expressible) - len(fastest):
        left_out["slower than another backend, or another page size, of the same workload"] += slower
    return grouped((_table(row), _line(row)) for row in fastest), left_out, counted(fastest)


def _ranked_first(rows: Sequence[Mapping[str, Any]]) -> list[Record]:
    if not rows:
        return []
    query = f"SELECT current.* FROM ({ranked_by(KEYS)}) AS best JOIN current USING (row) ORDER BY row"
    found: list[Record] = ranking_of(pd.DataFrame(rows)).con.sql(query).df().to_dict("records")
    return found


def save(tables: Mapping[str, list[dict[str, Any]]], folder: str, notes: Sequence[str] = ()) -> list[str]:
    """Writes tables and `collection_meta.yaml` with notes; returns their names. Raises UserError as `save_files`, or for none."""
    if not tables:
        words = "no row of the dataset fits its tables; leave where out, or type another results.path"
        raise UserError(f"export=aiconfigurator: {words}")
    contents = {}
    for name, lines in tables.items():
        pq.write_table(pa.Table.from_pylist(lines), whole := io.BytesIO())
        contents[f"{name}.parquet"] = whole.getvalue()
    contents["collection_meta.yaml"] = _meta(tables, notes).encode()
    save_files("aiconfigurator", folder, contents)
    return [*contents]


def _meta(tables: Mapping[str, list[dict[str, Any]]], notes: Sequence[str]) -> str:
    versions = libraries_of(line["version"] for lines in tables.values() for line in lines)
    found = {
        "schema_version": 1,
        "provenance": FRAMEWORK,
        "runtime": {"framework": FRAMEWORK, "version": ", ".join(versions)},
        "tables": {name: {"status": "complete"} for name in tables},
    }
    return "".join(f"# {note}\n" for note in notes) + str(yaml.safe_dump(found, sort_keys=False))


def _inexpressible(row: Mapping[str, Any]) -> str:
    """Why its tables cannot hold a row; empty if they can. A tree has a mask of its own."""
    if row["status"] != "ok":
        return f"{row['status']}: its tables have only times"
    if row["twin"] == 1 or re.search(of_references(), text_of(row["backend"])):
        return "a twin or a reference"
    if row["routine"] not in ("paged_decode", "paged_prefill", "ragged_prefill", "mla"):
        return f"{row['routine']}: no table for it"
    unlike = [key for key, default in DEFAULTS.items() if not pd.isna(row[key]) and row[key] != default]
    unlike += [key for key in EMPTY if key in row and np.ndim(row[key]) == 0 and not pd.isna(row[key])]
    if row["routine"] != "mla" and row["head_dim_qk"] != row["head_dim_vo"]:
        unlike.append("head_dim_vo")
    if unlike:
        return f"{unlike[0]}: no column for it"
    unknown = [key for key in ("q_dtype", "kv_dtype") if row[key] not in THEIR_DTYPES]
    return f"{unknown[0]}: no name for {row[unknown[0]]}" if unknown else ""


def _table(row: Mapping[str, Any]) -> str:
    """The table of a row. Prompts have as many query tokens as KV tokens, or more than any draft."""
    kind = "mla" if row["routine"] == "mla" else "attention"
    if row["s_qo"] == 1 and row["s_kv"] > 1:
        return f"generation_{kind}_perf"
    return f"draft_{kind}_perf" if row["s_qo"] <= MAX_DRAFT and row["s_qo"] < row["s_kv"] else f"context_{kind}_perf"


def _line(row: Mapping[str, Any]) -> dict[str, Any]:
    table, latent = _table(row), row["routine"] == "mla"
    phase, dtype = table.split("_")[0], "mla_dtype" if latent else "attn_dtype"
    us = row["in_step_us"] if row["context"] == "step" else row["median_us"]
    window = 0 if pd.isna(row["window"]) else int(row["window"])
    heads = {"num_key_value_heads": row["num_kv_heads"], "head_dim": row["head_dim_qk"], "beam_width": 1, "window_size": window}
    return {
        "framework": FRAMEWORK,
        "version": row["libraries"] or row["orchestrator_version"],
        "device": row["device_name"],
        "op_name": f"mla_{phase}" if latent else f"{phase}_attention",
        "kernel_source": row["resolved_backend"] or row["backend"],
        "batch_size": row["batch_size"],
        "isl": row["s_qo"],
        "num_heads": row["num_qo_heads"],
        **({"tp_size": row["tp"]} if latent else heads),
        dtype: THEIR_DTYPES[row["q_dtype"]],
        "kv_cache_dtype": THEIR_DTYPES[row["kv_dtype"]],
        "step": row["s_kv"] - row["s_qo"],
        "latency": us / 1000,
    }
