"""The columns of a page as dictionaries and typed arrays, packed and compressed.

The packing, little-endian: the length of a JSON header as uint32, the header in UTF-8, then the arrays, each at a multiple of
8 bytes from the start. The header names each column with its kind, array type, offset and tooltip. A column of kind `words` has
its distinct values there and one code for each row in the array. One of kind `numbers` has a number for each row, NaN if the row
has none.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from kernels.problem import Problem
from orchestrator.analysis.keys import PROBLEM_KEYS, TIMING_KEYS
from orchestrator.reporting.dashboard.data import LEFT_IN_PARQUET, LEVELS, OWN_COLUMNS, OWN_NUMBERS
from orchestrator.storage.columns import COLUMNS, ColumnType

EXACT = frozenset({"median_us", "in_step_us", "ranked_us", "own_us"})  # kept to the last bit; the others have seven digits
# Axes in the order in which a person chooses among them; whatever other keys of a problem vary follow.
AXES = ("device_name", "model", "tp", "routine", "dtype", "s_qo", "batch_size", "s_kv", "mask")
ALWAYS = ("s_qo", "batch_size", "s_kv")  # axes of a plot even where they have one value
VERSIONS = ("torch_version", "libraries", "flashinfer_version", "orchestrator_version")
FILTERS = ("phase", "backend", "status", "run_id", "cluster", "sweep", *VERSIONS, "driver", "twin")
INTEGERS = frozenset({"tp", "twin", "attempt", "num_samples", "num_set_aside", "sm_clock_mhz", "mem_clock_mhz", "temperature_c"})
WORDS_AT_MOST = 0.5  # integers that repeat less than this share of the rows are numbers


def axes(table: pd.DataFrame) -> list[str]:
    """Keys of a problem that vary, without those that another one tells, such as `num_qo_heads` by `model`; `ALWAYS` among them."""
    rest = [key for key in PROBLEM_KEYS if key not in AXES and key not in ("q_dtype", "kv_dtype")]
    varying = [key for key in (*AXES, *rest) if key in ALWAYS or table[key].nunique(dropna=key in TIMING_KEYS) > 1]
    found: list[str] = []
    for key in varying:
        pairs = {other: table[[other, key]].drop_duplicates() for other in found if key not in AXES}
        if not any(len(of) == of[other].nunique(dropna=False) for other, of in pairs.items()):
            found.append(key)
    return found


def pack(table: pd.DataFrame, about: Mapping[str, Any]) -> bytes:
    """The table as this module's format, compressed with gzip; `about` joins the header, its `tables` packed likewise."""
    arrays = _Arrays()
    columns = {}
    for name in (*OWN_COLUMNS, *COLUMNS):
        if name in LEFT_IN_PARQUET or (table[name].isna().all() and name not in (*Problem.model_fields, "reason")):
            continue
        packed = _words(table, name) if _is_words(table, name) else _numbers(table, name)
        columns[name] = arrays.add(*packed) | {"about": about_column(name)}
    tables = {name: _pack_answer(answer, arrays) for name, answer in about.get("tables", {}).items()}
    filters = [name for name in FILTERS if table[name].nunique() > 1]  # beside the axes
    header = {**about, "rows": len(table), "axes": axes(table), "filters": filters, "columns": columns, "tables": tables}
    head = json.dumps(header, allow_nan=False).encode()
    start = len(head).to_bytes(4, "little") + head
    return gzip.compress(start + b"\0" * (-len(start) % 8) + b"".join(arrays.parts), compresslevel=6, mtime=0)


class _Arrays:
    """Arrays one after another, each at a multiple of 8 bytes."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self._offset = 0

    def add(self, column: dict[str, Any], array: np.ndarray[Any, Any]) -> dict[str, Any]:
        """Appends an array and returns what the header says of its column."""
        data = array.astype(array.dtype.newbyteorder("<")).tobytes()
        found = column | {"array": array.dtype.name, "offset": self._offset}
        self.parts.append(data + b"\0" * (-len(data) % 8))
        self._offset += len(self.parts[-1])
        return found


def _pack_answer(answer: pd.DataFrame, arrays: _Arrays) -> dict[str, Any]:
    """The table of an answer: words as words, everything else to the last bit."""
    columns = {}
    for name in answer:
        if pd.api.types.is_numeric_dtype(answer[name]):
            packed = {"kind": "numbers"}, answer[name].to_numpy(np.float64, na_value=math.nan)
        else:
            packed = _words(answer, str(name))
        columns[str(name)] = arrays.add(*packed)
    return {"rows": len(answer), "columns": columns}


def about_column(name: str) -> str:
    """The tooltip of a column: what it means, and its unit."""
    if name not in COLUMNS:
        return OWN_COLUMNS[name]
    column = COLUMNS[name]
    return f"{column.meaning} Unit: {column.unit}." if column.unit else column.meaning


def _type(name: str) -> ColumnType:
    own: ColumnType = "double" if name in OWN_NUMBERS else "bool" if name == "reference" else "string"
    return COLUMNS[name].type if name in COLUMNS else own


def _is_words(table: pd.DataFrame, name: str) -> bool:
    if name in LEVELS:
        return False
    kind = _type(name)
    if kind in ("string", "bool") or name in Problem.model_fields or name in INTEGERS:
        return True
    return kind == "int64" and table[name].nunique() < WORDS_AT_MOST * len(table)


def _words(table: pd.DataFrame, name: str) -> tuple[dict[str, Any], np.ndarray[Any, Any]]:
    series = table[name]
    if name in ("command", "again"):  # differs by its point alone
        pairs = zip(series, table["point_id"], strict=True)
        series = pd.Series([None if pd.isna(text) else text.replace(str(point), "\0") for text, point in pairs], dtype=object)
    codes, values = pd.factorize(series, sort=True, use_na_sentinel=True)
    plain = [_plain(value, _type(name)) for value in values]
    if (codes < 0).any():
        codes = np.where(codes < 0, len(plain), codes)
        plain.append(None)
    size = np.uint8 if len(plain) <= 2**8 else np.uint16 if len(plain) <= 2**16 else np.uint32
    return {"kind": "words", "values": plain}, codes.astype(size)


def _plain(value: Any, kind: ColumnType) -> object:
    """A value as JSON has it: whole numbers stay whole although a column with gaps is floating in pandas."""
    if kind == "bool":
        return bool(value)
    if kind == "int64":
        return int(value)
    return str(value) if kind == "string" else float(value)


def _numbers(table: pd.DataFrame, name: str) -> tuple[dict[str, Any], np.ndarray[Any, Any]]:
    if name in LEVELS:  # from 1; 0 is none
        numbers = table[name].to_numpy(dtype=np.uint32)
        return {"kind": "codes", "count": int(numbers.max()) + 1}, numbers
    if _type(name) == "timestamp":
        seconds = (table[name] - pd.Timestamp(0, tz="UTC")).dt.total_seconds()
        return {"kind": "time"}, seconds.to_numpy(dtype=np.float64)
    exact = name in EXACT or _type(name) == "int64"
    values = table[name].to_numpy(dtype=np.float64, na_value=math.nan)
    return {"kind": "numbers"}, values if exact else values.astype(np.float32)
