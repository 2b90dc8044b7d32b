"""What a person sees while a command goes on: points that ran of those that run, both clocks, the last result, failures.

On a terminal it is a bar; elsewhere a line every `EVERY_S` seconds. Points that never run are not counted. The time left is the
plan's, corrected by how long its points have taken so far: groups run longest first, so points a second say little about what is
left. The plan's seconds begin as the estimate that `mode=plan` prints, and what was measured replaces them little by little.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self

from rich import progress
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from kernels.compile.build import Built
from orchestrator.grouped import grouped
from orchestrator.planning.plan import Plan
from orchestrator.storage.row import BAD, Row
from orchestrator.untrusted.text import for_terminal

EVERY_S = 10.0  # between two lines without a terminal
MAX_NOTE = 100  # characters of a note beside a bar
PRIOR = 0.2  # of the plan's seconds: as much weight has the plan against what was measured
NEVER_RAN = ("unsupported", "skipped")


class Progress:
    """A bar on a terminal; lines elsewhere. `what` is the name of the stage before the points, or of all there is."""

    def __init__(self, console: Console, what: str = "start", every_s: float = EVERY_S) -> None:
        self.console = console
        self._bar = progress.Progress(
            progress.SpinnerColumn(),
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TextColumn("elapsed"),
            progress.TimeElapsedColumn(),
            progress.TextColumn("left"),
            TimeLeftColumn(),
            progress.TextColumn("{task.fields[note]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._stage, self._points, self._modules = (
            self._bar.add_task(name, start=False, visible=False, total=None, note="") for name in (what, "points", "kernel modules")
        )
        self._failed, self._left = 0, None  # type: int, TimeLeft | None
        self._over, self._every_s = threading.Event(), every_s

    def __enter__(self) -> Self:
        self._bar.start()
        if not self.console.is_terminal:
            threading.Thread(target=self._tell, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._over.set()
        self._bar.stop()

    def _tell(self) -> None:
        """A line every now and then: of what is going on, how much of it is done, and what was last."""
        while not self._over.wait(self._every_s):
            for task in self._bar.tasks:
                if task.visible and not task.finished:
                    count = f" {task.completed:.0f} of {task.total:.0f}" if task.total else ""
                    left = task.fields.get("left")
                    clocks = f"elapsed {_clock(task.elapsed or 0)}" + (
                        f", left about {_clock(left.seconds)}" if left and left.is_told else ""
                    )
                    note = f"; {task.fields['note']}" if task.fields["note"] else ""
                    self.console.print(f"{task.description}{count}, {clocks}{note}", highlight=False, soft_wrap=True, markup=False)

    def begin(self, plan: Plan, todo: Plan, workers: int) -> None:
        self._bar.update(self._stage, visible=False)
        run, done = len(todo.decisions_of("run")), len(plan.decisions) - len(todo.decisions)
        self._left = TimeLeft(todo, workers)
        if self.console.is_terminal:
            self.console.print(
                f"{len(plan.decisions)} points: {done} in the dataset already, {run} to run on {workers} worker(s), "
                f"{len(todo.decisions) - run} that cannot run",
                highlight=False,
            )
        self._bar.update(self._points, left=self._left)
        if run:
            self._begin(self._points, run, "workers load their libraries")

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
        if built.error:
            self._fault("not compiled", built.module.why_missing(built.error))
        if self._bar.tasks[self._modules].finished:
            self._bar.update(self._modules, visible=False)

    def rows(self, new: Iterable[Row]) -> None:
        """Counts points that ran, says what came last, and names each failure."""
        came = list(new)
        if self._left is not None:
            self._left.finished(str(row["point_id"]) for row in came)
        ran = [row for row in came if row["status"] not in NEVER_RAN]
        for row in ran:
            if row["status"] in BAD:
                self._failed += 1
                self._fault(str(row["status"]), f"{row['backend']} {row['point_id']}: {row['reason']}")
        if ran:
            failed = f"{self._failed} failed; " * (self._failed > 0)
            self._bar.update(self._points, advance=len(ran), note=escape(f"{failed}last: {_result(ran[-1])}"[:MAX_NOTE]))

    def _fault(self, what: str, words: str) -> None:
        if self.console.is_terminal:
            self._bar.console.print(f"[red]{what}[/] {escape(for_terminal(words))}", highlight=False)


def _result(row: Row) -> str:
    """`fa2_tc 22.2 µs (batch 1, s_qo 1, s_kv 8,192)`, or the status of a point without a time."""
    time_ = row["status"] if row.get("median_us") is None else f"{row['median_us']:,.1f} µs"
    return f"{for_terminal(str(row['backend']))} {time_} (batch {row['batch_size']}, s_qo {row['s_qo']}, s_kv {row['s_kv']:,})"


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"


class TimeLeft:
    """Counts the plan's seconds of points that have ended. `now` is a clock in seconds."""

    def __init__(self, plan: Plan, workers: int, now: Callable[[], float] = time.monotonic) -> None:
        self._costs = grouped((point.point_id, group.cost_s / len(group.points)) for group in plan.groups for point in group.points)
        self._total = self._left = sum(sum(costs) for costs in self._costs.values())
        self._workers, self._now = max(1, workers), now
        self._began = self._updated = None  # type: float | None
        self.is_told = any(name != "cpu" for group in plan.groups for name in group.devices)  # a CPU's rates are guesses

    def finished(self, point_ids: Iterable[str]) -> None:
        """Takes points off. Time counts from the first one that ran, since modules may be compiled before."""
        ended = sum(self._costs[point_id].pop() for point_id in point_ids if self._costs.get(point_id))
        if not ended:
            return
        self._updated = self._now()
        self._left -= ended
        if self._began is None:
            self._began, self._total, self.is_told = self._updated, self._left, True

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
        return Text(_clock(left.seconds) if left.is_told else "-:--:--", style="progress.remaining")
