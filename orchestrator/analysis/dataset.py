"""A dataset opened for questions: DuckDB over its Parquet files, and the tables that every question reads. Knows no question.

rows      every row, in today's columns, with `row`, a number that identifies it; `own_us` of older rows is `keys.OWN_US`
current   the newest row of each point and kind of device, of the asked releases of engines if there is one
timed     `current` without points inside an engine; a row that was not timed gets `timer`, `l2`, `icache` and `context` of its
          group on that device
problems  one row for each problem whose times may be compared: all its keys; `problem`, a number that identifies it; and `family`,
          which is equal for problems that differ only in batch_size, s_qo, s_kv and device.
          Times that were taken in different ways belong to different problems
cards     what each GPU takes over the mean one of its kind: device_uuid, factor. 1 if not certain; no rows for a single GPU
points    one row for each row of `current`: row, problem, backend, kernel (what it resolved to), shown (the backend's name for
          people, such as auto(fa3)), status, median_us: the time that it is ranked by, which is `in_step_us` of a point that was
          timed in a step; `own_us`, that time without the launch share; `rel_err`, how far off its answer was; `rough`: decided, so
          that its time is only known within 5%; `measured_as`, the backend whose samples it has, if it was credited with them.
          Ratios of times are of `own_us`; ranks in a problem are the same by both. If several GPUs ran it, the mean GPU's (`cards`)
noise     the percentile noise floor by range of times: device_name, from_us, to_us, noise_floor; see `noise.py`
noise_states   the states of the L2 that the A/A pairs of `noise` were measured over: device_name, l2
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from orchestrator import PROGRAM
from orchestrator.analysis.cards import Cards
from orchestrator.analysis.connection import Connection, Record, plan_quickly
from orchestrator.analysis.keys import OWN_US
from orchestrator.analysis.sources import find_sources, no_dataset, rows_in, source_of, typed, union_sql, values_there
from orchestrator.analysis.sql import LentRows, Where, condition, quoted
from orchestrator.analysis.views import create_views
from orchestrator.config.draft_cost import Draft
from orchestrator.errors import NoRows, UserError, as_typed
from orchestrator.storage.row import COLUMNS, schema

if TYPE_CHECKING:
    import pandas as pd

    from orchestrator.point import Point

# Reading so many rows of a file once takes less than planning each question over files. More are too much for memory.
FEW_ROWS, MAX_ROWS_READ_ONCE = 10_000, 100_000


class Dataset(Connection):
    """An open dataset with the tables above. A source is a Parquet file's path or a table. For the rest see `open_dataset`."""

    def __init__(
        self,
        sources: list[str | pa.Table],
        *,
        noise: list[str | pa.Table] | None = None,
        threads: int | None = None,
        where: Where | None = None,
        cards: Cards | None = None,
        path: str = "",
        own: str = "",
    ) -> None:
        super().__init__([source for source in (*sources, *(noise or [])) if isinstance(source, str)], threads=threads)
        self.memo: dict[str, Any] = {}  # answers that several tables are made of
        self.sources, self.path, self.where = tuple(sources), path, where or {}  # `path` was opened; nothing for rows in memory
        self.draft = Draft()  # what answers assume of drafts
        self.points: Sequence[Point] | None = None  # of the sweep that was typed, if one was; some may have no row
        today = f"SELECT * REPLACE ({OWN_US} AS own_us) FROM ({union_sql(self.con, sources)})"
        rows = f"FROM ({today}) WHERE {condition(where or {})}"
        if isinstance(where, LentRows):  # what was timed in the steps of another model says nothing of this one's
            rows = f"FROM (SELECT * REPLACE ({where.columns}) {rows} AND context = 'isolated' AND {where.lender})"
        few = min(FEW_ROWS * len(sources), MAX_ROWS_READ_ONCE)
        is_few = rows_in(self.con, sources) <= few or self.scalar(f"SELECT count(*) {rows}") <= few
        self.kind = "TABLE" if is_few else "VIEW"  # of what questions share
        if is_few:
            plan_quickly(self.con)
        self.execute(f"CREATE TEMP {self.kind} rows AS {rows}")
        self.count = self.scalar("SELECT count(*) FROM rows")
        one_file = len(sources) == 1 and isinstance(sources[0], str)
        self.cards = create_views(self, noise or [], cards, self.count, self.kind, own=own, one_file=one_file)

    def current(self) -> pd.DataFrame:
        """The newest row of each point and kind of device, in a dataset's columns and order."""
        return self.to_arrow(f"SELECT {', '.join(map(quoted, COLUMNS))} FROM current ORDER BY row").to_pandas()


def open_dataset(
    path: str | Path, *, threads: int | None = None, where: Where | None = None, cards: Cards | None = None, own: str = ""
) -> Dataset:
    """The dataset under `path`: a folder, a Parquet file, a pattern such as `results/h200_*` for several together, or `s3://...`.

    Rows that are only in a journal are read too. `noise` comes from the dataset `<path>_noise` beside it. `where` selects rows by
    the values of columns. `cards` are the offsets of GPUs, which are learned from the rows if none are given. Rows whose
    `libraries` match `own` go before newer ones. Raises UserError if there are no rows, or a file is unreadable or not ours.
    """
    place = f"results.path={str(path)!r}"
    try:
        sources, noise = find_sources(str(path))
    except OSError as error:
        raise UserError(f"{place}: it cannot be read ({error.strerror}); type another results.path=...") from None
    found = Dataset(sources, noise=noise, threads=threads, where=where, cards=cards, path=str(path), own=own) if sources else None
    if found is not None and found.count:
        return found
    if found is not None and where:
        raise NoRows(f"where={as_typed(where)}: no row of {place} has these values; {values_there(sources, where)}")
    raise NoRows(no_dataset(str(path)))


def from_table(table: pa.Table | pd.DataFrame) -> Dataset:
    """A dataset of rows in memory. Columns of a DataFrame that a row does not have are ignored."""
    if isinstance(table, pa.Table):
        return Dataset([table])
    known = [name for name in COLUMNS if name in table]
    types = pa.schema([schema().field(name) for name in known])
    return Dataset([pa.Table.from_pandas(table[known], schema=types, preserve_index=False)])


def again(data: Dataset, record: Record) -> str:
    """The command for a record with `row`, `point_id` and `command`; a dash if its row has none.

    It names the dataset that was read. The row's own command may name a folder of the machine that measured. That one is
    returned if no dataset is known, and for rows that mode=replay does not take: wrong kernels, and rows of other benchmarks.
    """
    command, place = str(record["command"] or "–"), _place_of(data, record["row"])
    if not place or "mode=check_power" in command or not command.startswith("python -m "):
        return command
    return replay(str(record["point_id"]), place)


def replay(point_id: str, place: str) -> str:
    """The command that measures a point of a dataset again."""
    return shlex.join(["python", "-m", PROGRAM, "mode=replay", f"point={point_id}", f"results.path={place}"])


def _place_of(data: Dataset, row: int) -> str:
    """The folder or file that a row is from; what was opened, if the row may still be in a journal."""
    source = data.sources[source_of(row)]
    return str(typed(Path(source))) if isinstance(source, str) else data.path
