"""What a page holds of a dataset: its rows with the columns that the page draws, what it says about them, and its Parquet file."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.analysis import how_timed
from orchestrator.analysis.dataset import Dataset, open_dataset
from orchestrator.analysis.keys import OWN_US, RANKED_US, TIMING_KEYS
from orchestrator.analysis.names import of_references, shown
from orchestrator.analysis.noise import DEFAULT_NOISE_FLOOR, SAME
from orchestrator.analysis.questions import open_views
from orchestrator.analysis.rough import ROUGH
from orchestrator.analysis.sources import left_out
from orchestrator.analysis.sql import LISTS, Where
from orchestrator.errors import UserError
from orchestrator.reporting.dashboard import answers
from orchestrator.storage import checksum
from orchestrator.storage.columns import COLUMNS
from orchestrator.storage.row import schema

if TYPE_CHECKING:
    import pandas as pd

OWN_COLUMNS = {  # that only the page has
    "dtype": "Dtypes of the queries and of the KV cache.",
    "ranked_us": "The time that the row is ranked by: in_step_us if it was timed in a step, else median_us. Unit: µs.",
    "own_us": "ranked_us without the launch of the CUDA graph, if there is one and it was measured. Ratios are of it. Unit: µs.",
    "kind": "What the queries are for: decode, drafts (2 to 64 query tokens), tree drafts, chunked prefill, prefill.",
    "shape": "A number of the problem, whatever its routine and the dtype of its queries, which come with the choice of a backend.",
}
OWN_TIMES = frozenset({"ranked_us", "own_us"})
MAX_ROWS = 500_000  # what a browser filters while a person waits
LEFT_IN_PARQUET = frozenset(  # lists, and figures about figures: a page carries what it draws and what tells a row's story
    name for name, column in COLUMNS.items() if column.type in LISTS
) | {"group_id", "mean_us", "std_us", "within_block_rel", "between_blocks_rel", "lag1_autocorr", "inputs_s", "compile_s", "check_s"}
# Every row, under the name that `current` gives its point's mask, which tells trees of one name apart.
NAMED_AS_CURRENT = """(
    SELECT rows.* REPLACE (coalesce(named.mask, rows.mask) AS mask) FROM rows
    LEFT JOIN (SELECT point_id, any_value(mask) AS mask FROM current GROUP BY point_id) AS named USING (point_id))"""


def load(path: str | Path, where: Where) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Rows of a dataset that the page will hold, and what it says about them: `notes`, `noise` and the answers of `answers.py`.

    Of more rows than `MAX_ROWS`, the newest of each point stay. Raises UserError for no rows, an unknown column, or still too many.
    """
    return rows_and_header(open_views(path, where=where), path)


def rows_and_header(data: Dataset, path: str | Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    """As `load`, from a dataset that `open_views` has opened. `path` is its name in messages."""
    count, newest = (int(data.scalar(f"SELECT count(*) FROM {view}")) for view in ("rows", "current"))
    notes = []
    if count > MAX_ROWS:
        notes.append(f"{count - newest:,} older rows of points that ran again are left out: here is the newest of each point")
    if newest > MAX_ROWS:
        raise UserError(
            f"results.path={str(path)!r}: {newest:,} points, and a page holds {MAX_ROWS:,}; "
            "choose some: 'where={device_name: NVIDIA H200}', or by any other column"
        )
    if edges := left_out(str(path)):
        notes.append(f"left out: {', '.join(edges)}, whose shapes ask where the rules change; a path without a pattern shows them")
    answers.number_workloads(data)
    found = _rows(data, "current" if count > MAX_ROWS else NAMED_AS_CURRENT)
    noise = data.records("SELECT device_name, from_us::DOUBLE AS from_us, least(to_us, 1e300) AS to_us, noise_floor FROM noise")
    named = {name: found[name].map(shown, na_action="ignore") for name in ("backend", "resolved_backend")}
    table = found.assign(**named, dtype="q " + found["q_dtype"] + ", kv " + found["kv_dtype"])
    return table.drop(columns="row"), {
        "notes": [*notes, *how_timed.sentences(data)],
        "noise": noise,
        "references": of_references(),
        "noise_floor": DEFAULT_NOISE_FLOOR,
        "same": SAME,
        "rough": ROUGH,
        "offered": answers.engine_choices(data),
        "too_big": answers.too_big(data),
        "tables": answers.tables(data, found["row"]),
    }


def _rows(data: Dataset, view: str) -> pd.DataFrame:
    """The columns of the page, and `row`, by which answers name a row.

    A row that was never timed says how the others of its problem were, so that it is drawn with them.
    """
    timed = {name: f"coalesce(ranked.{name}, of_problem.{name}) AS {name}" for name in TIMING_KEYS}
    names = ", ".join(timed.get(name, f'ranked."{name}"') for name in COLUMNS if name not in LEFT_IN_PARQUET)
    return data.to_arrow(f"""
        WITH ranked AS (
            SELECT rows.*, {RANKED_US} AS ranked_us, {OWN_US} AS own_us FROM {view} AS rows LEFT JOIN launches USING (device_name)
        ), of_problem AS (
            SELECT row, phase AS kind, number, {", ".join(TIMING_KEYS)}
            FROM points JOIN problems USING (problem) JOIN workloads USING (problem) JOIN workload_numbers USING (workload)
        )
        SELECT row, {names}, ranked_us, own_us, kind, coalesce(number, -1) AS shape
        FROM ranked LEFT JOIN of_problem USING (row)
        ORDER BY row""").to_pandas()


def parquet(path: str | Path) -> bytes:
    """The whole dataset as one Parquet file, with the rows that are in journals alone."""
    return parquet_of(open_dataset(path))


def parquet_of(data: Dataset) -> bytes:
    """The rows of an open dataset as one Parquet file."""
    file, columns = io.BytesIO(), ", ".join(f'"{name}"' for name in COLUMNS)
    table = data.to_arrow(f"SELECT {columns} FROM rows ORDER BY row")
    checksum.write(table.cast(schema()), file)  # with what the columns mean, which SQL does not keep
    return file.getvalue()
