"""The command behind a row of a dataset, so that a point can run again by its id."""

from __future__ import annotations

import shlex

from orchestrator.config.read_keys import only_read
from orchestrator.errors import UserError
from orchestrator.storage import access

OF_OTHERS = ("mode=", "point=", "results.path=")  # what the person who replays says
RENAMED_L2 = ("cold", "dirty")  # the state of the L2 in rows whose command names none, since it was the default


def overrides_of(path: str, point_id: str | None) -> list[str]:
    """The overrides of the command in the newest row of a point.

    Raises UserError if the dataset has no such row, or the row has no command of this project.
    """
    if point_id is None:
        raise UserError("point: mode=replay needs one; type mode=replay point=ID with a point_id of the dataset")
    import pyarrow.compute as pc

    table = access.read(path).select(["point_id", "command", "l2", "finished_at"])
    rows = table.filter(pc.equal(table.column("point_id"), point_id)).sort_by("finished_at").to_pylist()
    if not rows:
        raise UserError(f"point={point_id!r}: results.path={path!r} has no row of this point_id; type one of its column point_id")
    try:
        words = shlex.split(rows[-1]["command"] or "")
    except ValueError:  # a quote that does not end
        words = []
    if words[:2] != ["python", "-m"]:
        raise UserError(f"point={point_id!r}: its row has no command of this project; type +sweep=NAME, with the sweep that has it")
    if "mode=check_power" in words:
        raise UserError(f"point={point_id!r}: its row is of a wrong kernel; type its own command: {rows[-1]['command']}")
    typed = [word for word in only_read(words[3:], "replay") if not word.startswith(OF_OTHERS)]
    dirty = rows[-1]["l2"] in RENAMED_L2 and not any(word.startswith("timing.l2=") for word in typed)
    return [*typed, *(["timing.l2=dirty"] if dirty else [])]
