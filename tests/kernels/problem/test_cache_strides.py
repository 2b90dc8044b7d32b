"""Caches as engines allocate them: the same values at other strides, right kernels right, and one that ignores strides caught."""

from __future__ import annotations

from itertools import product
from typing import Any, get_args

import pytest
import torch
from pydantic import ValidationError

from kernels import registry
from kernels.check import oracle
from kernels.check.judgement import judge_whole
from kernels.inputs.checksums import checksums
from kernels.inputs.generate import draw
from kernels.mutants import catalogue
from kernels.problem import Problem
from kernels.problem.fields import KvMemory
from kernels.step.layer_inputs import inputs_of_layer
from orchestrator.machines import cpu, known_devices

SHAPE: dict[str, Any] = {
    "routine": "paged_decode", "batch_size": 3, "s_qo": 2, "s_kv": 77, "seq_lens": "random", "num_qo_heads": 4, "num_kv_heads": 2,
    "head_dim_qk": 32, "head_dim_vo": 32, "page_size": 16,
}  # fmt: skip
PAGE, HEAD = 2 * 16 * 32, 16 * 32  # elements of a page of keys, and of a head's of it
STRIDES = {  # of pages, heads and slots (HND) of two heads
    "paired": (2 * PAGE, HEAD, 32), "apart": (PAGE, HEAD, 32), "by_token": (2 * PAGE, 2 * HEAD, 64),
    "padded": (2 * PAGE + 64, HEAD, 32),
}  # fmt: skip


def problem(**keys: Any) -> Problem:
    return Problem.model_validate({**SHAPE, **keys})


def of_memory(memory: str, **keys: Any) -> Problem:
    return problem(kv_memory=memory, **({"num_kv_heads": 1} if memory == "degenerate" else {}), **keys)


@pytest.mark.parametrize("memory", STRIDES)
def test_where_pages_lie(memory: str):
    p = problem(kv_memory=memory)
    x, paired = draw(p, "cpu"), problem()

    assert x.kv[0].stride() == x.kv[1].stride() == (*STRIDES[memory], 1)
    assert (p.bytes, p.flops) == (paired.bytes, paired.flops)
    assert p.input_bytes - paired.input_bytes == (2 * 64 * p.num_pages if memory == "padded" else 0)
    k, v = ({page.data_ptr() for page in cache} for cache in x.kv)
    assert len(k | v) == 2 * p.num_pages  # none lies where another does


def test_of_one_kv_head_the_stride_is_none_that_its_page_has():
    for layout, axis in (("HND", 1), ("NHD", 2)):
        x = draw(of_memory("degenerate", kv_layout=layout), "cpu")
        assert [cache.stride(axis) for cache in x.kv] == [1, 1]


KEYS = ({}, {"kv_layout": "NHD"}, {"kv_dtype": "fp8_e4m3"}, {"graph_batch": 5, "seq_lens": "fixed"}, {"routine": "paged_prefill"})


@pytest.mark.parametrize(("memory", "keys"), product(get_args(KvMemory), KEYS), ids=str)
def test_right_kernels_are_right_and_one_that_ignores_strides_is_caught(memory: str, keys: dict[str, Any]):
    p = of_memory(memory, **keys)
    x = draw(p, "cpu")
    answer, sums = oracle.answer(x), checksums(x)
    for name in ("torch_sdpa", "torch_chunks", "flex_attention"):
        if (p.routine, name) in registry.adapters() and not (right := registry.get(p.routine, name)).unmet(p, cpu()):
            runner = right.prepared(x, cpu())
            runner.refresh()
            runner()
            out = runner.out if runner.rows is None else runner.out[runner.rows]
            assert judge_whole(out, x, answer, runner.arithmetic).passed, name
    wrong = next(one for one in catalogue.ADAPTERS if (one.routine, one.name) == (p.routine, "strides_ignored"))
    assert bool(wrong.unmet(p, cpu())) == (memory in ("paired", "degenerate"))
    if not wrong.unmet(p, cpu()):
        runner = wrong.prepare(x, cpu())
        runner.refresh()
        runner()
        assert not judge_whole(runner.out[: p.num_q_tokens], x, answer, runner.arithmetic).passed
    assert torch.equal(checksums(x), sums)


@pytest.mark.parametrize("memory", get_args(KvMemory))
def test_each_layer_of_a_step_has_such_a_cache(memory: str):
    first = draw(of_memory(memory), "cpu")
    other = inputs_of_layer(first, 1)

    assert [c.stride() for c in other.kv] == [c.stride() for c in first.kv]
    assert all(torch.equal(mine, its.roll(1, -1)) for mine, its in zip(other.kv, first.kv, strict=True))
    assert {page.data_ptr() for page in other.kv[0]}.isdisjoint(page.data_ptr() for page in other.kv[1])


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"kv_memory": "interleaved"}, "'paired', 'apart', 'by_token', 'padded' or 'degenerate'"),
        ({"kv_memory": "degenerate"}, "allowed with num_kv_heads=1, not 2; type kv_memory=padded"),
        ({"kv_memory": "apart", "head_dim_vo": 16}, "head_dims 32 and 16.*type kv_memory=paired"),
        ({"kv_memory": "padded", "routine": "ragged_prefill"}, "not with routine=ragged_prefill"),
        ({"kv_memory": "padded", "kv_dtype": "nvfp4"}, "kv_dtype=nvfp4"),
    ],
)
def test_what_has_no_such_cache(keys: dict[str, Any], words: str):
    with pytest.raises(ValidationError, match=words):
        problem(**keys)


def test_who_serves_them():
    def serving(memory: str, device: str, **keys: Any) -> set[str]:
        p = problem(**{"kv_memory": memory, "num_qo_heads": 8, "num_kv_heads": 1, "head_dim_qk": 128, "head_dim_vo": 128, **keys})
        of = known_devices()[device]
        return {name for (routine, name), one in registry.adapters().items() if routine == p.routine and not one.unmet(p, of)}

    decode, prefill = {"s_qo": 1}, {"routine": "paged_prefill", "s_qo": 40, "seq_lens": "fixed"}
    for keys, unstrided in ((decode, {"cudnn"}), (prefill, {"cudnn", "trtllm-fmha-v2"})):
        every = serving("paired", "h200", **keys)
        assert every - serving("by_token", "h200", **keys) == unstrided
        assert every - serving("padded", "h200", **keys) == unstrided | {"flex_attention"}
        of_tma = {name for name in every if name.startswith(("flash_attn_3", "flash_attn_4", "trtllm-native"))}
        assert len(of_tma) > 4
        assert every - serving("degenerate", "h200", **keys) == of_tma | unstrided
