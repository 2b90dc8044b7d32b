"""Which rows a side of a comparison names: a dataset, a run, a version, a device, a cluster, or several of these together."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator import datafile, places
from orchestrator.errors import UserError, unknown

if TYPE_CHECKING:
    import pandas as pd

KINDS = {
    "run": "run_id",
    "flashinfer": "flashinfer_version",
    "torch": "torch_version",
    "cuda": "cuda",
    "driver": "driver",
    "orchestrator": "orchestrator_version",
    "device": "device_name",
    "gpu": "device_uuid",
    "cluster": "cluster",
    "host": "host",
    "twin": "twin",
}
LISTED = 6  # values that an error names


@dataclass(frozen=True)
class Selection:
    """Rows of one dataset, and the words that chose them."""

    name: str
    path: str
    rows: pd.DataFrame


def select(side: str, conditions: Sequence[str], path: str) -> Selection:
    """Rows for which all conditions hold: `KIND:VALUE`, a dataset's folder in place of `path`, or a bare value.

    A value is the whole one or a part that one value alone has. Raises UserError, with what there is to choose from.
    """
    folders = [c for c in conditions if places.exists(c)]
    if len(folders) > 1:
        raise UserError(f"{side}={','.join(conditions)}: {len(folders)} datasets; allowed: one, with conditions on its rows")
    rest = [c for c in conditions if c not in folders]
    path = folders[0] if folders else path
    rows = places.read(path).to_pandas()
    if rows.empty:
        _no_dataset(side, conditions, path)
    if not conditions:
        raise UserError(f"{side}: mode=compare needs one; {_choices(side, rows)}")
    for condition in rest:
        kind, value = _resolve(side, condition, rows)
        rows = rows[rows[KINDS[kind]].astype(str) == value]
    return Selection(" ".join(conditions), path, rows)


def _no_dataset(side: str, conditions: Sequence[str], path: str) -> None:
    wanted = [c for c in conditions if c.partition(":")[0] not in KINDS]
    given = f"{side}={wanted[0]}" if wanted else f"results.path={path!r}"
    raise UserError(f"{given}: no rows there; type {side}=DIR with a folder that holds {datafile.DATA}, or results.path=DIR")


def _resolve(side: str, condition: str, rows: pd.DataFrame) -> tuple[str, str]:
    """The kind that a condition is about and the one value that it means."""
    named = re.match(r"(\w+):(.*)", condition)
    if named and named[1] not in KINDS:
        raise UserError(unknown(f"{side}={condition}", named[1], KINDS))
    kinds = [named[1]] if named else list(KINDS)
    value = named[2].strip() if named else condition
    known = {kind: sorted(rows[KINDS[kind]].dropna().astype(str).unique()) for kind in kinds}
    for is_meant in (str.__eq__, _contains):
        meant = [(kind, v) for kind, values in known.items() for v in values if is_meant(v, value)]
        if len(meant) == 1:
            return meant[0]
        if meant:
            options = ", ".join(f"{side}={kind}:{v!r}" if " " in v else f"{side}={kind}:{v}" for kind, v in meant[:LISTED])
            raise UserError(f"{side}={condition}: it may mean {len(meant)} things; type one of: {options}")
    raise UserError(f"{side}={condition}: no row has it; {_choices(side, rows)}")


def _contains(whole: str, part: str) -> bool:
    return part.casefold() in whole.casefold()


def _choices(side: str, rows: pd.DataFrame) -> str:
    lines = [f"type {side}=KIND:VALUE with one of these, {side}=[KIND:VALUE,KIND:VALUE], or {side}=DIR for another dataset"]
    for kind, column in KINDS.items():
        values = sorted(rows[column].dropna().astype(str).unique())
        if values:
            more = f", and {len(values) - LISTED} more" if len(values) > LISTED else ""
            lines.append(f"  {kind}: {', '.join(values[:LISTED])}{more}")
    return "\n".join(lines)
