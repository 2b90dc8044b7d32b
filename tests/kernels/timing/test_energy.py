"""Energy from a counter that moves in steps, on a simulated device: no GPU, no waiting."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from kernels.timing import energy
from kernels.timing.energy import CounterStep, EnergyUnknown, Rate, energy_of, measure, rate_of


@dataclass
class Work:
    device: Device
    ends: float

    def query(self) -> bool:
        return self.device.now >= self.ends


@dataclass
class Device:
    """Runs cycles one after another at a power; its counter shows the energy as it was at the last multiple of `step_s`."""

    cycle_s: float
    watts: float
    step_s: float = 0.02
    idle_watts: float = 90.0
    jitter: float = 0.0
    counts: bool = True
    resets_at: float = float("inf")
    now: float = 5.0
    busy_until: float = 0.0
    busy: list[tuple[float, float]] = field(default_factory=list)
    random: random.Random = field(default_factory=lambda: random.Random(0))

    def issue(self, count: int) -> Work:
        begins = max(self.now, self.busy_until)
        self.busy_until = begins + count * self.cycle_s
        if self.busy and begins - self.busy[-1][1] < 1e-9:
            begins = self.busy.pop()[0]
        self.busy.append((begins, self.busy_until))
        return Work(self, self.busy_until)

    def energy_mj(self) -> int | None:
        self.now += 20e-6  # a question takes time
        if not self.counts:
            return None
        if self.now > self.resets_at:
            return 0
        shown = self.now // self.step_s * self.step_s
        worked = sum(max(0.0, min(end, shown) - begin) for begin, end in self.busy)
        noise = 1 + self.jitter * self.random.uniform(-1, 1)
        return 10**9 + int(1e3 * (self.idle_watts * shown + (self.watts - self.idle_watts) * worked * noise))

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def measure(self) -> Rate:
        return measure(self.issue, self.cycle_s, self, self.clock, self.sleep)


@pytest.mark.parametrize("step_s", [0.02, 0.05, 0.1])
@pytest.mark.parametrize("cycle_s", [20e-6, 1e-3, 30e-3, 3.0])
def test_the_energy_of_a_cycle_is_its_power_times_its_time(cycle_s: float, step_s: float):
    device = Device(cycle_s, watts=600.0, step_s=step_s)
    found = device.measure()

    assert found.seconds == pytest.approx(cycle_s, rel=0.01)
    assert abs(found.joules / (600.0 * cycle_s) - 1) < found.rel + 0.01
    assert 0 < found.rel < 0.03


def test_a_block_is_as_long_as_it_says_and_the_device_is_never_idle_in_it():
    device = Device(1e-3, watts=600.0)
    device.measure()

    assert device.now - 5.0 < energy.SETTLE_S + energy.BLOCK_S + 3 * energy.CHUNK_S
    assert len(device.busy) == 1


def test_what_the_flush_takes_is_subtracted_and_told():
    flush, cycle = (Device(us * 1e-6, watts) for us, watts in ((40.0, 500.0), (60.0, 560.0)))
    found = energy_of(cycle.measure(), flush.measure())

    assert found.energy_j == pytest.approx(60e-6 * 560 - 40e-6 * 500, rel=found.energy_rel + 0.02)
    assert found.energy_flush_j == pytest.approx(40e-6 * 500, rel=0.02)
    assert found.energy_us == pytest.approx(20.0, rel=0.05)


def test_without_a_flush_nothing_is_subtracted():
    cycle = Device(60e-6, 560.0).measure()
    found = energy_of(cycle, None)

    assert (found.energy_j, found.energy_flush_j, found.energy_rel) == (cycle.joules, 0.0, cycle.rel)


def test_a_call_that_the_flush_drowns_is_refused():
    with pytest.raises(EnergyUnknown, match="known to"):
        energy_of(Rate(0.0205, 41e-6, 0.02), Rate(0.02, 40e-6, 0.02))
    with pytest.raises(EnergyUnknown, match="known to"):
        energy_of(Rate(0.0199, 41e-6, 0.0), Rate(0.02, 40e-6, 0.0))


@pytest.mark.parametrize(
    ("device", "words"),
    [
        (Device(1e-3, 600.0, counts=False), "NVML counts no energy"),
        (Device(1e-3, 600.0, step_s=0.3), r"moved \d times in 2 s; 10 are needed"),
        (Device(1e-3, 600.0, resets_at=5.6), "went back"),
    ],
)
def test_a_counter_that_cannot_tell_is_refused(device: Device, words: str):
    with pytest.raises(EnergyUnknown, match=words):
        device.measure()


def test_an_unsteady_power_widens_the_interval():
    def steps(powers: list[float]) -> list[CounterStep]:
        found, total = [CounterStep(0.0, 0, 0.001)], 0.0
        for n, watts in enumerate(powers, start=1):
            total += watts * 0.05 * 1e3
            found.append(CounterStep(0.05 * n, round(total), 0.001))
        return found

    steady, drifting = rate_of(steps([500.0] * 20), 1e-3), rate_of(steps([400.0 + 10 * n for n in range(20)]), 1e-3)

    assert steady.rel == pytest.approx(0.002)
    assert drifting.rel > 0.05
    assert drifting.joules == pytest.approx(0.495)


def test_the_interval_holds_the_truth_of_a_noisy_power():
    """The same as a claim: of 40 noisy blocks nearly all intervals hold the power that made them."""
    held = 0
    for seed in range(40):
        draw = random.Random(seed)
        at, shown, found = 0.0, 0.0, [CounterStep(0.0, 0, 0.0)]
        for _ in range(40):
            at += 0.025
            shown += draw.gauss(500.0, 40.0) * 25
            found.append(CounterStep(at, round(shown), 0.0))
        rate = rate_of(found, 1.0)
        held += abs(rate.joules / 500.0 - 1) < rate.rel
    assert 33 <= held <= 40
