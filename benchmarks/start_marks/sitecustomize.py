"""Writes down when what a start consists of began and ended, in each process of a command: benchmarks/start.py has the table.

Python imports this file first of all where this folder is on its path. Without the variable START_MARKS it does nothing.
A line is `process label begin end`, by the clock that all processes of a machine share.
"""

from __future__ import annotations

import functools
import importlib.machinery
import os
import sys
import time
from typing import Any

FILE = os.environ.get("START_MARKS", "")
IMPORTS = {"orchestrator.cli", "hydra", "pandas", "pyarrow", "duckdb", "rich", "ray", "torch", "flashinfer"}
CALLS = {  # by module, its functions and what they do
    "orchestrator.cli": {"_run_job": "run_job"},
    "orchestrator.commands": {"load": "validate"},
    "orchestrator.run": {"make_plan": "plan"},
    "orchestrator.machines": {"_cuda_devices": "ask for the GPUs", "versions": "look for versions"},
    "orchestrator.storage.access": {"open_writer": "open the dataset"},
    "orchestrator.pools.ray.connection": {"_init_ray": "ray.init", "RayPool": "describe machines"},
    "orchestrator.scheduling.scheduler": {"ActiveWorker.start": "ask for a worker", "ActiveWorker.give": "give it a group"},
    "orchestrator.worker.point_runner": {
        "PointRunner.create": "create worker",
        "PointRunner.prepare": "prepare",
        "PointRunner.measure": "measure",
    },
    "orchestrator.storage.folder": {"FolderStore.add": "store"},
}


def process() -> str:
    words = " ".join(sys.orig_argv)
    return "driver" if "-m orchestrator" in words else "worker" if "default_worker.py" in words else ""


def wrote(label: str, begin: float) -> None:
    with open(FILE, "a", encoding="utf-8") as file:  # noqa: PTH123 - pathlib alone would take a while
        file.write(f"{NAME}\t{label}\t{begin}\t{time.monotonic()}\n")


def timed(label: str, call: Any) -> Any:
    @functools.wraps(call, updated=())
    def timed_call(*args: Any, **keys: Any) -> Any:
        begin = time.monotonic()
        try:
            return call(*args, **keys)
        finally:
            wrote(label, begin)

    return timed_call


class Watched:
    """Finds the modules of both tables, and times their import or their functions."""

    def find_spec(self, name: str, path: Any = None, target: object = None) -> Any:
        if name not in IMPORTS and name not in CALLS:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec and spec.loader:
            load = spec.loader.exec_module

            def loaded(module: Any) -> None:
                begin = time.monotonic()
                load(module)
                if name in IMPORTS:
                    wrote(f"import {name}", begin)
                for function, label in CALLS.get(name, {}).items():
                    watch(module, function, label)

            spec.loader.exec_module = loaded  # type: ignore[method-assign]
        return spec


def watch(module: Any, function: str, label: str) -> None:
    owner, _, name = function.rpartition(".")
    place = getattr(module, owner) if owner else module
    call = place.__dict__[name]
    kind = type(call) if isinstance(call, classmethod | staticmethod) else None
    made = timed(label, call.__func__ if kind else call)
    setattr(place, name, kind(made) if kind else made)


if FILE and (NAME := process()):
    wrote("python", time.monotonic())
    sys.meta_path.insert(0, Watched())
