"""Where the seconds of the correctness check go: phase by phase, for each size of problem.

    python benchmarks/check_cost.py +sweep=smoke
    python benchmarks/check_cost.py +sweep=specdec_long_ctx 'sweep.batch_size=[1,64]' 'sweep.s_kv=[8192,131072]' 'sweep.s_qo=[1,4]'

The points run twice in this process. The first run is an ordinary one: it compiles what is to be compiled, and its column `check_s`
is what the check costs. In the second run each phase waits for the device before and after, so that a phase has its own seconds;
the waits make the sum larger. A phase does not contain those that it calls. `launches` counts calls of the kernel under test.
The target of `check_s` is for the mean of the main sweep.
With SKIP_FIRST=1 in the environment the first run is left out.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
from figures import at_most

from orchestrator import cli
from orchestrator.storage import parquet
from orchestrator.tables import Grid, markdown

Size = tuple[int, int]  # batch_size, s_kv
LAUNCH = "launch of the kernel"
TARGET_MS = 30  # a point of the main sweep
OUTSIDE = "outside check_s: "  # while a point is measured
# Owner of a function, its name, and its phase. What another one calls is subtracted from it.
PHASES = (
    ("kernels.check.oracle:answer", "reference"),
    ("orchestrator.worker.output_check:OutputCheck.start", "first launch: rest"),
    ("orchestrator.worker.output_check:OutputCheck.after_block", f"{OUTSIDE}after a timed block"),
    ("orchestrator.worker.output_check:OutputCheck.judge_all", "later launches: rest"),
    ("orchestrator.worker.output_check:OutputCheck._judge_after_change", "changed token: rest"),
    ("orchestrator.worker.output_check:OutputCheck.judge_more_inputs", "more inputs: rest"),
    ("kernels.check.changed_token:change_tokens", "changed token: choice"),
    ("kernels.check.judgement:judge_whole", "estimates"),
    ("kernels.check.judgement:judge_rows", "rows"),
    ("kernels.check.judgement:Pooled.add", "estimates of more inputs"),
    ("kernels.check.judgement:Pooled.verdict", "estimates of more inputs"),
    ("orchestrator.worker.shared_inputs:SharedInputs.with_other_values", "more inputs: drawing"),
    ("orchestrator.worker.shared_inputs:SharedInputs.draw_again", "more inputs: drawing"),
    ("kernels.timed_call:LocalOutputs.launch", LAUNCH),
    ("kernels.timed_call:LocalOutputs.poison", "poisoning"),
    ("kernels.timed_call:LocalOutputs.compare_launches", "comparison of launches"),
    ("kernels.timed_call:LocalComparison.compare", "comparison of launches"),
    ("kernels.timed_call:LocalComparison.most_different", "comparison of launches"),
    ("kernels.timed_call:LocalOutputs.are_intact", "guards of outputs"),
    ("kernels.inputs.unused_slots:UnusedSlots.fill", "unused slots"),
    ("kernels.inputs.unused_slots:UnusedSlots.look", "unused slots"),
    ("kernels.inputs.small_inputs:SmallInputs.restore", "small inputs"),
    ("orchestrator.worker.shared_inputs:SharedInputs.sums", "checksums"),
    ("orchestrator.worker.shared_inputs:SharedInputs.restore_if_changed", "checksums"),
)


class Phases:
    """Seconds and calls of each phase, by size of problem."""

    def __init__(self) -> None:
        self.size: Size = (0, 0)
        self.points: dict[Size, int] = defaultdict(int)
        self.seconds: dict[Size, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        self.calls: dict[Size, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        self._open: list[tuple[str, float]] = []  # of phases that have begun: the name, and the seconds of those inside

    def timed(self, call: Callable[..., Any], name: str) -> Callable[..., Any]:
        """The function, with its seconds counted."""

        @functools.wraps(call)
        def wrapped(*args: Any, **keys: Any) -> Any:
            phase = self._named(name)
            synchronize()
            began = time.perf_counter()
            self._open.append((phase, 0.0))
            try:
                return call(*args, **keys)
            finally:
                synchronize()
                self._close(time.perf_counter() - began)

        return wrapped

    def begin_point(self, size: Size) -> None:
        self.size = size
        self.points[size] += 1

    def _named(self, name: str) -> str:
        """A phase; a launch is named after the one it belongs to, and so is all that runs while a point is measured."""
        outer = next((phase for phase, _ in reversed(self._open) if ": " in phase), "")
        if outer.startswith(OUTSIDE):
            return outer
        return f"{outer.removesuffix(': rest')}: {LAUNCH}" if name == LAUNCH and outer else name

    def _close(self, seconds: float) -> None:
        phase, inside = self._open.pop()
        self.seconds[self.size][phase] += seconds - inside
        self.calls[self.size][phase] += 1
        if self._open:
            outer, others = self._open[-1]
            self._open[-1] = (outer, others + seconds)


def synchronize() -> None:
    """Waits for the device, if there is one. An error of a kernel is left to those who judge it."""
    import torch

    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        with suppress(RuntimeError):
            torch.cuda.synchronize()


def wrap(phases: Phases) -> None:
    """Puts timers around all phases, and notes which point runs. For the rest of this process."""
    import importlib

    from orchestrator.worker.point_runner import PointRunner

    for place, phase in PHASES:
        module, _, path = place.partition(":")
        owner: Any = importlib.import_module(module)
        *classes, name = path.split(".")
        for one in classes:
            owner = getattr(owner, one)
        found = inspect.getattr_static(owner, name)
        if isinstance(found, classmethod):
            setattr(owner, name, classmethod(phases.timed(found.__func__, phase)))
        else:
            setattr(owner, name, phases.timed(found, phase))
    prepare = PointRunner.prepare

    def noted(self: PointRunner, task: Any) -> Any:
        phases.begin_point((task.point.problem.batch_size, task.point.problem.s_kv))
        return prepare(self, task)

    PointRunner.prepare = noted  # type: ignore[method-assign]


def run(overrides: list[str]) -> pd.DataFrame:
    """Runs the points, and returns the rows that were checked. Messages of the run go to stderr."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows"
        if code := cli.main([*overrides, "cluster=inline", "rerun=all", f"results.path={path}"]):
            print(f"exit code {code}: some points have no time; what was checked counts", file=sys.stderr)
        table = parquet.read(path).to_pandas()
    return table[table["check_s"].notna()]


