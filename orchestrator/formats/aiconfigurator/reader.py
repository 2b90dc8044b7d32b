"""Reads aiconfigurator's tables, a row for each line. Page sizes and orders, and 8-bit queries, are in its collectors' source."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from kernels.device import Device
from kernels.problem import Problem
from orchestrator.config.model import Model
from orchestrator.errors import NotPlain, UserError
from orchestrator.formats import imported
from orchestrator.point import Point, fingerprint
from orchestrator.remainder import Remainder
from orchestrator.storage.row import Row, finish
from orchestrator.untrusted.files import read_bytes

TEXT = ("framework", "version", "device", "op_name", "kernel_source", "kv_cache_dtype")
WHOLE = ("batch_size", "isl", "num_heads", "step")
OF_ATTENTION = (*TEXT, "attn_dtype", *WHOLE, "num_key_value_heads", "head_dim", "beam_width", "latency")
NOT_OF_ENCODER = ("kv_cache_dtype", "step", "num_key_value_heads", "beam_width")  # as many KV heads as query heads, and no cache
OF_ENCODER = tuple(column for column in OF_ATTENTION if column not in NOT_OF_ENCODER)
OF_MLA = (*TEXT, "mla_dtype", *WHOLE, "tp_size", "latency")
OPTIONAL = frozenset({"window_size", "power", "power_limit"})  # power is not read: a row here holds the highest draw
TABLES = ("context_attention", "generation_attention", "encoder_attention", "generation_mla")
OPS = {
    "context_attention": "paged_prefill", "generation_attention": "paged_decode", "encoder_attention": "ragged_prefill",
    "mla_generation": "mla", "generation_mla": "mla",
}  # fmt: skip
DTYPES = {"bfloat16": "bf16", "float16": "fp16", "fp8": "fp8_e4m3"}
MAX_BYTES = 256 * 10**6
MANY_ROWS = 1_000_000  # the largest published table has about 100,000
ORIGIN = "aiconfigurator"  # `orchestrator_version` of an imported row
FRAMEWORKS = {"VLLM": "vllm", "SGLang": "sglang", "TRTLLM": "trtllm"}
ENCODER = "encoder_attention"
# The backend here that runs the same kernel. Another kernel keeps its name: the table of TensorRT-LLM names none.
FLASH_ATTENTION = re.compile(r"(?:vllm_(?:vit_)?flash_attn_fa|flash_attention_v)([234])")
KERNELS: dict[str, str] = yaml.safe_load(files(__package__).joinpath("kernels.yaml").read_text(encoding="utf-8"))
SGLANG_PAGED = ("trtllm_mha", "trtllm_mla")  # with pages of 64 tokens; its other collectors use slots of one token
LATENT = {"head_dim_qk": 192, "head_dim_vo": 128, "head_dim_ckv": 512, "head_dim_kpe": 64}  # DeepSeek's, which its collectors use


def read(path: str, device: Device | None, model: Model, sweep: str) -> list[Row]:
    """A row for each workload of a table, the last of several; shares of `model` get its name. UserError for a wrong one."""
    records = read_records(path)
    common = _common(path, records, device, sweep)
    rest = Remainder(path, "row")
    found: dict[str, Row] = {}
    for column in sorted({*records[0]} - {*OF_MLA, *OF_ATTENTION, *OPTIONAL}):
        rest.add(1, f"column {column} has no counterpart here")
    for number, row in rest.each(enumerate(records, 1), lambda record: _row(record, model, common)):
        found[row["point_id"]] = finish(row, "ok", f"imported: row {number} {row['reason']}")
    rest.close(len(found), "the number after the file is that of the row, from 1")
    return list(found.values())


def _common(path: str, records: list[dict[str, Any]], device: Device | None, sweep: str) -> Row:
    name, framework, version = (single(path, records, column) for column in ("device", "framework", "version"))
    if device is not None and name not in (device.name, *device.match):
        raise UserError(f"device={device.name!r}: {path} was measured on {name}; leave device out")
    if framework not in FRAMEWORKS:
        raise UserError(f"import={path}: framework={framework!r}; allowed: {', '.join(FRAMEWORKS)}")
    return {
        **imported.common(path, read_bytes(path, MAX_BYTES), sweep, ORIGIN),
        "cluster": f"{ORIGIN}-{FRAMEWORKS[framework]}-{version}",
        "device_name": name,
        "libraries": f"{FRAMEWORKS[framework]} {version}",
        "check": "not_checked: imported; aiconfigurator's tables have only times",
        "timer": f"{ORIGIN}, a replayed CUDA graph",
        "l2": "warm",  # its harness repeats one call and flushes nothing
        "icache": "warm",
        "context": "isolated",
        "cuda_graph": True,
        "reason": f"of {file_named(path)}",
    }


def _row(record: Mapping[str, Any], model: Model, common: Row) -> Row:
    """The row of a line. Raises ValueError for a value without a counterpart."""
    if empty := [column for column, value in record.items() if value is None]:
        raise ValueError(f"{empty[0]} is empty; allowed: a value in every column")
    problem, kernel = Problem.model_validate(_keys(record, common, model)), str(record["kernel_source"])
    how = fingerprint([ORIGIN, common["cluster"], record["op_name"], kernel])
    row = imported.timed(Point(problem, _backend(record), how), imported.microseconds("latency", record["latency"]), common)
    reason = str(common["reason"])
    if record["op_name"] != ENCODER:
        reason += ", page size and order as in its collector, kv_layout not said"
        reason += ", its calls also write the new keys and values" if record["framework"] == "VLLM" else ""
    return {**row, "resolved_backend": kernel, "reason": reason}


def _backend(record: Mapping[str, Any]) -> str:
    """The backend here that runs the kernel of a record, or the kernel's own name, as for most of encoders."""
    kernel = str(record["kernel_source"])
    if found := FLASH_ATTENTION.fullmatch(kernel):
        return f"flash_attn_{found[1]}"
    if record["op_name"] == ENCODER:
        return kernel
    if kernel == "flashinfer":
        return "fa2_tc" if record["isl"] == 1 else "fa2"
    return KERNELS.get(kernel, kernel)


