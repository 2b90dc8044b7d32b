"""Answers as tables for a person: what names a table, what varies inside it, how many of them one reads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from orchestrator.dataset import GRID_AXES, SHAPE, Dataset, Record
from orchestrator.grid import Grid

NAMES = ("device_name", "model", "q_dtype", "kv_dtype")  # one table each, and for whatever else varies
LONGEST = 5_000  # shapes that are fetched for a terminal: nobody reads more, and DuckDB has them all


def fetch(
    data: Dataset, view: str, names: Sequence[str] = NAMES, axes: Sequence[str] = GRID_AXES, where: str = "true"
) -> list[Record]:
    """The first `LONGEST` rows of an answer, in the order of their tables."""
    order = ", ".join(dict.fromkeys((*names, *axes)))
    return data.records(f"SELECT * FROM {view} WHERE {where} ORDER BY {order} LIMIT {LONGEST}")


def varying(records: Sequence[Record], shown: Sequence[str]) -> list[str]:
    """Keys of a problem that differ among the records and are not told by those shown already, as `out_dtype` is by `q_dtype`."""
    if not records:
        return []
    found = [k for k in SHAPE if k in records[0] and k not in shown and len({r[k] for r in records}) > 1]
    for key in reversed(found):
        others = [*shown, *(k for k in found if k != key)]
        told: dict[tuple[Any, ...], set[Any]] = defaultdict(set)
        for record in records:
            told[tuple(record[k] for k in others)].add(record[key])
        if max(map(len, told.values())) == 1:
            found.remove(key)
    return found


def split(records: Sequence[Record], keys: Sequence[str]) -> dict[tuple[Any, ...], list[Record]]:
    """Records by the values of some keys, in the order of these; what has no value comes last."""
    parts: dict[tuple[Any, ...], list[Record]] = defaultdict(list)
    for record in records:
        parts[tuple(record[k] for k in keys)].append(record)
    return dict(sorted(parts.items(), key=lambda part: [(v is None, v) for v in part[0]]))


def named(records: Sequence[Record], down: Sequence[str], names: Sequence[str] = NAMES) -> Iterator[tuple[str, list[Record]]]:
    """Parts of an answer that make one table each, with what tells them apart: `llama_3_1_70b · q bf16, kv bf16 · NVIDIA H200`."""
    extra = varying(records, (*names, *down))
    for values, part in split(records, [*names, *extra]).items():
        key = dict(zip(names, values, strict=False))
        dtypes = f"q {key['q_dtype']}, kv {key['kv_dtype']}" if "q_dtype" in key else None
        others = (f"{k} {v}" for k, v in zip(extra, values[len(names) :], strict=True) if v is not None)
        yield " · ".join(filter(None, (key["model"], dtypes, *others, key["device_name"]))), part


def across_contexts(
    title: str,
    records: Sequence[Record],
    cell: Callable[[Record], str],
    last: tuple[str, Callable[[list[Record]], str]] | None = None,
) -> Grid:
    """Draft length and batch down, context across, a cell for each record; `last` adds a column that a whole row answers."""
    contexts = sorted({r["s_kv"] for r in records})
    cells = []
    for (s_qo, batch), row in split(records, ("s_qo", "batch_size")).items():
        by_context = {r["s_kv"]: cell(r) for r in reversed(row)}
        end = (last[1](row),) if last else ()
        cells.append((str(s_qo), str(batch), *(by_context.get(c, "–") for c in contexts), *end))
    header = ("s_qo", "batch", *(f"s_kv {c:,}" for c in contexts), *((last[0],) if last else ()))
    return Grid(title, header, tuple(cells))


def at(record: Record) -> str:
    """Where a single point lies, in few words."""
    dtypes = record["q_dtype"] if record["q_dtype"] == record["kv_dtype"] else f"{record['q_dtype']} over {record['kv_dtype']}"
    shape = f"batch {record['batch_size']}, s_kv {record['s_kv']:,}, s_qo {record['s_qo']}"
    return f"{record['routine']} {shape}, {dtypes}"


def percent(part: float) -> str:
    """`0.4%`, `12%`: digits where they say something."""
    return f"{part:.1%}" if abs(part) < 0.1 else f"{part:.0%}"