def table_of(phases: Phases, sizes: list[Size], title: str) -> Grid:
    """The phases of some sizes together, the longest first."""
    points = sum(phases.points[size] for size in sizes)
    seconds, calls = defaultdict[str, float](float), defaultdict[str, int](int)
    for size in sizes:
        for phase, some in phases.seconds[size].items():
            seconds[phase] += some
            calls[phase] += phases.calls[size][phase]
    whole = sum(some for phase, some in seconds.items() if not phase.startswith(OUTSIDE)) or 1.0
    launches = sum(count for phase, count in calls.items() if phase.endswith(LAUNCH))
    cells = [
        (phase, f"{calls[phase] / points:.1f}", f"{some:.3f}", f"{some / whole:.1%}", f"{1e3 * some / points:.2f}")
        for phase, some in sorted(seconds.items(), key=lambda item: -item[1])
    ]
    cells.append(("all in check_s", "", f"{whole:.3f}", "100%", f"{1e3 * whole / points:.2f}"))
    head = ("phase", "calls a point", "seconds", "share", "ms a point")
    return Grid(f"{title}: {points} points, {launches / points:.1f} launches of the kernel a point", head, tuple(cells))


def plain_table(rows: pd.DataFrame) -> Grid:
    """The column `check_s` of an ordinary run, in milliseconds."""
    found = rows.groupby(["batch_size", "s_kv"])["check_s"].agg(["count", "mean", "max"])
    cells = [
        (f"{size[0]} x {size[1]:,}", f"{one['count']:.0f}", f"{1e3 * one['mean']:.1f}", f"{1e3 * one['max']:.1f}")
        for size, one in found.iterrows()
    ]
    mean = rows["check_s"].mean()
    return Grid(f"check_s of an ordinary run: {1e3 * mean:.1f} ms a point", ("batch x s_kv", "points", "mean", "max"), tuple(cells))


def main(overrides: list[str]) -> None:
    if not os.environ.get("SKIP_FIRST"):
        rows = run(overrides)
        print(markdown([plain_table(rows)]))
        at_most("check_s a point", [1e3 * rows["check_s"].mean()], TARGET_MS, "ms")
        print(flush=True)  # it is here, whatever the second run does
    phases = Phases()
    wrap(phases)
    run(overrides)
    sizes = sorted(phases.points)
    each = [table_of(phases, [size], f"batch {size[0]} x {size[1]:,}") for size in sizes]
    print(markdown([*each, table_of(phases, sizes, "all sizes")] if len(sizes) > 1 else each))


if __name__ == "__main__":
    main(sys.argv[1:])
