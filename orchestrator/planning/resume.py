"""Which points of a plan the dataset already answers. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache, reduce
from operator import itemgetter
from typing import TYPE_CHECKING

from kernels.problem import Problem
from kernels.timing.racing import STOPPED_EARLY
from orchestrator import libraries
from orchestrator.code_version import with_plugin
from orchestrator.config.settings import ReplaySettings, RunSettings
from orchestrator.libraries import LibraryVersions
from orchestrator.planning.plan import Decision
from orchestrator.storage.row import ANY_OF, BAD, KEY, Row

if TYPE_CHECKING:
    import pyarrow as pa

WHERE = ("point_id", "cluster", "device_name")
CODE = "orchestrator_version"  # of a plugin's backend it ends in the hash of the plugin's code
LIBRARIES = "libraries"  # of the backend: points of one run differ in it
OF_ALL = tuple(name for name in KEY if name not in (*WHERE, CODE, LIBRARIES))  # versions that all points of a machine share
ROUGH = ("stop_reason", "measured_as")  # they tell a row that is less than timing.precision=full asks for
ROUGH_OK = "ok, rough"  # the status of such a row here
PointOnDevice = tuple[str, str]  # point_id, device_name


class Resume:
    """The current rows of a cluster, by point and kind of device. `versions` are the library versions of its machines."""

    def __init__(
        self,
        table: pa.Table,
        settings: RunSettings | ReplaySettings,
        common: Row,
        versions: Iterable[LibraryVersions] = (),
        environments: Mapping[str, LibraryVersions] | None = None,
    ) -> None:
        import pyarrow.compute as pc

        self.rerun = settings.rerun
        self.settled = {"ok", "mismatch"} if settings.mode == "check_power" else {"ok"}  # a caught mutant is done
        self.takes_rough = settings.timing.races
        self.has_pairs = settings.mode == "noise"
        asked = table.select([*KEY, "status", "finished_at", *ROUGH])  # without the samples, which a filter would copy
        # An empty one as it is: to compare a column with a text, pyarrow imports pandas, which takes half a second.
        self._ours = asked
        if asked.num_rows:
            marked = _marked(asked)
            self._ours = marked.filter(pc.equal(marked.column("cluster"), common["cluster"]))
        self._code = common["orchestrator_version"] or ""
        # The versions of the machines, and for points of an environment its own.
        self._places: dict[str | None, tuple[LibraryVersions, ...]] = {None: tuple(versions) or ({},)}
        self._places |= {name: (of,) for name, of in (environments or {}).items()}
        self._known_libraries: dict[tuple[str | None, tuple[str, ...]], tuple[str | None, ...]] = {}
        # What was made with the versions of each.
        self._current = {name: [self._under({**common, **of}) for of in places] for name, places in self._places.items()}

    def _under(self, versions: Mapping[str, object]) -> dict[tuple[str, str, str, str | None], str]:
        """The statuses of the rows that were made with these versions, by point, device, code and libraries."""
        import pyarrow.compute as pc

        if not self._ours.num_rows:
            return {}
        of_code = pc.fill_null(pc.starts_with(self._ours.column(CODE), self._code), False)
        found = self._ours.filter(pc.and_(_of_versions(self._ours, versions), of_code))
        names = ("point_id", "device_name", CODE, LIBRARIES, "status")
        rows = zip(*(found.column(name).to_pylist() for name in names), strict=True)
        return {(point_id, device, code, of): status for point_id, device, code, of, status in rows}

    @cached_property
    def _latest(self) -> dict[PointOnDevice, str]:
        """The status of the newest row of each point, of any version. Computed only if it is needed."""
        # The sort is stable: of two rows with the same time the later one wins, as in a dataset.
        columns = (self._ours.column(name).to_pylist() for name in ("finished_at", "point_id", "device_name", "status"))
        by_time = sorted(zip(*columns, strict=True), key=itemgetter(0))
        return {(point_id, device): status for _, point_id, device, status in by_time}

    def left_of(self, decisions: Sequence[Decision]) -> tuple[Decision, ...]:
        """The points that have to run. Of an A/A pair both rows do, because only two of one run are interleaved."""
        left = [decision for decision in decisions if not self.is_answered(decision)]
        if not self.has_pairs:
            return tuple(left)
        open_pairs = {_pair(decision) for decision in left}
        return tuple(decision for decision in decisions if _pair(decision) in open_pairs)

    def is_answered(self, decision: Decision) -> bool:
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
        if ROUGH_OK in known and self.takes_rough:
            return True
        # Every plan decides a skipped point again, and runs it once it is no longer skipped.
        return any(status in self.settled or status == decision.kind != "failed" for status in known)

    def counts(self, decisions: Iterable[Decision]) -> Counter[str]:
        """How many points have which status: that of their row under these versions, else of their newest row."""
        tally: Counter[str] = Counter()
        for decision in decisions:
            known = self._of(decision, any_version=False) or self._of(decision, any_version=True)
            tally.update("ok" if status == ROUGH_OK else status for status in known[:1])
        return tally

    def _libraries_of(self, env: str | None, distributions: tuple[str, ...]) -> tuple[str | None, ...]:
        """What the rows of such a backend hold in the column of its libraries, for each of the machines."""
        if (env, distributions) not in self._known_libraries:
            found = (libraries.column(distributions, of) for of in self._places[env])
            self._known_libraries[env, distributions] = tuple(found)
        return self._known_libraries[env, distributions]

    def _of(self, decision: Decision, any_version: bool) -> list[str]:
        point, names = decision.point, _names(decision.devices)
        if any_version:
            found = (self._latest.get((point.point_id, name)) for name in names)
        else:
            code = with_plugin(self._code, point.plugin_code)
            machines = tuple(zip(self._current[point.env], self._libraries_of(point.env, point.distributions), strict=True))
            found = (rows.get((point.point_id, name, code, of)) for name in names for rows, of in machines)
        return [status for status in found if status]


def _pair(decision: Decision) -> tuple[Problem, str, str | None]:
    """What both points of an A/A pair share."""
    point = decision.point
    return point.problem, point.backend, point.env


def _marked(table: pa.Table) -> pa.Table:
    """The rows, those of less than full precision with a status of their own. Such a row answers a request for no more."""
    import pyarrow as pa
    import pyarrow.compute as pc

    stopped = pc.fill_null(pc.is_in(table.column("stop_reason"), value_set=pa.array(STOPPED_EARLY)), False)
    rough = pc.and_(pc.equal(table.column("status"), "ok"), pc.or_(stopped, pc.is_valid(table.column("measured_as"))))
    status = pc.if_else(rough, ROUGH_OK, table.column("status"))
    return table.drop_columns([*ROUGH]).set_column(table.column_names.index("status"), "status", status)


def _of_versions(table: pa.Table, common: Mapping[str, object]) -> pa.ChunkedArray:
    """For each row whether it was made with these versions; what has no version has none in `common` either."""
    import pyarrow.compute as pc

    same = [
        pc.is_null(table.column(name)) if common[name] is None else pc.fill_null(pc.equal(table.column(name), common[name]), False)
        for name in OF_ALL
    ]
    return reduce(pc.and_, same)


@lru_cache
def _names(devices: tuple[str, ...]) -> tuple[str, ...]:
    """The `device_name` values of a decision's rows: each kind of device, and all of them joined if none was to run it."""
    return tuple(dict.fromkeys((*devices, ANY_OF.join(devices))))
