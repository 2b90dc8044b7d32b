"""mode=replay: the row of the point before and after it ran again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.errors import UserError
from orchestrator.storage import access
from orchestrator.tables import Grid

if TYPE_CHECKING:
    import pyarrow as pa

    from orchestrator.analysis.connection import Record
    from orchestrator.config.settings import ReplaySettings

SHOWN = (
    *("status", "reason", "resolved_backend", "median_us", "ci95_rel", "rel_err", "energy_j", "throttle_reasons", "device_name"),
    *("device_uuid", "driver", "torch_version", "libraries", "orchestrator_version", "run_id", "finished_at"),
)
FORMS = {  # how a value of a column is written, if not as it is
    "median_us": "{:,.2f} µs", "ci95_rel": "±{:.2%}", "rel_err": "{:.2%}", "energy_j": "{:.4g} J",
    "finished_at": "{:%Y-%m-%d %H:%M:%S} UTC",
}  # fmt: skip
ROW_KEYS = ("point_id", "run_id", "device_name")
RATIOS = ("median_us", "rel_err", "energy_j")
MEANT = {  # verdict of mode=compare -> what it says of a point that ran again
    "slower": "slower, beyond the noise of two runs",
    "faster": "faster, beyond the noise of two runs",
    "same": "the same: the change is within ±{same:.3g}%, noise included",
    "undecided": "not decided: the noise of two runs may explain the change, and may hide a small one",
}


def source_of(settings: ReplaySettings) -> str:
    """The dataset that a replay is compared with: the one that it reads, if there is one, or else the one that it writes."""
    return settings.results.path if access.exists(settings.results.path) else settings.written_path


def rows_of(table: pa.Table, point_id: str | None) -> list[Record]:
    """The rows of a point, the newest last."""
    import pyarrow.compute as pc

    found = table.filter(pc.equal(table.column("point_id"), point_id)).select([*dict.fromkeys((*SHOWN, *ROW_KEYS))])
    return sorted(found.to_pylist(), key=lambda row: row["finished_at"])


def grid(before: Record | None, after: Record) -> Grid:
    """A line for each column that says something on either side. A time that changed has its ratio beside it."""
    cells = []
    for column in SHOWN:
        old, new = (None if row is None else row[column] for row in (before, after))
        if old in (None, "") and new in (None, ""):
            continue
        ratio = f"{new / old:.3f} times" if column in RATIOS and old and new else "" if old == new else "changed"
        both = ("–" if value in (None, "") else FORMS.get(column, "{}").format(value) for value in (old, new))
        cells.append((column, *both, ratio if before else ""))
    title = "replay: the row before and after" if before else "replay: there was no row of this point here before"
    return Grid(title, ("what", "before", "after", "change"), tuple(cells))


def change(settings: ReplaySettings, before: Record, after: Record) -> str | None:
    """The change of the point's time with its 95% interval, as mode=compare judges it; None without two times on one GPU kind."""
    if not (before["status"] == after["status"] == "ok" and before["device_name"] == after["device_name"]):
        return None
    from orchestrator.analysis.compare.comparison import compare_rows
    from orchestrator.analysis.compare.selection import select

    rows = ("baseline", source_of(settings), before), ("candidate", settings.written_path, after)
    try:
        sides = [select(side, (path,), path, {name: row[name] for name in ROW_KEYS}) for side, path, row in rows]
        one = compare_rows(*sides, same=settings.same).points.iloc[0]
    except UserError as error:  # another timer or state of the caches, or a dataset that was changed by hand
        return f"time: not compared: {error}"
    meant = MEANT[one["verdict"]].format(same=100 * settings.same)
    return f"time: {one['change']:+.1%} (95% interval {one['change_low']:+.1%} to {one['change_high']:+.1%}); {meant}"
