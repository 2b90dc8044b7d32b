"""What keeps the GPU busy before a sample."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from kernels.timing.timers import GraphReplay


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
