"""Problems at small shapes, and right kernels for them, drawn from a seed and judged as in a run. `false_alarms.py` counts them."""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kernels.check import oracle
from kernels.check.answer import Answer
from kernels.check.changed_token import change_tokens
from kernels.check.judgement import Pooled, judge_changed, judge_whole
from kernels.check.oracle import Verdict
from kernels.inputs import Inputs
from kernels.inputs.copied_tokens import copied_tokens
from kernels.inputs.generate import draw, draw_other_values, redraw
from kernels.inputs.tensors import judged
from kernels.problem import Problem
from kernels.problem.dtypes import FP8
from kernels.problem.trees import Tree
from tests.helpers.right_kernels import RightKernel, Roundings, Schedule

MAX_INPUTS = 4  # check.max_inputs
MAX_KEYS = 1000
HEADS = ((1, 1), (2, 1), (4, 1), (8, 1), (2, 2), (4, 2), (8, 2), (6, 3), (16, 2))  # query heads and KV heads
DIMS = (16, 32, 64, 128)

ARITHMETICS = (
    Roundings("fp32", "fp32", "fp32"),
    Roundings("bf16", "bf16", "fp32"),
    Roundings("bf16", "bf16", "bf16"),
    Roundings("fp16", "fp16", "fp16"),
    Roundings("fp16", "fp16", "fp16", accumulator_dtype="fp16"),
    Roundings("bf16", "nvfp4", "bf16"),
    Roundings("bf16", "fp8_e4m3", "bf16"),
    Roundings("fp8_e4m3", "fp8_e4m3", "bf16"),
    Roundings("bf16", "fp8_e4m3", "fp8_e4m3"),
    Roundings("fp16", "fp8_e4m3", "fp8_e4m3"),
    Roundings("fp8_e4m3", "fp8_e4m3", "fp8_e4m3"),
    Roundings("fp8_e4m3", "fp8_e4m3", "fp8_e4m3", cut="sums"),
    Roundings("fp8_e4m3", "fp8_e4m3", "fp8_e4m3", cut="products"),
    Roundings("fp8_e4m3", "fp8_e4m3", "fp8_e4m3", out_dtype="fp8_e4m3"),
    Roundings("fp8_e5m2", "fp8_e5m2", "fp8_e5m2"),
)
Keys = dict[str, Any]


def _length(coin: random.Random, least: int) -> int:
    """Evenly over the logarithm."""
    return max(least, round(math.exp(coin.uniform(math.log(2), math.log(MAX_KEYS)))))


