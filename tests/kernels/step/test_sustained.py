"""Attention in bursts and back to back, on a CPU: what is replayed, and the table of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from benchmarks import sustained
from benchmarks.neighbours_table import KEYS
from kernels.timing.nvml import DeviceMonitor
from orchestrator.errors import UserError
from tests.helpers.steps import bench_of, layers_of, step_problem


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch):
    for name in ("REST_S", "BURST_S", "SUSTAINED_S"):
        monkeypatch.setattr(sustained, name, 0.001)


def test_each_load_replays_attention_of_so_many_layers():
    bench = bench_of(layers_of(step_problem()))
    calls: list[int] = []

    def noted(number: int, call: Callable[[], object]) -> Callable[[], None]:
        def run() -> None:
            calls.append(number)
            call()

        return run

    bench.attention = [(noted(number, call), out) for number, (call, out) in enumerate(bench.attention)]
    found = sustained.loads(bench)

    for load, (replay, layers) in found.items():
        calls.clear()
        replay()
        assert len(calls) == (0 if load == sustained.COPY else layers), load
    assert found[sustained.ALL][1] == len(bench.layers) > found[sustained.ONE][1] == 1


def test_a_row_for_each_load_and_pace():
    rows = sustained.rows_of(bench_of(layers_of(step_problem())), on_gpu=False)
    assert [(row["load"], row["pace"]) for row in rows] == [
        (load, pace)
        for load in (sustained.ONE, sustained.ALL, sustained.STEP, sustained.COPY)
        for pace in (sustained.IN_BURSTS, sustained.BACK_TO_BACK)
    ]
    assert all(row["us"] > 0 and row["samples"] > 0 and row["throttled_by"] == "" for row in rows)


def test_watts_are_of_all_replays_back_to_back(monkeypatch: pytest.MonkeyPatch):
    class Monitor(DeviceMonitor):
        read_mj = 0

        def energy_mj(self) -> int:
            self.read_mj += 10**6
            return self.read_mj

        def throttled_by(self) -> frozenset[str]:
            return frozenset({"SwPowerCap"})

    monkeypatch.setattr(sustained, "_monitor", lambda _: Monitor())
    rows = sustained.rows_of(bench_of(layers_of(step_problem())), on_gpu=False)

    assert [row["watts"] > 0 for row in rows] == [row["pace"] == sustained.BACK_TO_BACK for row in rows]
    assert {row["throttled_by"] for row in rows} == {"SwPowerCap"}


def test_the_second_half_counts_back_to_back(monkeypatch: pytest.MonkeyPatch):
    times = sustained.replays.Times([[1.0, 2.0, 3.0, 4.0]], [[10.0, 20.0, 30.0, 40.0]])
    monkeypatch.setattr(sustained.replays, "timed", lambda *_: times)
    found = sustained.back_to_back(lambda: None)
    assert (found.us, found.mhz) == ([[3.0, 4.0]], [[30.0, 40.0]])


def stored(path: Path, **reasons: dict[str, str]) -> Path:
    """The rows of one point. Back to back all but the copy take 5 µs more. `reasons` are by pace, and then by load."""
    shape = dict(zip(KEYS, ("flash_attn_3", 64, 32768, 1, "bf16", "bf16"), strict=True))
    us = {sustained.ONE: 90.0, sustained.ALL: 95.0, sustained.STEP: 300.0, sustained.COPY: 200.0}
    rows = [
        {**shape, "load": load, "pace": pace, "us": of_load + more, "mhz": 1800.0 - more, "watts": 650.0}
        | ({sustained.THROTTLED: reasons[pace].get(load, "")} if reasons else {})
        for load, of_load in us.items()
        for pace, more in ((sustained.IN_BURSTS, 0.0), (sustained.BACK_TO_BACK, 5.0 if load != sustained.COPY else 0.0))
    ]
    pd.DataFrame(rows).to_parquet(path)
    return path


def test_the_cost_in_a_step_is_the_step_minus_the_copys(tmp_path: Path):
    (cells,) = sustained.table(stored(tmp_path / "rows.parquet")).cells

    assert cells[4:] == (
        "90.0 (1,800 MHz)",
        "95.0 (1,795 MHz)",
        "95.0 (1,800 MHz)",
        "100.0 (1,795 MHz)",
        "100.0 (1,800 MHz)",
        "105.0 (1,795 MHz)",
        "650",
    )


def test_the_table_says_after_how_many_loads_the_clock_was_held_down(tmp_path: Path):
    back = dict.fromkeys((sustained.ONE, sustained.ALL, sustained.STEP), "SwPowerCap") | {sustained.COPY: "HwThermalSlowdown"}
    said = sustained.table(
        stored(tmp_path / "a", **{sustained.IN_BURSTS: {sustained.ONE: "SwPowerCap"}, sustained.BACK_TO_BACK: back})
    )
    none = sustained.table(stored(tmp_path / "b", **{sustained.IN_BURSTS: {}, sustained.BACK_TO_BACK: {}}))

    assert said.header[-1] == none.header[-1] == "throttled by, in how many of the loads"
    assert said.cells[0][-1] == (
        "HwThermalSlowdown: 0 of 4 in bursts, 1 of 4 back to back; SwPowerCap: 1 of 4 in bursts, 3 of 4 back to back"
    )
    assert none.cells[0][-1] == "–"


def test_each_file_has_a_table_with_its_name(tmp_path: Path):
    """The oldest file does not say what held the clock down."""
    new = stored(tmp_path / "new.parquet", **{sustained.IN_BURSTS: {}, sustained.BACK_TO_BACK: {}})
    said = sustained.main("table", str(stored(tmp_path / "old.parquet")), str(new))
    old, _, rest = said.partition("**new.parquet**")

    assert "**old.parquet**" in old and "throttled by" not in old and "throttled by" in rest


def test_a_file_has_the_loads_of_one_card(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sustained, "_uuid", lambda: "GPU-here")

    sustained.refuse_other_cards(Path("loads.parquet"), [])
    sustained.refuse_other_cards(Path("loads.parquet"), [{"device_uuid": "GPU-here"}])
    with pytest.raises(UserError, match=r"loads\.parquet has loads of GPU-there, and this process has GPU-here; name another file"):
        sustained.refuse_other_cards(Path("loads.parquet"), [{"device_uuid": "GPU-here"}, {"device_uuid": "GPU-there"}])
