"""fa2 loads a key in pieces of 128 bytes: keys of 192 elements of 8 bits are not loaded whole, whoever calls it."""

from __future__ import annotations

from typing import Any

import pytest

from kernels import registry
from kernels.problem import Problem
from orchestrator.machines import known_devices

WORDS = "keys of 64 bytes or a multiple of 128, of which fa2 loads all"
SHAPE = {"batch_size": 1, "s_qo": 99, "s_kv": 512, "num_qo_heads": 16, "num_kv_heads": 16}
DEEPSEEK = {"head_dim_qk": 192, "head_dim_vo": 128}


@pytest.mark.parametrize("release", ["0.7.0", "0.7.2.post1"])
@pytest.mark.parametrize("device", ["a100", "h100", "h200", "b200", "rtx5090"])
@pytest.mark.parametrize("kv_dtype", ["fp8_e4m3", "fp8_e5m2"])
@pytest.mark.parametrize("backend", ["fa2", "auto"])
def test_keys_of_192_bytes_are_refused(backend: str, kv_dtype: str, device: str, release: str):
    assert unmet(backend, device, release, q_dtype="fp16", kv_dtype=kv_dtype, **DEEPSEEK) == [WORDS]
    assert WORDS in unmet(backend, device, release, routine="paged_prefill", q_dtype="fp16", kv_dtype=kv_dtype, **DEEPSEEK)


@pytest.mark.parametrize("dim", [64, 128, 256, 512])
@pytest.mark.parametrize("keys", [{"kv_dtype": "fp8_e4m3"}, {}])
@pytest.mark.parametrize("routine", ["ragged_prefill", "paged_prefill"])
def test_other_keys_are_loaded_whole(routine: str, keys: dict[str, Any], dim: int):
    assert unmet("fa2", "h200", "0.7.2.post1", routine=routine, head_dim_qk=dim, head_dim_vo=dim, **keys) == []
    assert unmet("fa2", "h200", "0.7.2.post1", **DEEPSEEK) == []


def unmet(backend: str, device: str, release: str, *, routine: str = "ragged_prefill", **keys: Any) -> list[str]:
    adapter = registry.get(routine, backend).for_versions({"flashinfer-python": release})
    return adapter.unmet(Problem.model_validate({"routine": routine, **SHAPE, **keys}), known_devices()[device])
