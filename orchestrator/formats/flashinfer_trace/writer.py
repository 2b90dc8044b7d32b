"""Writes a dataset as traces of flashinfer-trace: one line for each row that ran, under the definition of its workload.

Lengths go to safetensors files as the schema has them. The pages' order is drawn on the device and is not in a row, so `kv_indices`
is `random`: a trace says what was measured, and is not an input to measure again.
"""

from __future__ import annotations

import json
import math
import uuid
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from kernels.problem import Problem
from orchestrator.analysis.rough import how_known
from orchestrator.analysis.sql import text_of
from orchestrator.errors import UserError
from orchestrator.formats.flashinfer_trace.safetensors import with_vectors
from orchestrator.formats.results_csv import problem_of
from orchestrator.storage.exported import save_files

AUTHOR = "attention-orchestrator"
FAILED = "RUNTIME_ERROR"
STATUSES = {"ok": "PASSED", "mismatch": "INCORRECT_NUMERICAL", "failed": FAILED, "oom": FAILED, "timeout": "TIMEOUT"}
NO_COUNTERPART = (
    *("mask", "window", "sinks", "tree", "max_seq_len", "shared_prefix", "graph_batch", "num_states", "soft_cap", "kv_memory"),
)
DTYPES = {("bf16", "bf16"): "", ("fp8_e4m3", "fp8_e4m3"): "_fp8e4m3"}  # the ends of definitions' names
REFERENCE = "torch_sdpa"


def to_traces(rows: Sequence[Mapping[str, Any]]) -> tuple[dict[str, list[dict[str, Any]]], Counter[str]]:
    """The traces of each definition, rough ones named in `log`, and how many `rows` (each point once) it cannot hold, and why."""
    reference = {row["group_id"]: row["median_us"] for row in rows if row["backend"] == REFERENCE and row["status"] == "ok"}
    found, left_out = defaultdict(list), Counter[str]()
    for row in rows:
        if reason := inexpressible(row):
            left_out[reason] += 1
        else:
            problem = problem_of(row)
            found[definition_name(problem)].append(_trace(row, problem, reference.get(row["group_id"], 0.0)))
    return dict(found), left_out


def save(found: Mapping[str, list[dict[str, Any]]], folder: str) -> dict[str, int]:
    """Writes traces and lengths below a folder; returns each file's lines. Raises UserError as `save_files`, and for no traces."""
    if not found:
        words = "no row of the dataset fits its schema; leave where out, or type another results.path"
        raise UserError(f"export=flashinfer_trace: {words}")
    contents, written = {}, {}
    keys = ("definition", "solution", "workload", "evaluation")
    for name, traces in found.items():
        file = f"traces/{AUTHOR}/{_operation(name)}/{name}.jsonl"
        contents[file] = "".join(json.dumps({key: trace[key] for key in keys}) + "\n" for trace in traces).encode()
        contents |= {trace["blob"]: with_vectors(trace["vectors"]) for trace in traces}
        written[file] = len(traces)
    save_files("flashinfer_trace", folder, contents)
    return written


def definition_name(problem: Problem) -> str:
    """The name of a problem's definition, as flashinfer-trace builds such names."""
    is_decode = problem.s_qo == 1 and problem.routine != "ragged_prefill"
    stage, end = "decode" if is_decode else "prefill_causal", DTYPES[problem.q_dtype, problem.kv_dtype]
    if problem.latent:
        dims = f"ckv{problem.head_dim_ckv}_kpe{problem.head_dim_kpe}"
        return f"mla_paged_{stage}_h{problem.num_qo_heads}_{dims}_ps{problem.page_size}{end}"
    heads = f"h{problem.num_qo_heads}_kv{problem.num_kv_heads}_d{problem.head_dim_qk}"
    return f"gqa_paged_{stage}_{heads}_ps{problem.page_size}{end}" if problem.paged else f"gqa_ragged_{stage}_{heads}{end}"


def _operation(name: str) -> str:
    return "_".join(name.split("_")[:2])  # gqa_paged, gqa_ragged, mla_paged


def inexpressible(row: Mapping[str, Any]) -> str:
    """Why no trace can hold a row; empty if one can."""
    if row["status"] not in STATUSES:
        return f"{row['status']}: it has no evaluation"
    if row["twin"] == 1:
        return "twin: a trace stands once"
    try:
        return _without_definition(problem_of(row))
    except UserError as error:
        return str(error)


