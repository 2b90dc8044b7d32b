"""Machines of a Ray cluster die, stop answering and join while a sweep runs."""

from __future__ import annotations

from pathlib import Path

from tests.backends.faulty import HELD
from tests.helpers.machines import Machines
from tests.helpers.runs import SLOW, journal, rows_of, start, wait_for_rows, wait_until


def on(machines: Machines, path: Path, *more: str, backend: str = "slow") -> list[str]:
    points = [word.replace("[slow]", f"[{backend}]") for word in SLOW]
    return [*points, "cluster=ray", f"cluster.address={machines.address}", f"results.path={path}", *more]


def test_points_of_a_machine_that_dies_run_elsewhere_and_pay_no_attempt(machines: Machines, tmp_path: Path):
    held, dataset = tmp_path / "held", tmp_path / "dataset"
    held.mkdir()
    # No point ends on these, so that all are left for the machine that joins, however long it takes to.
    dies, falls_silent, hangs = (machines.join(env_vars={HELD: str(held)}) for _ in range(3))
    # A point may meet all three machines that are lost. None is late before Ray finds that its machine is.
    limits = ["limits.attempts=3", "limits.point_seconds=120"]
    driver = start(*on(machines, dataset, "cluster.wait_seconds=60", *limits, backend="held"))
    wait_until(lambda: len(list(held.iterdir())) == 3, "a point on each machine")
    machines.cut_off(falls_silent)
    machines.stop_raylet(hangs)
    joins = machines.join()
    machines.kill(dies)
    out, err = driver.communicate(timeout=300)
    table = rows_of(dataset)

    assert driver.returncode == 0, out + err
    assert len(table) == table["point_id"].nunique() == 9
    assert set(table["status"]) == {"ok"}
    assert set(table["attempt"]) == {1}
    assert set(table["node_id"]) == {joins}


def test_without_a_machine_the_run_waits_then_stops_and_can_be_resumed(machines: Machines, tmp_path: Path):
    only = machines.join()
    args = on(machines, tmp_path, "cluster.wait_seconds=3")
    first = start(*args)
    reported = set(wait_for_rows(tmp_path, 2))
    machines.kill(only)
    out, err = first.communicate(timeout=240)

    assert first.returncode == 1, out + err
    assert "no worker can be started there after cluster.wait_seconds=3" in out
    assert "every finished row is stored. To go on, type" in out
    assert "Traceback" not in out + err
    assert reported <= set(rows_of(tmp_path)["point_id"])

    second_machine = machines.join()
    second = start(*args[:-1], "cluster.wait_seconds=60")
    wait_until(lambda: journal(tmp_path), "a row of the second run")
    machines.kill(second_machine)
    last = machines.join()
    out, err = second.communicate(timeout=240)
    table = rows_of(tmp_path)

    assert second.returncode == 0, out + err
    assert len(table) == table["point_id"].nunique() == 9
    assert set(table["status"]) == {"ok"}
    assert last in set(table["node_id"])


def test_a_cluster_that_gives_no_device_away_is_named_before_anything_runs(machines: Machines, tmp_path: Path):
    done = start(*on(machines, tmp_path))
    _, err = done.communicate(timeout=180)

    assert done.returncode == 2
    assert f"cluster.address='{machines.address}': no machine there" in err
    assert len(rows_of(tmp_path)) == 0
