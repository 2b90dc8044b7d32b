"""Where the seconds of the correctness check go: phase by phase, for each size of problem.

    python benchmarks/check_cost.py +sweep=smoke
    python benchmarks/check_cost.py +sweep=specdec_long_ctx 'sweep.batch_size=[1,64]' 'sweep.s_kv=[8192,131072]' 'sweep.s_qo=[1,4]'

The points run twice in this process. The first run is an ordinary one: it compiles what is to be compiled, and its column `check_s`
is what the check costs. In the second run each phase waits for the device before and after, so that a phase has its own seconds;
the waits make the sum larger. A phase does not contain those that it calls. `launches` counts calls of the kernel under test.
The target of `check_s` is for the mean of the main sweep.
With SKIP_FIRST=1 in the environment the first run is left out.
With COUNT=1 the second run counts operations of torch instead, and how often the host would wait for a GPU: on a CPU too.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from figures import at_most
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from orchestrator import cli
from orchestrator.storage import parquet
from orchestrator.tables import Grid, markdown

Size = tuple[int, int]  # batch_size, s_kv
LAUNCH = "launch of the kernel"
TARGET_MS = 40  # a point of the main sweep
SPENT = ("seconds", "operations", "waits")
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


# Operations for which a GPU's host waits until all before them is done.
WAITS = {"_local_scalar_dense", "equal", "nonzero", "masked_select", "repeat_interleave"}


class Operations(TorchDispatchMode):
    """Counts what torch does while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.ops, self.waits = 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, _, overload = func.__name__.partition(".")
        by_mask = name.startswith("index") and any(one is not None and one.dtype == torch.bool for one in _listed(args[1:2]))
        self.ops, self.waits = self.ops + 1, self.waits + (by_mask or (name in WAITS and overload != "self_int"))
        return func(*args, **(kwargs or {}))


class Transfers(TorchFunctionMode):
    """Counts numbers that go from the host to the device or back, each of which the host waits for, as waits of `operations`."""

    def __init__(self, operations: Operations) -> None:
        super().__init__()
        self.operations = operations

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = (*args[1:], *(kwargs or {}).values()) if not (kwargs or {}).get("non_blocking") else ()
        to_device = getattr(func, "__name__", "") in ("to", "tensor") and any(isinstance(one, str | torch.device) for one in given)
        self.operations.waits += to_device or getattr(func, "__name__", "") in ("tolist", "cpu", "new_tensor")
        return func(*args, **(kwargs or {}))


def _listed(args: Any) -> list[Any]:
    return list(args[0]) if args and isinstance(args[0], list | tuple) else []


class Phases:
    """What each call of a phase spent (`SPENT`), with the size of its problem, and the size of each point."""

    def __init__(self) -> None:
        self.sizes: list[Size] = []
        self.calls: list[tuple[object, ...]] = []
        self.operations = Operations()
        self._open: list[tuple[str, np.ndarray]] = []  # of phases that have begun: the name, and what those inside have spent

    def now(self) -> np.ndarray:
        return np.array([time.perf_counter(), self.operations.ops, self.operations.waits])

    def timed(self, call: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(call)
        def wrapped(*args: Any, **keys: Any) -> Any:
            phase = self._named(name)
            synchronize()
            began = self.now()
            self._open.append((phase, np.zeros(3)))
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

    def _close(self, spent: np.ndarray) -> None:
        phase, inside = self._open.pop()
        self.calls.append((self.sizes[-1] if self.sizes else None, phase, *(spent - inside)))
        if self._open:
            self._open[-1][1].__iadd__(spent)


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
    calls = pd.DataFrame([call[1:] for call in phases.calls if call[0] in sizes], columns=["phase", *SPENT])
    spent, counts = calls.groupby("phase").sum().sort_values("seconds", ascending=False), calls["phase"].value_counts()
    whole = spent[~spent.index.str.startswith(OUTSIDE)].sum()
    launches = counts[counts.index.str.endswith(LAUNCH)].sum()

    def cells(name: str, count: str, some: pd.Series) -> tuple[str, ...]:
        seconds, *others = some
        share = seconds / (whole["seconds"] or 1.0)
        return (
            name,
            count,
            f"{seconds:.3f}",
            f"{share:.1%}",
            f"{1e3 * seconds / points:.2f}",
            *(f"{n / points:.0f}" for n in others),
        )

    rows = [cells(str(phase), f"{counts[phase] / points:.1f}", some) for phase, some in spent.iterrows()]
    head = ("phase", "calls a point", "seconds", "share", "ms a point", "ops a point", "waits a point")
    shown = len(head) if whole["operations"] else 5
    grid = tuple(row[:shown] for row in (*rows, cells("all in check_s", "", whole)))
    return Grid(f"{title}: {points} points, {launches / points:.1f} launches of the kernel a point", head[:shown], grid)


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
    with ExitStack() as counting:
        for mode in (phases.operations, Transfers(phases.operations)) if os.environ.get("COUNT") else ():
            counting.enter_context(mode)
        run(overrides)
    sizes = sorted(set(phases.sizes))
    each = [table_of(phases, [size], f"batch {size[0]} x {size[1]:,}") for size in sizes]
    print(markdown([*each, table_of(phases, sizes, "all sizes")] if len(sizes) > 1 else each))


if __name__ == "__main__":
    main(sys.argv[1:])
