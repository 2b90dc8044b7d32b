"""The tables of benchmarks/neighbours.py: the cost by variant, and the product of the MLP in both graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from orchestrator.tables import Grid

KEYS = ["backend", "batch_size", "s_kv", "s_qo", "q_dtype", "kv_dtype"]
GRAPHS = ("attention", "stand-in")
SHAPE = ("backend", "batch x s_kv", "s_qo", "keys")
BASES = ("as today", "captured again")  # what the other variants are compared with
PLACE = 2**21  # addresses are shown within so many bytes


def grids(rows: pd.DataFrame) -> Iterator[Grid]:
    yield costs(rows)
    if "product" in rows:
        yield products(rows)
    if len(missing := rows[rows["reason"] != ""]):
        cells = [(*_shape(row), row["variant"], row["reason"]) for row in missing.to_dict("records")]
        yield Grid("not measured", (*SHAPE, "variant", "reason"), tuple(cells))


def costs(rows: pd.DataFrame) -> Grid:
    """A line for each variant: the cost of attention, and what it is made of, in µs a layer."""
    cells = []
    for row in _measured(rows):
        interval = f"{row['cost_us']:.1f} ({row['low_us']:.1f} to {row['high_us']:.1f})"
        product = row.get("attention product", float("nan")) - row.get("stand-in product", float("nan"))
        own = (row.get(f"{graph} own", float("nan")) for graph in GRAPHS)
        parts = (product, row.get("others", float("nan")), row.get("gaps", float("nan")))
        clocks = (f"{row[f'{graph} MHz']:,.0f}" for graph in GRAPHS)
        cells.append((*_shape(row), row["variant"], interval, *map("{:.1f}".format, own), *map("{:+.1f}".format, parts), *clocks))
    header = ("cost (95% interval)", "attention's kernels", "the stand-in's", "product", "other neighbours", "no kernel runs")
    return Grid("µs a layer", (*SHAPE, "variant", *header, "MHz with attention", "with the stand-in"), tuple(cells))


def products(rows: pd.DataFrame) -> Grid:
    """A line for each variant: the product of the MLP in both graphs, its least and most of a layer, and where its data lies."""
    cells = []
    for row in _measured(rows):
        if isinstance(row.get("product"), str):
            figures = (text for graph in GRAPHS for text in (f"{row[f'{graph} product']:.1f}", _range(row[f"{graph} by layer"])))
            places = (_places(row, graph) for graph in GRAPHS)
            cells.append((*_shape(row), row["variant"], *figures, *places))
    of_graphs = (column for graph in GRAPHS for column in (f"with {graph}", "least to most of a layer"))
    return Grid("the product", (*SHAPE, "variant", *of_graphs, *(f"input, output with {g}" for g in GRAPHS)), tuple(cells))


def cost_by_variant(path: Path) -> Grid:
    """For a page: a line for each point, with the cost of attention in µs in every variant that changes its neighbours."""
    return _wide(path, "neighbours", lambda row: f"{row['cost_us']:.1f}")


def product_by_variant(path: Path) -> Grid:
    """For a page: a line for each point, with the product in µs with attention and with the stand-in, in every other variant."""
    return _wide(path, "causes", lambda row: " / ".join(f"{row[f'{graph} product']:.0f}" for graph in GRAPHS))


def _wide(path: Path, kind: str, cell: Callable[[dict[str, Any]], str]) -> Grid:
    """A column for each variant of a kind and for today's step; empty without the file."""
    if not path.exists():
        return Grid("", (), ())
    rows = _measured(pd.read_parquet(path))
    names = list(dict.fromkeys(row["variant"] for row in rows if row["kind"] == kind or row["variant"] in BASES))
    points = {tuple(row[key] for key in KEYS): _shape(row) for row in rows if row["kind"] == kind and row["variant"] not in BASES}
    found = {(*(row[key] for key in KEYS), row["variant"]): cell(row) for row in rows}
    cells = [(*shape, *(found.get((*point, name), "–") for name in names)) for point, shape in points.items()]
    return Grid("", (*SHAPE, *names), tuple(cells))


def _measured(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows that have a cost, point by point."""
    known = rows[rows["reason"] == ""]
    return list(known.sort_values(KEYS, kind="stable").to_dict("records"))


def _shape(row: dict[str, Any]) -> tuple[str, ...]:
    return (str(row["backend"]), f"{row['batch_size']} x {row['s_kv']:,}", str(row["s_qo"]), str(row["kv_dtype"]))


def _range(us: Sequence[float]) -> str:
    return f"{min(us):.1f} to {max(us):.1f}" if len(us) else ""


def _places(row: dict[str, Any], graph: str) -> str:
    """Where input and output of the first layer lie, in KiB past a multiple of 2 MiB."""
    found = [str(row.get(f"{graph} {what}", "")) for what in ("input", "output")]
    return ", ".join(f"{int(place, 16) % PLACE / 1024:g}" for place in found if place)
