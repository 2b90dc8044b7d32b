"""The files of a dataset: finds them, with those of the noise dataset beside it, and checks that DuckDB can read them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import chain
from pathlib import Path

import duckdb
import pyarrow as pa

from orchestrator.analysis.sql import file_literal, quoted, sql_type, todays_columns
from orchestrator.config.modes import companion, owner
from orchestrator.errors import DamagedDataset, UserError
from orchestrator.notes import note_once
from orchestrator.storage import access, checksum, journal, parquet
from orchestrator.storage.columns import COLUMNS
from orchestrator.untrusted.files import require_plain

RULE_EDGES = "rule_edges"  # in the name of a dataset whose points ask where a support rule changes; nobody serves with them
SIGNS = "*?["  # of a pattern
MAX_VALUES = 8  # of a column, in an answer or an error
NEAR = 0.8  # how alike two names of datasets are, of which one may have been meant
ROWS_PER_SOURCE = 1 << 40  # so that numbers of rows differ between files


def find_sources(path: str) -> tuple[list[str | pa.Table], list[str | pa.Table]]:
    """The sources (Parquet files, tables) of rows, and of their A/A pairs. Raises OSError, and DamagedDataset if not ours."""
    if access.in_objects(path):
        return [access.read(path)], [table for table in [access.read(companion(path, "noise"))] if len(table)]
    places = local_datasets(path)
    noise_files = [parquet.data_file(companion(place, "noise")) for place in places]
    sources = [source for source in map(_source, places) if source is not None]
    return sources, [str(file) for file in noise_files if require_plain(file, follow=True)]


def local_datasets(path: str) -> list[Path]:
    """The folders or Parquet files that a path or a pattern names; those of several paths, with commas between them.

    A path that exists is taken as it is, whatever signs it has. A file is named without `.parquet` too.
    A folder of Parquet files stands for all of them, as the pattern `FOLDER/*` does.
    A pattern such as `h200_*` leaves companions out: datasets of modes such as noise and check_power hold no sweep of their own,
    and A/A pairs are read with the dataset beside them. A note names those whose sweep does not lie beside them. Datasets of the
    sweeps `rule_edges_*` are left out too, unless the pattern names no others.
    """
    return _matched(path)[0]


def nearest_dataset(path: str) -> str:
    """` did you mean 'DIR'?` with the nearest name in the folder, its folders or those beside it: `h200_a` or `h200_main/a`."""
    if access.in_objects(path) or any(sign in path for sign in ",*?["):
        return ""
    wanted = Path(path.rstrip("/").removesuffix(".parquet"))
    near_to: dict[str, Path] = {}
    for place in map(typed, _nearby(wanted.parent)):
        for name in (place.name, f"{place.parent.name.partition('_')[0]}_{place.name}"):
            near_to.setdefault(name, place)
    near = get_close_matches(wanted.name, near_to.keys() - {wanted.name if wanted in near_to.values() else ""}, n=1, cutoff=NEAR)
    return f" did you mean '{near_to[near[0]]}'?" if near else ""


def _nearby(folder: Path) -> Iterator[Path]:
    """Datasets in a folder and its folders, and beside it (of the same GPU, a name's first word, first) unless it has others."""
    yield from sorted(folder.glob("*.parquet"))
    yield from sorted(folder.glob("*/*.parquet"))
    if not folder.is_dir() or _files_in(folder):
        card = f"{folder.name.partition('_')[0]}_"
        yield from sorted(folder.parent.glob("*/*.parquet"), key=lambda file: (not file.parent.name.startswith(card), file))


def typed(file: Path) -> Path:
    """What a person types for the dataset of a Parquet file: its folder, or the file without `.parquet`."""
    plain = file.parent if file.name == parquet.DATA else Path(str(file).removesuffix(".parquet"))
    return plain if parquet.data_file(plain) == file else file


def left_out(path: str) -> list[str]:
    """The names of the datasets of rule edges that a pattern matches and `local_datasets` leaves out."""
    return [] if access.in_objects(path) else list(map(name_of, _matched(path)[1]))


def name_of(place: Path) -> str:
    """How a table names a dataset: by its folder's name; a file by its folder's and its own, which other folders may have too."""
    if place.suffix == ".parquet":
        return f"{place.absolute().parent.name}/{place.stem}"
    return place.name or place.resolve().name


def _matched(path: str) -> tuple[list[Path], list[Path]]:
    """The datasets that a path names, and those of rule edges that it leaves out."""
    if _exists(path):
        return _of_sweeps(path, files) if (files := _files_in(Path(path))) else ([Path(path)], [])
    if "," in path:
        names = [one.strip() for one in path.split(",")]
        if absent := [
            one for one in names if not (any(sign in one for sign in SIGNS) or _exists(one) or parquet.data_file(one).exists())
        ]:
            raise UserError(f"results.path={path!r}: there is no {absent[0]}; leave it out, or type the right name")
        parts = list(map(_matched, names))
        taken, edges = ([*dict.fromkeys(place for part in parts for place in part[side])] for side in (0, 1))
        return taken, edges
    if not any(sign in path for sign in SIGNS):
        file = parquet.data_file(path)
        return [Path(path) if file.name == parquet.DATA else file], []
    root = Path(path).anchor or "."
    try:
        pattern = str(Path(path).relative_to(root)) if Path(path).is_absolute() else path
        found = sorted({*Path(root).glob(pattern), *Path(root).glob(f"{pattern.rstrip('/')}.parquet")})
    except ValueError as error:  # such as ** beside other letters
        raise UserError(f"results.path={path!r}: {error}; type a pattern such as results/*") from None
    places = (files if (files := _files_in(p)) else [p] for p in found if p.is_dir() or p.suffix == ".parquet")
    return _of_sweeps(path, [p for p in dict.fromkeys(chain(*places)) if p.suffix == ".parquet" or (p / parquet.DATA).exists()])


def _files_in(folder: Path) -> list[Path]:
    """The datasets that are files of a folder; none if the folder is a dataset itself."""
    own = [folder / name for name in (parquet.DATA, parquet.JOURNAL)]
    if not folder.is_dir() or any(file.is_symlink() or file.exists() for file in own):  # a link to nothing is said to be one
        return []
    return [file for file in sorted(folder.glob("*.parquet")) if not file.name.startswith(("_", "."))]


def _of_sweeps(path: str, datasets: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Those of the datasets that a pattern names, and those of rule edges, without companions. See `local_datasets`."""
    sweeps = [p for p in datasets if owner(p) is None]
    owners = {str(p).removesuffix(".parquet") for p in datasets}
    alone = [str(p) for p in datasets if owner(p) is not None and owner(p) not in owners]
    if sweeps and alone:
        note_once(f"left out of {path}, since their names are those of modes with rows of their own kind: {', '.join(alone)}")
    sweeps = sweeps or list(datasets)
    edges = [p for p in sweeps if RULE_EDGES in p.name]
    if len(edges) == len(sweeps):
        return sweeps or [Path(path)], []
    return [p for p in sweeps if p not in edges], edges


def _exists(path: str) -> bool:
    """Whether exactly this path exists, also one with a comma or with signs of a pattern."""
    try:
        return Path(path).exists()
    except (OSError, ValueError):  # a name that is too long, as a list of paths may be
        return False


def _source(place: Path) -> str | pa.Table | None:
    """The Parquet file of a place; a table, if a journal has rows that are not in the file."""
    file = parquet.data_file(place)
    if file.name == parquet.DATA and require_plain(file.parent / parquet.JOURNAL):
        return parquet.read(place)
    return str(file) if require_plain(file, follow=True) else None


def union_sql(con: duckdb.DuckDBPyConnection, sources: Sequence[str | pa.Table]) -> str:
    """A query for the rows of all sources in today's columns, and `row`, a number that identifies each. See `source_of`."""
    selects = []
    for i, source in enumerate(sources):
        if isinstance(source, str):
            found, row = f"read_parquet({file_literal(source)}, file_row_number = true)", "file_row_number"
        else:
            con.register(f"source_{id(source)}", source)
            found, row = f"source_{id(source)}", "row_number() OVER () - 1"
        row = row if i == 0 else f"{row} + {i * ROWS_PER_SOURCE}"
        selects.append(f"SELECT ({row})::BIGINT AS row, {todays_columns(columns_of(con, found, source))} FROM {found}")
    return " UNION ALL ".join(selects)


def rows_in(con: duckdb.DuckDBPyConnection, sources: Sequence[str | pa.Table]) -> int:
    """How many rows the sources have, by the ends of files."""
    files = ", ".join(file_literal(source) for source in sources if isinstance(source, str))
    (of_files,) = con.execute(f"SELECT sum(num_rows) FROM parquet_file_metadata([{files}])").fetchone() or (0,) if files else (0,)
    return int(of_files) + sum(len(source) for source in sources if not isinstance(source, str))


def values_there(sources: Sequence[str | pa.Table], where: Iterable[str]) -> str:
    """Which values of some columns the sources hold, for an error: `there are device_name: NVIDIA H200`."""
    with duckdb.cursor() as con:
        rows = union_sql(con, sources)
        # Of a time with its zone DuckDB would make an object of another package.
        read = {key: f"{quoted(key)}::VARCHAR" if COLUMNS[key].type == "timestamp" else quoted(key) for key in where}
        return listed({key: [v for (v,) in con.execute(f"SELECT DISTINCT {read[key]} FROM ({rows})").fetchall()] for key in read})


def listed(values: Mapping[str, Iterable[object]]) -> str:
    words = []
    for key, of in values.items():
        found = sorted({value for value in of if value is not None}, key=lambda v: (isinstance(v, str), v))
        words.append(f"{key}: {few(found) or 'none'}")
    return f"there are {'; '.join(words)}"


def few(values: Sequence[object], most: int = MAX_VALUES) -> str:
    """`1, 2 and 3 more`: up to `most` of them."""
    more = f" and {len(values) - most} more" if len(values) > most else ""
    return ", ".join(map(str, values[:most])) + more


def source_of(row: int) -> int:
    """Which of the sources a row of `union_sql` is from."""
    return row // ROWS_PER_SOURCE


_known: dict[object, dict[str, str]] = {}  # of files that were found to be ours, while they do not change


def columns_of(con: duckdb.DuckDBPyConnection, relation: str, source: object) -> dict[str, str]:
    """The SQL types of a relation's columns by name. Raises DamagedDataset for a file that is no Parquet, or not ours."""
    of = Path(source).stat() if isinstance(source, str) else None
    if (key := of and (relation, of.st_ino, of.st_size, of.st_mtime_ns)) in _known:
        return _known[key]
    try:
        columns = {name: kind for name, kind, *_ in con.execute(f"DESCRIBE SELECT * FROM {relation}").fetchall()}
    except duckdb.Error:
        raise DamagedDataset(f"results.path: {source} is no readable Parquet file, or is damaged; move it away") from None
    if isinstance(source, str):
        _require_ours(con, relation, source, columns)
        _known[key] = columns
    return columns


def _require_ours(con: duckdb.DuckDBPyConnection, relation: str, file: str, columns: Mapping[str, str]) -> None:
    """Raises DamagedDataset for a Parquet file whose columns or statuses no dataset has. DuckDB gives a column twice two names."""
    try:
        named = Counter(n.casefold() for (n,) in con.execute(f"SELECT name FROM parquet_schema({file_literal(file)})").fetchall())
        twice = [name for name in {name.casefold() for name in COLUMNS} if named[name] > 1]
        parquet.require_columns([*columns.keys(), *twice], file)
        select = todays_columns(columns)
        con.execute(f"SELECT {select} FROM {relation} LIMIT 0")  # a type that cannot become today's is an error already here
        if other := [name for name in columns.keys() & COLUMNS.keys() if columns[name] != sql_type(name)]:
            con.execute(f"SELECT {', '.join(f'count({quoted(name)})' for name in other)} FROM (SELECT {select} FROM {relation})")
        nulls = " OR ".join(f"{quoted(name)} IS NULL" for name in journal.NEVER_NULL)
        counted = con.execute(f"SELECT status, count(*), count_if({nulls}) FROM {relation} GROUP BY ALL").fetchall()
    except duckdb.Error:
        raise DamagedDataset(f"{file} has columns of other types, or is damaged; it is not ours, move it away") from None
    if any(without for *_, without in counted):
        raise DamagedDataset(f"{file} has rows without {', '.join(journal.NEVER_NULL)}; it is not ours, move it away")
    for status, *_ in counted:
        parquet.require_status(status, file)
    value = {name: f"epoch({name})" if name in journal.DATES else name for name in journal.CHECKED}
    asked = ", ".join(f"count({name}), min({name}), max({name})" for name in value.values())
    try:
        found = con.execute(f"SELECT {asked} FROM (SELECT {select} FROM {relation})").fetchone() or ()
    except duckdb.Error:
        raise DamagedDataset(f"results.path: {file} is damaged (its values cannot be read); move it away") from None
    spans = {name: parquet.Span(*found[3 * at : 3 * at + 3]) for at, name in enumerate(journal.CHECKED)}
    parquet.require_values(spans, sum(count for status, count, _ in counted if status == "ok"), file)


def unverified(files: Sequence[str]) -> list[str]:
    """The files without a checksum, which is said. Raises DamagedDataset for a wrong one, UserError if it cannot be read."""
    found = []
    for file in files:
        try:
            if not checksum.require_whole(file, file):
                found.append(file)
        except DamagedDataset as error:
            raise DamagedDataset(f"results.path: {error}") from None
        except OSError as error:
            raise UserError(f"results.path: {file}: it cannot be read: {error.strerror}; type another results.path=...") from None
    checksum.note_unsealed(found)
    return found


def require_whole(file: str) -> None:
    """Reads a Parquet file to its end, which opening it does not. Raises DamagedDataset if that fails behind an intact footer."""
    try:
        duckdb.execute(f"SELECT count(COLUMNS(*)) FROM read_parquet({file_literal(file)})").fetchall()
    except (duckdb.Error, ValueError, OverflowError):
        raise DamagedDataset(f"results.path: {file} is damaged (its values cannot be read); move it away") from None


MAX_NAMED = 6  # datasets that an error lists
BELOW = ("*/*.parquet", f"*/*/{parquet.DATA}")  # how deep datasets are looked for
RUN = "run a sweep first: python -m orchestrator +sweep=NAME"


def no_dataset(path: str) -> str:
    """What is wrong with `results.path=PATH`, which has no rows, and what to type; of a folder, the datasets below it."""
    given = f"results.path={path!r}"
    if access.in_objects(path) or not Path(path).is_dir() or access.exists(path):
        return f"{given}: no rows there;{nearest_dataset(path)} {RUN}"
    what = f"{given}: this folder holds no dataset; a dataset is a folder with {parquet.DATA}"
    folders = {file.parent for pattern in BELOW for file in Path(path).glob(pattern)}
    below = [str(place) for place in sorted(folders, key=lambda place: (owner(place) is not None, place))]  # companions last
    if not below:
        return f"{what}, and none lies below it;{nearest_dataset(path)} type results.path=DIR with a dataset, or {RUN}"
    named = ", ".join(below[:MAX_NAMED])
    more = f", and {len(below) - MAX_NAMED} more" if len(below) > MAX_NAMED else ""
    direct = [dataset for dataset in below if Path(dataset).parent == Path(path)]
    several = f", or 'results.path={Path(path)}/*' for those directly below it" if len(direct) > 1 else ""
    return f"{what}; below it: {named}{more}; type results.path={below[0]}{several}"
