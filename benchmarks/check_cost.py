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
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from figures import at_most

from orchestrator import cli
from orchestrator.storage import parquet
from orchestrator.tables import Grid, markdown

Size = tuple[int, int]  # batch_size, s_kv
LAUNCH = "launch of the kernel"
TARGET_MS = 40  # a point of the main sweep
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
    """What each call of a phase spent by `clock`, in seconds, with the size of its problem, and the size of each point."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.sizes: list[Size] = []
        self.calls: list[tuple[object, ...]] = []
        self.now = clock
        self._open: list[tuple[str, list[float]]] = []  # of phases that have begun: the name, and what those inside have spent

    def timed(self, call: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(call)
        def wrapped(*args: Any, **keys: Any) -> Any:
            phase = self._named(name)
            synchronize()
            began = self.now()
            self._open.append((phase, []))
            try:
                return call(*args, **keys)
            finally:
                synchronize()
                self._close(self.now() - began)

        return wrapped

    def _named(self, name: str) -> str:
        """A phase; a launch is named after the one it belongs to, and so is all that runs while a point is measured."""
        outer = next((phase for phase, _ in reversed(self._open) if ": " in phase), "")
        if outer.startswith(OUTSIDE):
            return outer
        return f"{outer.removesuffix(': rest')}: {LAUNCH}" if name == LAUNCH and outer else name

    def _close(self, spent: float) -> None:
        phase, inside = self._open.pop()
        self.calls.append((self.sizes[-1] if self.sizes else None, phase, spent - sum(inside)))
        if self._open:
            self._open[-1][1].append(spent)


def synchronize() -> None:
    """Waits for the device, if there is one. An error of a kernel is left to those who judge it."""
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
        phases.sizes.append((task.point.problem.batch_size, task.point.problem.s_kv))
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
    points = sum(size in sizes for size in phases.sizes)
    calls = pd.DataFrame([call[1:] for call in phases.calls if call[0] in sizes], columns=["phase", "spent"])
    spent, counts = calls.groupby("phase")["spent"].sum().sort_values(ascending=False), calls["phase"].value_counts()
    whole = spent[~spent.index.str.startswith(OUTSIDE)].sum()
    launches = counts[counts.index.str.endswith(LAUNCH)].sum()

    def cells(name: str, count: str, seconds: float) -> tuple[str, ...]:
        return (name, count, f"{seconds:.3f}", f"{seconds / (whole or 1.0):.1%}", f"{1e3 * seconds / points:.2f}")

    rows = [cells(str(phase), f"{counts[phase] / points:.1f}", seconds) for phase, seconds in spent.items()]
    head = ("phase", "calls a point", "seconds", "share", "ms a point")
    title = f"{title}: {points} points, {launches / points:.1f} launches of the kernel a point"
    return Grid(title, head, (*rows, cells("all in check_s", "", whole)))


def plain_table(rows: pd.DataFrame) -> Grid:
    """The column `check_s` of an ordinary run, in milliseconds."""
    head = ("count", "mean", "median", "max")
    found = rows.groupby(["batch_size", "s_kv"])["check_s"].agg(head)
    cells = [
        (f"{size[0]} x {size[1]:,}", f"{one['count']:.0f}", *(f"{1e3 * one[name]:.1f}" for name in head[1:]))
        for size, one in found.iterrows()
    ]
    mean, median = 1e3 * rows["check_s"].mean(), 1e3 * rows["check_s"].median()
    title = f"check_s of an ordinary run: {mean:.1f} ms a point, {median:.1f} at the median"
    return Grid(title, ("batch x s_kv", "points", *head[1:]), tuple(cells))


def main(overrides: list[str]) -> None:
    if not os.environ.get("SKIP_FIRST"):
        rows = run(overrides)
        print(markdown([plain_table(rows)]))
        at_most("check_s a point", [1e3 * rows["check_s"].mean()], TARGET_MS, "ms")
        print(flush=True)  # it is here, whatever the second run does
    phases = Phases()
    wrap(phases)
    run(overrides)
    sizes = sorted(set(phases.sizes))
    each = [table_of(phases, [size], f"batch {size[0]} x {size[1]:,}") for size in sizes]
    print(markdown([*each, table_of(phases, sizes, "all sizes")] if len(sizes) > 1 else each))


if __name__ == "__main__":
    main(sys.argv[1:])