def _keys(record: Mapping[str, Any], common: Row, model: Model) -> dict[str, object]:
    """The keys of a problem. Tokens of an image or of audio see one another, have as many KV heads as query heads, and no cache."""
    op = record["op_name"]
    if op not in OPS:
        why = "; MLA's prompts may be absorbed or not, which the table does not say" if "mla" in op else ""
        raise ValueError(f"op_name={op!r}: allowed: {', '.join(OPS)}{why}")
    if record.get("beam_width", 1) != 1:
        raise ValueError(f"beam_width={record['beam_width']}: allowed: 1, a request has one sequence here")
    is_encoder, latent = op == ENCODER, OPS[op] == "mla"
    q_dtype = our_dtype("mla_dtype" if latent else "attn_dtype", record)
    kv_dtype = q_dtype if is_encoder else our_dtype("kv_cache_dtype", record)
    # Its collector hands these FP8 queries over an FP8 cache (`needs_fp8_query` in collect_attn.py); the table says bfloat16.
    if kv_dtype.startswith("fp8") and str(record["kernel_source"]).startswith(("vllm_flash_attn_fa3", "vllm_flash_attn_fa4")):
        q_dtype = "fp8_e4m3"
    keys: dict[str, object] = {
        "routine": OPS[op],
        "mask": "full" if is_encoder else "causal",
        "batch_size": record["batch_size"],
        "s_qo": record["isl"],
        "s_kv": record["isl"] + (0 if is_encoder else record["step"]),
        "num_qo_heads": record["num_heads"],
        "num_kv_heads": record["num_heads"] if latent or is_encoder else record["num_key_value_heads"],
        **(LATENT if latent else {"head_dim_qk": record["head_dim"], "head_dim_vo": record["head_dim"]}),
        "q_dtype": q_dtype,
        "kv_dtype": kv_dtype,
        "window": record.get("window_size") or None,
        **({} if is_encoder else _pages(record, common)),
    }
    for tp in () if model.sinks else model.tp:  # tables have no attention sinks
        share = model.share(OPS[op], tp)
        if all(keys.get(key) == share.get(key) for key in ("num_qo_heads", "num_kv_heads", *LATENT)):
            return {**keys, "model": model.name, "tp": tp}
    return keys


def _pages(record: Mapping[str, Any], common: Row) -> dict[str, object]:
    """Page size and order as the collector has them; only vLLM's draws the blocks."""
    if record["framework"] == "VLLM":
        return {"page_size": 64, "page_order": "random"}
    if record["framework"] == "SGLang":
        size = 64 if record["kernel_source"] in SGLANG_PAGED else 1
    else:
        hopper = any(name in common["device_name"] for name in ("H100", "H200"))
        size = 64 if hopper or OPS[record["op_name"]] != "mla" else 32
    return {"page_size": size, "page_order": "sequential"}


def read_records(path: str) -> list[dict[str, Any]]:
    """The rows of a table. Raises UserError if it is no Parquet file, or none of aiconfigurator's attention tables."""
    try:
        file = pq.ParquetFile(pa.BufferReader(read_bytes(path, MAX_BYTES)))
        if file.metadata.num_rows > MANY_ROWS:
            raise UserError(f"import={path}: {file.metadata.num_rows:,} rows; allowed: at most {MANY_ROWS:,}, so split it")
        table = file.read()
        table.validate(full=True)  # text in UTF-8, among others
    except NotPlain as error:
        raise UserError(f"import={path}: {error.strerror}") from None
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise UserError(f"import={path}: no readable Parquet file ({str(error).splitlines()[0]}); give a whole one") from None
    _require_columns(path, table.schema.names)
    records: list[dict[str, Any]] = table.to_pylist()
    if not records:
        raise UserError(f"import={path}: it has no rows; give a table with some")
    return records


def _require_columns(path: str, names: list[str]) -> None:
    wanted = OF_MLA if "mla_dtype" in names else OF_ATTENTION if "step" in names else OF_ENCODER
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(f"import={path}: it has the column {repeated[0]} twice; give a table with one of each")
    if missing := [name for name in wanted if name not in names]:
        tables = ", ".join(f"{name}_perf.parquet" for name in TABLES)
        raise UserError(f"import={path}: no column {', '.join(missing)}; allowed: aiconfigurator's {tables}")


def single(path: str, records: list[dict[str, Any]], column: str) -> str:
    """The only value of a column. Raises UserError if it has several, or none."""
    found = sorted({str(record[column]) for record in records})
    if len(found) > 1 or records[0][column] is None:
        raise UserError(f"import={path}: {len(found)} values of {column} ({', '.join(found[:5])}); allowed: a table of one")
    return found[0]


def file_named(path: str) -> str:
    """A file by its folders in aiconfigurator, which tell tables of one name apart: `h200_sxm/attention/vllm/0.24.0/...`."""
    parts = Path(path).parts
    is_in_place = len(parts) >= 5 and parts[-4] in ("attention", "encoder_attention", "mla")
    return "/".join(parts[-5:]) if is_in_place else parts[-1]


def our_dtype(column: str, record: Mapping[str, Any]) -> str:
    """This project's name of a dtype. Raises ValueError for an unknown one."""
    if record[column] not in DTYPES:
        raise ValueError(f"{column}={record[column]!r}: allowed: {', '.join(DTYPES)}")
    return DTYPES[record[column]]
