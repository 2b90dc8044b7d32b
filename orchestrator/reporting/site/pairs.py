"""The comparisons of a site: two kinds of GPU, or two versions of a library on one, where datasets have common points."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from packaging.version import InvalidVersion, Version

from orchestrator.analysis.compare import best_of, selection, tables
from orchestrator.analysis.compare.comparison import compare_rows
from orchestrator.analysis.compare.selection import Selection
from orchestrator.analysis.names import libraries_of
from orchestrator.analysis.sql import Where
from orchestrator.errors import UserError
from orchestrator.grouped import grouped
from orchestrator.reporting.site.datasets import POINT_KEYS, Facts, Listed, Names, Page, joined
from orchestrator.storage import parquet
from orchestrator.tables import markdown
from orchestrator.untrusted.text import for_markdown

MAX_PAIRS = 30  # those with the most common points
MAX_ROWS = 100_000  # of a side, since a comparison reads all samples
MISSING = "allow"  # datasets of two GPUs or versions need not hold the same points


class ComparedRows(NamedTuple):
    """The rows of a GPU, and of a library's version if there is one; their datasets, by number."""

    gpu: str
    library: str | None
    datasets: tuple[int, ...]

    def name(self, other: ComparedRows) -> str:
        """What differs from the other side, in words."""
        return self.gpu if self.gpu != other.gpu or self.library is None else self.library

    def of(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Those of rows that are of this side."""
        rows = rows[rows["device_name"] == self.gpu]
        return rows if self.library is None else rows[_has(_with_torch(rows), self.library)]


@dataclass(frozen=True)
class ComparisonPage:
    """A comparison: what is compared, and the answer in a line. Without an `address` it cannot be made, and the answer says why."""

    address: str
    what: str
    answer: str


def find(measured: pd.DataFrame) -> list[tuple[int, ComparedRows, ComparedRows]]:
    """Pairs of sides with the number of points that both have, the most first: GPUs with each other, versions in their order."""
    if measured.empty:
        return []
    # An environment is where a version comes from: the same point in two of them is what is to be compared.
    keys = [key for key in POINT_KEYS if key != "env"]
    rows = measured.assign(point=measured.groupby(keys, dropna=False, sort=False).ngroup())
    gpus = {str(gpu): part for gpu, part in rows.groupby("device_name", sort=True)}
    pairs = [*combinations([_side(part, gpu) for gpu, part in gpus.items()], 2)]
    pairs += [pair for gpu, part in gpus.items() for pair in _versions(part, gpu)]
    counted = [(len({*a.of(rows)["point"]} & {*b.of(rows)["point"]}), a, b) for a, b in pairs]
    return sorted([pair for pair in counted if pair[0]], key=lambda pair: -pair[0])


def _versions(part: pd.DataFrame, gpu: str) -> list[tuple[ComparedRows, ComparedRows]]:
    """Each version of a library on a GPU with the next higher one."""
    with_torch = _with_torch(part)
    names = libraries_of(with_torch.dropna().unique())
    first = {name: part["finished_at"][_has(with_torch, name)].min() for name in names}
    every = grouped((name.split(" ")[0], name) for name in names).values()
    ordered = ([_side(part[_has(with_torch, name)], gpu, name) for name in _ordered(of, first)] for of in every)
    return [pair for sides in ordered for pair in pairwise(sides)]


def _ordered(names: Sequence[str], first: Mapping[str, Any]) -> list[str]:
    """The versions of a library in their order; by the time of their first row if one of them is no version of Python's kind."""
    try:
        return sorted(names, key=lambda name: Version(name.partition(" ")[2]))
    except InvalidVersion:
        return sorted(names, key=lambda name: (first[name], name))


def _with_torch(rows: pd.DataFrame) -> pd.Series:
    """The libraries of each row, and torch, which all of them stand on."""
    torch = "torch " + rows["torch_version"].astype(object)
    return (torch.fillna("") + ", " + rows["libraries"].astype(object).fillna("")).astype(object)


def _has(libraries: pd.Series, name: str) -> pd.Series:
    """Rows of a version of a library; of torch, those alone that name no other version of it."""
    return libraries.map(lambda of: name in of.split(", ")).astype(bool)


def _side(rows: pd.DataFrame, gpu: str, library: str | None = None) -> ComparedRows:
    return ComparedRows(gpu, library, tuple(sorted(rows["dataset"].unique())))


def pages(
    found: Sequence[tuple[int, ComparedRows, ComparedRows]], datasets: Sequence[Listed], where: Where, page: Page
) -> Iterator[ComparisonPage]:
    """A page for each of the first `MAX_PAIRS`; a line without a page for one that cannot be compared."""
    taken = Names("comparison")
    for _, a, b in found[:MAX_PAIRS]:
        names = a.name(b), b.name(a)
        place = "" if a.gpu != b.gpu else f" on {a.gpu}"
        what = f"{names[0]} and {names[1]}{place}"
        address = f"comparisons/{taken.new(f'{names[0]} to {names[1]} {place}')}.html"
        key = joined([f"{a} {b}", *(datasets[number].key for number in (*a.datasets, *b.datasets))])
        facts = page(address, f"Comparison: {what}", key, partial(_page, address, a, b, datasets, where))
        yield ComparisonPage(what=what, **facts)


def _page(address: str, a: ComparedRows, b: ComparedRows, datasets: Sequence[Listed], where: Where) -> tuple[str, Facts]:
    try:
        baseline, candidate = (_selection(*side, datasets, where) for side in ((a, a.name(b)), (b, b.name(a))))
        found = compare_rows(baseline, candidate, missing=MISSING)
    except UserError as error:
        return "", {"address": "", "answer": f"cannot be compared: {error}"}
    best = best_of.best_of(baseline, candidate)
    answer = best_of.headline(best) if best.of_devices and len(best.problems) else tables.headline(found)
    grids = [*best_of.grids(best), *tables.grids(found)]
    notes = "\n".join(f"- {for_markdown(note)}" for note in [*best_of.not_counted(best), *tables.notes(found)])
    lines = for_markdown(answer).replace(": ", ":\n\n- ", 1).replace("; ", "\n- ")  # of a line for each model and dtypes
    return f"{lines}\n\n{markdown(grids)}\n\n{notes}\n", {"address": address, "answer": answer}


def _selection(side: ComparedRows, name: str, datasets: Sequence[Listed], where: Where) -> Selection:
    """The rows of a side with their samples. Raises UserError for more than are compared at once."""
    frames = []
    for number in side.datasets:
        path = datasets[number].path  # a folder, an object store, or a Parquet file by itself
        whole = parquet.read_sealed(Path(path), path, path).to_pandas() if Path(path).is_file() else selection.read(path)
        frames.append(side.of(selection.chosen(whole, where)))
        if (count := sum(map(len, frames))) > MAX_ROWS:
            raise UserError(f"{name} has {count:,} rows or more, and a site compares up to {MAX_ROWS:,}; choose some by where=")
    largest = max(range(len(frames)), key=lambda i: len(frames[i]))
    return Selection(name, datasets[side.datasets[largest]].path, pd.concat(frames, ignore_index=True))
