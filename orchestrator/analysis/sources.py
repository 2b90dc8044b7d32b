"""The files of a dataset: finds them, with those of the noise dataset beside it, and checks that DuckDB can read them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.analysis.sql import literal
from orchestrator.config.companions import COMPANIONS, companion
from orchestrator.errors import DamagedDataset
from orchestrator.storage import access, parquet

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa


def find_sources(path: str) -> tuple[list[str | pa.Table], list[str | pa.Table]]:
    """The sources of the rows under `path`, and those of the A/A pairs in `<path>_noise`; each is a Parquet file or a table.

    Raises OSError if a file cannot be read, and DamagedDataset if it is no dataset of this project.
    """
    if access.in_objects(path):
        return [access.read(path)], [table for table in [access.read(companion(path, "noise"))] if len(table)]
    places = local_datasets(path)
    beside = [Path(companion(place, "noise")) / parquet.DATA for place in places]
    return [source for source in map(_source, places) if source is not None], [str(file) for file in beside if file.exists()]


def local_datasets(path: str) -> list[Path]:
    """The folders or Parquet files that a path or a pattern names.

    A pattern such as `h200_*` also matches the datasets of mode=noise and mode=check_power beside a dataset. These are left out:
    they hold no sweep of their own, and A/A pairs are read with the dataset beside them.
    """
    if not any(sign in path for sign in "*?["):
        return [Path(path)]
    root = Path(path).anchor or "."
    found = sorted(Path(root).glob(str(Path(path).relative_to(root)) if Path(path).is_absolute() else path))
    datasets = [p for p in found if (p / parquet.DATA).exists() or p.suffix == ".parquet"]
    beside = {Path(companion(p, mode)) for p in datasets for mode in COMPANIONS}
    return [p for p in datasets if p not in beside] or [Path(path)]


def _source(place: Path) -> str | pa.Table | None:
    """The Parquet file of a place; a table, if a journal has rows that are not in the file."""
    if place.is_file():
        return str(place)
    if (place / parquet.JOURNAL).exists():
        return parquet.read(place)
    return str(place / parquet.DATA) if (place / parquet.DATA).exists() else None


def columns_of(con: duckdb.DuckDBPyConnection, relation: str, source: object) -> dict[str, str]:
    """The types of a source's columns by their names; `relation` is how SQL names the source.

    Raises DamagedDataset if it is no Parquet file, or lacks columns that every dataset has.
    """
    import duckdb

    try:
        columns = {name: kind for name, kind, *_ in con.execute(f"DESCRIBE SELECT * FROM {relation}").fetchall()}
    except duckdb.Error as error:
        words = str(error).splitlines()[0]
        raise DamagedDataset(f"results.path: {source} is no readable Parquet file ({words}); move it away") from None
    if missing := parquet.NEEDED - columns.keys():
        raise DamagedDataset(f"results.path: {source} lacks the columns {sorted(missing)}; it is not ours, move it away")
    return columns


def require_whole(file: str) -> None:
    """Reads a Parquet file to its end, which opening it does not. Raises DamagedDataset if that fails behind an intact footer."""
    import duckdb

    try:
        duckdb.execute(f"SELECT count(COLUMNS(*)) FROM read_parquet({literal(file)})").fetchall()
    except duckdb.Error as error:
        raise DamagedDataset(f"results.path: {file} is damaged ({str(error).splitlines()[0]}); move it away") from None
