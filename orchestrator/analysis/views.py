"""Creates the tables that every question reads, from the view `rows`. `dataset.py` lists them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import count

import pyarrow as pa

from orchestrator.analysis.cards import COLUMNS as CARD_COLUMNS
from orchestrator.analysis.cards import Cards, learn, to_mean_card_sql
from orchestrator.analysis.connection import Connection
from orchestrator.analysis.keys import GRID_AXES, PROBLEM_KEYS, RANKED_US, TIMING_KEYS
from orchestrator.analysis.noise import VERSION_COLUMNS, aa_pairs_sql, percentile_floor_sql
from orchestrator.analysis.sources import union_sql
from orchestrator.analysis.sql import literal, query, quoted, sql_type

MANY_ROWS = 1_000_000  # reading more takes longer than planning one query per column


def create_views(
    data: Connection, noise: Sequence[str | pa.Table], known_cards: Cards | None, rows: int, kind: str, *, own: str, one_file: bool
) -> Cards:
    """Creates all, with A/A pairs of `noise`; returns the GPUs, given or learned. `one_file`: all rows are of one stored file."""
    # The store keeps one row for each point, cluster, device and versions: all rows of one file with one version are current.
    _view_current(data, kind, own, only_rows=one_file and not _has_several_versions(data, rows))
    _view_timed(data)
    cards = _table_cards(data, known_cards, rows)
    _table_problems(data, rows)
    _table_noise(data, noise)
    return cards


def _varies(data: Connection, columns: Iterable[str], table: str, rows: int) -> list[str]:
    """Those columns that have more than one value (null is one); of many rows by a query each, which statistics answer."""
    names = list(columns)
    queries = [[name] for name in names] if rows > MANY_ROWS else [names]
    found: list[bool] = []
    for group in queries:
        several = (f"min({c}) IS DISTINCT FROM max({c}) OR count({c}) BETWEEN 1 AND count(*) - 1" for c in map(quoted, group))
        found += data.execute(f"SELECT {', '.join(several)} FROM {table}")[0]
    return [name for name, varies in zip(names, found, strict=True) if varies]


def _has_several_versions(data: Connection, rows: int) -> bool:
    """Whether a point may have rows of several versions. Backends of one dataset may come from different libraries."""
    others = [name for name in VERSION_COLUMNS if name != "libraries"]
    return bool(_varies(data, others, "rows", rows) or data.execute(query("several_libraries")))


def _view_current(data: Connection, kind: str, own: str, *, only_rows: bool) -> None:
    """A table if `rows` is one and it is not all of them, since nearly every question reads it."""
    newest = "rows"
    if not only_rows:
        data.execute(query("newest", own=literal(own)))
        newest = "rows SEMI JOIN newest USING (row)"
    two_of_a_name = data.scalar(query("trees_of_one_name", newest=newest))
    named = "* REPLACE (concat_ws(' ', mask, array_to_string(tree, ' ')) AS mask)" if two_of_a_name else "*"
    kind = "VIEW" if only_rows and named == "*" else kind
    data.execute(f"CREATE TEMP {kind} current AS SELECT {named} FROM {newest}")


def _view_timed(data: Connection) -> None:
    """If a dataset was timed in one way, as most are, the columns become constants, which cost nothing."""
    several = ", ".join(f"min({c}) < max({c}), any_value({c})" for c in TIMING_KEYS)
    found = data.execute(f"SELECT {several} FROM current WHERE status = 'ok'")[0]
    from_group = "coalesce({0}, any_value({0}) OVER (PARTITION BY group_id, device_name))"
    replaced = (
        f"{from_group.format(name) if varies else f'{literal(value)}::VARCHAR'} AS {name}"
        for name, varies, value in zip(TIMING_KEYS, found[::2], found[1::2], strict=True)
    )
    # Times inside an engine are of answers that nobody checked: no question ranks them.
    ranked = " WHERE engine IS NULL" if data.scalar("SELECT count(engine) FROM current") else ""
    data.execute(f"CREATE TEMP VIEW timed AS SELECT * REPLACE ({', '.join(replaced)}) FROM current{ranked}")


def _table_cards(data: Connection, known: Cards | None, rows: int) -> Cards:
    """What is known of the GPUs: learned from all rows, if there are several GPUs and not too many rows, unless it is given."""
    several = data.scalar("SELECT min(device_uuid) IS DISTINCT FROM max(device_uuid) FROM current WHERE status = 'ok'")
    found = known or Cards()
    if several and known is None and rows <= MANY_ROWS:
        columns = ", ".join(map(quoted, CARD_COLUMNS))
        found = learn(data.to_arrow(f"SELECT {columns} FROM rows WHERE status = 'ok'").to_pandas(), "these rows")
    factors = ((uuid, math.exp(offset)) for uuid, offset in found.certain().items() if several)
    data.create_table("cards(device_uuid VARCHAR, factor DOUBLE)", factors)
    return found


def _table_problems(data: Connection, rows: int) -> None:
    """The table `varying_keys` has the keys that vary. The view `problems` adds the others as constants, which cost nothing."""
    keys = _varies(data, PROBLEM_KEYS, "timed", rows)
    of_family = [k for k in keys if k not in (*GRID_AXES, "device_name")]
    problem = _create_varying_keys(data, keys, of_family)
    known = data.scalar("SELECT count(*) FROM cards WHERE factor <> 1")
    card, cards = to_mean_card_sql(problem) if known else ("", "")
    data.execute(query("points", problem=problem, us=RANKED_US, card=card, cards=cards))
    constant = data.records(f"SELECT {', '.join(map(quoted, PROBLEM_KEYS))} FROM timed LIMIT 1")
    all_keys = ", ".join(
        quoted(k) if k in keys else f"{literal(constant[0][k] if constant else None)}::{sql_type(k)} AS {quoted(k)}"
        for k in PROBLEM_KEYS
    )
    data.execute(f"CREATE TEMP VIEW problems AS SELECT problem, family, {all_keys} FROM varying_keys")


def _create_varying_keys(data: Connection, keys: list[str], of_family: list[str]) -> str:
    """Creates the table `varying_keys`: `problem`, `family` and the keys of each problem. Returns SQL for a row's `problem`.

    Both numbers are 64-bit hashes, so that no join is needed to number the rows. Of 10,000,000 problems two have the same hash
    once in 300,000 datasets; then the next salt is tried.
    """
    for salt in count():
        problem, family = (f"hash({', '.join([str(salt), *map(quoted, of)])})" for of in (keys, of_family))
        columns = "".join(f", {quoted(k)}" for k in keys)
        data.execute(query("varying_keys", problem=problem, family=family, columns=columns))
        families = f"SELECT DISTINCT family{''.join(f', {quoted(k)}' for k in of_family)} FROM varying_keys"
        if _is_key(data, "problem", "varying_keys") and _is_key(data, "family", f"({families})"):
            break
    return problem


def _is_key(data: Connection, column: str, table: str) -> bool:
    return bool(data.scalar(f"SELECT count(*) = count(DISTINCT {column}) FROM {table}"))


def _table_noise(data: Connection, sources: Sequence[str | pa.Table]) -> None:
    rows = f"({union_sql(data.con, sources)})" if sources else "(FROM current WHERE false)"
    ranked = f"(SELECT * REPLACE ({RANKED_US} AS median_us) FROM {rows})"
    measured = "status = 'ok' AND l2 IS NOT NULL"
    data.execute(f"CREATE TEMP TABLE noise_states AS SELECT DISTINCT device_name, l2 FROM {rows} WHERE {measured}")
    data.execute(f"CREATE TEMP TABLE noise AS {percentile_floor_sql(aa_pairs_sql(ranked))}")
