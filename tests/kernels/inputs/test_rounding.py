"""Numbers beyond the range of an 8-bit dtype, which some releases of torch turn into NaN."""

from __future__ import annotations

import pytest
import torch

from kernels.inputs.generate import draw
from kernels.inputs.tensors import rounded
from kernels.problem import Problem


@pytest.mark.parametrize(("dtype", "largest"), [(torch.float8_e4m3fn, 448.0), (torch.float8_e5m2, 57344.0)])
def test_numbers_beyond_the_range_become_the_largest(dtype: torch.dtype, largest: float):
    values = torch.tensor([1e6, -1e6, 0.5, float("nan")])

    assert rounded(values, dtype).float().nan_to_num(nan=7.0).tolist() == [largest, -largest, 0.5, 7.0]
    assert rounded(values[:3], torch.bfloat16).equal(values[:3].bfloat16())


def test_queries_with_large_logits_over_few_keys_stay_numbers():
    """Their factor is largest over few short keys: it takes queries beyond 448."""
    heads = {"num_qo_heads": 8, "num_kv_heads": 2, "head_dim_qk": 16, "head_dim_vo": 16, "page_size": 16}
    shape = {"batch_size": 3, "s_qo": 1, "s_kv": 2, "q_dtype": "fp8_e4m3", "kv_dtype": "fp8_e4m3"}
    largest = 0.0
    for seed in range(20):
        q = draw(Problem.model_validate({**heads, **shape, "seed": seed}), "cpu").q.float()
        assert q.isfinite().all()
        largest = max(largest, float(q.abs().max()))

    assert largest == 448.0
