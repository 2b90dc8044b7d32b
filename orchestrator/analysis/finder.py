"""Finds the dataset that answers for a deployment: a model, its tensor parallelism, a GPU, drafts, an engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.analysis.sources import RULE_EDGES
from orchestrator.analysis.sql import condition, file_literal, literal
from orchestrator.config.engine import Engine, EngineCall, calls_of
from orchestrator.config.modes import owner
from orchestrator.errors import NoRows
from orchestrator.notes import note_once
from orchestrator.storage import parquet

if TYPE_CHECKING:
    import duckdb

Wanted = Mapping[str, Sequence[Any]]  # values of columns
RESULTS = "results"  # the folder that datasets are looked for in
MAX_LISTED = 12
NAMED = {"device_name": "device", "tp": "tp", "model": "model"}  # what is typed for a column
# Rows that stand for a server: timed one call at a time, as the default settings do.
ISOLATED = """status = 'ok' AND coalesce(context, 'isolated') = 'isolated' AND coalesce(l2, 'clean') = 'clean'
    AND coalesce(icache, 'warm') = 'warm' AND coalesce(twin, 0) = 0 AND batch_spec IS NULL AND shared_prefix IS NULL
    AND routine IN ('paged_decode', 'paged_prefill', 'ragged_prefill', 'mla', 'sparse_mla', 'gated_delta')"""
SIZES = "count(DISTINCT (batch_size, s_qo, s_kv, kv_dtype))"


def find(wanted: Wanted, engines: Sequence[Engine], drafts: int | None) -> str:
    """The path of the dataset under results/ that says most about these values of columns.

    Datasets with rows of the engines' own builds come first, then those with more kernels of flags, more workloads, the newest.
    `drafts` asks for steps with so many drafted tokens. Raises NoRows, with what there is, for no such rows and no question.
    """
    import duckdb

    places = _places()
    if not places:
        raise NoRows(f"{RESULTS}/: there is no dataset here; type results.path=DIR, or run a sweep: +sweep=specdec_long_ctx")
    with duckdb.connect() as con:
        every = f"read_parquet([{', '.join(map(file_literal, places))}], union_by_name = true, filename = true)"
        con.execute(f"CREATE TEMP VIEW rows AS FROM {every} WHERE {ISOLATED}")
        length = [] if drafts is None else [f"s_qo = {drafts + 1}"]
        own, calls = _calls(engines)
        query = f"""
            SELECT filename, {SIZES} FILTER ((routine, backend) IN ({own})) AS by_own_build,
                   count(DISTINCT backend) FILTER ((routine, backend) IN ({calls})) AS choices,
                   {SIZES} AS workloads, max(finished_at)::VARCHAR AS ended
            FROM rows WHERE {" AND ".join([condition(wanted), *length])} GROUP BY filename
            ORDER BY by_own_build DESC, choices DESC, workloads DESC, ended DESC, filename"""
        found = con.execute(query).fetchall() if wanted else []
        if not found:
            raise NoRows(_nothing(con, wanted, drafts))
    best, *others = (str(places[file]) for file, *_ in found)
    more = f"; {len(others)} more have such rows: results.path=DIR reads another" if others else ""
    note_once(f"read {best}, which says most about this{more}")
    return best


def _places() -> dict[str, Path]:
    """The datasets of sweeps by their Parquet files. Those of noise, wrong kernels and rule edges answer for no deployment."""
    files = sorted(Path(RESULTS).glob("*/*.parquet"))
    places = {str(file): file.parent if file.name == parquet.DATA else file for file in files}
    return {file: place for file, place in places.items() if owner(place.with_suffix("")) is None and RULE_EDGES not in place.name}


def _calls(engines: Sequence[Engine]) -> tuple[str, str]:
    """SQL lists of routines and backends: the engines' own builds, and all that stand for one of their calls."""
    found = [(call, call.backend == flag.own_build) for one in engines for flag in one.flags for *_, call in calls_of(flag)]
    return _listed(call for call, is_own in found if is_own), _listed(call for call, _ in found)


def _listed(calls: Iterable[EngineCall]) -> str:
    pairs = sorted(set(calls)) or [EngineCall("", "")]
    return ", ".join(f"({literal(routine)}, {literal(backend)})" for routine, backend in pairs)


def _nothing(con: duckdb.DuckDBPyConnection, wanted: Wanted, drafts: int | None) -> str:
    words = [f"{NAMED.get(name, name)} {' or '.join(map(str, values))}" for name, values in wanted.items()]
    words += [] if drafts is None else [f"drafts={drafts}"]
    listed = con.execute("""
        SELECT model, device_name, list(DISTINCT coalesce(tp, 1) ORDER BY coalesce(tp, 1)),
               list(DISTINCT s_qo - 1 ORDER BY s_qo - 1) FILTER (s_qo <= 64), list(DISTINCT kv_dtype ORDER BY kv_dtype)
        FROM rows WHERE model IS NOT NULL GROUP BY ALL ORDER BY ALL""").fetchall()
    there = [
        f"{model} on {device}, tp {', '.join(map(str, tps))}, drafts {', '.join(map(str, lengths or []))}, "
        f"kv_dtype {', '.join(dtypes)}"
        for model, device, tps, lengths, dtypes in listed
    ]
    more = f"; and {len(there) - MAX_LISTED} more" if len(there) > MAX_LISTED else ""
    asked = f"no dataset under {RESULTS}/ has {', '.join(words)}" if words else "nothing says which deployment"
    hint = "type model=NAME device=NAME and, if you like, tp=N drafts=N engine=NAME; or results.path=DIR"
    return f"{asked}; {hint}; there are: {'; '.join(there[:MAX_LISTED])}{more}"
