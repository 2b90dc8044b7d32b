"""Right kernels written out in torch: what they round, and in which order they add up. `false_alarms.py` judges their outputs.

What is emulated, for one request and one KV head at a time:

- sums are scaled where a tile begins by the exact factor, or by one whose larger product is rounded alone;
- queries are rounded to the declared compute dtype if that is coarser, and keys and values are widened or read as they are;
- keys are read in tiles, with a running maximum, in either direction; probabilities are scaled and rounded to the compute dtype;
- row sums are those of probabilities before or after this rounding; outputs are summed in fp32, or in fp16 every 16 products; for
  tensor cores that multiply in 8 bits, sums are cut off towards zero every 32 products, or each product of a probability and a
  value beside the largest;
- the KV range is split, partial outputs are stored in fp32 or in the output's dtype, and merged by log-sum-exps in fp32;
- or all keys of a split are read at once, and probabilities are normalised before they are rounded to bf16;
- a sink is where the running maximum starts, or is added at the end; exponentials are those of base 2 with their error on a GPU.

What is not: the order of products within a tile, skipped rescaling by a new maximum, and all that depends on a device.
"""

# T = query tokens of all requests, H = num_qo_heads, K = stored KV heads, G = H / K, R = G * query tokens of a request, L = keys,
# D = head_dim

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass
from typing import Literal, Self

import torch
from torch import Tensor

from kernels.inputs import Inputs
from kernels.inputs.masks import hidden
from kernels.inputs.tensors import judged, rounded
from kernels.problem import Problem
from kernels.problem.arithmetic import Arithmetic
from kernels.problem.dtypes import FP8, UNIT_ROUNDOFF, torch_dtype

LOG2_E = math.log2(math.e)
APPROXIMATE_EXP = 2.0**-22  # largest relative error of ex2.approx (PTX ISA)
SUMMED_IN_FP16, SUMMED_IN_8_BITS = 16, 32  # products that are added up before an accumulator is rounded
# Of an accumulator of 8-bit products, and of each product beside the largest, behind the first (docs/correctness_numbers.md).
CUT_DIGITS, PRODUCT_DIGITS = 17, 13
SCALES_8_BITS = (256.0, 448.0)  # of probabilities before they are rounded to 8 bits; the second only where 448 is finite
TILES = (32, 64, 128)
MAX_SPLITS = 6


@dataclass(frozen=True)
class Roundings:
    """The dtypes of a problem, and what a kernel states of its own (`Runner.compute_dtype`, `Runner.accumulator_dtype`)."""

    q_dtype: str
    kv_dtype: str
    compute_dtype: str
    accumulator_dtype: str = "fp32"
    out_dtype: str | None = None
    # What is cut off towards zero, after `CUT_DIGITS` or `PRODUCT_DIGITS`: sums, or products of probabilities and values.
    cut: Literal["", "sums", "products"] = ""

    def __str__(self) -> str:
        name = f"{self.q_dtype} over {self.kv_dtype}, multiplied in {self.compute_dtype}"
        more = (self.accumulator_dtype != "fp32") * ", summed in fp16" + (f", {self.cut} cut off" if self.cut else "")
        return name + more + (f", {self.out_dtype} output" if self.out_dtype else "")


@dataclass(frozen=True)
class Schedule:
    """What a kernel does beside its dtypes: each choice is one that some kernel of an engine makes."""

    tile: int  # keys
    splits: int
    backwards: bool  # the last tile of a split comes first, as in FlashAttention
    sums_rounded: bool  # row sums are those of rounded probabilities, as in FlashInfer's fa2
    sink_first: bool
    partial_dtype: str  # of the output of a split
    scale: float  # of probabilities before they are rounded
    normalised: bool = False  # probabilities are divided by their sum before they are rounded, and not the output at the end
    fused: bool = False  # sums are scaled by a fused multiply-add, whose one product alone is rounded, as in FlashInfer's fa2

    @classmethod
    def draw(cls, problem: Problem, how: Roundings, coin: random.Random) -> Self:
        """One by chance. A merge alone gets its splits, and their dtype, from the problem."""
        stored = problem.output_dtype if problem.output_dtype not in FP8 else "bf16"
        scales = SCALES_8_BITS if how.compute_dtype in FP8 else (1.0,)
        return cls(
            tile=coin.choice(TILES),
            splits=problem.num_states or coin.choice((1, 1, coin.randint(2, MAX_SPLITS))),
            backwards=coin.random() < 0.5,
            sums_rounded=coin.random() < 0.5,
            sink_first=coin.random() < 0.5,
            partial_dtype=problem.state_dtype if problem.num_states else coin.choice(("fp32", stored)),
            scale=coin.choice(scales),
            normalised=how.compute_dtype == "bf16" and random.Random(problem.seed).random() < 0.25,
            fused=random.Random(problem.seed + 1).random() < 0.5,
        )


