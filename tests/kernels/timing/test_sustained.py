"""A load without a pause: what is issued, in which order, and which of it counts."""

from __future__ import annotations

import time

import pytest
import torch

from kernels.timing import sustained
from kernels.timing.graphs import Moment
from kernels.timing.nvml import DeviceMonitor, Telemetry
from kernels.timing.sm_clock import Clock
from kernels.timing.sustained import spread_samples


class Read(DeviceMonitor):
    """A monitor that notes when it was asked."""

    def __init__(self, diary: list[str]) -> None:
        self.diary = diary

    def read(self) -> list[Telemetry]:
        self.diary.append("read")
        return [Telemetry(1500, 3201, 60, 700.0, frozenset({"SwPowerCap"}))]


@pytest.mark.parametrize("on_device", [False, True])
def test_a_load_comes_first_and_samples_are_spread_over_as_long_a_one(monkeypatch: pytest.MonkeyPatch, on_device: bool):
    diary: list[str] = []

    class Event(Moment):
        def record(self) -> None:
            diary.append("event")
            super().record()

    for name, value in (("timed_event", lambda on_device: Event()), ("clock_of_device", Clock), ("HALF_S", 0.06)):
        monkeypatch.setattr(sustained, name, value)
    monkeypatch.setattr(sustained, "reset_persisting_l2", lambda: diary.append("L2"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)

    def call() -> None:
        diary.append("call")
        time.sleep(0.001)

    us, mhz, telemetry = spread_samples(10, lambda: diary.append("before"), call, Read(diary), on_device)
    load, samples = diary[: diary.index("event")], diary[diary.index("event") :]
    each = [one.split() for one in " ".join(samples).split("event call event")[1:]]

    assert len(us) == 10 and all(1000 <= one < 60_000 for one in us) and mhz == [] and len(telemetry) == 2
    assert samples[-2:] == ["read", "read"] and ("L2" in load) == on_device
    assert len({len(between) for between in each[:-1]}) <= 2  # evenly, but for one of them
    assert each[0][:2] == ["before", "call"] and each[0][-1] == "before"
    assert load.count("call") >= samples.count("call")


def test_a_long_call_has_few_samples_and_no_more_than_the_clock_has_stamps(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sustained, "HALF_S", 0.02)
    monkeypatch.setattr(sustained, "MAX_STAMPS", 8)
    counts = [
        len(spread_samples(100, lambda: None, call, DeviceMonitor(), False)[0]) for call in (lambda: time.sleep(0.03), lambda: None)
    ]

    assert counts == [sustained.FEWEST, 7]
