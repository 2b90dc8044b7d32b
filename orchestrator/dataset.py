"""A dataset opened for questions: DuckDB over its Parquet, and the tables that every question reads. Knows no question.

rows      every row, in today's columns, with `row`, a number that finds it again
current   of those the newest of each point, cluster and device
timed     `current` with `timer`, `l2` and `icache` also for rows that were not timed: those of their group on that device
problems  one row for each problem that may be compared: all its keys, `problem`, and `family`, the same for problems that
          differ in batch_size, s_qo, s_kv, cluster and device alone. Times that were taken in other ways are of other problems
points    one row for each of `current`: row, problem, backend, kernel (what it resolved to), status, median_us
noise     how far two medians of one kernel lie apart: device_name, from_us, to_us, noise_floor; see `noise_floor`
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernels.problem import Problem
from orchestrator import datafile, places
from orchestrator.errors import UserError
from orchestrator.row import COLUMNS, schema
from orchestrator.settings import BESIDE
from orchestrator.sql_text import TYPES, Where, condition, literal, quoted, todays_columns

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

Record = dict[str, Any]

HOW = ("timer", "l2", "icache")  # how a time was taken
# What must be equal for two times to be compared: the whole problem, so that a new axis joins by itself, and how they were taken.
# A tree is told by its mask's name, which ends in the tree itself where two trees go by one name.
SHAPE = ("cluster", "device_name", *(field for field in Problem.model_fields if field != "tree"), *HOW)
GRID_AXES = ("batch_size", "s_qo", "s_kv")
VERSIONS = ("torch_version", "flashinfer_version", "orchestrator_version")
RANGES_US = (0.0, 20.0, 100.0, 1000.0, float("inf"))  # noise is a matter of how long a kernel takes
ENOUGH_TWINS = 50  # of one range, for a 99th percentile of its own
NOISE_FLOOR = 0.02  # where no noise was measured: of three H200s' 576 twins 99% lie within 1.1%, the worst at 1.8 to 2.7%
ROWS_A_SOURCE = 1 << 40
MANY_ROWS = 1_000_000  # more take longer to read than a query takes to plan


class Dataset:
    """An open dataset; `con` is DuckDB's connection with the tables above.

    Raises UserError where a file is no dataset of this project.
    """

    def __init__(
        self,
        sources: list[str | pa.Table],
        *,
        noise: list[str | pa.Table] | None = None,
        threads: int | None = None,
        where: Where | None = None,
    ) -> None:
        import duckdb

        self.con = duckdb.connect(config={"threads": threads} if threads else {})
        self.con.execute("SET preserve_insertion_order = false; SET enable_progress_bar = false; SET TimeZone = 'UTC'")
        self.con.execute("SET autoinstall_known_extensions = false")  # nothing is fetched from anywhere
        self.con.execute(f"CREATE VIEW rows AS FROM ({self._union(sources)}) WHERE {condition(where or {})}")
        # The store keeps one row for a point, cluster and device under given versions, so one file of one version is current.
        self._view_current(only_rows=len(sources) == 1 and isinstance(sources[0], str) and not self._varies(VERSIONS, "rows"))
        self._view_timed()
        self._table_problems()
        self._table_noise(noise or [])

    def records(self, query: str) -> list[Record]:
        """The rows that a query gives, each a dict."""
        relation = self.con.sql(query)
        columns = relation.columns
        return [dict(zip(columns, values, strict=True)) for values in relation.fetchall()]

    def one(self, query: str) -> Any:
        """The single value, or the single row, of a query."""
        (found,) = self.con.execute(query).fetchall()
        return found[0] if len(found) == 1 else found

    def current(self) -> pd.DataFrame:
        """The newest rows of all points, in a dataset's columns and order."""
        return self._frame("current")

    def every_row(self) -> pd.DataFrame:
        """The older ones too."""
        return self._frame("rows")

    def _frame(self, view: str) -> pd.DataFrame:
        return self.con.sql(f"SELECT {', '.join(map(quoted, COLUMNS))} FROM {view} ORDER BY row").to_arrow_table().to_pandas()

    def _union(self, sources: list[str | pa.Table]) -> str:
        selects = []
        for i, source in enumerate(sources):
            if isinstance(source, str):
                found, row = f"read_parquet({literal(source)}, file_row_number = true)", "file_row_number"
            else:
                self.con.register(f"source_{id(source)}", source)
                found, row = f"source_{id(source)}", "row_number() OVER () - 1"
            row = row if i == 0 else f"{row} + {i * ROWS_A_SOURCE}"
            selects.append(f"SELECT ({row})::BIGINT AS row, {todays_columns(self._columns_of(found, source))} FROM {found}")
        return " UNION ALL ".join(selects)

    def _columns_of(self, found: str, source: object) -> dict[str, str]:
        """The types of a source's columns, by their names."""
        import duckdb

        try:
            columns = {name: kind for name, kind, *_ in self.con.execute(f"DESCRIBE SELECT * FROM {found}").fetchall()}
        except duckdb.Error as error:
            words = str(error).splitlines()[0]
            raise UserError(f"results.path: {source} is no readable Parquet file ({words}); move it away") from None
        if missing := datafile.NEEDED - columns.keys():
            raise UserError(f"results.path: {source} lacks the columns {sorted(missing)}; it is not ours, move it away")
        return columns

    def _varies(self, columns: Iterable[str], table: str) -> list[str]:
        """Those columns that hold more than one value, null being one.

        Of many rows one query a column: most are answered by a file's statistics, and one that is not would have all of them read.
        """
        names = list(columns)
        queries = [[name] for name in names] if self.one(f"SELECT count(*) FROM {table}") > MANY_ROWS else [names]
        found: list[bool] = []
        for asked in queries:
            several = (f"min({c}) IS DISTINCT FROM max({c}) OR count({c}) BETWEEN 1 AND count(*) - 1" for c in map(quoted, asked))
            found += self.con.execute(f"SELECT {', '.join(several)} FROM {table}").fetchall()[0]
        return [name for name, varies in zip(names, found, strict=True) if varies]

    def _view_current(self, *, only_rows: bool) -> None:
        if only_rows:
            self.con.execute("CREATE VIEW newest_rows AS FROM rows")
        else:
            self.con.execute(
                "CREATE TEMP TABLE newest AS "
                "SELECT arg_max(row, finished_at) AS row FROM rows GROUP BY point_id, cluster, device_name"
            )
            self.con.execute("CREATE TEMP VIEW newest_rows AS FROM rows SEMI JOIN newest USING (row)")
        two_of_a_name = """SELECT count(*) FROM (SELECT 1 FROM newest_rows WHERE tree IS NOT NULL
                                                 GROUP BY mask, s_qo HAVING count(DISTINCT tree) > 1)"""
        named = "* REPLACE (concat_ws(' ', mask, array_to_string(tree, ' ')) AS mask)" if self.one(two_of_a_name) else "*"
        self.con.execute(f"CREATE TEMP VIEW current AS SELECT {named} FROM newest_rows")

    def _view_timed(self) -> None:
        """Most datasets were timed in one way, which then costs nothing."""
        several = ", ".join(f"count(DISTINCT {c}) > 1, any_value({c})" for c in HOW)
        found = self.con.execute(f"SELECT {several} FROM current WHERE status = 'ok'").fetchall()[0]
        of_group = "coalesce({0}, any_value({0}) OVER (PARTITION BY group_id, cluster, device_name))"
        replaced = (
            f"{of_group.format(name) if varies else f'{literal(value)}::VARCHAR'} AS {name}"
            for name, varies, value in zip(HOW, found[::2], found[1::2], strict=True)
        )
        self.con.execute(f"CREATE TEMP VIEW timed AS SELECT * REPLACE ({', '.join(replaced)}) FROM current")

    def _table_problems(self) -> None:
        """`problems` holds the keys that vary; the view of that name adds those that do not, which cost nothing so."""
        keys = self._varies(SHAPE, "timed")
        of_family = [k for k in keys if k not in (*GRID_AXES, "cluster", "device_name")]
        problem = self._number(keys, of_family)
        self.con.execute(f"""
            CREATE TEMP TABLE points AS
            SELECT row, {problem} AS problem, backend, coalesce(resolved_backend, backend) AS kernel, status, median_us
            FROM timed""")
        constant = self.records(f"SELECT {', '.join(map(quoted, SHAPE))} FROM timed LIMIT 1")
        all_keys = ", ".join(
            quoted(k) if k in keys else f"{literal(constant[0][k] if constant else None)}::{TYPES[COLUMNS[k]]} AS {quoted(k)}"
            for k in SHAPE
        )
        self.con.execute(f"CREATE TEMP VIEW problems AS SELECT problem, family, {all_keys} FROM varying_keys")

    def _number(self, keys: list[str], of_family: list[str]) -> str:
        """The number of a row's problem in SQL, and `varying_keys`: it, that of its family, and the keys of each problem.

        They are hashes, so that no row has to be found among the problems. Of 10,000,000 problems two have the same one time in
        300,000; then another salt tells them apart.
        """
        for salt in count():
            problem, family = (f"hash({', '.join([str(salt), *map(quoted, of)])})" for of in (keys, of_family))
            columns = "".join(f", {quoted(k)}" for k in keys)
            self.con.execute(f"""
                CREATE OR REPLACE TEMP TABLE varying_keys AS
                SELECT DISTINCT {problem} AS problem, {family} AS family{columns} FROM timed""")
            families = f"SELECT DISTINCT family{''.join(f', {quoted(k)}' for k in of_family)} FROM varying_keys"
            if self._is_key("problem", "varying_keys") and self._is_key("family", f"({families})"):
                break
        return problem

    def _is_key(self, column: str, table: str) -> bool:
        return bool(self.one(f"SELECT count(*) = count(DISTINCT {column}) FROM {table}"))

    def _table_noise(self, sources: list[str | pa.Table]) -> None:
        """The 99th percentile of |B/A - 1| over a device's twins, by range of their time; over all of them where few are in it."""
        ranges = ", ".join(f"({low}, '{high}'::DOUBLE)" for low, high in pairwise(RANGES_US))
        twins = self._union(list(sources)) if sources else "FROM rows WHERE false"
        self.con.execute(f"""
            CREATE TEMP TABLE noise AS
            WITH pairs AS (
                SELECT device_name, any_value(median_us) FILTER (twin = 0) AS a_us, any_value(median_us) FILTER (twin = 1) AS b_us
                FROM ({twins}) WHERE status = 'ok' GROUP BY cluster, device_name, group_id, backend, {", ".join(VERSIONS)}),
            twins AS (SELECT device_name, a_us, abs(b_us / a_us - 1) AS off FROM pairs WHERE off IS NOT NULL),
            ranges(from_us, to_us) AS (VALUES {ranges})
            SELECT device_name, from_us, to_us,
                   CASE WHEN count(*) FILTER (a_us BETWEEN from_us AND to_us) >= {ENOUGH_TWINS}
                        THEN quantile_cont(off, 0.99) FILTER (a_us BETWEEN from_us AND to_us)
                        ELSE quantile_cont(off, 0.99) END AS noise_floor
            FROM twins CROSS JOIN ranges GROUP BY ALL""")


