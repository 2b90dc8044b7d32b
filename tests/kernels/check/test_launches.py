"""Whether launch after launch leaves the same output."""

from __future__ import annotations

import pytest
import torch

from kernels.check import launches
from kernels.check.launches import LaunchLog


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn])
def test_the_output_that_differs_most_is_kept(dtype: torch.dtype):
    out = torch.ones(3, 2, 16).to(dtype)
    log = LaunchLog(out)
    log.compare()

    assert log.most_different() is None
    for value in (1.5, 4.0, 2.0):
        out.copy_(torch.full(out.shape, value).to(dtype))
        log.compare()
    most_different = log.most_different()
    assert most_different is not None and (most_different.float() == 4).all()
    assert log.count == 5


def test_a_difference_whose_square_is_nothing_counts():
    out = torch.tensor([[[1.0, 1e-30]]])
    log = LaunchLog(out)
    out[0, 0, 1] = 2e-30
    log.compare()
    most_different = log.most_different()

    assert most_different is not None and most_different[0, 0, 1] == torch.tensor(2e-30)


@pytest.mark.parametrize("at_once", [1, 3, 16])
@pytest.mark.parametrize("launch", range(7))
def test_one_wrong_launch_is_kept_whenever_it_comes(launch: int, at_once: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(launches, "KEPT", at_once)
    out = torch.ones(3, 2, 16)
    log = LaunchLog(out)
    for number in range(7):
        out.fill_(1.25 if number == launch else 1.0)
        log.compare()
    most_different = log.most_different()

    assert most_different is not None and (most_different == 1.25).all()
    log.restart(torch.full_like(out, 1.25))
    assert log.most_different() is None and log.count == 1


def test_nan_is_further_than_any_number():
    out = torch.ones(1, 1, 8)
    log = LaunchLog(out)
    for value in (torch.nan, 1e9):
        out.fill_(value)
        log.compare()
    most_different = log.most_different()

    assert most_different is not None and most_different.isnan().all()
