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

from kernels.timing.racing import OFF
from orchestrator.analysis.cards import Cards
from orchestrator.analysis.dataset import Dataset, from_table, open_dataset
from orchestrator.analysis.engine_flags import CHOICES
from orchestrator.analysis.engines import DEFAULTS, MAX_DRAFT, OWN_BUILDS
from orchestrator.analysis.keys import PROBLEM_KEYS
from orchestrator.analysis.names import of_references
from orchestrator.analysis.noise import DEFAULT_NOISE_FLOOR, SAME
from orchestrator.analysis.questions import cache_size, traffic_weights
from orchestrator.analysis.sql import Where, literal, quoted, weight_sql
from orchestrator.analysis.step_rest import create_measured_rest
from orchestrator.analysis.traffic import Mix
from orchestrator.config.acceptance import CURVES
from orchestrator.config.draft_cost import Draft
from orchestrator.config.model import layers_of
from orchestrator.config.weights import WEIGHT, WeightRules
from orchestrator.notes import note_once

if TYPE_CHECKING:
    import duckdb
    import pandas as pd
    import pyarrow as pa

# A view comes after the views that it reads.
VIEWS = (
    *(
        "best",
        "crossover",
        "fastest",
        "pad_up",
        "fp8",
        "q_len",
        "regret",
        "engine_default",
        "one_backend",
        "roofline",
        "draft",
        "energy",
    ),
    *("step", "padding"),
    *("bad", "holes", "over_limit", "spikes", "statuses"),
)
# How far the log of a time is off the line between its neighbours at x0 < x < x1; null if it does not have both.
OFF_THE_LINE = "if(x0 < x AND x < x1, us - (us0 + (us1 - us0) * ln(x / x0) / ln(x1 / x0)), NULL)"
# What the queries of a server are for.
KIND = f"""CASE WHEN routine = 'mla' THEN 'MLA' WHEN routine = 'ragged_prefill' THEN 'prefill'
    WHEN routine NOT IN ('paged_decode', 'paged_prefill') THEN routine
    WHEN s_qo = 1 THEN 'decode' WHEN s_qo <= {MAX_DRAFT} THEN 'verify' ELSE 'chunked prefill' END"""
# A problem whatever its routine and the dtype of its queries, which come with the choice of a backend.
SHAPE = ", ".join([KIND, *(quoted(key) for key in PROBLEM_KEYS if key not in ("routine", "q_dtype", "out_dtype"))])
# What shapes of one way to serve traffic differ in: lengths, and a padded graph, which is how some batch sizes run.
OF_ONE_WAY = ("batch_size", "s_kv", "s_qo", "graph_batch", "graph_fill")
WAY = ", ".join([KIND, *(quoted(key) for key in PROBLEM_KEYS if key not in ("routine", "q_dtype", "out_dtype", *OF_ONE_WAY))])
SPIKE = 1.3  # a point more than this factor off the line between its neighbours stands out


def open_views(
    path: str | Path,
    draft: Draft | None = None,
    *,
    threads: int | None = None,
    where: Where | None = None,
    cards: Cards | None = None,
    max_rel_err: float | None = None,
    weights: WeightRules = (),
    traffic: Mix | None = None,
) -> Dataset:
    """The dataset under `path`, with a view for every question. Raises UserError as `open_dataset` does.

    With `max_rel_err`, answers with a larger relative error are not ranked, nor those that were not checked. `weights` and
    `traffic` are how much each shape counts in the question `one_backend`; without them all count alike.
    """
    data = open_dataset(path, threads=threads, where=where, cards=cards)
    return define_views(data, draft or Draft(), max_rel_err, weights, traffic)


def views_of(
    table: pa.Table | pd.DataFrame,
    draft: Draft | None = None,
    *,
    max_rel_err: float | None = None,
    weights: WeightRules = (),
    traffic: Mix | None = None,
) -> Dataset:
    """A dataset of rows in memory, with a view for every question."""
    return define_views(from_table(table), draft or Draft(), max_rel_err, weights, traffic)


def ask(data: Dataset, view: str) -> duckdb.DuckDBPyRelation:
    """The answer of a view as a relation. It is computed by `.df()`, `.to_arrow_table()` and the like."""
    return data.con.sql(f"FROM {view}")


@cache
def query_text(view: str) -> str:
    """The text of a view's query."""
    return files(__name__).joinpath(f"{view}.sql").read_text(encoding="utf-8")


