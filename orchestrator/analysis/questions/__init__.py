"""The questions to a dataset: one SQL file for each, and one module that shows its answer as tables on a terminal.

Every query becomes a view of the dataset's connection, named like its file, over the tables that `orchestrator/analysis/dataset.py`
describes. So a terminal, a dashboard and a notebook all read the same answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.analysis.cards import Cards
from orchestrator.analysis.dataset import Dataset, from_table, open_dataset
from orchestrator.analysis.engines import DEFAULTS
from orchestrator.analysis.names import of_references
from orchestrator.analysis.noise import DEFAULT_NOISE_FLOOR, SAME
from orchestrator.analysis.sql import Where, literal
from orchestrator.config.draft_cost import Draft
from orchestrator.config.model import layers_of

if TYPE_CHECKING:
    import duckdb
    import pandas as pd
    import pyarrow as pa

# A view comes after the views that it reads.
VIEWS = (
    *("best", "crossover", "fastest", "fp8", "q_len", "regret", "engine_default", "roofline", "draft", "energy"),
    *("step", "padding"),
    *("bad", "holes", "over_limit", "spikes", "statuses"),
)
# How far the log of a time is off the line between its neighbours at x0 < x < x1; null if it does not have both.
OFF_THE_LINE = "if(x0 < x AND x < x1, us - (us0 + (us1 - us0) * ln(x / x0) / ln(x1 / x0)), NULL)"
SPIKE = 1.3  # a point more than this factor off the line between its neighbours stands out


def open_views(
    path: str | Path,
    draft: Draft | None = None,
    *,
    threads: int | None = None,
    where: Where | None = None,
    cards: Cards | None = None,
) -> Dataset:
    """The dataset under `path`, with a view for every question. Raises UserError as `open_dataset` does."""
    return define_views(open_dataset(path, threads=threads, where=where, cards=cards), draft or Draft())


def views_of(table: pa.Table | pd.DataFrame, draft: Draft | None = None) -> Dataset:
    """A dataset of rows in memory, with a view for every question."""
    return define_views(from_table(table), draft or Draft())


def ask(data: Dataset, view: str) -> duckdb.DuckDBPyRelation:
    """The answer of a view as a relation. It is computed by `.df()`, `.to_arrow_table()` and the like."""
    return data.con.sql(f"FROM {view}")


@cache
def query_text(view: str) -> str:
    """The text of a view's query."""
    return files(__name__).joinpath(f"{view}.sql").read_text(encoding="utf-8")


def define_views(data: Dataset, draft: Draft) -> Dataset:
    """Creates the parameters and views of all questions in a dataset, and returns it."""
    data.execute(f"SET VARIABLE same = {SAME}; SET VARIABLE noise_floor = {DEFAULT_NOISE_FLOOR}; SET VARIABLE spike = {SPIKE}")
    data.execute("CREATE TEMP TABLE draft_costs(layers DOUBLE, rest_us DOUBLE, start_us DOUBLE, cost_us DOUBLE)")
    costs = [draft.layers or 1, draft.rest_us, draft.start_us, draft.cost_us]
    data.execute("INSERT INTO draft_costs VALUES (?, ?, ?, ?)", costs)
    data.execute("CREATE TEMP TABLE model_layers(model VARCHAR, layers BIGINT)")
    for (model,) in data.execute("SELECT DISTINCT model FROM rows WHERE plan_host_us IS NOT NULL"):
        data.execute("INSERT INTO model_layers VALUES (?, ?)", [model, draft.layers or layers_of(model) or 1])
    data.execute("CREATE TEMP TABLE expected(s_qo BIGINT, tokens DOUBLE)")
    lengths = [length for (length,) in data.execute("SELECT DISTINCT s_qo FROM problems WHERE s_qo IS NOT NULL")]
    for s_qo in lengths:
        if (tokens := expected_tokens(draft.acceptance, s_qo)) is not None:
            data.execute("INSERT INTO expected VALUES (?, ?)", [s_qo, tokens])
    columns = "engine VARCHAR, name VARCHAR, major INT, routine VARCHAR, drafts BOOLEAN, trees BOOLEAN, backend VARCHAR"
    data.execute(f"CREATE TEMP TABLE engine_defaults({columns})")
    values = ", ".join(["(?, ?, ?, ?, ?, ?, ?)"] * len(DEFAULTS))
    data.execute(f"INSERT INTO engine_defaults VALUES {values}", [value for default in DEFAULTS for value in default])
    data.execute(f"CREATE TEMP MACRO is_reference(backend) AS regexp_matches(backend, {literal(of_references())})")
    data.execute(f"CREATE TEMP MACRO off_the_line(us0, x0, us, x, us1, x1) AS {OFF_THE_LINE}")
    for view in VIEWS:
        data.execute(f"CREATE TEMP VIEW {view} AS {query_text(view)}")
    return data


def expected_tokens(acceptance: float | Sequence[float], s_qo: int) -> float | None:
    """The tokens that a verify step over `s_qo` = k + 1 query tokens yields, including the target's own one.

    If every drafted token is accepted with the probability `a`: (1 - a^(k+1)) / (1 - a), equation 1 of Leviathan, Kalman, Matias,
    "Fast Inference from Transformers via Speculative Decoding", 2023 (arXiv 2211.17192). A sequence has one probability for each
    position, given that all before it were accepted: 1 + a1 + a1 a2 + ...; None if the draft is longer than that.
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
