"""The reference takes no more memory than it says, however many requests it computes together."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kernels.check import oracle
from kernels.inputs.generate import draw
from kernels.problem import Problem

SCALE = 64  # of the real limits, so that small problems reach them
HEADS = {"num_qo_heads": 16, "num_kv_heads": 2, "head_dim_qk": 128, "head_dim_vo": 128}
LATENT = {"routine": "mla", "head_dim_qk": 192, "head_dim_vo": 128, "head_dim_ckv": 512, "head_dim_kpe": 64}


class PeakBytes(TorchDispatchMode):
    """Counts the bytes of tensors that were made inside and still live, and remembers the most."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, int] = {}
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        for storage in (t.untyped_storage() for t in tree_leaves(result) if isinstance(t, torch.Tensor)):
            if storage._cdata not in given and storage._cdata not in self.live:
                self.live[storage._cdata] = storage.nbytes()
                weakref.finalize(storage, self.live.pop, storage._cdata, 0)
        self.peak = max(self.peak, sum(self.live.values()))
        return result


@pytest.mark.parametrize(
    "keys",
    [
        {**HEADS, "batch_size": 32, "s_kv": 1000},
        {**HEADS, "batch_size": 64, "s_kv": 128, "s_qo": 8},
        {**HEADS, "batch_size": 256, "s_kv": 1, "page_size": 128},
        {**HEADS, "batch_size": 1, "s_kv": 40_000},
        {**HEADS, "batch_size": 32, "s_kv": 1000, "kv_dtype": "nvfp4", "q_dtype": "fp8_e4m3"},
        {**LATENT, "num_qo_heads": 64, "num_kv_heads": 64, "batch_size": 32, "s_kv": 64},
        {**LATENT, "num_qo_heads": 128, "num_kv_heads": 128, "batch_size": 32, "s_kv": 16, "s_qo": 4},
    ],
)
def test_the_reference_keeps_within_its_bytes(keys: dict[str, object], monkeypatch: pytest.MonkeyPatch):
    for name in ("CHUNK_BYTES", "SCORE_BYTES", "ROW_BYTES", "SCRATCH_BYTES"):
        monkeypatch.setattr(oracle, name, getattr(oracle, name) // SCALE)
    x = draw(Problem.model_validate({"routine": "paged_decode", "s_qo": 1, **keys}), "cpu")
    with PeakBytes() as bytes_now:
        answer = oracle.answer(x)
    result = sum(t.nbytes for t in (answer.out, answer.lse, answer.peak, answer.condition))

    assert bytes_now.peak - result <= oracle.SCRATCH_BYTES
