"""What checks for CUDA devices use, as far as a CPU shows it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

from kernels.conformance import on_cuda
from kernels.conformance.on_cuda import largest_cpu_tensor


@pytest.fixture
def compiled():
    yield torch.compile(flex_attention, backend="eager", dynamic=False, fullgraph=True)
    torch.compiler.reset()


@pytest.mark.filterwarnings("ignore")
def test_compiled_attention_stays_compiled_while_tensors_are_watched(compiled):
    """Seen on an H100: the mode made torch.compile give way, and FlexAttention could not be compiled again in that process."""
    q = torch.randn(1, 2, 128, 16)
    with largest_cpu_tensor() as seen:
        watched = compiled(q, q, q)

    assert seen[0] >= watched.numel() * watched.element_size()
    assert torch.allclose(compiled(q, q, q), watched)


def test_the_largest_tensor_on_the_cpu_is_seen():
    with largest_cpu_tensor() as seen:
        (torch.zeros(1000) + 1).sum()

    assert seen == [4000]


class _Adapter:
    """`prepared` gives a call; `fails` says at which of its calls an operator raises."""

    def __init__(self, fails: int, largest: int = 10):
        self.fails, self.largest, self.calls = fails, largest, 0

    def prepared(self, inputs: object, device: object):
        def call() -> None:
            self.calls += 1
            torch.zeros(self.largest)
            if self.calls == self.fails:
                raise RuntimeError("Unable to cast")

        return call


@pytest.mark.parametrize(
    ("adapter", "verdict"), [(_Adapter(0), "passed"), (_Adapter(0, 2**23), "failed"), (_Adapter(2), "not run")]
)
def test_an_operator_that_cannot_be_watched_is_not_called_wrong(adapter, verdict, monkeypatch):
    monkeypatch.setattr(on_cuda, "draw", lambda problem, kind: None)

    assert on_cuda.no_cpu_copy(adapter, None, SimpleNamespace(kv_bytes=2**25)).verdict == verdict


def test_an_operator_that_fails_by_itself_is_the_adapter_s_error(monkeypatch):
    monkeypatch.setattr(on_cuda, "draw", lambda problem, kind: None)
    with pytest.raises(RuntimeError, match="Unable to cast"):
        on_cuda.no_cpu_copy(_Adapter(1), None, SimpleNamespace(kv_bytes=2**25))