def define_views(
    data: Dataset, draft: Draft, max_rel_err: float | None = None, weights: WeightRules = (), traffic: Mix | None = None
) -> Dataset:
    """Creates the parameters and views of all questions in a dataset, and returns it."""
    data.execute(f"SET VARIABLE max_rel_err = {literal(max_rel_err)}")
    if max_rel_err is not None:
        data.execute(
            "UPDATE points SET status = 'too coarse' WHERE status = 'ok' AND coalesce(rel_err > getvariable('max_rel_err'), true)"
        )
    data.execute(f"SET VARIABLE same = {SAME}; SET VARIABLE noise_floor = {DEFAULT_NOISE_FLOOR}; SET VARIABLE spike = {SPIKE}")
    data.execute(f"SET VARIABLE rough = {OFF - 1}; SET VARIABLE max_draft = {MAX_DRAFT}")
    data.execute(
        "CREATE TEMP TABLE draft_costs(layers DOUBLE, rest_us DOUBLE, start_us DOUBLE, cost_us DOUBLE, rest_measured BOOLEAN)"
    )
    costs = [draft.layers, draft.rest_us, draft.start_us, draft.cost_us, draft.rest is not None]
    data.execute("INSERT INTO draft_costs VALUES (?, ?, ?, ?, ?)", costs)
    create_measured_rest(data, draft.rest, draft.layers)
    data.execute("CREATE TEMP TABLE model_layers(model VARCHAR, layers BIGINT)")
    for (model,) in data.execute("SELECT DISTINCT model FROM rows WHERE plan_host_us IS NOT NULL"):
        data.execute("INSERT INTO model_layers VALUES (?, ?)", [model, draft.layers or layers_of(model) or 1])
    data.execute("CREATE TEMP TABLE expected(s_qo BIGINT, tokens DOUBLE)")
    lengths = [length for (length,) in data.execute("SELECT DISTINCT s_qo FROM problems WHERE s_qo IS NOT NULL")]
    for s_qo in lengths:
        if (tokens := expected_tokens(draft.acceptance, s_qo)) is not None:
            data.execute("INSERT INTO expected VALUES (?, ?)", [s_qo, tokens])
    _create_engine_tables(data)
    data.execute(f"CREATE TEMP MACRO is_reference(backend) AS regexp_matches(backend, {literal(of_references())})")
    cache_size.create(data, draft.layers)
    _create_shapes(data, weights, traffic)
    data.execute(f"CREATE TEMP MACRO off_the_line(us0, x0, us, x, us1, x1) AS {OFF_THE_LINE}")
    for view in VIEWS:
        data.execute(f"CREATE TEMP VIEW {view} AS {query_text(view)}")
    _note_unused(data, weights)
    return data


def _create_shapes(data: Dataset, weights: WeightRules, traffic: Mix | None) -> None:
    """`shapes`: the shape, the kind and the weight of each problem; `asked` is its weight even if it is too big for the GPU."""
    data.execute(
        f"CREATE TEMP VIEW all_shapes AS SELECT problem, hash({SHAPE}) AS shape, {KIND} AS kind, hash({WAY}) AS way, "
        f"({weight_sql(weights)})::DOUBLE AS weight FROM problems"
    )
    traffic_weights.create(data, traffic, MAX_DRAFT)
    of_traffic = "1" if traffic is None else "coalesce(traffic_weights.weight, 0)"
    data.execute(f"""
        CREATE TEMP VIEW shapes AS
        SELECT problem, shape, all_shapes.kind, all_shapes.weight * {of_traffic} AS asked,
               coalesce(cache_bytes > memory_bytes, false) AS too_big, if(too_big, 0, asked) AS weight
        FROM all_shapes LEFT JOIN traffic_weights USING (shape) LEFT JOIN cache_sizes USING (problem)""")


def _note_unused(data: Dataset, weights: WeightRules) -> None:
    """Says which entries of `weights` fit no measured shape, and their share: the answer says nothing about them."""
    fits = f"SELECT {', '.join(f'bool_or(({weight_sql((entry,))}) > 0)' for entry in weights)} FROM problems"
    unused = [entry for entry, fit in zip(weights, data.single_row(fits), strict=True) if not fit] if weights else []
    if unused:
        share = sum(float(entry[WEIGHT]) for entry in unused) / sum(float(entry[WEIGHT]) for entry in weights)
        keys = ", ".join(f"{{{', '.join(f'{key}: {value}' for key, value in e.items() if key != WEIGHT)}}}" for e in unused)
        note_once(
            f"weights: {len(unused)} of {len(weights)} entries, with {share:.0%} of the weight, fit no measured shape: {keys}"
        )


def _create_engine_tables(data: Dataset) -> None:
    """What an engine runs by default (`engine_defaults`, `engine_builds`), and by each of its flags (`engine_flags`)."""
    columns = "engine VARCHAR, name VARCHAR, major INT, routine VARCHAR, drafts BOOLEAN, trees BOOLEAN, backend VARCHAR"
    tables = {
        "engine_defaults": (columns + ", fp8_cache BOOLEAN, equal_dims BOOLEAN", DEFAULTS),
        "engine_builds": ("engine VARCHAR, stands_in VARCHAR, backend VARCHAR", OWN_BUILDS),
        "engine_flags": (columns.replace("name", "flags") + ", kind VARCHAR", CHOICES),
    }
    for name, (of_table, entries) in tables.items():
        values = ", ".join(f"({', '.join(map(literal, entry))})" for entry in entries)
        data.execute(f"CREATE TEMP TABLE {name}({of_table}); INSERT INTO {name} VALUES {values}")


def expected_tokens(acceptance: float | Sequence[float] | str, s_qo: int) -> float | None:
    """The tokens that a verify step over `s_qo` = k + 1 query tokens yields, including the target's own one.

    If every drafted token is accepted with the probability `a`: (1 - a^(k+1)) / (1 - a), equation 1 of Leviathan, Kalman, Matias,
    "Fast Inference from Transformers via Speculative Decoding", 2023 (arXiv 2211.17192). A sequence has one probability for each
    position, given that all before it were accepted: 1 + a1 + a1 a2 + ...; None if the draft is longer than that. A name is one of
    `config/acceptance.py`, whose curve was measured at each length.
    """
    if isinstance(acceptance, str):
        return CURVES[acceptance].expected(s_qo)
    if isinstance(acceptance, int | float):
        return float(s_qo) if acceptance == 1 else (1 - acceptance**s_qo) / (1 - acceptance)
    if s_qo - 1 > len(acceptance):
        return None
    tokens = reached = 1.0
    for chance in acceptance[: s_qo - 1]:
        reached *= chance
        tokens += reached
    return tokens
