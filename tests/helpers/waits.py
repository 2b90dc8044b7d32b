"""How often the host would wait for a GPU in the check of points, counted on a CPU: prints a number for each size of problem."""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from orchestrator import cli
from orchestrator.storage.row import Row
from orchestrator.worker import point_runner
from orchestrator.worker.task_row import Seconds

# Operations for which a GPU's host waits until all before them is done.
WAITS = {"_local_scalar_dense", "equal", "nonzero", "masked_select", "repeat_interleave"}


class Operations(TorchDispatchMode):
    """Counts waits of what torch does while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, _, overload = func.__name__.partition(".")
        by_mask = name.startswith("index") and any(one is not None and one.dtype == torch.bool for one in _listed(args[1:2]))
        self.waits += by_mask or (name in WAITS and overload != "self_int")
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


def main(overrides: list[str]) -> None:
    """Runs points, and counts in the blocks whose seconds the row has as `check_s`."""
    operations, waits, points = Operations(), Counter[str](), Counter[str]()
    seconds_into, prepare = point_runner.seconds_into, point_runner.PointRunner.prepare

    @contextmanager
    def counted(row: Row, column: Seconds) -> Iterator[None]:
        before = operations.waits
        with seconds_into(row, column):
            yield
        waits[_size(row)] += (operations.waits - before) * (column == "check_s")

    def noted(self: Any, task: Any) -> Any:
        points[_size(vars(task.point.problem))] += 1
        return prepare(self, task)

    point_runner.seconds_into, point_runner.PointRunner.prepare = counted, noted
    with tempfile.TemporaryDirectory() as folder, operations, Transfers(operations):
        cli.main([*overrides, "cluster=inline", "rerun=all", f"results.path={folder}/rows"])
    sys.stdout.write(f"{ {size: waits[size] / count for size, count in points.items()} }\n")


def _size(of: Any) -> str:
    return f"{of['batch_size']} x {of['s_kv']}"
