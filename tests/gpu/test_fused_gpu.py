"""The fused kernel of the check gives the sums that torch gives, for every mask, layout and dtype that it serves."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernels.check import fused, fused_reference, oracle, weighing
from kernels.check.estimates import MAX_BLOCK, KeyWeights, OutputErrors, weighed_parts
from kernels.check.tolerance import ROUNDING_RMS
from kernels.check.weighing import weigh
from kernels.inputs import Inputs
from kernels.inputs.generate import draw
from kernels.problem import Problem
from kernels.problem.dtypes import UNIT_ROUNDOFF

SHAPE = {"num_qo_heads": 16, "num_kv_heads": 2, "head_dim_qk": 128, "head_dim_vo": 128, "batch_size": 3, "s_kv": 3000}
PROBLEMS: dict[str, dict[str, Any]] = {
    "one query": {"s_qo": 1},
    "drafts": {"s_qo": 4},
    "drafts of many rows": {"s_qo": 17},
    "drawn lengths": {"s_qo": 8, "min_s_qo": 1, "seq_lens": "random"},
    "a window": {"s_qo": 4, "window": 500},
    "a tree": {"s_qo": 4, "mask": "binary", "tree": (-1, 0, 0, 1)},
    "a full mask": {"s_qo": 4, "mask": "full"},
    "a window under a full mask": {"s_qo": 40, "mask": "full", "window": 9},
    "a prefix mask": {"s_qo": 40, "mask": "prefix", "mask_prefix": 17},
    "more queries than keys": {"routine": "ragged_prefill", "s_qo": 100, "s_kv": 70, "mask": "full"},
    "sinks": {"s_qo": 2, "sinks": True},
    "a soft cap": {"s_qo": 4, "soft_cap": 30.0},
    "another softmax scale": {"s_qo": 4, "softmax_scale": 1.0},
    "fp16 in NHD pages of 16": {"s_qo": 4, "q_dtype": "fp16", "kv_dtype": "fp16", "kv_layout": "NHD", "page_size": 16},
    "an FP8 cache": {"s_qo": 4, "kv_dtype": "fp8_e4m3"},
    "FP8 queries too": {"s_qo": 4, "q_dtype": "fp8_e5m2", "kv_dtype": "fp8_e5m2"},
    "heads of 64": {"s_qo": 4, "head_dim_qk": 64, "head_dim_vo": 64},
    "heads of 256": {"s_qo": 2, "head_dim_qk": 256, "head_dim_vo": 256},
    "a prompt": {"routine": "ragged_prefill", "s_qo": 300, "s_kv": 700},
    "keys of 192, values of 128": {"routine": "ragged_prefill", "s_qo": 100, "s_kv": 700, "head_dim_qk": 192},
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_reference_of_the_kernel_is_that_of_torch(name: str, monkeypatch: pytest.MonkeyPatch):
    """A sixteenth of the rounding of a bf16 output is allowed, in any request, and the kernel says so itself."""
    p = Problem.model_validate({"routine": "paged_decode", **SHAPE, **PROBLEMS[name]})
    x = draw(p, "cuda")
    with oracle.exact():
        assert not fused_reference.serves(x) or oracle._agrees(x) or p.output_dtype == "fp16"
    found = oracle.answer(x)
    monkeypatch.setattr(fused_reference, "serves", lambda _: False)
    right = oracle.answer(x)
    off = (found.out - right.out).norm(dim=-1) / (right.out.norm(dim=-1) * right.condition.clamp_min(1.0))

    assert off.max() < 2**-13
    assert ((found.lse - right.lse).abs() < 2**-13 + 2**-21 * right.lse.abs()).all()
    assert torch.allclose(found.condition, right.condition, rtol=1e-3)
    assert torch.allclose(found.peak, right.peak, atol=1e-3)


@pytest.mark.parametrize("name", PROBLEMS)
def test_it_gives_the_sums_that_torch_gives(name: str, monkeypatch: pytest.MonkeyPatch):
    """Part by part of a prompt: each leaves out blocks of half a row. Rounding decides which, so A of all parts may differ."""
    p = Problem.model_validate({"routine": "paged_decode", **SHAPE, **PROBLEMS[name]})
    x = draw(p, "cuda")
    errors = _errors(x)
    if p.q_dtype in ("fp8_e4m3", "fp8_e5m2") or p.kv_dtype == "fp8_e4m3":
        assert fused.serves(x) == (torch.cuda.get_device_capability() >= (8, 9))
    else:
        assert fused.serves(x)
    found = _sums(errors, monkeypatch)
    monkeypatch.setattr(fused, "serves", lambda _: False)
    monkeypatch.setattr(weighing, "keys_and_values", in_fp32)
    right_sums = _sums(errors, monkeypatch)

    for (part, what, size), right in right_sums.items():
        here = found[part, what, size]
        tested, tested_too = found[part, "b", size] > 0, right_sums[part, "b", size] > 0
        both = tested & tested_too
        assert (tested != tested_too).sum() <= 1 + 0.01 * tested.numel()  # rounding decides about blocks of half a row
        largest = right.abs().max()
        if what == "a":  # where blocks are few, all may be small beside what chance makes of them
            largest = largest.maximum(right_sums[part, "variance", size].max().sqrt())
        assert ((here - right)[both].abs() <= 0.03 * largest).all(), f"{what} of blocks of {size} keys, query tokens {part}"


def _errors(inputs: Inputs) -> OutputErrors:
    """Random errors of 0.2% of each row. Rows with a key near half of their weight say nothing: rounding decides about it."""
    p, answer = inputs.problem, oracle.answer(inputs)
    generator = torch.Generator(inputs.device).manual_seed(0)
    noise = 2e-3 * torch.randn(answer.out.shape, device=inputs.device, generator=generator)
    unsure = ((answer.peak - answer.lse).exp() - MAX_BLOCK).abs() < 0.01
    error = noise * answer.out.norm(dim=-1, keepdim=True) / p.value_dim**0.5
    return OutputErrors(inputs, answer, error, ROUNDING_RMS * UNIT_ROUNDOFF[p.output_dtype], unsure=unsure)


def in_fp32(inputs: Inputs, requests: tuple[int, ...], keys: range) -> tuple[torch.Tensor, ...]:
    """Keys and values as a CPU has them: in bf16 torch itself would be the less exact of the two."""
    scales, found = (inputs.k_scale, inputs.v_scale), [inputs.tokens(request, keys.start, keys.stop) for request in requests]
    return tuple(torch.stack([one[i].float().transpose(0, 1) for one in found]).flatten(0, 1) * scales[i] for i in (0, 1))


def _sums(errors: OutputErrors, monkeypatch: pytest.MonkeyPatch) -> dict[tuple[range, str, int], torch.Tensor]:
    """A, B and the variance of all blocks, by part of the query tokens and block size: requests and chunks one after another."""
    p = errors.inputs.problem
    found: dict[tuple[range, str, int], list[torch.Tensor]] = {}
    for part in weighed_parts(p, p.s_qo):
        monkeypatch.setattr(weighing, "weighed_parts", lambda _, q_len, part=part: [range(part.start, min(part.stop, q_len))])
        for weights in weigh(errors):
            if weights.kind == "block":
                for what, size, level in _levels(p, weights):
                    found.setdefault((part, what, size), []).append(level.flatten())
    return {key: torch.cat(levels) for key, levels in found.items()}


def _levels(p: Problem, weights: KeyWeights) -> list[tuple[str, int, torch.Tensor]]:
    """The levels of an estimate, without the absent blocks that pad the last tile."""
    levels, at = [], 0
    left = p.kv_lens[weights.requests[0]] - weights.start
    for size, count in weights.levels:
        cut = slice(at, at + min(count, -(-left // size)))
        levels += [(what, size, getattr(weights, what)[:, cut]) for what in ("a", "b", "variance")]
        at += count
    return levels
