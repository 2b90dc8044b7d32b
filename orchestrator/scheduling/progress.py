"""What a person sees while a run goes on: points done, ETA, failures. Without a terminal, nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from kernels.compile.build import Built
from orchestrator.planning.plan import Plan
from orchestrator.storage.row import BAD, Row
from orchestrator.untrusted.text import for_terminal

MAX_NOTE = 100  # characters of a note beside a bar


class Progress:
    """A bar on a terminal; silent elsewhere."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._bar = Bar(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            disable=not console.is_terminal,
        )
        # Each line shows once it begins.
        self._stage, self._points, self._modules = (
            self._bar.add_task(name, start=False, visible=False, total=None, note="")
            for name in ("start", "points", "kernel modules")
        )
        self._statuses: Counter[str] = Counter()

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.stop()

    def begin(self, plan: Plan, todo: Plan, workers: int) -> None:
        """Shows what is left to do."""
        self._bar.update(self._stage, visible=False)
        if self.console.is_terminal:
            left, done = len(todo.decisions_of("run")), len(plan.decisions) - len(todo.decisions)
            self.console.print(
                f"{len(plan.decisions)} points: {done} in the dataset already, {left} to run on {workers} worker(s)",
                highlight=False,
            )
        self._begin(self._points, len(todo.decisions), "workers load their libraries" if todo.decisions_of("run") else "")

    def _begin(self, line: TaskID, total: int | None, note: str) -> None:
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
        last = None
        for row in new:
            self._statuses[row["status"]] += 1
            last = row
            if row["status"] in BAD and self.console.is_terminal:
                words = escape(for_terminal(f"{row['backend']} {row['point_id']}: {row['reason']}"))
                self._bar.console.print(f"[red]{row['status']}[/] {words}", highlight=False)
        if last is not None:
            failures = sum(self._statuses[status] for status in BAD)
            done = sum(self._statuses.values())
            self._bar.update(self._points, completed=done, note=f"{failures} failed" if failures else str(last["backend"]))
