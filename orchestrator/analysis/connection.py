"""Queries on files and tables in memory by DuckDB. Their errors say which file is damaged. Knows no table."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import duckdb
import pyarrow as pa

from orchestrator.analysis.sources import require_whole, unverified
from orchestrator.errors import DamagedDataset

Record = dict[str, Any]


def was_interrupted(error: Exception) -> bool:
    """Whether an error is what DuckDB raises in place of KeyboardInterrupt when Ctrl-C or SIGTERM comes during a query."""
    return type(error).__name__ in ("RuntimeError", "InterruptException") and "interrupted" in str(error).lower()


def plan_quickly(con: duckdb.DuckDBPyConnection) -> None:
    """For few rows: planning takes most of the time then, and of several counts of distinct values twice as much as need be."""
    con.execute("SET threads = 1")
    with suppress(duckdb.Error):  # of a release without this optimizer
        con.execute("SET disabled_optimizers = 'distinct_aggregate_rewrite'")


class Connection:
    """A connection of DuckDB, as `con`, for queries that may read `files`.

    DuckDB reads a file when a query needs it. So every method raises DamagedDataset for a file that is damaged or is not this
    project's. A query through `con` raises DuckDB's own error.

    `later` has views by name, each after those it reads, for the first query that names one (through `con`: `create_later`).
    Those of `kept` are tables then, so that several queries plan and compute one once.
    """

    def __init__(self, files: list[str], *, threads: int | None = None) -> None:
        self._unverified, self.later, self.kept = unverified(files), dict[str, str](), frozenset[str]()
        self.con = duckdb.connect(config={"threads": threads} if threads else {})
        self.con.execute("SET preserve_insertion_order = false; SET enable_progress_bar = false; SET TimeZone = 'UTC'")
        self.con.execute("SET autoinstall_known_extensions = false")  # nothing is fetched from anywhere

    def execute(self, statement: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Runs a statement, with values for its `?`. Returns its rows, none for one that only makes something."""
        with self._reading():
            self.create_later(statement)
            return self.con.execute(statement, list(parameters)).fetchall()

    def create_table(self, columns: str, rows: Iterable[Sequence[object]] = ()) -> None:
        """A temporary table with these columns, such as `cards(device_uuid VARCHAR, factor DOUBLE)`, and rows."""
        self.execute(f"CREATE TEMP TABLE {columns}")
        if of_columns := [list(values) for values in zip(*rows, strict=True)]:  # parsing them as literals takes five times as long
            taken = ", ".join("unnest(?)" for _ in of_columns)
            self.execute(f"INSERT INTO {columns.partition('(')[0]} SELECT {taken}", of_columns)

    def records(self, query: str) -> list[Record]:
        """The rows that a query returns, each as a dict."""
        with self._reading():
            relation = self.relation(query)
            return [dict(zip(relation.columns, values, strict=True)) for values in relation.fetchall()]

    def to_arrow(self, query: str) -> pa.Table:
        with self._reading():
            return self.relation(query).to_arrow_table()

    def relation(self, query: str) -> duckdb.DuckDBPyRelation:
        """The answer of a query as DuckDB's relation, which is computed when it is read."""
        self.create_later(query)
        return self.con.sql(query)

    def create_later(self, query: str | None = None) -> None:
        """Creates those views of `later` that a query reads; all without one."""
        names = set(self.later) if query is None else self._later_in(query)
        while more := {name for of in names for name in self._later_in(self.later[of])} - names:
            names |= more
        for name in [name for name in self.later if name in names]:
            kind = "TABLE" if query and name in self.kept else "VIEW"
            self.con.execute(f"CREATE TEMP {kind} {name} AS {self.later.pop(name)}")

    def _later_in(self, query: str) -> set[str]:
        return self.later.keys() & re.findall(r"\w+", re.sub(r"--.*", "", query)) if self.later else set()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Turns DuckDB's error into DamagedDataset if a file without a checksum may be the cause, and into KeyboardInterrupt after
        Ctrl-C. Any other is a bug in a query.
        """
        try:
            yield
        except (duckdb.BinderException, duckdb.ParserException, duckdb.CatalogException):
            raise
        except (duckdb.Error, RuntimeError, ValueError, OverflowError) as error:
            if was_interrupted(error):
                raise KeyboardInterrupt from None
            if isinstance(error, RuntimeError):
                raise
            for file in self._unverified:
                require_whole(file)
            if self._unverified:
                raise DamagedDataset(f"results.path: {', '.join(self._unverified)}: damaged, since no query can read it") from error
            raise

    def scalar(self, query: str) -> Any:
        """The value that a query with one row and one column returns."""
        (value,) = self.single_row(query)
        return value

    def single_row(self, query: str) -> tuple[Any, ...]:
        (found,) = self.execute(query)
        return tuple(found)
