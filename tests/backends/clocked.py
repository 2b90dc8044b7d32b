"""A backend whose calls take what its library says, by a clock that nothing else moves: `adapters=[tests.backends.clocked]`.

A machine at other work makes a process wait for longer than any delay that a test could inject.
"""

from __future__ import annotations

import random
from dataclasses import replace

from kernels.adapter import Runner
from kernels.device import Device
from kernels.inputs import Inputs
from kernels.timing import graphs
from tests.backends.versioned import Versioned

NOISE = 0.01  # standard deviation of a call's time, as a share


class Clock:
    """What a timer on a CPU uses of the module `time`."""

    def __init__(self) -> None:
        self.now_us = 0.0
        self._noise = random.Random(0)

    def pass_by(self, microseconds: float) -> None:
        self.now_us += microseconds * self._noise.gauss(1, NOISE)

    def perf_counter(self) -> float:
        return self.now_us / 1e6


class Clocked(Versioned):
    """A right answer, after as many microseconds as this release of the library takes."""

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        import ao_fakekernel

        right, clock = super().prepare(inputs, device), Clock()
        graphs.time = clock  # type: ignore[assignment,attr-defined] # in the process of the environment, which has one backend

        def launch() -> None:
            right()
            clock.pass_by(ao_fakekernel.MICROSECONDS)

        return replace(right, launch=launch, resolved_backend=getattr(ao_fakekernel, "KERNEL", right.resolved_backend))


ADAPTERS = (Clocked(name="clocked"),)
