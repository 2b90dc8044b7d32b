"""What keeps the GPU busy before a sample, and what timers are given."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from kernels.adapter import Runner
from kernels.timing import ceilings, timers
from kernels.timing.timers import Block, GraphReplay


@pytest.mark.parametrize(("l2", "restore", "spins"), [("clean", (), 0), ("clean", ("state",), 1), ("warm", (), 1)])
def test_a_sample_of_a_graph_waits_for_the_cpu_nowhere(
    monkeypatch: pytest.MonkeyPatch, l2: str, restore: tuple[str, ...], spins: int
):
    """Bringing back a state takes the CPU longer than a flush takes the GPU."""
    issued: list[str] = []
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: issued.append("spin"), raising=False)
    timer = object.__new__(GraphReplay)
    timer.runner = SimpleNamespace(restore=restore, ready=lambda: issued.append("ready"))  # type: ignore[assignment]
    timer.caches, timer.l2, timer._spin = SimpleNamespace(restore=lambda: issued.append("flush")), l2, 1  # type: ignore[assignment]
    timer._before()

    assert issued == ["ready", "flush", *["spin"] * spins]


def test_the_launch_of_a_call_is_taken_from_runners_as_those_of_backends_are(monkeypatch: pytest.MonkeyPatch) -> None:
    class Replay:
        us = 5.0

        def __init__(self, runner: Runner, *rest: object) -> None:
            assert isinstance(runner, Runner) and not runner.restore
            runner.ready()
            runner()

        def block(self, *rest: object) -> Block:
            return Block([self.us])

    randn = torch.randn
    monkeypatch.setattr(torch, "randn", lambda *shape, device, dtype: randn(*shape, dtype=dtype))
    monkeypatch.setattr(ceilings, "CALLS", ((1, 4, 64), (2, 1, 64)))
    monkeypatch.setattr(ceilings, "DeviceMonitor", object)
    monkeypatch.setattr(ceilings, "Caches", object)
    monkeypatch.setattr(ceilings, "GraphReplay", Replay)
    monkeypatch.setattr(ceilings, "Cupti", type("Kernels", (Replay,), {"us": 3.0}))
    assert ceilings.call_launch(empty_us=1.5) == (2.0, 0.0)
    assert ceilings.call_launch(empty_us=1.4) == (None, None)  # no call's launch is so much longer than an empty graph's


@pytest.mark.parametrize(("issue_us", "spin_us"), [(1.0, 50.0), (20.0, 400.0), (900.0, timers.LONGEST_LEAD_US)])
def test_the_cpu_gets_ahead_of_a_block_before_its_first_sample(monkeypatch: pytest.MonkeyPatch, issue_us: float, spin_us: float):
    """A slow CPU issues all 10 samples meanwhile, a very slow one as many as it can."""
    issued: list[object] = []
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: issued.append(round(cycles / timers.CYCLES_PER_US)), raising=False)
    monkeypatch.setattr(timers, "reset_persisting_l2", lambda: None)
    monkeypatch.setattr(timers, "clock_of_device", lambda: SimpleNamespace(start=lambda: issued.append("clock")))
    monkeypatch.setattr(timers.time, "perf_counter", iter([0.0, issue_us / 1e6]).__next__)
    timer = object.__new__(GraphReplay)
    timer._spin = timers.SPIN_CYCLES
    monkeypatch.setattr(timer, "_before", lambda: issued.append("flush"), raising=False)
    monkeypatch.setattr(timer, "_once", lambda: issued.append("call"), raising=False)
    timer._lead_in(10)

    assert issued == ["flush", "call", spin_us, "clock"]
