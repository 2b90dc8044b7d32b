"""Three Ray nodes with their own addresses and GPUs of two kinds: which runs what, also when two of them fail."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from tests.helpers import network
from tests.helpers.network import Network
from tests.helpers.runs import wait_for_rows

pytestmark = pytest.mark.netns

H200, A100 = "NVIDIA H200", "NVIDIA A100-SXM4-80GB"
KEYS = [
    "+sweep=smoke",
    "timing=quick",
    "adapters=[fake_backends]",
    "sweep.backend=[everywhere,hopper]",
    "sweep.s_kv=[256]",
    "model.num_qo_heads=8",
    "model.num_kv_heads=1",
]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    """A head and a node with H200s, a node with A100s."""
    if why := network.why_not():
        pytest.skip(why)
    with Network(tmp_path_factory.mktemp("lab")) as lab:
        for gpus in (["h200"], ["h200", "h200"], ["a100", "a100"]):
            lab.add(*gpus)
        lab.wait_for(3)
        yield lab


def test_with_spread_each_device_every_kind_decides_every_point(lab: Network, tmp_path: Path):
    done = lab.driver(*KEYS, "sweep.batch_size=[1,2]", "cluster.spread=each_device", f"results.path={tmp_path}")
    out, err = done.communicate(timeout=300)
    assert done.returncode == 0, out + err
    table = pd.read_parquet(tmp_path)
    found = {key: set(status) for key, status in table.groupby(["backend", "device_name"])["status"]}

    assert found == {
        ("everywhere", H200): {"ok"},
        ("everywhere", A100): {"ok"},
        ("hopper", H200): {"ok"},
        ("hopper", A100): {"unsupported"},
    }
    assert len(table) == 2 * table["point_id"].nunique() == 16
    ran = table[table["status"] == "ok"]
    assert set(ran[ran["device_name"] == A100]["host"]) == {"machine3"}
    assert set(ran[ran["device_name"] == H200]["host"]) <= {"machine1", "machine2"}
    assert ran["resolved_backend"].str.contains("runtime_resources").all()  # the code came with the job


def test_a_machine_is_cut_off_and_one_dies_and_every_point_ends_ok(lab: Network, tmp_path: Path):
    _, to_cut, to_kill = lab.nodes
    driver = lab.driver(*KEYS, "sweep.batch_size=[1,2,3,4,5,6,7,8]", "sweep.s_qo=[1,2,3,4]", f"results.path={tmp_path}")
    wait_for_rows(tmp_path, 12)
    lab.cut_off(to_cut)
    to_kill.kill()
    gone_at = pd.Timestamp.now(tz="UTC")
    out, err = driver.communicate(timeout=200)
    assert driver.returncode == 0, out + err
    table = pd.read_parquet(tmp_path)

    assert len(table) == table["point_id"].nunique() == 64
    assert set(table["status"]) == {"ok"} and set(table["check"]) == {"passed"}
    assert set(table[table["backend"] == "hopper"]["device_name"]) == {H200}
    assert {"machine1", "machine2", "machine3"} == set(table["host"])
    assert (table["finished_at"] > gone_at).sum() > 12
    assert set(table[table["finished_at"] > gone_at]["host"]) == {"machine1"}
    assert set(table["attempt"]) == {1}  # a machine's end costs no point an attempt
