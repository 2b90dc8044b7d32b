"""The checksum of a cache in one kernel is the number that torch gives: of two processes one may have Triton and the other not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernels.inputs import checksums
from kernels.inputs.checksums import triton_works
from kernels.inputs.generate import draw
from kernels.problem import Problem

SHAPE = {"num_qo_heads": 16, "num_kv_heads": 2, "head_dim_qk": 128, "head_dim_vo": 128, "batch_size": 3, "s_kv": 3000, "s_qo": 2}
PROBLEMS: dict[str, dict[str, Any]] = {
    "bf16": {},
    "heads of 64 in NHD pages of 16": {"head_dim_qk": 64, "head_dim_vo": 64, "kv_layout": "NHD", "page_size": 16},
    "an FP8 cache": {"kv_dtype": "fp8_e4m3"},
    "nvfp4 with its scales": {"kv_dtype": "nvfp4", "head_dim_qk": 64, "head_dim_vo": 64},
    "keys of 192": {"routine": "ragged_prefill", "head_dim_qk": 192},
    "a latent": {"routine": "mla", "num_kv_heads": 1, "head_dim_qk": 192, "head_dim_ckv": 512, "head_dim_kpe": 64},
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_one_kernel_gives_the_sums_that_torch_gives(name: str, monkeypatch: pytest.MonkeyPatch):
    assert triton_works(0)
    x = draw(Problem.model_validate({"routine": "paged_decode", **SHAPE, **PROBLEMS[name]}), "cuda")
    in_torch = checksums.checksums(x)
    monkeypatch.setattr(checksums, "FUSED_BYTES", 0)
    fused = checksums.checksums(x)

    assert torch.equal(fused, in_torch)
    x.kv[0].view(torch.uint8)[-1, -1, -1, -3] ^= 1
    assert int((checksums.checksums(x) != in_torch).sum()) == 1
