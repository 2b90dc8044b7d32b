"""A run on real Ray: started in place, or a cluster that is joined. Failures are in tests/faults."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.command_line import run, run_from_scratch
from tests.helpers.ray_heads import ray_heads
from tests.helpers.runs import TINY, rows_of


def test_a_finished_sweep_runs_nothing_again(tmp_path: Path):
    args = [*TINY, "sweep.backend=[nothing,fa2]", f"results.path={tmp_path}"]
    first, again = run_from_scratch(*args), run(*args)

    assert (first.returncode, again.returncode) == (0, 0)
    assert "8 rows in" in first.stdout
    assert "0 rows in" in again.stdout


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[str]:
    """A Ray head started with `ray start`."""
    with ray_heads(1) as (address,):
        yield address


def test_a_running_cluster_is_joined(ray_cluster: str, tmp_path: Path):
    done = run_from_scratch(
        "+sweep=smoke",
        "timing=quick",
        "cluster=ray",
        f"cluster.address={ray_cluster}",
        "sweep.s_kv=[256]",
        f"results.path={tmp_path}",
    )
    table = rows_of(tmp_path)

    assert done.returncode == 0, done.stderr
    assert table["status"].value_counts().to_dict() == {"ok": 4, "unsupported": 8}
    assert set(table["cluster"]) == {ray_cluster}
    assert table.query("status == 'ok'")["node_id"].str.len().gt(10).all()


def test_a_cluster_that_does_not_answer_is_named(tmp_path: Path):
    done = run("+sweep=smoke", "cluster=ray", "cluster.address=127.0.0.1:1", f"results.path={tmp_path}")

    assert done.returncode == 2
    assert "cluster.address='127.0.0.1:1'" in done.stderr
    assert "Traceback" not in done.stderr
