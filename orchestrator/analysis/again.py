"""The command that measures a row's point again, on any machine that has the dataset."""

from __future__ import annotations

import shlex
from pathlib import Path

from orchestrator import PROGRAM
from orchestrator.analysis.connection import Record
from orchestrator.analysis.dataset import Dataset
from orchestrator.analysis.sources import source_of, typed


def again(data: Dataset, record: Record) -> str:
    """The command for a record with `row`, `point_id` and `command`; a dash if its row has none.

    It names the dataset that was read. The row's own command may name a folder of the machine that measured. That one is
    returned if no dataset is known, and for rows that mode=replay does not take: wrong kernels, and rows of other benchmarks.
    """
    command, place = str(record["command"] or "–"), _place_of(data, record["row"])
    if not place or "mode=check_power" in command or not command.startswith("python -m "):
        return command
    return replay(str(record["point_id"]), place)


def replay(point_id: str, place: str) -> str:
    """The command that measures a point of a dataset again."""
    return shlex.join(["python", "-m", PROGRAM, "mode=replay", f"point={point_id}", f"results.path={place}"])


def _place_of(data: Dataset, row: int) -> str:
    """The folder or file that a row is from; what was opened, if the row may still be in a journal."""
    source = data.sources[source_of(row)]
    if not isinstance(source, str):
        return data.path
    return str(typed(Path(source)))
