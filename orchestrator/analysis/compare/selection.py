"""The rows of one side of a comparison, chosen by a dataset, a run, a version, a device, a cluster, or several of these."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from orchestrator.analysis.names import libraries_of
from orchestrator.analysis.sources import SIGNS, few, listed, local_datasets, nearest_dataset
from orchestrator.analysis.sql import Where, require_columns, text_of
from orchestrator.config import environment
from orchestrator.config.engine import releases
from orchestrator.config.environment import SHORT
from orchestrator.config.ranges import Bounds, several
from orchestrator.config.settings import NO_SWEEP_PATH
from orchestrator.errors import UserError, as_typed, unknown
from orchestrator.notes import note_once
from orchestrator.storage import access, parquet
from orchestrator.storage.columns import COLUMNS

CONDITION_COLUMNS = {  # the column of each kind of condition
    "run": "run_id", "flashinfer": "flashinfer_version", "torch": "torch_version", "cuda": "cuda", "driver": "driver",
    "orchestrator": "orchestrator_version", "env": "env", "device": "device_name", "gpu": "device_uuid", "cluster": "cluster",
    "host": "host", "twin": "twin",
}  # fmt: skip
DEFAULT_ENV = "default"  # how the environment that ran the command is named, whose rows have none
MAX_CHOICES = 6  # values that an error lists
TWO_GPUS = "baseline=h100 candidate=h200 for two GPUs"


@dataclass(frozen=True)
class Selection:
    """Rows of one dataset, and the conditions that selected them."""

    name: str
    path: str
    rows: pd.DataFrame


def select(side: str, conditions: Sequence[str], path: str, where: Where | None = None) -> Selection:
    """Rows for which all conditions hold. `side` is `baseline` or `candidate`, as messages name it.

    A condition is `KIND:VALUE`, a library with its version, a bare value of any kind, or a dataset's folder, or a pattern of
    several, to read instead of `path`. A value may be shortened to a part that no other value has. `where` keeps the rows with
    some values. Raises UserError with the choices if a condition matches nothing or several values, or `where` leaves no row.
    """
    folders = [c for c in conditions if exists(c)]
    if len(folders) > 1:
        raise UserError(f"{side}={','.join(conditions)}: {len(folders)} datasets; allowed: one, with conditions on its rows")
    rest = [c for c in conditions if c not in folders]
    path = folders[0] if folders else path
    rows = read(path)
    if rows.empty:
        wanted = [c for c in conditions if c.partition(":")[0] not in CONDITION_COLUMNS]
        given = f"{side}={wanted[0]}" if wanted else f"results.path={path!r}"
        if conditions and path == NO_SWEEP_PATH and all(map(environment.parsed, wanted)):
            raise UserError(f"{side}={conditions[0]}: of which datasets? add 'results.path=results/h200_*', or a folder")
        lacks = f"{given}: no rows there;{nearest_dataset(wanted[0] if wanted else path)}"
        lacks = lacks if conditions else f"{side}: mode=compare needs one;"
        raise UserError(f"{lacks} type {side}=DIR with a folder that holds {parquet.DATA}, or {TWO_GPUS}")
    rows = rows[(alone := rows["engine"].isna())]
    if rows.empty:
        raise UserError(f"{path} holds rows of a running engine; type mode=report question=in_engine results.path={path}")
    if not alone.all():
        note_once("rows of a running engine are not compared here: type question=in_engine")
    every, rows = rows, chosen(rows, where or {})
    if rows.empty:
        there = listed({key: every[key].dropna().unique() for key in where or {}})
        raise UserError(f"where={as_typed(where or {})}: no row of {path} has these values; {there}")
    if not conditions:
        raise UserError(f"{side}: mode=compare needs one; {choices(side, rows)}")
    for condition in (_one_spelling(condition, rows) for condition in rest):
        if found := _libraries(side, condition, rows, where or {}):
            rows = rows[[not found.isdisjoint(libraries_of([of])) for of in rows["libraries"]]]
            continue
        kind, value = _resolve(side, condition, rows)
        rows = rows[_values(rows, kind) == value]
    return Selection(" ".join(conditions), path, rows)


def _one_spelling(condition: str, rows: pd.DataFrame) -> str:
    """A library with its version as `LIBRARY:VERSION`, with a name that the rows have it under; any other condition as it is.

    What a column of the rows holds as it was typed is that value, such as the name of an environment in older rows.
    """
    kind, _, value = condition.partition(":")
    if kind == "env" and value not in set(rows["env"].dropna()):
        return f"env:{environment.shown(value)}"
    found = environment.parsed(condition)
    if found is None or any((rows[column] == condition).any() for column in CONDITION_COLUMNS.values()):
        return condition
    names = dict.fromkeys((found.library, found.distribution, *(s for s, of in SHORT.items() if of == found.library)))
    known = [name for name in names if name in CONDITION_COLUMNS or name in _names_of_libraries(rows)]
    return f"{known[0]}:{found.version}" if known else condition


def _libraries(side: str, condition: str, rows: pd.DataFrame, where: Where) -> set[str] | None:
    """What rows name of one library with its version, and of what an engine's release requires; None for other conditions."""
    name, _, version = map(str.strip, condition.partition(":"))
    of_engine = {of for one in releases().values() if one.libraries[0] == f"{name} {version}" for of in one.libraries}
    if found := of_engine.intersection(there := libraries_of(rows["libraries"].unique())):
        return found
    if name not in _names_of_libraries(rows):
        return None
    known = [part for part in there if part.split(" ")[0] == name]
    meant = [part for part in known if part == f"{name} {version}"] or [part for part in known if version in part.split(" ")[1]]
    if not meant:
        of, what = rows[[known[-1] in libraries_of([of]) for of in rows["libraries"]]], f" of where={as_typed(where)}" * bool(where)
        told = f"no row{what} is of {name} {version}; those there are of {', '.join(known[:MAX_CHOICES])}"
        raise UserError(f"{side}={condition}: {told}\n{to_measure(of, [known[-1].replace(' ', ':'), condition], where)}")
    if len(meant) != 1:
        options = ", ".join(f"{side}={part.replace(' ', ':')}" for part in known[:MAX_CHOICES])
        raise UserError(f"{side}={condition}: {len(meant)} versions fit; type one of: {options}")
    return {*meant}