def _of(coin: random.Random, s_qo: int, **keys: Any) -> Keys:
    """Lengths and whatever else; in one of three draws the pages of all requests are full."""
    size, length = coin.choice((1, 16, 64)), _length(coin, s_qo + 1)
    if coin.random() < 1 / 3:
        length = -(-length // size) * size
    return {"s_qo": s_qo, "s_kv": length, "page_size": size, "batch_size": coin.randint(1, 3), **keys}


def _tree(coin: random.Random) -> Keys:
    s_qo = coin.randint(3, 16)
    return _of(coin, s_qo, mask="drawn", tree=Tree(top_k=coin.randint(1, 4)).parents(s_qo))


def _window(coin: random.Random, keys: Keys) -> Keys:
    return keys | {"window": coin.randint(1, keys["s_kv"])}


def _sinks(coin: random.Random) -> Keys:
    keys = _of(coin, coin.choice((1, 1, coin.randint(2, 8))), sinks=True)
    return _window(coin, keys) if coin.random() < 1 / 3 else keys


def _prompts(coin: random.Random) -> Keys:
    s_qo, routine = coin.randint(2, 100), coin.choice(("paged_prefill", "ragged_prefill"))
    context = coin.choice((0, coin.randint(1, 300)))
    return _of(coin, s_qo, routine=routine, batch_size=coin.randint(1, 2)) | {"s_kv": s_qo + context}


def _long_prompts(coin: random.Random) -> Keys:
    """Of several parts of 64 query tokens, in each of which tokens change."""
    s_qo, context = coin.randint(65, 330), coin.choice((0, coin.randint(1, 300)))
    mask = coin.choice(({}, {"mask": "full"}, {"window": coin.randint(20, 200)}, {"min_s_qo": 1}))
    routine = coin.choice(("paged_prefill", "ragged_prefill"))
    return _of(coin, s_qo, routine=routine, **mask) | {"s_kv": s_qo + context}


def _mla(coin: random.Random) -> Keys:
    """The softmax scale is that of a head of a third of the latent, as in DeepSeek's models."""
    ckv, kpe = coin.choice((32, 64, 128)), coin.choice((16, 32))
    dims = {"head_dim_ckv": ckv, "head_dim_kpe": kpe, "head_dim_qk": (ckv + kpe) // 3}
    return _of(coin, coin.choice((1, coin.randint(2, 8))), routine="mla", **dims)


def _sparse_mla(coin: random.Random) -> Keys:
    axes = {"newest": ("listed", "left_out"), "index_padding": ("none", "some", "within")}
    return _mla(coin) | {"routine": "sparse_mla", "top_k": 2 ** coin.randint(0, 9), **{k: coin.choice(v) for k, v in axes.items()}}


def _cascade(coin: random.Random) -> Keys:
    keys = _of(coin, coin.randint(1, 4), routine="cascade", batch_size=coin.randint(2, 3))
    shared = keys["page_size"] * coin.randint(1, max(1, 256 // keys["page_size"]))
    return keys | {"shared_prefix": shared, "s_kv": shared + keys["s_kv"]}


def _merge(coin: random.Random) -> Keys:
    keys = _of(coin, coin.randint(1, 4), routine="merge_states", return_lse=coin.random() < 0.5)
    return keys | {"s_kv": (length := max(8, keys["s_kv"])), "num_states": coin.randint(2, min(8, length))}


SHAPES: dict[str, Callable[[random.Random], Keys]] = {
    "decode": lambda coin: _of(coin, 1, return_lse=coin.random() < 0.5),
    "drafts": lambda coin: _of(
        coin, coin.randint(2, 16), mask=coin.choice(("causal", "causal", "full")), return_lse=coin.random() < 0.5
    ),
    "tree": _tree,
    "window": lambda coin: _window(coin, _of(coin, coin.randint(1, 8))),
    "sinks": _sinks,
    "ragged lengths": lambda coin: _of(coin, coin.randint(2, 8), min_s_qo=1, seq_lens="random", batch_size=coin.randint(2, 3)),
    "prompts": _prompts,
    "long prompts": _long_prompts,
    "MLA": _mla,
    "sparse MLA": _sparse_mla,
    "shared prefix": _cascade,
    "merge of states": _merge,
}


def fits(shape: str, how: Roundings) -> bool:
    """MLA has no 4-bit cache and no kernel that sums in fp16, sparse MLA none that multiplies in 8 bits; merges are in fp32."""
    if shape == "sparse MLA" and (how.q_dtype in FP8 or how.compute_dtype in FP8):
        return False
    if shape in ("MLA", "sparse MLA"):
        return how.kv_dtype != "nvfp4" and how.accumulator_dtype == "fp32"
    return shape != "merge of states" or how.compute_dtype == "fp32"


@dataclass(frozen=True)
class EmulatedPoint:
    """A problem and a right kernel, the same for the same seed, shape and arithmetic."""

    shape: str
    how: Roundings
    seed: int

    @property
    def number(self) -> int:
        return zlib.crc32(f"{self.shape} {self.how} {self.seed}".encode())

    def problem(self, coin: random.Random) -> Problem:
        heads, dim = coin.choice(HEADS), coin.choice(DIMS)
        shape = {"num_qo_heads": heads[0], "num_kv_heads": heads[1], "head_dim_qk": dim, "head_dim_vo": dim}
        dtypes = {"q_dtype": self.how.q_dtype, "kv_dtype": self.how.kv_dtype, "out_dtype": self.how.out_dtype}
        return Problem.model_validate({**shape, **dtypes, **SHAPES[self.shape](coin), "seed": self.number})

    def alarm(self) -> tuple[str, Verdict]:
        """Why the check calls this kernel wrong, empty if it does not, and the verdict on the first input."""
        import torch

        coin = random.Random(self.number)
        problem = self.problem(coin)
        torch.manual_seed(self.number)
        kernel = RightKernel(self.how, Schedule.draw(problem, self.how, coin))
        inputs = draw(problem, "cpu")
        answer = oracle.answer(inputs)
        verdict = judge_whole(*_swapped(kernel, inputs, answer))
        reasons = (verdict.reason, _after_change(kernel, inputs, answer, coin), _on_more(kernel, inputs, verdict))
        return "; ".join(filter(None, reasons)), verdict


def _swapped(kernel: RightKernel, inputs: Inputs, answer: Answer) -> tuple[Any, ...]:
    out, lse = kernel(inputs)
    return out, inputs, answer, kernel.arithmetic(inputs.problem), lse if inputs.problem.return_lse else None


def _after_change(kernel: RightKernel, inputs: Inputs, answer: Answer, coin: random.Random) -> str:
    how = kernel.arithmetic(inputs.problem)
    for changed in change_tokens(inputs, answer, how, coin):
        with copied_tokens(inputs, changed.copied):
            out, lse = kernel(inputs)
        found = judge_changed(out, lse, inputs, changed, how)
        if found.reason:
            return f"after tokens have changed: {found.reason}"
    return ""


def _on_more(kernel: RightKernel, inputs: Inputs, first: Verdict) -> str:
    needed = first.inputs_needed
    if (needed is None or needed > MAX_INPUTS) and first.shows_no_loss:
        needed = MAX_INPUTS
    if needed is None or not 1 < needed <= MAX_INPUTS:
        return ""
    pooled = Pooled(inputs.problem.judged, kernel.arithmetic(inputs.problem))
    for number in range(needed):
        if number:
            draw_other_values(inputs, number)
        out, lse = kernel(inputs)
        pooled.add(out, judged(inputs), oracle.answer(inputs), lse if inputs.problem.return_lse else None)
    redraw(inputs)
    reason = pooled.verdict().reason
    return reason and f"on {needed} inputs: {reason}"
