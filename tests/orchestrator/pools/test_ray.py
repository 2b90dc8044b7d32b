"""A run on real Ray: started in place, or one or two clusters that are joined. Failures are in tests/faults."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.command_line import run, run_from_scratch
from tests.helpers.ray_heads import ray_heads
from tests.helpers.runs import TINY, processes, rows_of, wait_until


def test_a_finished_sweep_runs_nothing_again(tmp_path: Path):
    args = [*TINY, "sweep.backend=[nothing,fa2]", f"results.path={tmp_path}"]
    first, again = run_from_scratch(*args), run(*args)

    assert (first.returncode, again.returncode) == (0, 0)
    assert "8 rows in" in first.stdout
    assert "0 rows in" in again.stdout


@pytest.fixture(scope="module")
def clusters() -> Iterator[list[str]]:
    """The addresses of two Ray clusters, each started with `ray start`."""
    with ray_heads(2) as addresses:
        yield addresses


def test_a_running_cluster_is_joined_and_a_worker_waits_there_for_the_next_run(clusters: list[str], tmp_path: Path):
    args = ["+sweep=smoke", "timing=quick", "cluster=ray", f"cluster.address={clusters[0]}", "sweep.s_kv=[256]"]
    done = run_from_scratch(*args, "cluster.keep_warm_s=60", f"results.path={tmp_path}")
    table = rows_of(tmp_path)

    assert done.returncode == 0, done.stderr
    assert table["status"].value_counts().to_dict() == {"ok": 4, "unsupported": 8}
    assert set(table["cluster"]) == {clusters[0]}
    assert table.query("status == 'ok'")["node_id"].str.len().gt(10).all()

    (waiting,) = wait_until(waiting_workers, "a worker that waits")
    again = run(*args, "cluster.keep_warm_s=60", "rerun=all", f"results.path={tmp_path}")

    assert again.returncode == 0, again.stderr
    assert waiting not in loaded_workers()  # it was the run's, and has ended with it


def loaded_workers() -> set[int]:
    """The workers of the cluster that have loaded their libraries and do nothing now."""
    busy = {pid for method in ("load", "ready", "prepare", "measure") for pid in workers(f".{method}")}
    return {pid for pid in workers() - busy if "libtorch_cpu" in Path(f"/proc/{pid}/maps").read_text()}


def waiting_workers() -> set[int]:
    """Those that still do nothing after a second: a worker that starts or ends can look idle for a moment."""
    idle = loaded_workers()
    time.sleep(1)
    return idle & loaded_workers()


def workers(doing: str = "") -> set[int]:
    return set(processes(f"ray::WorkerActor{doing}", under=os.getpid()))


def test_a_sweep_over_two_ray_clusters_runs_on_both(clusters: list[str], tmp_path: Path):
    args = ["+sweep=smoke", "timing=quick", "sweep.backend=torch_sdpa", "sweep.s_kv=256", "sweep.batch_size=1", "sweep.s_qo=1"]
    done = run(*args, f"results.path={tmp_path}", "-m", "cluster=ray", f"cluster.address={','.join(clusters)}")
    table = rows_of(tmp_path)

    assert done.returncode == 0, done.stderr
    assert table[["cluster", "status"]].value_counts().to_dict() == {(address, "ok"): 1 for address in clusters}
    assert table["point_id"].nunique() == 1
    assert table["node_id"].nunique() == 2  # Ray's own identity of each cluster's machine


def test_modules_of_an_environment_are_compiled_on_the_machines_of_a_cluster(clusters: list[str], tmp_path: Path):
    args = [*TINY, "cluster=ray", f"cluster.address={clusters[0]}", "sweep.backend=[uncompilable]", "sweep.env=[twice]"]
    done = run(*args, f"+env.twice={{python: {sys.executable}}}", "mode=compile", f"results.path={tmp_path}")

    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert "mha.cu(7): error: no such thing" in " ".join(done.stdout.split()) and "twice" in done.stdout


def test_a_cluster_that_does_not_answer_is_named(tmp_path: Path):
    done = run("+sweep=smoke", "cluster=ray", "cluster.address=127.0.0.1:1", f"results.path={tmp_path}")

    assert done.returncode == 2
    assert "cluster.address='127.0.0.1:1'" in done.stderr
    assert "Traceback" not in done.stderr
