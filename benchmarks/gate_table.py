"""The table of benchmarks/gate.py in docs/verdicts.md, and its worst lines beside the targets of the gate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.figures import at_least, at_most

HEADER = ("run", "red, nothing changed", "a backend 3% slower", "another group 3% slower (the worst)", "one point 10% slower")
MAX_RED, MIN_GROUPS, MIN_POINTS = 0.01, 0.95, 0.90  # unchanged runs that are red; changed groups and points that are found


@dataclass(frozen=True)
class Rates:
    """One line: how often an unchanged run is red, and how often a slower backend, another group and one point are found.

    `others` has the worst group of each axis. Runs of a few points have no groups.
    """

    name: str
    red: float
    backend: float | None
    others: Mapping[str, float]
    point: float

    def cells(self) -> tuple[str, ...]:
        """The line as the table shows it."""
        backend = "–" if self.backend is None else f"{self.backend:.1%}"
        column = min(self.others, key=lambda by: self.others[by], default=None)
        worst = "–" if column is None else f"{self.others[column]:.1%} ({column})"
        return self.name, f"{self.red:.2%}", backend, worst, f"{self.point:.1%}"


def filled(page: str, lines: Sequence[Rates]) -> str:
    """The page with the table between its marks."""
    table = [f"| {' | '.join(cells)} |" for cells in (HEADER, ["---"] * len(HEADER), *(line.cells() for line in lines))]
    before, rest = page.split("<!-- gate -->\n")
    return f"{before}<!-- gate -->\n" + "\n".join(table) + "\n<!-- /gate -->" + rest.split("<!-- /gate -->")[1]


def show_targets(lines: Sequence[Rates]) -> None:
    """Prints the worst line of each column beside its target, and how many lines hold it."""
    red = {line.name: line.red for line in lines}
    worst = max(red, key=lambda name: red[name])
    hold = sum(share <= MAX_RED for share in red.values())
    at_most(f"{HEADER[1]} ({hold} of {len(red)} hold; the worst: {worst})", [100 * red[worst]], 100 * MAX_RED, "%")
    columns = (
        {line.name: line.backend for line in lines if line.backend is not None},
        {line.name: min(line.others.values()) for line in lines if line.others},
        {line.name: line.point for line in lines},
    )
    for title, target, shares in zip(HEADER[2:], (MIN_GROUPS, MIN_GROUPS, MIN_POINTS), columns, strict=True):
        if shares:
            worst = min(shares, key=lambda name: shares[name])
            hold = sum(share >= target for share in shares.values())
            at_least(f"{title} ({hold} of {len(shares)} hold; the worst: {worst})", [100 * shares[worst]], 100 * target, "%")
