"""When a measurement stops, and what it says it did. Sleeping kernels on the wall clock stand in for GPU ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
import torch

from kernels.adapter import Runner
from kernels.timing import Timer, Timing, timer_for


class Scripted(Timer):
    """Samples from a list, so that the stopping rule is seen alone."""

    name, l2, host_us = "scripted", "none", 0.0

    def __init__(self, samples: Iterator[float], timing: Timing) -> None:
        super().__init__(Runner(lambda: None, torch.empty(0), "none", "fp32"), timing)
        self.samples = samples

    def replay(self) -> None:
        self.runner()

    def sample(self, count: int) -> list[float]:
        return [next(self.samples) for _ in range(count)]


def forever(sample: Callable[[int], float]) -> Iterator[float]:
    n = 0
    while True:
        yield sample(n)
        n += 1


@pytest.mark.parametrize(
    ("sample", "timing", "reason", "count"),
    [
        (lambda n: 100.0, {"min_samples": 50}, "ci95", 50),
        (lambda n: 100.0 + n % 50, {"max_samples": 75}, "max_samples", 75),
        (lambda n: 100.0 if n < 40 else 100.1, {"min_samples": 20, "max_samples": 1000}, "ci95", 20),
        (lambda n: 100.0 * 2**n, {"min_samples": 20, "max_samples": 900, "max_seconds": 1e-9}, "max_seconds", 10),
    ],
)
def test_it_stops_when_it_is_enough_and_says_why(sample: Callable[[int], float], timing: dict[str, float], reason: str, count: int):
    measured = Scripted(forever(sample), Timing.model_validate(timing)).measure()

    assert measured.stop_reason == reason
    assert len(measured.samples_us) == count


def test_a_slow_kernel_gives_one_batch_at_least():
    runner = Runner(lambda: time.sleep(0.003), torch.empty(1), "sleep", "fp32")
    measured = timer_for(runner, Timing(max_seconds=0.001)).measure()

    assert len(measured.samples_us) == 10
    assert min(measured.samples_us) >= 3000
    assert (measured.timer, measured.cuda_graph, measured.l2) == ("perf_counter", False, "uncontrolled")
