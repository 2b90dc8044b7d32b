"""Rough times, of backends stopped once they could not be the fastest; and credited ones, of another's samples."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from kernels.timing.racing import OFF

ROUGH = OFF - 1  # how far off a rough time may be
DECIDED = "decided"  # the `stop_reason` of a rough time


def mark(*rough: bool | None) -> str:
    """`~` if any of the times behind a figure is rough; else nothing."""
    return "~" if any(rough) else ""


def legend(*rough: bool | None) -> str:
    """What a title says of the mark, if a table has any."""
    return f"; ~ of times known within {ROUGH:.0%}" if any(rough) else ""


def how_known(row: Mapping[str, Any]) -> str:
    """How a row of a dataset came to its time, if not by measuring it in full: rough, credited, or both; else empty."""
    words, us, rel, source = [], row["median_us"], row.get("ci95_rel"), row.get("measured_as")
    if row.get("stop_reason") == DECIDED:
        known = f"within {ROUGH:.0%}" if rel is None or math.isnan(rel) else f"{us * (1 - rel):,.1f} to {us * (1 + rel):,.1f} µs"
        words.append(f"rough: {known}, stopped early, since it cannot be the fastest")
    if isinstance(source, str):
        words.append(f"measured as {source}, which makes the same call")
    return "; ".join(words)


def counted(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """How many of these rows are rough and credited, a sentence for each of the two that there is."""
    found = Counter[str]()
    for row in rows:
        found["rough"] += row.get("stop_reason") == DECIDED
        found["credited"] += isinstance(row.get("measured_as"), str)
    sentences = {
        "rough": f"times are rough (known within about {ROUGH:.0%}): their backend was stopped once it could not be the fastest",
        "credited": "rows have the time of another backend, which makes the same call (measured_as)",
    }
    return [f"{found[kind]} {words}" for kind, words in sentences.items() if found[kind]]
