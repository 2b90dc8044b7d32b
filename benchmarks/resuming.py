"""Seconds from the command to its first new point, where a dataset holds 100,000 finished ones.

python benchmarks/resuming.py [POINTS] [RUNS]    # each run: the points but one are in the dataset; that one is what the command runs

The dataset is what the sweep itself says, with rows of the size that an H200 measures (100 samples each). Counted is the whole
command until the journal holds the new row: interpreter, plan, dataset, worker; and what of it is the start of a worker, which
a sweep without a dataset needs too.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from figures import ROOT, at_most

FAST = ["sweep.backend=[torch_sdpa]", "timing=quick", "cluster=inline", "sweep.batch_size=[1,2,4,8]", "sweep.s_qo=[1,2,3,4,5]"]
PER_CONTEXT = 4 * 5


def overrides(points: int, path: str) -> list[str]:
    contexts = ",".join(str(64 + i) for i in range(-(-points // PER_CONTEXT)))
    return ["+sweep=smoke", *FAST, f"sweep.s_kv=[{contexts}]", f"results.path={path}"]


def fill(typed: list[str], path: str) -> None:
    """Rows for every point but the first."""
    from hydra import compose, initialize_config_module
    from omegaconf import OmegaConf

    from orchestrator import machines
    from orchestrator import row as rows
    from orchestrator.settings import load
    from orchestrator.store import Store
    from orchestrator.sweep import expand

    with initialize_config_module("conf", version_base="1.3"):
        composed = OmegaConf.to_container(compose("config", overrides=typed), resolve=True)
    assert isinstance(composed, dict)
    settings = load({str(key): value for key, value in composed.items()})
    versions = {**machines.versions(), "orchestrator_version": machines.own_version()}
    done = {"run_id": "before", "sweep": "smoke", "cluster": "inline", "device_name": "cpu", "attempt": 1, **versions}
    done |= {"samples_us": [20.0 + i / 7 for i in range(100)], "median_us": 27.0}
    store = Store(path)
    store.add(rows.finish({**rows.describe(point), **done}, "ok") for point in expand(settings)[1:])
    store.close()


def first_row(typed: list[str], path: str) -> float:
    """Seconds until the command's journal has a row."""
    journal, started = Path(path) / "_journal.jsonl", time.perf_counter()
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "orchestrator", *typed]
    with subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.DEVNULL) as driver:
        while not (journal.exists() and journal.stat().st_size) and driver.poll() is None:
            time.sleep(0.01)
        seconds = time.perf_counter() - started
    assert driver.returncode == 0, driver.returncode
    return seconds


def main(points: int = 100_000, runs: int = 3) -> None:
    with tempfile.TemporaryDirectory() as folder:
        full, once = f"{folder}/full", f"{folder}/once"
        fill(overrides(points, full), full)
        seconds = []
        for _ in range(runs):
            shutil.copytree(full, once)
            seconds.append(first_row(overrides(points, once), once))
            shutil.rmtree(once)
        alone = [first_row(overrides(1, f"{once}{i}"), f"{once}{i}") for i in range(runs)]
    at_most(f"resume of {points:,} finished points to the first new one", seconds, 5, "s")
    at_most("... of which a sweep with no dataset takes", alone, 5, "s")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
