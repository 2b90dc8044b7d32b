"""docs/slurm.sbatch on a real Slurm of three simulated machines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from tests.helpers import slurm
from tests.helpers.runs import journal
from tests.helpers.slurm import Slurm

pytestmark = pytest.mark.timeout(600)

JOB = ["--nodes=2", "--gpus-per-node=1"]
SCRIPT = "docs/slurm.sbatch"
SWEEP = [
    "+sweep=smoke",
    "timing=quick",
    "adapters=[fake_backends]",
    "sweep.backend=[everywhere,hopper]",
    "sweep.batch_size=[1,2,3]",
    "sweep.s_kv=[256]",
    "model.num_qo_heads=8",
    "model.num_kv_heads=1",
    "limits.point_seconds=600",
]
NOTICED_SECONDS = 150  # Slurm counts in minutes, and looks twice a minute


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Slurm]:
    if why := slurm.why_not():
        pytest.skip(why)
    with Slurm(tmp_path) as lab:
        lab.start_nodes(3)
        yield lab


def test_a_job_meets_its_time_limit_a_node_is_drained_and_the_same_sbatch_goes_on(lab: Slurm, tmp_path: Path):
    rows = tmp_path / "rows"
    first = lab.submit(*JOB, "--time=1", SCRIPT, *SWEEP, f"results.path={rows}")
    lab.wait(lambda: len(journal(rows)) >= 2, 150, ("squeue",))
    lab.hold.touch()
    lab.ask("scontrol", "update", "NodeName=machine2", "State=DRAIN", "Reason=test")
    at_limit = lab.wait_for_end(first, NOTICED_SECONDS)
    before = pd.read_parquet(rows)
    lab.hold.unlink()
    lab.wait_for_nodes("idle", 2)
    second = lab.submit(*JOB, "--time=10", SCRIPT, *SWEEP, f"results.path={rows}")
    done = lab.wait_for_end(second, 300)
    after = pd.read_parquet(rows)

    assert at_limit["JobState"] == "TIMEOUT" and at_limit["NodeList"] == "machine[1-2]"
    assert 2 <= len(before) < 12 and set(before["status"]) == {"ok"}
    assert (done["JobState"], done["ExitCode"]) == ("COMPLETED", "0:0"), (lab.checkout / f"slurm-{second}.out").read_text()[-3000:]
    assert done["NodeList"] == "machine[1,3]"  # the drained one gets no new job
    assert len(after) == after["point_id"].nunique() == 12
    assert set(after["status"]) == {"ok"} and set(after["cluster"]) == {"slurm"}
    assert set(after["host"]) <= {"machine1", "machine2", "machine3"}
    assert set(after[~after["point_id"].isin(before["point_id"])]["host"]) <= {"machine1", "machine3"}
    assert before.set_index("point_id")["median_us"].to_dict().items() <= after.set_index("point_id")["median_us"].to_dict().items()
