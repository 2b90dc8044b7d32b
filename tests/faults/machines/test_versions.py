"""A machine has other versions of libraries than the plan: an error before any point runs, or a record in each row."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

from kernels.timing.config import Timing
from orchestrator.errors import OtherVersions
from orchestrator.machines import cpu
from orchestrator.worker.messages import WorkerConfig
from orchestrator.worker.point_runner import PointRunner
from tests.helpers.command_line import run
from tests.helpers.machines import Machines
from tests.helpers.runs import TINY, rows_of

OTHER = "9.9.9"
HERE = version("flashinfer-python")


@pytest.fixture
def poisoned(machines: Machines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A machine of the cluster whose path begins with another FlashInfer."""
    installed = tmp_path / "site" / f"flashinfer_python-{OTHER}.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text(f"Metadata-Version: 2.1\nName: flashinfer-python\nVersion: {OTHER}\n")
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", str(installed.parent))
        return machines.join()


def sweep(machines: Machines, path: Path) -> list[str]:
    points = ["sweep.backend=[slow]", "sweep.batch_size=[1,2,3]", "sweep.s_qo=[1,2]"]
    return [*TINY, *points, "cluster=ray", f"cluster.address={machines.address}", f"results.path={path}"]


def test_another_version_than_planned_is_named_before_any_point_runs(machines: Machines, poisoned: str, tmp_path: Path):
    done = run(*sweep(machines, tmp_path / "rows"))

    assert done.returncode == 2
    assert f"flashinfer-python={OTHER} where the plan has {HERE}" in done.stderr
    assert "type versions=any" in done.stderr
    assert len(rows_of(tmp_path / "rows")) == 0


def test_with_versions_any_a_row_has_its_own_and_none_runs_again(machines: Machines, poisoned: str, tmp_path: Path):
    right = machines.join()
    args = [*sweep(machines, tmp_path / "rows"), "versions=any"]
    first, again = run(*args), run(*args)
    table = rows_of(tmp_path / "rows")

    assert (first.returncode, again.returncode) == (0, 0), first.stderr + again.stderr
    assert set(zip(table["node_id"], table["flashinfer_version"], strict=True)) == {(poisoned, OTHER), (right, HERE)}
    assert len(table) == table["point_id"].nunique() == 6
    assert "0 rows in" in again.stdout


def test_a_worker_whose_library_changed_after_the_plan_runs_no_point():
    config = WorkerConfig(Timing(), True, (), {"flashinfer_version": OTHER, "run_id": "r"})
    with pytest.raises(OtherVersions, match=f"flashinfer_version={HERE} where the plan has {OTHER}.*versions=any"):
        PointRunner.create(config, cpu())
