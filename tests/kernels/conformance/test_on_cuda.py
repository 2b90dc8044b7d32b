"""What checks for CUDA devices use, as far as a CPU shows it."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

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
