"""The servers of a dataset on a screen: each decision whole, or the words that choose its rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from orchestrator.analysis.dataset import Dataset
from orchestrator.analysis.finder import as_key
from orchestrator.analysis.questions.deployments import OF_CUSTOM, PLACE, Part, is_usual, parts
from orchestrator.config.model import CUSTOM, LENT
from orchestrator.errors import as_typed
from orchestrator.grouped import grouped
from orchestrator.tables import Grid

MAX_LISTED = 12  # servers that a line names
OF_SERVER = ("model", "tp", "device_name")  # keys with a word of their own


def in_order(data: Dataset) -> list[Part]:
    """The parts of a dataset, those timed as servers are first, and models with a name before others."""
    return sorted(parts(data), key=lambda part: (not is_usual(part.place), part.place[PLACE.index("model")] == CUSTOM))


def words(data: Dataset) -> dict[str, str]:
    """What chooses the rows of each deployment, by its title: `model=gpt_oss_120b tp=2`, or of one server what else varies."""
    places = {part.title: dict(zip(PLACE, part.place, strict=True)) for part in in_order(data)}
    varying = [key for key in PLACE if len({place[key] for place in places.values()}) > 1]
    kept = [key for key in varying if key in OF_SERVER] or varying
    return {
        title: _words(place, kept if place["model"] != CUSTOM else [*kept, *({*OF_CUSTOM, "num_qo_heads"} & {*varying})])
        for title, place in places.items()
    }


def _words(place: dict[str, Any], keys: Sequence[str]) -> str:
    named = [key for key in OF_SERVER if key in keys and place[key] is not None and place["model"] != CUSTOM]
    others = {key: place[key] for key in PLACE if key in keys and key not in named}
    typed = [as_key(key, [str(place[key]).partition(LENT)[0]]) for key in named]
    where = as_typed(others).replace(": ", ":").replace(", ", ",")  # which no line breaks
    return " ".join([*typed, *([f"'where={where}'"] if others else [])])


def to_see(left: Iterable[str]) -> str:
    """What to type for servers that a screen leaves out, each by its words."""
    each = list(dict.fromkeys(left))
    more = f" | {len(each) - MAX_LISTED} more: full=true" * (len(each) > MAX_LISTED)
    how = f"{len(each)} left out, each whole with question=one_backend and its words"
    return f"{how}: {' | '.join(each[:MAX_LISTED])}{more}" * bool(each)


def in_other_builds(data: Dataset) -> str:
    """Which flags were timed in the builds of other releases of their engine; empty if none."""
    found = [(one, part.who) for part in parts(data) for one in part.choices if one.record["other_builds"]]
    other = {one.flag: f" (another kernel in {who.split()[-1]}: full=true)" for one, who in found if one.differs}
    flags = grouped(((one.record["other_builds"], who), one.flag + other.get(one.flag, "")) for one, who in found)
    builds = [f"in {of}'s build: {who}'s {', '.join(dict.fromkeys(names))}" for (of, who), names in flags.items()]
    return f"timed {'; '.join(builds)}" * bool(builds)


def apart(grid: Grid, order: Iterable[str]) -> list[Grid]:
    """A table whose first column is the deployment as one for each, in this order of titles."""
    found = {title: tuple(line[1:] for line in grid.cells if line[0] == title) for title in order}
    return [Grid(title, grid.header[1:], cells, whole=True) for title, cells in found.items() if cells]
