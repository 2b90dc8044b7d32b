"""Seconds from the command to its first new point, where a dataset holds 100,000 finished ones.

python benchmarks/resuming.py [POINTS] [RUNS]

The sweep has five backends; its points but one are in the dataset, those that a CPU serves as `ok` with 100 samples each, the
others as `unsupported`. Counted is the whole command until the journal holds the new row: interpreter, plan, dataset, worker.
The second figure is a small sweep's, to say how much of it is the start of the interpreter and of the worker.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from figures import ROOT, at_most, settings_of

SEEDS, QUERIES, BATCHES = range(2), range(1, 11), range(1, 11)
BACKENDS = ["torch_sdpa", "fa2", "fa2_tc", "cudnn", "trtllm-native"]
FAST = ["sweep=many", "timing=quick", "cluster=inline"]


def sweep(points: int, folder: str) -> None:
    """A sweep of so many points, as a file: typed on a line, a hundred values take Hydra longer than the rest."""
    contexts = range(64, 64 - -points // 1000)
    axes = {"seed": SEEDS, "s_qo": QUERIES, "batch_size": BATCHES, "s_kv": contexts, "backend": BACKENDS}
    lines = [f"{axis}: {list(values)}" for axis, values in axes.items()]
    file = Path(folder) / "conf" / "sweep" / "many.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(["defaults: [base, _self_]", "name: many", *lines]))


def overrides(folder: str, path: str, *more: str) -> list[str]:
    return ["--config-dir", f"{folder}/conf", f"+{FAST[0]}", *FAST[1:], f"results.path={path}", *more]


def fill(folder: str, path: str) -> None:
    from orchestrator import machines
    from orchestrator.code_version import own_version
    from orchestrator.planning.decide import make_plan
    from orchestrator.planning.expand import expand
    from orchestrator.storage.folder import FolderStore
    from orchestrator.storage.row import Status, describe, finish, version_columns

    settings = settings_of([f"+{FAST[0]}", *FAST[1:], f"hydra.searchpath=[file://{folder}/conf]"])
    versions = {**version_columns(machines.versions()), "orchestrator_version": own_version()}
    where = {"run_id": "before", "sweep": "many", "cluster": "inline", "device_name": "cpu", "attempt": 1, **versions}
    samples = {"samples_us": [20.0 + i / 7 for i in range(100)], "median_us": 27.0}
    status: dict[str, Status] = {"run": "ok", "unsupported": "unsupported"}
    plan = make_plan(expand(settings), [machines.cpu()], settings)
    store = FolderStore(path)
    store.add(finish({**describe(d.point), **where, **samples}, status[d.kind]) for d in plan.decisions[1:])
    store.close()


def first_row(typed: list[str], path: str) -> float:
    """Seconds until the command's journal has a row; the command is interrupted then."""
    journal, started = Path(path) / "_journal.jsonl", time.perf_counter()
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "orchestrator", *typed]
    with subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.DEVNULL) as driver:
        while not (journal.exists() and b"{" in journal.read_bytes()) and driver.poll() is None:  # room is tried with empty lines
            time.sleep(0.01)
        seconds = time.perf_counter() - started
        driver.terminate()
    assert driver.returncode in (0, 130), driver.returncode
    return seconds


def main(points: int = 100_000, runs: int = 3) -> None:
    with tempfile.TemporaryDirectory() as folder:
        sweep(points, folder)
        full, once = f"{folder}/full", f"{folder}/once"
        fill(folder, full)
        seconds, alone = [], []
        for _ in range(runs):
            shutil.copytree(full, once)
            seconds.append(first_row(overrides(folder, once), once))
            shutil.rmtree(once)
            alone.append(
                first_row(overrides(folder, once, "sweep.seed=[0]", "sweep.s_kv=[64]", "sweep.backend=[torch_sdpa]"), once)
            )
            shutil.rmtree(once)
    at_most(f"resume of {points:,} finished points to the first new one", seconds, 5, "s")
    at_most("... where a sweep of 100 points and no dataset takes", alone, 5, "s")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