def _without_definition(problem: Problem) -> str:
    if problem.routine not in ("paged_decode", "paged_prefill", "ragged_prefill", "mla"):
        return f"{problem.routine}: no definition of it"
    unlike = [key for key in NO_COUNTERPART if getattr(problem, key) != Problem.model_fields[key].default]
    if not problem.latent and problem.head_dim_qk != problem.head_dim_vo:
        unlike.append("head_dim_vo")
    if unlike:
        return f"{unlike[0]}: no definition has it"
    if (problem.q_dtype, problem.kv_dtype) not in DTYPES:
        return f"q {problem.q_dtype} over kv {problem.kv_dtype}: no definition has it"
    return ""


def _trace(row: Mapping[str, Any], problem: Problem, reference_us: float) -> dict[str, Any]:
    name = definition_name(problem)
    identity = uuid.uuid5(uuid.NAMESPACE_URL, f"{AUTHOR}/{problem.model_dump_json(exclude_defaults=True)}")
    blob = f"blob/workloads/{_operation(name)}/{name}/{name}_{identity.hex}.safetensors"
    axes, vectors = _lengths(problem)
    tensors = {key: {"type": "safetensors", "path": f"./{blob}", "tensor_key": key} for key in vectors}
    queries = ("q_nope", "q_pe") if problem.latent else ("q",)
    caches = ("ckv_cache", "kpe_cache") if problem.latent else ("k_cache", "v_cache") if problem.paged else ("k", "v")
    indices = {"kv_indices": {"type": "random"}} if problem.paged else {}
    scale = {"sm_scale": {"type": "scalar", "value": problem.softmax_scale or problem.head_dim_qk**-0.5}}
    inputs = {**{key: {"type": "random"} for key in (*queries, *caches)}, **tensors, **indices, **scale}
    return {
        "definition": name,
        "solution": f"{AUTHOR}_{row['backend']}_{name}",
        "workload": {"uuid": str(identity), "axes": axes, "inputs": inputs},
        "evaluation": _evaluation(row, reference_us),
        "blob": blob,
        "vectors": vectors,
    }


def _lengths(problem: Problem) -> tuple[dict[str, int], dict[str, Sequence[int]]]:
    size, axes = problem.slots_per_page, {"len_indptr": problem.batch_size + 1}
    pages = [-(-length // size) for length in problem.kv_lens]
    vectors: dict[str, Sequence[int]] = {"kv_indptr": [0, *accumulate(pages)]}
    if problem.s_qo == 1 and problem.paged:
        axes["batch_size"] = problem.batch_size
    else:
        axes["total_q"] = problem.num_q_tokens
        vectors["qo_indptr"] = [0, *accumulate(problem.q_lens)]
    if not problem.paged:
        return {**axes, "total_kv": problem.num_kv_tokens}, vectors
    if size > 1:
        vectors["kv_last_page_len"] = [
            length - max(0, count - 1) * size for length, count in zip(problem.kv_lens, pages, strict=True)
        ]
    return {**axes, "num_pages": sum(pages), "num_kv_indices": sum(pages)}, vectors


def _evaluation(row: Mapping[str, Any], reference_us: float) -> dict[str, Any]:
    status, us = STATUSES[row["status"]], row["median_us"]
    libraries = dict(part.rsplit(" ", 1) for part in text_of(row["libraries"]).split(", ") if " " in part)
    named = {"torch": row["torch_version"], "cuda": row["cuda"], AUTHOR: row["orchestrator_version"]}
    libs = {**libraries, **{k: v for k, v in named.items() if v}}
    correctness = performance = None
    if status in ("PASSED", "INCORRECT_NUMERICAL"):
        extra = {key: number for key in ("rel_err", "tolerance") if (number := _number(row[key])) is not None}
        errors = {"max_relative_error": _error(row["rel_err"]), "max_absolute_error": _error(row["max_abs_err"])}
        correctness = {**errors, "extra": {**extra, "check": row["check"]}}
    if status == "PASSED":
        speedup = {"speedup_factor": reference_us / us}
        performance = {"latency_ms": us / 1000, "reference_latency_ms": reference_us / 1000, **speedup}
    return {
        "status": status,
        "environment": {"hardware": row["device_name"].replace(" ", "_"), "libs": libs},
        "timestamp": row["finished_at"].isoformat(),
        "log": "; ".join(filter(None, (row["reason"], how_known(row)))),
        "correctness": correctness,
        "performance": performance,
    }


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _error(value: object) -> float | str:
    """An error as its schema writes it: text for one that is infinite or was not measured."""
    number = _number(value)
    return number if number is not None else "Infinity" if value == math.inf else "NaN"
