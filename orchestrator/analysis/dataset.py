"""A dataset opened for questions: DuckDB over its Parquet files, and the tables that every question reads. Knows no question.

rows      every row, in today's columns, with `row`, a number that identifies it
current   the newest row of each point, cluster and device
timed     `current`; a row that was not timed gets `timer`, `l2`, `icache` and `context` of its group on that device
problems  one row for each problem whose times may be compared: all its keys; `problem`, a number that identifies it; and `family`,
          which is equal for problems that differ only in batch_size, s_qo, s_kv, cluster and device.
          Times that were taken in different ways belong to different problems
launches  the share of a graph replay that is the launch of the graph: device_name, share_us; the least `launch_us` of that device
cards     what each GPU takes over the mean one of its kind: device_uuid, factor. 1 if not certain; no rows for a single GPU
points    one row for each row of `current`: row, problem, backend, kernel (what it resolved to), shown (the backend's name for
          people, such as auto(fa3)), status, median_us: the time that it is ranked by, which is `in_step_us` of a point that was
          timed in a step; `own_us`, that time without the launch share; `rel_err`, how far off its answer was; `rough`: decided.
          Ratios of times are of `own_us`; ranks in a problem are the same by both. If several GPUs ran it, the mean GPU's (`cards`)
noise     the percentile noise floor by range of times: device_name, from_us, to_us, noise_floor; see `noise.py`
noise_states   the states of the L2 that the A/A pairs of `noise` were measured over: l2
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernels.problem import Problem
from orchestrator.analysis.cards import COLUMNS as CARD_COLUMNS
from orchestrator.analysis.cards import Cards, learn, to_mean_card_sql
from orchestrator.analysis.noise import VERSION_COLUMNS, aa_pairs_sql, percentile_floor_sql
from orchestrator.analysis.sources import find_sources, nearest_dataset, require_whole, union_sql, unverified, values_there
from orchestrator.analysis.sql import Where, condition, literal, quoted, sql_type
from orchestrator.errors import DamagedDataset, NoRows, UserError, as_typed
from orchestrator.storage.row import COLUMNS, schema

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

Record = dict[str, Any]

TIMING_KEYS = ("timer", "l2", "icache", "context")  # how a time was taken
# Two times are compared only if all of these are equal: the place, the whole problem (so that a new axis joins by itself), and how
# they were taken. `mask` stands for the tree too: if two trees have one name, `current` appends the tree to it.
PROBLEM_KEYS = ("cluster", "device_name", *(field for field in Problem.model_fields if field != "tree"), *TIMING_KEYS, "env")
RANKED_US = "CASE context WHEN 'step' THEN in_step_us ELSE median_us END"  # the time that questions rank a point by
GRID_AXES = ("batch_size", "s_qo", "s_kv")
GRAPH_REPLAY = "cuda_graph_events"  # the timer whose samples begin with the launch of a graph
# A ranked time without the launch of the graph, from a row joined with `launches`; the time itself if no launch is in it, as in the
# cost in a step, or if it is not known.
OWN_US = f"""CASE WHEN context = 'step' THEN in_step_us
    WHEN timer = '{GRAPH_REPLAY}' AND share_us < median_us THEN median_us - share_us ELSE median_us END"""
MANY_ROWS = 1_000_000  # reading more takes longer than planning one query per column


class Dataset:
    """An open dataset; `con` is DuckDB's connection with the tables above.

    A source is the path of a Parquet file or a table in memory. DuckDB reads a file when a query needs it. So every method raises
    DamagedDataset for a file that is damaged or is not this project's. A query through `con` raises DuckDB's own error.
    """

    def __init__(
        self,
        sources: list[str | pa.Table],
        *,
        noise: list[str | pa.Table] | None = None,
        threads: int | None = None,
        where: Where | None = None,
        cards: Cards | None = None,
    ) -> None:
        import duckdb

        self.sources, self.path = tuple(sources), ""  # `path` is what was opened; nothing for rows in memory
        self._files = [source for source in (*sources, *(noise or [])) if isinstance(source, str)]
        self._unverified = unverified(self._files)
        self.con = duckdb.connect(config={"threads": threads} if threads else {})
        self.con.execute("SET preserve_insertion_order = false; SET enable_progress_bar = false; SET TimeZone = 'UTC'")
        self.con.execute("SET autoinstall_known_extensions = false")  # nothing is fetched from anywhere
        self.execute(f"CREATE VIEW rows AS FROM ({union_sql(self.con, sources)}) WHERE {condition(where or {})}")
        # The store keeps one row for each point, cluster, device and versions: all rows of one file with one version are current.
        one_file = len(sources) == 1 and isinstance(sources[0], str)
        self._view_current(only_rows=one_file and not self._has_several_versions())
        self._view_timed()
        self._table_launches()
        self._table_cards(cards)
        self._table_problems()
        self._table_noise(noise or [])

    def execute(self, statement: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Runs a statement, with values for its `?`. Returns its rows, none for one that only makes something."""
        with self._reading():
            return self.con.execute(statement, list(parameters)).fetchall()

    def records(self, query: str) -> list[Record]:
        """The rows that a query returns, each as a dict."""
        with self._reading():
            relation = self.con.sql(query)
            columns = relation.columns
            return [dict(zip(columns, values, strict=True)) for values in relation.fetchall()]

    def to_arrow(self, query: str) -> pa.Table:
        """The answer of a query as an Arrow table."""
        with self._reading():
            return self.con.sql(query).to_arrow_table()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Turns DuckDB's error into DamagedDataset if a file without a checksum may be the cause. Any other is a bug in a query."""
        import duckdb

        try:
            yield
        except (duckdb.BinderException, duckdb.ParserException, duckdb.CatalogException):
            raise
        except (duckdb.Error, ValueError, OverflowError) as error:
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
        """The values that a query with one row returns."""
        (found,) = self.execute(query)
        return tuple(found)

    def current(self) -> pd.DataFrame:
        """The newest row of each point, cluster and device, in a dataset's columns and order."""
        return self._frame("current")

    def every_row(self) -> pd.DataFrame:
        """All rows, also older ones of a point."""
        return self._frame("rows")

    def _frame(self, view: str) -> pd.DataFrame:
        return self.to_arrow(f"SELECT {', '.join(map(quoted, COLUMNS))} FROM {view} ORDER BY row").to_pandas()

    def _varies(self, columns: Iterable[str], table: str) -> list[str]:
        """Those columns that have more than one value. Null counts as a value.

        For many rows each column gets its own query. A file's statistics answer most of these without reading the column; in a
        single query, one column that they do not answer would have all columns read.
        """
        names = list(columns)
        queries = [[name] for name in names] if self.scalar(f"SELECT count(*) FROM {table}") > MANY_ROWS else [names]
        found: list[bool] = []
        for group in queries:
            several = (f"min({c}) IS DISTINCT FROM max({c}) OR count({c}) BETWEEN 1 AND count(*) - 1" for c in map(quoted, group))
            found += self.execute(f"SELECT {', '.join(several)} FROM {table}")[0]
        return [name for name, varies in zip(names, found, strict=True) if varies]

    def _has_several_versions(self) -> bool:
        """Whether a point may have rows of several versions. Backends of one dataset may come from different libraries."""
        others = [name for name in VERSION_COLUMNS if name != "libraries"]
        differ = "min(libraries) IS DISTINCT FROM max(libraries) OR count(libraries) BETWEEN 1 AND count(*) - 1"
        several = f"SELECT 1 FROM rows GROUP BY backend HAVING {differ} LIMIT 1"
        return bool(self._varies(others, "rows") or self.execute(several))

    def _view_current(self, *, only_rows: bool) -> None:
        if only_rows:
            self.execute("CREATE VIEW newest_rows AS FROM rows")
        else:
            self.execute(
                "CREATE TEMP TABLE newest AS "
                "SELECT arg_max(row, finished_at) AS row FROM rows GROUP BY point_id, cluster, device_name"
            )
            self.execute("CREATE TEMP VIEW newest_rows AS FROM rows SEMI JOIN newest USING (row)")
        two_of_a_name = """SELECT count(*) FROM (SELECT 1 FROM newest_rows WHERE tree IS NOT NULL
                                                 GROUP BY mask, s_qo HAVING count(DISTINCT tree) > 1)"""
        named = "* REPLACE (concat_ws(' ', mask, array_to_string(tree, ' ')) AS mask)" if self.scalar(two_of_a_name) else "*"
        self.execute(f"CREATE TEMP VIEW current AS SELECT {named} FROM newest_rows")

    def _view_timed(self) -> None:
        """If a dataset was timed in one way, as most are, the columns become constants, which cost nothing."""
        several = ", ".join(f"count(DISTINCT {c}) > 1, any_value({c})" for c in TIMING_KEYS)
        found = self.execute(f"SELECT {several} FROM current WHERE status = 'ok'")[0]
        from_group = "coalesce({0}, any_value({0}) OVER (PARTITION BY group_id, cluster, device_name))"
        replaced = (
            f"{from_group.format(name) if varies else f'{literal(value)}::VARCHAR'} AS {name}"
            for name, varies, value in zip(TIMING_KEYS, found[::2], found[1::2], strict=True)
        )
        self.execute(f"CREATE TEMP VIEW timed AS SELECT * REPLACE ({', '.join(replaced)}) FROM current")

    def _table_launches(self) -> None:
        """One share for each kind of device, so that it is the same on both sides of a ratio."""
        self.execute("""
            CREATE TEMP TABLE launches AS
            SELECT device_name, min(launch_us) AS share_us
            FROM current
            WHERE status = 'ok' AND launch_us IS NOT NULL
            GROUP BY device_name""")

    def _table_cards(self, known: Cards | None) -> None:
        """Learned from all rows, if there are several GPUs and not too many rows, unless they are given."""
        several = self.scalar("SELECT min(device_uuid) IS DISTINCT FROM max(device_uuid) FROM current WHERE status = 'ok'")
        self.cards = known or Cards()
        if several and known is None and self.scalar("SELECT count(*) FROM rows") <= MANY_ROWS:
            columns = ", ".join(map(quoted, CARD_COLUMNS))
            self.cards = learn(self.to_arrow(f"SELECT {columns} FROM rows WHERE status = 'ok'").to_pandas(), "these rows")
        self.execute("CREATE TEMP TABLE cards(device_uuid VARCHAR, factor DOUBLE)")
        for uuid, offset in self.cards.certain().items() if several else ():
            self.execute("INSERT INTO cards VALUES (?, ?)", [uuid, math.exp(offset)])

    def _table_problems(self) -> None:
        """The table `varying_keys` has the keys that vary. The view `problems` adds the others as constants, which cost nothing."""
        keys = self._varies(PROBLEM_KEYS, "timed")
        of_family = [k for k in keys if k not in (*GRID_AXES, "cluster", "device_name")]
        problem = self._create_varying_keys(keys, of_family)
        known = self.scalar("SELECT count(*) FROM cards WHERE factor <> 1")
        card, cards = to_mean_card_sql(problem) if known else ("", "")
        self.execute(f"""
            CREATE TEMP TABLE points AS
            SELECT row, {problem} AS problem, backend, coalesce(resolved_backend, backend) AS kernel, status,
                   if(backend = 'auto' AND kernel <> 'auto', 'auto(' || kernel || ')', backend) AS shown,
                   ({RANKED_US}){card} AS median_us, ({OWN_US}){card} AS own_us, rel_err,
                   coalesce(stop_reason = 'decided', false) AS rough
            FROM timed LEFT JOIN launches USING (device_name){cards}""")
        constant = self.records(f"SELECT {', '.join(map(quoted, PROBLEM_KEYS))} FROM timed LIMIT 1")
        all_keys = ", ".join(
            quoted(k) if k in keys else f"{literal(constant[0][k] if constant else None)}::{sql_type(k)} AS {quoted(k)}"
            for k in PROBLEM_KEYS
        )
        self.execute(f"CREATE TEMP VIEW problems AS SELECT problem, family, {all_keys} FROM varying_keys")

    def _create_varying_keys(self, keys: list[str], of_family: list[str]) -> str:
        """Creates the table `varying_keys`: `problem`, `family` and the keys of each problem. Returns SQL for a row's `problem`.

        Both numbers are 64-bit hashes, so that no join is needed to number the rows. Of 10,000,000 problems two have the same hash
        once in 300,000 datasets; then the next salt is tried.
        """
        for salt in count():
            problem, family = (f"hash({', '.join([str(salt), *map(quoted, of)])})" for of in (keys, of_family))
            columns = "".join(f", {quoted(k)}" for k in keys)
            self.execute(f"""
                CREATE OR REPLACE TEMP TABLE varying_keys AS
                SELECT DISTINCT {problem} AS problem, {family} AS family{columns} FROM timed""")
            families = f"SELECT DISTINCT family{''.join(f', {quoted(k)}' for k in of_family)} FROM varying_keys"
            if self._is_key("problem", "varying_keys") and self._is_key("family", f"({families})"):
                break
        return problem

    def _is_key(self, column: str, table: str) -> bool:
        return bool(self.scalar(f"SELECT count(*) = count(DISTINCT {column}) FROM {table}"))

    def _table_noise(self, sources: list[str | pa.Table]) -> None:
        rows = f"({union_sql(self.con, sources)})" if sources else "(FROM rows WHERE false)"
        ranked = f"(SELECT * REPLACE ({RANKED_US} AS median_us) FROM {rows})"
        self.execute(f"CREATE TEMP TABLE noise_states AS SELECT DISTINCT l2 FROM {rows} WHERE status = 'ok' AND l2 IS NOT NULL")
        self.execute(f"CREATE TEMP TABLE noise AS {percentile_floor_sql(aa_pairs_sql(ranked))}")


