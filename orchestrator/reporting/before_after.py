"""mode=replay: the row of the point before and after it ran again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.tables import Grid

if TYPE_CHECKING:
    import pyarrow as pa

Record = dict[str, Any]

SHOWN = {  # column -> how a value of it is written
    "status": "{}",
    "reason": "{}",
    "resolved_backend": "{}",
    "median_us": "{:,.2f} µs",
    "ci95_rel": "±{:.2%}",
    "rel_err": "{:.2%}",
    "energy_j": "{:.4g} J",
    "throttle_reasons": "{}",
    "device_name": "{}",
    "device_uuid": "{}",
    "driver": "{}",
    "torch_version": "{}",
    "libraries": "{}",
    "orchestrator_version": "{}",
    "run_id": "{}",
    "finished_at": "{:%Y-%m-%d %H:%M:%S} UTC",
}
RATIOS = ("median_us", "rel_err", "energy_j")


def rows_of(table: pa.Table, point_id: str | None) -> list[Record]:
    """The rows of a point, the newest last."""
    import pyarrow.compute as pc

    found: list[Record] = table.filter(pc.equal(table.column("point_id"), point_id)).select(list(SHOWN)).to_pylist()
    return sorted(found, key=lambda row: (row["finished_at"] is not None, row["finished_at"]))


def grid(before: Record | None, after: Record) -> Grid:
    """A line for each column that says something on either side. A time that changed has its ratio beside it."""
    cells = []
    for column, form in SHOWN.items():
        old, new = (None if row is None else row[column] for row in (before, after))
        if old in (None, "") and new in (None, ""):
            continue
        ratio = f"{new / old:.3f} times" if column in RATIOS and old and new else "" if old == new else "changed"
        cells.append(
            (column, *("–" if value in (None, "") else form.format(value) for value in (old, new)), ratio if before else "")
        )
    title = "replay: the row before and after" if before else "replay: there was no row of this point here before"
    return Grid(title, ("what", "before", "after", "change"), tuple(cells))