@dataclass(frozen=True)
class RightKernel:
    """A kernel that is right but for what it rounds. Calling it gives its output [T, H, D_vo] and log-sum-exp, fp32 [T, H]."""

    how: Roundings
    schedule: Schedule

    def arithmetic(self, problem: Problem) -> Arithmetic:
        """What it states. An 8-bit output leaves a factor to the caller, since a mean over many keys is small."""
        scale = 2.0 ** -round(math.log2(problem.s_kv) / 2) if problem.output_dtype in FP8 else 1.0
        return Arithmetic(self.how.compute_dtype, scale, self.how.accumulator_dtype, "2")

    def __call__(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        inputs = judged(inputs)
        p = inputs.problem
        found = [self.of_request(inputs, request) for request in range(p.batch_size)]
        out, lse = (torch.cat(parts) for parts in zip(*found, strict=True))
        return rounded(out / self.arithmetic(p).caller_scale, torch_dtype(p.output_dtype)), lse.squeeze(-1)

    def of_request(self, inputs: Inputs, request: int) -> tuple[Tensor, Tensor]:
        """Output [Q, H, D_vo] and log-sum-exp of base 2 [Q, H, 1], in fp32."""
        p, q_len, length = inputs.problem, inputs.problem.q_lens[request], inputs.problem.kv_lens[request]
        k, v = (t.float().transpose(0, 1) for t in inputs.tokens(request, 0, length))  # [K, L, D]
        q = self._narrowed(inputs.q[inputs.queries(request)].float(), p.q_dtype)
        q = q.view(q_len, p.stored_kv_heads, p.group_size, -1).permute(1, 2, 0, 3).flatten(1, 2)  # [K, R, D]
        keys = self._narrowed(k, p.kv_dtype).transpose(1, 2)
        # Cutting these products too gave an N of 128 where an H100 has 16, and a largest estimate of 0.62 of its limit, not 1.09.
        products = q @ keys if self.how.cut == "products" else self._summed(torch.zeros(*q.shape[:2], length), q, keys)
        scores = products * (inputs.sm_scale * inputs.k_scale * LOG2_E)
        if (unseen := hidden(p, request, range(q_len), range(length), inputs.device)) is not None:
            scores.view(p.stored_kv_heads, p.group_size, q_len, length).masked_fill_(unseen, -torch.inf)
        sink = None if inputs.sinks is None else LOG2_E * inputs.sinks.repeat_interleave(q_len).view(p.stored_kv_heads, -1, 1)
        out, lse = self._merged(scores, self._narrowed(v, p.kv_dtype), sink)
        by_token = [t.view(p.stored_kv_heads, p.group_size, q_len, -1).permute(2, 0, 1, 3).flatten(1, 2) for t in (out, lse)]
        return by_token[0] * inputs.v_scale, by_token[1]

    def _merged(self, scores: Tensor, v: Tensor, sink: Tensor | None) -> tuple[Tensor, Tensor]:
        """Output [K, R, D_vo] and log-sum-exp of base 2 [K, R, 1] from all splits of the scores [K, R, L] of base 2."""
        n, length = self.schedule.splits, scores.shape[-1]
        bounds = itertools.pairwise(length * part // n for part in range(n + 1))
        parts = [range(*pair) for pair in bounds if pair[0] < pair[1]]
        found = [self._of_split(scores, v, keys, sink if number == 0 else None) for number, keys in enumerate(parts)]
        if len(found) == 1:
            return found[0]
        lses = torch.stack([lse for _, lse in found])
        peak = lses.amax(0)
        weights = _exp2(lses - peak)
        total = weights.sum(0)
        stored = torch.stack([out.to(torch_dtype(self.schedule.partial_dtype)).float() for out, _ in found])
        return (stored * weights).sum(0) / total, peak + total.log2()

    def _of_split(self, scores: Tensor, v: Tensor, keys: range, sink: Tensor | None) -> tuple[Tensor, Tensor]:
        """Output and log-sum-exp over these keys. A row that sees none of them has an output of 0 and minus infinity."""
        if self.schedule.normalised:
            known = scores[..., keys] if sink is None else torch.cat((scores[..., keys], sink), -1)
            lse = known.mul(math.log(2)).logsumexp(-1, keepdim=True) * LOG2_E
            weights = _exp2(scores[..., keys] - lse.nan_to_num(neginf=0.0))
            return self._narrowed(weights, "fp32") @ v[:, keys], lse
        first = sink if sink is not None and self.schedule.sink_first else None
        best = scores.new_full((*scores.shape[:2], 1), -torch.inf) if first is None else first
        total = torch.zeros_like(best) if first is None else torch.ones_like(best)
        acc = scores.new_zeros(*scores.shape[:2], v.shape[-1])
        starts = range(keys.start, keys.stop, self.schedule.tile)
        for start in reversed(starts) if self.schedule.backwards else starts:
            tile = slice(start, min(start + self.schedule.tile, keys.stop))
            peak = torch.maximum(best, scores[..., tile].amax(-1, keepdim=True))
            lowest = torch.where(peak.isinf(), 0.0, peak)
            weights = _exp2(scores[..., tile] - lowest) * self.schedule.scale
            narrow = self._narrowed(weights, "fp32")
            off = _rounding_of(best) if self.schedule.fused else 0.0
            rescale, added = _exp2(best - lowest + off), narrow if self.schedule.sums_rounded else weights
            total = total * rescale + added.sum(-1, keepdim=True) / self.schedule.scale
            acc, best = self._summed(acc * rescale, narrow, v[:, tile]), peak
        if sink is not None and first is None:
            top = torch.maximum(best, sink)
            shrunk = _exp2(best - top)
            total, acc, best = total * shrunk + _exp2(sink - top), acc * shrunk, top
        return acc / (total * self.schedule.scale).clamp_min(1e-30), best + total.log2()

    def _narrowed(self, t: Tensor, dtype: str) -> Tensor:
        """Numbers of this dtype as the kernel multiplies them: rounded, if it multiplies in a coarser one."""
        coarser = UNIT_ROUNDOFF[self.how.compute_dtype] > UNIT_ROUNDOFF[dtype]
        return rounded(t, torch_dtype(self.how.compute_dtype)).float() if coarser else t

    def _summed(self, acc: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """acc + a @ b, [K, R, n], in accumulators of the stated kind."""
        if self.how.accumulator_dtype == "fp32" and not self.how.cut:
            return acc + a @ b
        at_once = SUMMED_IN_8_BITS if self.how.cut else SUMMED_IN_FP16
        for at in range(0, a.shape[-1], at_once):
            part, other = a[..., at : at + at_once], b[:, at : at + at_once]
            if self.how.cut == "products":
                acc = _with_cut_products(acc, part, other)
            else:
                acc = acc + part @ other
                acc = _cut_off(acc, acc.abs(), CUT_DIGITS) if self.how.cut else acc.half().float()
        return acc


def _exp2(x: Tensor) -> Tensor:
    """2^x with the error of a GPU's approximation, which gives 1 for 0: a maximum that stays rescales nothing."""
    return x.exp2() * (1 + APPROXIMATE_EXP * (2 * torch.rand_like(x) - 1) * (x != 0))


def _rounding_of(logits: Tensor) -> Tensor:
    """By how much the product of such a logit of base e and log2(e) exceeds what fp32 makes of it. 0 if it is infinite."""
    exact = (logits / LOG2_E).double() * torch.tensor(LOG2_E).double()
    return (exact - exact.float()).nan_to_num(nan=0.0).float()


def _cut_off(numbers: Tensor, largest: Tensor, digits: int) -> Tensor:
    """Numbers with the digits that they have beside the largest of its own, the rest cut off towards zero."""
    unit = torch.exp2(largest.clamp_min(1e-30).log2().floor() - digits)
    return (numbers / unit).trunc() * unit


def _with_cut_products(acc: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """acc + a @ b, [K, R, n], where each product and `acc` have the digits that are left beside the largest of them."""
    products = a[..., None] * b[:, None]  # [K, R, C, n]
    largest = torch.maximum(products.abs().amax(2), acc.abs())
    return _cut_off(products, largest[:, :, None], PRODUCT_DIGITS).sum(2) + _cut_off(acc, largest, PRODUCT_DIGITS)