def open_dataset(
    path: str | Path, *, threads: int | None = None, where: Where | None = None, cards: Cards | None = None
) -> Dataset:
    """The dataset under `path`: a folder, a Parquet file, a pattern such as `results/h200_*` for several together, or `s3://...`.

    Rows that are only in a journal are read too. `noise` comes from the dataset `<path>_noise` beside it. `where` selects rows by
    the values of columns. `cards` are the offsets of GPUs, which are learned from the rows if none are given. Raises UserError if
    there are no rows, or if a file cannot be read or is no dataset of this project.
    """
    try:
        sources, noise = find_sources(str(path))
    except OSError as error:
        raise UserError(
            f"results.path={str(path)!r}: it cannot be read ({error.strerror}); type another results.path=..."
        ) from None
    found = Dataset(sources, noise=noise, threads=threads, where=where, cards=cards) if sources else None
    if found is None or not found.scalar("SELECT count(*) FROM rows"):
        if found is not None and where:
            raise NoRows(
                f"where={as_typed(where)}: no row of results.path={str(path)!r} has these values; {values_there(sources, where)}"
            )
        near = nearest_dataset(str(path))
        raise NoRows(f"results.path={str(path)!r}: no rows there;{near} run a sweep first: python -m orchestrator +sweep=NAME")
    found.path = str(path)
    return found


def from_table(table: pa.Table | pd.DataFrame) -> Dataset:
    """A dataset of rows in memory. Columns of a DataFrame that a row does not have are ignored."""
    import pyarrow as pa

    if isinstance(table, pa.Table):
        return Dataset([table])
    known = [name for name in COLUMNS if name in table]
    types = pa.schema([schema().field(name) for name in known])
    return Dataset([pa.Table.from_pandas(table[known], schema=types, preserve_index=False)])
