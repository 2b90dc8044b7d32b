"""How a row is filled, and written to Parquet and JSON: every point gets one. `columns/` says what each column means."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any, cast, get_args

from kernels.contract.splits import splits_in
from orchestrator import libraries
from orchestrator.code_version import with_plugin
from orchestrator.point import Point
from orchestrator.storage.columns import COLUMNS, RESULT_COLUMNS, ColumnType, Row, Status

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["COLUMNS", "RESULT_COLUMNS", "Row", "Status"]  # of `columns`; what is defined here is public without it
STATUSES: tuple[str, ...] = get_args(Status)
ANY_OF = " | "  # joins the kinds of devices in the row of a point that was not started on any
BAD: frozenset[str] = frozenset({"mismatch", "failed", "timeout", "oom"})
KEY = ("point_id", "cluster", "device_name", "torch_version", "libraries", "orchestrator_version")
LATER = frozenset({"libraries"})  # of KEY: what files and journals of older versions lack, and get by its default
Key = tuple[Any, ...]


@cache
def schema() -> pa.Schema:
    """The Parquet schema of a dataset. Each field carries its unit and its meaning, so that a file explains itself."""
    import pyarrow as pa

    types: dict[ColumnType, pa.DataType] = {
        "string": pa.string(),
        "int64": pa.int64(),
        "double": pa.float64(),
        "bool": pa.bool_(),
        "list<double>": pa.list_(pa.float64()),
        "list<int32>": pa.list_(pa.int32()),
        "timestamp": pa.timestamp("us", tz="UTC"),
    }
    return pa.schema(
        pa.field(column.name, types[column.type], metadata={"unit": column.unit, "meaning": column.meaning})
        for column in COLUMNS.values()
    )


def now() -> str:
    """The time in UTC, as text in ISO 8601: a row holds it so until it reaches Parquet."""
    return datetime.now(UTC).isoformat()


def describe(point: Point) -> Row:
    """The identity and problem columns of a point, with its bytes and FLOPs."""
    p = point.problem
    return {
        **cast(Row, p.model_dump(exclude={"out_dtype", "tree"})),
        "point_id": point.point_id,
        "group_id": point.group_id,
        "backend": point.backend,
        "env": point.env,
        "num_splits": splits_in(point.backend),
        "twin": point.twin,
        "tree": None if p.tree is None else list(p.tree),
        "out_dtype": p.output_dtype,
        "flops": p.flops,
        "bytes": p.bytes,
        "check": "not_checked: did not run",
        **(_of_engine(*point.engine) if point.engine else {}),
    }


def _of_engine(engine: str, flag: str) -> Row:
    """Of a point inside an engine, whose answers nobody sees."""
    how: Row = {"context": "engine", "pace": "sustained"}
    return {"engine": engine, "flag": flag, **how, "check": "not_checked: times inside an engine, not answers"}


def begin(point: Point, common: Row) -> Row:
    """The columns that are known before a point runs. For a plugin's backend `orchestrator_version` ends in its code's hash."""
    row: Row = {**describe(point), **common}
    if point.plugin_code and "orchestrator_version" in common:
        row["orchestrator_version"] = with_plugin(common["orchestrator_version"], point.plugin_code)
    return row


def finish(row: Row, status: Status, reason: str = "") -> Row:
    """The whole row: unknown columns null, results only if `ok`. Raises KeyError for a column that there is not."""
    if unknown := set(row) - set(COLUMNS):
        raise KeyError(f"no such columns: {sorted(unknown)}")
    known = {name: value for name, value in row.items() if not (isinstance(value, float) and math.isnan(value))}
    full: dict[str, Any] = dict.fromkeys(COLUMNS) | known | {"status": status, "reason": reason}
    if status != "ok":
        full.update(dict.fromkeys(RESULT_COLUMNS))
    full.update({name: full[name] or now() for name in ("started_at", "finished_at")})
    return cast(Row, full)


def version_columns(versions: Mapping[str, str | None]) -> Row:
    """The versions of a machine that have a column each."""
    return cast(Row, {name: found for name, found in versions.items() if name in COLUMNS})


def library_column(point: Point, versions: Mapping[str, str | None]) -> Row:
    """The libraries of a point's backend, as a machine has them."""
    return {"libraries": libraries.column(point.distributions, versions)}


def of_forced(row: Row, rule: str, not_passed: Sequence[str] = ()) -> Row:
    """The status and reason that change, of a point that ran although a support rule forbids it (check.force_unsupported).

    A failure or a wrong answer confirms the rule, a right answer shows that it is too strict. A timeout and `oom` say nothing.
    `not_passed` are features of the problem that the backend never hands to its kernel: then neither does a failure.
    """
    missing = f"{' and '.join(not_passed)} not passed to the kernel" if not_passed else ""
    if row["status"] == "ok":
        words = f", with {missing}" if missing else ""
        return {"reason": f"the rule is too strict: it forbids this, and it ran and was right{words} ({rule})"}
    if row["status"] not in ("failed", "mismatch"):
        return {}
    words = f"says nothing of the rule, {missing}: " if missing else ""
    return {"status": "unsupported", "reason": f"{rule} (forced: {words}{row['status']}: {row['reason']})"}


def to_json(row: Mapping[str, Any]) -> str:
    """A row as one line of a journal."""
    return json.dumps(row)


def to_table(rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """A table of rows, whose times are text in ISO 8601."""
    import pyarrow as pa

    times = [name for name, column in COLUMNS.items() if column.type == "timestamp"]
    parsed = [{**row, **{t: datetime.fromisoformat(row[t]) for t in times if row.get(t)}} for row in rows]
    if not parsed:  # as a run begins: from a list pyarrow would import pandas, which takes half a second
        return pa.Table.from_arrays([pa.nulls(0, field.type) for field in schema()], schema=schema())
    return pa.Table.from_pylist(parsed, schema=schema())


def key_of(row: Mapping[str, Any]) -> Key:
    """A row's key: its point, cluster, kind of device and versions."""
    return tuple(row[name] for name in KEY)