def open_dataset(path: str | Path, *, threads: int | None = None, where: Where | None = None) -> Dataset:
    """The dataset under `path`: a folder, a Parquet file, a pattern such as `results/h200_*` for several together, or `s3://...`.

    What a journal holds beyond its Parquet file is read too. A noise dataset `<path>_noise` beside it gives `noise`. `where` keeps
    rows by the values of columns. Raises UserError where there are no rows, or where a file is no dataset of this project or may
    not be read.
    """
    try:
        sources, noise = _remote(str(path)) if places.in_objects(str(path)) else _local(str(path))
    except OSError as error:
        raise UserError(
            f"results.path={str(path)!r}: it cannot be read ({error.strerror}); type another results.path=..."
        ) from None
    found = Dataset(sources, noise=noise, threads=threads, where=where) if sources else None
    if found is None or not found.one("SELECT count(*) FROM rows"):
        if found is not None and where:
            raise UserError(f"where={dict(where)}: no row of results.path={str(path)!r} has these values; type others")
        raise UserError(f"results.path={str(path)!r}: no rows there; run a sweep first: python -m orchestrator +sweep=NAME")
    return found


def require_whole(path: str) -> None:
    """Reads every file of a dataset to its end, which opening it does not.

    Raises UserError for one that is damaged behind its intact footer.
    """
    import duckdb

    sources, noise = ([], []) if places.in_objects(path) else _local(path)
    for file in [source for source in (*sources, *noise) if isinstance(source, str)]:
        try:
            duckdb.execute(f"SELECT count(COLUMNS(*)) FROM read_parquet({literal(file)})").fetchall()
        except duckdb.Error as error:
            raise UserError(f"results.path: {file} is damaged ({str(error).splitlines()[0]}); move it away") from None