def to_measure(rows: pd.DataFrame, sides: Sequence[str], where: Where) -> str:
    """The command that measures two releases with the sweep that most of these rows are of."""
    sweep = next(iter(rows["sweep"].mode()), "NAME")
    chosen = as_typed({"backend": sorted({*rows["backend"][rows["sweep"] == sweep]}), **where})
    command = f"+sweep={sweep} 'sweep.env={as_typed([*sides])}' 'where={chosen}'"
    return f"to measure both: python -m orchestrator {command}\nthen: this command with results.path=results/{sweep}"


def _names_of_libraries(rows: pd.DataFrame) -> list[str]:
    return list(dict.fromkeys(part.split(" ")[0] for part in libraries_of(rows["libraries"].unique())))


def _resolve(side: str, condition: str, rows: pd.DataFrame) -> tuple[str, str]:
    """The kind of a condition, and the only value that it matches."""
    named = re.match(r"(\w+):(.*)", condition)
    if named and named[1] not in CONDITION_COLUMNS:
        raise UserError(unknown(f"{side}={condition}", named[1], [*CONDITION_COLUMNS, *_names_of_libraries(rows)]))
    kinds = [named[1]] if named else list(CONDITION_COLUMNS)
    value = named[2].strip() if named else condition
    known = {kind: sorted(_values(rows, kind).dropna().unique()) for kind in kinds}
    for is_meant in (str.__eq__, lambda whole, part: part.casefold() in whole.casefold()):
        meant = [(kind, v) for kind, values in known.items() for v in values if is_meant(v, value)]
        if len(meant) == 1:
            return meant[0]
        if meant:
            options = ", ".join(f"{side}={kind}:{v!r}" if " " in v else f"{side}={kind}:{v}" for kind, v in meant[:MAX_CHOICES])
            raise UserError(f"{side}={condition}: it may mean {len(meant)} things; type one of: {options}")
    raise UserError(f"{side}={condition}: no row has it; {choices(side, rows)}")


def _values(rows: pd.DataFrame, kind: str) -> pd.Series:
    """What the rows hold in the column of a kind, as text. `env:default` are points beside others that ran in an environment."""
    values = rows[CONDITION_COLUMNS[kind]]
    if kind == "env" and values.notna().any():
        values = values.fillna(DEFAULT_ENV)
    return values.where(values.isna(), values.astype(str))


def choices(side: str, rows: pd.DataFrame) -> str:
    """What to type to select some of these rows."""
    known = {kind: sorted(_values(rows, kind).dropna().unique()) for kind in CONDITION_COLUMNS}
    first = f"type {side}=KIND:VALUE with one of these, {side}=[KIND:VALUE,KIND:VALUE], or {side}=DIR for another dataset"
    return "\n".join([first, *(f"  {kind}: {few(values, MAX_CHOICES)}" for kind, values in known.items() if values)])


def exists(path: str) -> bool:
    """Whether a path, or one that a pattern matches, is a dataset, or a folder of them."""
    alone = "," in path and not any(sign in path for sign in SIGNS)  # part of a value, not a list
    return any(map(access.exists, [path] if alone else _places(path)))


def read(path: str) -> pd.DataFrame:
    """The rows of a dataset, or of all that a pattern matches or a list names; `dataset` is where each is from."""
    return pd.concat([access.read(place).to_pandas().assign(dataset=place) for place in _places(path)], ignore_index=True)


def _places(path: str) -> list[str]:
    return [path] if access.in_objects(path) else [str(place) for place in local_datasets(path)]


def chosen(rows: pd.DataFrame, where: Where) -> pd.DataFrame:
    """The rows that have these values, compared as text, as `mode=report` does. Raises UserError for an unknown column."""
    require_columns(where)
    for name, wanted in where.items():
        ranges = [one for one in several(wanted) if isinstance(one, Bounds)]
        texts = {COLUMNS[name].renamed.get(text, text) for text in (text_of(value, "null") for value in several(wanted))}
        rows = rows.loc[[text_of(value, "null") in texts or any(value in one for one in ranges) for value in rows[name]]]
    return rows
