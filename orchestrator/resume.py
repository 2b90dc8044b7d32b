"""Which points of a plan the dataset already answers. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cached_property, lru_cache, reduce
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from orchestrator.datafile import ANY_OF, KEY
from orchestrator.plan import Decision
from orchestrator.row import BAD, Row
from orchestrator.settings import Settings

if TYPE_CHECKING:
    import pyarrow as pa

WHERE = ("point_id", "cluster", "device_name")
VERSIONS = tuple(name for name in KEY if name not in WHERE)
Place = tuple[str, str]  # point_id, device_name


class Resume:
    """The current rows of a cluster, looked up by point and kind of device. `versions` are those of its machines."""

    def __init__(self, table: pa.Table, settings: Settings, common: Row, versions: Iterable[Row] = ()) -> None:
        import pyarrow.compute as pc

        self.rerun = "all" if settings.mode == "replay" else settings.rerun
        self.settled = {"ok", "mismatch"} if settings.mode == "check_power" else {"ok"}  # a mutant that was caught is done
        asked = table.select([*KEY, "status", "finished_at"])  # not the samples, which a filter would copy
        self._ours = asked.filter(pc.equal(asked.column("cluster"), common["cluster"]))
        now = [_of_versions(self._ours, {**common, **of}) for of in (*versions, {})]
        rows = zip(*self._columns("point_id", "device_name", "status"), reduce(pc.or_, now).to_pylist(), strict=True)
        self._current: dict[Place, str] = {(point_id, device): status for point_id, device, status, is_now in rows if is_now}

    @cached_property
    def _latest(self) -> dict[Place, str]:
        """Of any version, the newest row's. Worked out only for those who ask."""
        # Stable, so that of two rows of one moment the later one stays, as in a dataset.
        by_time = sorted(zip(*self._columns("finished_at", "point_id", "device_name", "status"), strict=True), key=itemgetter(0))
        return {(point_id, device): status for _, point_id, device, status in by_time}

    def _columns(self, *names: str) -> list[list[Any]]:
        return [self._ours.column(name).to_pylist() for name in names]

    def holds(self, decision: Decision) -> bool:
        """Whether the point need not run again.

        `changed` keeps what is decided under these versions; `failed` keeps whatever did not fail, of any version;
        `none` keeps whatever there is; `all` keeps nothing.
        """
        match self.rerun:
            case "all":
                return False
            case "none":
                return bool(self._of(decision, any_version=True))
            case "failed":
                known = self._of(decision, any_version=True)
                return bool(known) and not any(status in BAD for status in known)
        known = self._of(decision, any_version=False)
        # A skipped point is decided anew by every plan, and runs once the plan lets it.
        return any(status in self.settled or status == decision.verdict for status in known)

    def counts(self, decisions: Iterable[Decision]) -> Counter[str]:
        """How many points have which status now, under these versions or, where there is none, the latest."""
        tally: Counter[str] = Counter()
        for decision in decisions:
            known = self._of(decision, any_version=False) or self._of(decision, any_version=True)
            tally.update(known[:1])
        return tally

    def _of(self, decision: Decision, any_version: bool) -> list[str]:
        known, point_id = self._latest if any_version else self._current, decision.point.point_id
        return [status for name in _names(decision.devices) if (status := known.get((point_id, name)))]


def _of_versions(table: pa.Table, common: Row) -> pa.ChunkedArray:
    """For each row whether it was made with these versions; what has no version has none in `common` either."""
    import pyarrow.compute as pc

    same = [
        pc.is_null(table.column(name)) if common[name] is None else pc.fill_null(pc.equal(table.column(name), common[name]), False)
        for name in VERSIONS
    ]
    return reduce(pc.and_, same)


@lru_cache
def _names(devices: tuple[str, ...]) -> tuple[str, ...]:
    """What rows call the kinds of devices of a decision: each alone, and all of them where none was to run it."""
    return tuple(dict.fromkeys((*devices, ANY_OF.join(devices))))
