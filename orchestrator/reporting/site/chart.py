"""A line over time as SVG without a script: a dot and a bar for each measurement, and where versions changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from orchestrator.reporting.site import markup

WIDTH, HEIGHT = 430, 130
LEFT, RIGHT, TOP, BOTTOM = 52, 8, 8, 18  # of the plot within the picture


class Mark(NamedTuple):
    """A measurement: seconds since 1970, time and interval in µs, what a pointer over it says, and whether versions changed."""

    at: float
    us: float
    low: float
    high: float
    tooltip: str
    other_versions: bool


def chart(marks: Sequence[Mark], title: str) -> str:
    """The picture, whose text says what it shows to those who do not see it. Raises ValueError for no marks."""
    least, most = min(mark.low for mark in marks), max(mark.high for mark in marks)
    pad = (most - least) * 0.06 or most * 0.02 or 1.0
    least, most = least - pad, most + pad
    start, end = min(mark.at for mark in marks), max(mark.at for mark in marks)

    def x(at: float) -> float:
        share = (at - start) / (end - start) if end > start else 0.5
        return LEFT + 6 + share * (WIDTH - LEFT - RIGHT - 12)

    def y(us: float) -> float:
        return TOP + (most - us) / (most - least) * (HEIGHT - TOP - BOTTOM)

    points = [(x(mark.at), y(mark.us), mark) for mark in marks]
    versions = "".join(
        f'<path class="version" d="M{px:.1f} {TOP}V{HEIGHT - BOTTOM}"/>' for px, _, mark in points if mark.other_versions
    )
    bars = "".join(f'<path class="bar" d="M{px:.1f} {y(mark.low):.1f}V{y(mark.high):.1f}"/>' for px, _, mark in points)
    line = f'<polyline class="line" points="{" ".join(f"{px:.1f},{py:.1f}" for px, py, _ in points)}"/>'
    dots = "".join(
        f'<circle class="dot" cx="{px:.1f}" cy="{py:.1f}" r="3"><title>{markup.text(mark.tooltip)}</title></circle>'
        for px, py, mark in points
    )
    description = (
        f"{title}: {len(marks)} measurements from {_day(start)} to {_day(end)}, "
        f"{marks[0].us:,.1f} µs at first, {marks[-1].us:,.1f} µs at last"
    )
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{markup.text(description)}">'
        f'<path class="axis" d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}"/>{_ticks(least, most, y)}'
        f'{versions}{bars}{line}{dots}<text x="{LEFT}" y="{HEIGHT - 5}">{_day(start)}</text>'
        f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 5}" text-anchor="end">{_day(end)}</text></svg>'
    )


def _ticks(least: float, most: float, y: Callable[[float], float]) -> str:
    """The times at the ends of the axis and in its middle."""
    values = (least + (most - least) * share for share in (0.08, 0.5, 0.92))
    return "".join(f'<text x="{LEFT - 5}" y="{y(us) + 4:.1f}" text-anchor="end">{_number(us)}</text>' for us in values)


def _number(us: float) -> str:
    """Four digits."""
    return f"{us:,.0f}" if us >= 1000 else f"{us:.4g}"


def _day(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d") if at else "–"
