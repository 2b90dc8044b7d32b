"""How long a run still takes: its plan, corrected by how long its points have taken so far.

Points that never run end at once, and groups run longest first, so points a second say little about what is left. The plan's
seconds do: they begin as the estimate that `mode=plan` prints, and what was measured replaces them little by little.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable

from rich.progress import Task, TimeRemainingColumn
from rich.text import Text

from orchestrator.planning.plan import Plan

PRIOR = 0.2  # of the plan's seconds: as much weight has the plan against what was measured


class TimeLeft:
    """Counts the plan's seconds of points that have ended. `now` is a clock in seconds."""

    def __init__(self, plan: Plan, workers: int, now: Callable[[], float] = time.monotonic) -> None:
        self._costs: dict[str, list[float]] = defaultdict(list)
        for group in plan.groups:
            for point in group.points:
                self._costs[point.point_id].append(group.cost_s / len(group.points))
        self._total = self._left = sum(sum(costs) for costs in self._costs.values())
        self._workers, self._now = max(1, workers), now
        self._began = self._updated = None  # type: float | None

    def finished(self, point_ids: Iterable[str]) -> None:
        """Takes points off. Time counts from the first one that ran, since modules may be compiled before."""
        ended = sum(self._costs[point_id].pop() for point_id in point_ids if self._costs.get(point_id))
        if not ended:
            return
        self._updated = self._now()
        self._left -= ended
        if self._began is None:
            self._began, self._total = self._updated, self._left

    @property
    def seconds(self) -> float:
        """Seconds of wall time that are left."""
        since = 0.0 if self._updated is None else self._now() - self._updated
        return max(0.0, self._left * self._slower_than_planned / self._workers - since)

    @property
    def _slower_than_planned(self) -> float:
        if self._began is None or self._updated is None:
            return 1.0
        prior, taken = PRIOR * self._total, (self._updated - self._began) * self._workers
        return (prior + taken) / (prior + self._total - self._left) if self._total > 0 else 1.0


class TimeLeftColumn(TimeRemainingColumn):
    """Shows the field `left` of a task, a `TimeLeft`; of a task without one what rich estimates by its steps."""

    def render(self, task: Task) -> Text:
        """The time as hours, minutes and seconds."""
        left = task.fields.get("left")
        if left is None or task.finished:
            return super().render(task)
        minutes, seconds = divmod(round(left.seconds), 60)
        hours, minutes = divmod(minutes, 60)
        return Text(f"{hours}:{minutes:02}:{seconds:02}", style="progress.remaining")