def of(table: pa.Table | pd.DataFrame) -> Dataset:
    """A dataset of rows that are in memory; of a DataFrame's columns those that a row has."""
    import pyarrow as pa

    if isinstance(table, pa.Table):
        return Dataset([table])
    known = [name for name in COLUMNS if name in table]
    types = pa.schema([schema().field(name) for name in known])
    return Dataset([pa.Table.from_pandas(table[known], schema=types, preserve_index=False)])


def _local(path: str) -> tuple[list[str | pa.Table], list[str | pa.Table]]:
    folders = local_places(path)
    beside = [Path(f"{folder}_noise") / datafile.DATA for folder in folders]
    return [source for source in map(_source, folders) if source is not None], [str(file) for file in beside if file.exists()]


def _remote(path: str) -> tuple[list[str | pa.Table], list[str | pa.Table]]:
    return [places.read(path)], [table for table in [places.read(f"{path}_noise")] if len(table)]


def local_places(path: str) -> list[Path]:
    """Folders, or Parquet files, that a path or a pattern names.

    Of a pattern, twins (`mode=noise`) and wrong kernels (`mode=check_power`) that lie beside a dataset which it names too are
    left out: they are no measurements of their own, and what the twins say is read with the dataset they belong to.
    """
    if not any(sign in path for sign in "*?["):
        return [Path(path)]
    root = Path(path).anchor or "."
    found = sorted(Path(root).glob(str(Path(path).relative_to(root)) if Path(path).is_absolute() else path))
    datasets = [p for p in found if (p / datafile.DATA).exists() or p.suffix == ".parquet"]
    beside = {Path(f"{p}_{mode}") for p in datasets for mode in BESIDE}
    return [p for p in datasets if p not in beside] or [Path(path)]


def _source(place: Path) -> str | pa.Table | None:
    """The Parquet file of a place; where a journal holds rows beyond it, both merged."""
    if place.is_file():
        return str(place)
    if (place / datafile.JOURNAL).exists():
        return datafile.read(place)
    return str(place / datafile.DATA) if (place / datafile.DATA).exists() else None
