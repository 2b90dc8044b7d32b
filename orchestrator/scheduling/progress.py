"""What a person sees while a run goes on: points done, ETA, failures. Without a terminal, nothing.

The time left is the plan's, corrected by how long its points have taken so far. Points that never run end at once, and groups run
longest first, so points a second say little about what is left. The plan's seconds do: they begin as the estimate that `mode=plan`
prints, and what was measured replaces them little by little.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self

from rich import progress
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from kernels.compile.build import Built
from orchestrator.planning.plan import Plan
from orchestrator.storage.row import BAD, Row
from orchestrator.untrusted.text import for_terminal

MAX_NOTE = 100  # characters of a note beside a bar
PRIOR = 0.2  # of the plan's seconds: as much weight has the plan against what was measured


class Progress:
    """A bar on a terminal; silent elsewhere."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._bar = progress.Progress(
            progress.SpinnerColumn(),
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            TimeLeftColumn(),
            progress.TextColumn("{task.fields[note]}"),
            console=console,
            disable=not console.is_terminal,
        )
        # Each line shows once it begins.
        self._stage, self._points, self._modules = (
            self._bar.add_task(name, start=False, visible=False, total=None, note="")
            for name in ("start", "points", "kernel modules")
        )
        self._statuses: Counter[str] = Counter()
        self._left: TimeLeft | None = None

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.stop()

    def begin(self, plan: Plan, todo: Plan, workers: int) -> None:
        self._bar.update(self._stage, visible=False)
        if self.console.is_terminal:
            left, done = len(todo.decisions_of("run")), len(plan.decisions) - len(todo.decisions)
            self.console.print(
                f"{len(plan.decisions)} points: {done} in the dataset already, {left} to run on {workers} worker(s)",
                highlight=False,
            )
        self._left = TimeLeft(todo, workers)
        self._bar.update(self._points, left=self._left)
        self._begin(self._points, len(todo.decisions), "workers load their libraries" if todo.decisions_of("run") else "")

    def _begin(self, line: progress.TaskID, total: int | None, note: str) -> None:
        self._bar.start_task(line)
        self._bar.update(line, total=total, note=note, visible=True)

    def stage(self, words: str) -> None:
        """Shows what is being done before the points can begin, until they do."""
        if not self._bar.tasks[self._stage].started:
            self._begin(self._stage, None, "")
        self._bar.update(self._stage, note=escape(words[:MAX_NOTE]))

    def begin_modules(self, total: int, found: int) -> None:
        """Shows how many kernel modules are awaited, and how many of them an archive has."""
        if total:
            self._begin(self._modules, total, f"{found} from the archive" if found else "")

    def module(self, built: Built) -> None:
        """Counts a compiled module; shows how long it took, or why it did not compile."""
        self._bar.update(self._modules, advance=1, note=f"{built.module} {built.seconds:.1f} s")
        if built.error and self.console.is_terminal:
            words = escape(for_terminal(f"{built.module}: {built.error}"))
            self._bar.console.print(f"[red]did not compile[/] {words}", highlight=False)
        if self._bar.tasks[self._modules].finished:
            self._bar.update(self._modules, visible=False)

    def rows(self, new: Iterable[Row]) -> None:
        """Counts finished points and names the last failure."""
        came = list(new)
        if self._left is not None:
            self._left.finished(str(row["point_id"]) for row in came)
        self._statuses.update(row["status"] for row in came)
        for row in came:
            if row["status"] in BAD and self.console.is_terminal:
                words = escape(for_terminal(f"{row['backend']} {row['point_id']}: {row['reason']}"))
                self._bar.console.print(f"[red]{row['status']}[/] {words}", highlight=False)
        if came:
            failures = sum(self._statuses[status] for status in BAD)
            note = f"{failures} failed" if failures else str(came[-1]["backend"])
            self._bar.update(self._points, completed=self._statuses.total(), note=note)


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


class TimeLeftColumn(progress.TimeRemainingColumn):
    """Shows the field `left` of a task, a `TimeLeft`; of a task without one what rich estimates by its steps."""

    def render(self, task: progress.Task) -> Text:
        left = task.fields.get("left")
        if left is None or task.finished:
            return super().render(task)
        minutes, seconds = divmod(round(left.seconds), 60)
        hours, minutes = divmod(minutes, 60)
        return Text(f"{hours}:{minutes:02}:{seconds:02}", style="progress.remaining")
