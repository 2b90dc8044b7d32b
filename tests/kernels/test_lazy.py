"""Files that compute with torch are imported by plans and reports, which do without."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from kernels import lazy
from orchestrator import ROOT


def test_torch_is_loaded_by_its_first_use_and_not_by_an_import():
    code = (
        "import sys; from kernels.check import oracle; from kernels.lazy import torch; before = 'torch' in sys.modules; "
        "torch.int8; print(before, 'torch' in sys.modules, torch.int8 is sys.modules['torch'].int8)"
    )
    said = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout

    assert said.split() == ["False", "True", "True"]


def test_what_a_test_puts_into_torch_is_found(monkeypatch: pytest.MonkeyPatch):
    assert lazy.torch.zeros is torch.zeros
    monkeypatch.setattr(torch, "zeros", None)

    assert lazy.torch.zeros is None
    with pytest.raises(AttributeError, match="nothing_like_it"):
        lazy.torch.nothing_like_it  # noqa: B018
