"""Which points of a plan the dataset already answers. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from orchestrator.plan import Decision
from orchestrator.row import BAD, Row
from orchestrator.settings import Settings
from orchestrator.store import ANY_OF, KEY

if TYPE_CHECKING:
    import pyarrow as pa

WHERE = ("point_id", "cluster", "device_name")


class Resume:
    """The current rows of a cluster, looked up by point and kind of device. `versions` are those of its machines."""

    def __init__(self, table: pa.Table, settings: Settings, common: Row, versions: Iterable[Row] = ()) -> None:
        self.rerun = "all" if settings.mode == "replay" else settings.rerun
        self.cluster = common["cluster"]
        self.settled = {"ok", "mismatch"} if settings.mode == "check_power" else {"ok"}  # a mutant that was caught is done
        now = {tuple({**common, **of}[name] for name in KEY if name not in WHERE) for of in (*versions, {})}
        columns = [table.column(name).to_pylist() for name in (*KEY, "status", "finished_at")]
        self._current: dict[tuple[Any, ...], str] = {}
        self._latest: dict[tuple[Any, ...], tuple[Any, str]] = {}
        for *key, status, finished_at in zip(*columns, strict=True):
            where, of = tuple(key[: len(WHERE)]), tuple(key[len(WHERE) :])
            if of in now:
                self._current[where] = status
            self._latest[where] = max(self._latest.get(where, (finished_at, status)), (finished_at, status))

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
        return any(status in self.settled | {decision.verdict} for status in known)

    def counts(self, decisions: Iterable[Decision]) -> Counter[str]:
        """How many points have which status now, under these versions or, where there is none, the latest."""
        tally: Counter[str] = Counter()
        for decision in decisions:
            known = self._of(decision, any_version=False) or self._of(decision, any_version=True)
            tally.update(known[:1])
        return tally

    def _of(self, decision: Decision, any_version: bool) -> list[str]:
        names = (*decision.devices, ANY_OF.join(decision.devices))
        keys = [(decision.point.point_id, self.cluster, name) for name in dict.fromkeys(names)]
        if any_version:
            return [self._latest[key][1] for key in keys if key in self._latest]
        return [self._current[key] for key in keys if key in self._current]
