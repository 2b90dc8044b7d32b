"""One table of aiconfigurator: its columns, checked for presence before any row is looked at."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from orchestrator.errors import NotPlain, UserError
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
    "context_attention": "paged_prefill",
    "generation_attention": "paged_decode",
    "encoder_attention": "ragged_prefill",
    "mla_generation": "mla",
    "generation_mla": "mla",
}
DTYPES = {"bfloat16": "bf16", "float16": "fp16", "fp8": "fp8_e4m3"}
MAX_BYTES = 256 * 10**6
MANY_ROWS = 1_000_000  # the largest published table has about 100,000


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
