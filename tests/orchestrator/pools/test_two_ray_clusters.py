"""One command over two Ray clusters that run on their own: one dataset, a row of each cluster for each point."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from tests.helpers.command_line import run
from tests.helpers.ray_heads import ray_heads

ONE_POINT = ["+sweep=smoke", "timing=quick", "sweep.backend=torch_sdpa", "sweep.s_kv=256", "sweep.batch_size=1", "sweep.s_qo=1"]


def test_a_sweep_over_two_ray_clusters_runs_on_both(tmp_path: Path):
    with ray_heads(2) as addresses:
        done = run(*ONE_POINT, f"results.path={tmp_path}", "-m", "cluster=ray", f"cluster.address={','.join(addresses)}")
    table = pd.read_parquet(tmp_path)

    assert done.returncode == 0, done.stderr
    assert table[["cluster", "status"]].value_counts().to_dict() == {(address, "ok"): 1 for address in addresses}
    assert table["point_id"].nunique() == 1
    assert table["node_id"].nunique() == 2  # Ray's own identity of each cluster's machine
