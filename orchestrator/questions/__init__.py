"""What a dataset is asked: one SQL file a question, and one module that draws its answer on a terminal.

Every query is a view of the dataset's connection by the name of its file, over the tables that `orchestrator/dataset.py`
describes, so that whoever draws (a terminal, a dashboard, a notebook) reads the same answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator import dataset
from orchestrator.dataset import NOISE_FLOOR, Dataset
from orchestrator.draft import Draft
from orchestrator.sql_text import Where

if TYPE_CHECKING:
    import duckdb
    import pandas as pd
    import pyarrow as pa

# In an order in which a view finds the views that it reads.
VIEWS = (
    *("best", "crossover", "fastest", "fp8", "q_len", "regret", "roofline", "draft"),
    *("bad", "holes", "over_limit", "spikes", "statuses"),
)
SAME = 0.02  # two kernels closer than this are one
# Of logarithms of times at x0 < x < x1; null where a point has no such neighbours.
OFF_THE_LINE = "if(x0 < x AND x < x1, us - (us0 + (us1 - us0) * ln(x / x0) / ln(x1 / x0)), NULL)"
SPIKE = 1.3  # times a point may be off the line of its neighbours


def opened(path: str | Path, draft: Draft | None = None, *, threads: int | None = None, where: Where | None = None) -> Dataset:
    """The dataset under `path` with every question a view of it. Raises UserError as `dataset.open_dataset` does."""
    return define(dataset.open_dataset(path, threads=threads, where=where), draft or Draft())


def asked_of(table: pa.Table | pd.DataFrame, draft: Draft | None = None) -> Dataset:
    """Rows in memory with every question a view of them."""
    return define(dataset.of(table), draft or Draft())


def ask(data: Dataset, view: str) -> duckdb.DuckDBPyRelation:
    """The answer of a view as a relation: `.df()`, `.to_arrow_table()`, `.filter(...)`; nothing is computed before."""
    return data.con.sql(f"FROM {view}")


@cache
def query(view: str) -> str:
    """The text of a view's query."""
    return files(__name__).joinpath(f"{view}.sql").read_text(encoding="utf-8")


def define(data: Dataset, draft: Draft) -> Dataset:
    """Makes the questions' parameters and views in a dataset."""
    data.con.execute(f"SET VARIABLE same = {SAME}; SET VARIABLE noise_floor = {NOISE_FLOOR}; SET VARIABLE spike = {SPIKE}")
    data.con.execute("CREATE TEMP TABLE draft_costs(layers DOUBLE, rest_us DOUBLE, start_us DOUBLE, cost_us DOUBLE)")
    costs = [draft.layers or 1, draft.rest_us, draft.start_us, draft.cost_us]
    data.con.execute("INSERT INTO draft_costs VALUES (?, ?, ?, ?)", costs)
    data.con.execute("CREATE TEMP TABLE expected(s_qo BIGINT, tokens DOUBLE)")
    lengths = [length for (length,) in data.con.execute("SELECT DISTINCT s_qo FROM problems WHERE s_qo IS NOT NULL").fetchall()]
    for s_qo in lengths:
        if (tokens := expected_tokens(draft.acceptance, s_qo)) is not None:
            data.con.execute("INSERT INTO expected VALUES (?, ?)", [s_qo, tokens])
    data.con.execute(f"CREATE TEMP MACRO off_the_line(us0, x0, us, x, us1, x1) AS {OFF_THE_LINE}")
    for view in VIEWS:
        data.con.execute(f"CREATE TEMP VIEW {view} AS {query(view)}")
    return data


def expected_tokens(acceptance: float | Sequence[float], s_qo: int) -> float | None:
    """Tokens that a verify step over `s_qo` = k + 1 query tokens yields, the target's own one included.

    With one chance `a` that a drafted token is accepted: (1 - a^(k+1)) / (1 - a), equation 1 of Leviathan, Kalman, Matias, "Fast
    Inference from Transformers via Speculative Decoding", 2023 (arXiv 2211.17192). With a curve, one chance for each position
    given that all before it were accepted, 1 + a1 + a1 a2 + ...; None where the draft is longer than the curve.
    """
    if isinstance(acceptance, int | float):
        return float(s_qo) if acceptance == 1 else (1 - acceptance**s_qo) / (1 - acceptance)
    if s_qo - 1 > len(acceptance):
        return None
    tokens = reached = 1.0
    for chance in acceptance[: s_qo - 1]:
        reached *= chance
        tokens += reached
    return tokens
