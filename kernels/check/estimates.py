"""What estimates of key weights are made of: the rows of a KV head, their errors, and the probabilities of keys."""

# N = requests of equal lengths, K = stored KV heads, M = N * K, G = query heads of a KV head, Q = query tokens of a request,
# R = G * Q rows, C = keys of a chunk, D = head_dim_vo

from __future__ import annotations

import random
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from kernels.check.answer import Answer
from kernels.inputs import Inputs
from kernels.inputs.sentinel_logit import PLANTED, parts_of
from kernels.inputs.shifted_logits import without_shift
from kernels.inputs.tensors import bits, capped
from kernels.lazy import Tensor, torch
from kernels.problem import Problem
from kernels.problem.dtypes import UNIT_ROUNDOFF

# Of a row's weight. B of a heavier key or block is no longer near |p * (v - o)|^2 / s^2, and may be negative. A row leaves out such
# a key, and such a block is not tested, but its halves are. If so heavy a key is lost, its row is off by more than its tolerance.
MAX_BLOCK = 0.5
OF_FAULT = 4.0  # keys that are lost beside a block add their error: a run of N holds an aligned block of more than a quarter
NEARLY_ALL = 0.9  # of a row's weight: the row cannot show whether so heavy a key is counted once, since nothing is left
# Query tokens of a request whose rows are weighed, at most. The work grows with rows times keys: all rows of 4 prompts of 16,384
# tokens took 4.4 s on an H200, and a call 0.07 to 0.2 s. Fewer rows tell as much: a fault in all rows of a head shows in any of
# them, and a fault in few rows is lost in the mean over all, so those are compared one by one (`oracle.judge`).
WEIGHED_TOKENS = 2048
ROWS_AT_ONCE = PLANTED  # query tokens of a request
TINY = 1e-30

Kind = Literal["block", "pair", "edge", "gain"]  # edge: pairs of queries with keys at the edge of a window
Levels = tuple[tuple[int, int], ...]  # of blocks: how many keys each has, and how many blocks


@dataclass(frozen=True)
class KeyWeights:
    """Estimates of one kind for requests of equal lengths: c = a / b, where `a` varies by chance by `variance`. All have one shape.

    Blocks have shape [M, blocks of all levels]: block n of a level begins n blocks behind `start`. Pairs and edges have shape
    [M, Q, keys], for the queries of a request from `query` on and the keys from `start` on. A gain has shape [M, 1].
    """

    kind: Kind
    requests: tuple[int, ...]
    a: Tensor
    b: Tensor
    variance: Tensor
    start: int = 0
    query: int = 0
    levels: Levels = ()
    of_fault: Tensor | None = None  # of blocks, pairs and edges: how much more `variance` may become by a fault itself


@dataclass(frozen=True)
class RightRows:
    """Some query tokens of requests of equal lengths, alike for all backends. Rows: the query heads of a KV head at each token."""

    requests: tuple[int, ...]
    tokens: range
    part: Tensor  # int64 [N, Q]: where they lie in an output
    q: Tensor  # [M, R, D_qk], without what shifts their logits, and so is `lse`: products in bf16 would round it
    out: Tensor  # [M, R, D]: the right output
    size: Tensor  # [M, R, 1]: |out|^2
    lse: Tensor  # [M, R, 1]
    least: Tensor | None  # [M, R, 1]: keys of a smaller probability are left out
    least_noise: Tensor  # [M, R, 1]: the least |error|^2 of a right output

    @cached_property
    def on_device(self) -> Tensor:
        """The requests, int32 [N]."""
        return torch.tensor(self.requests, dtype=torch.int32).to(self.out.device, non_blocking=True)


@dataclass(frozen=True)
class Rows:
    """The rows of a backend's output."""

    right: RightRows
    error: Tensor  # [M, R, D], divided by the variance of an element's noise
    weight: Tensor  # [M, R, 1]: 1 / variance


@dataclass(frozen=True)
class OutputErrors:
    """An output's error and what it is weighed against."""

    inputs: Inputs
    answer: Answer
    error: Tensor  # fp32 [T, H, D]
    floor: float  # the least relative noise of a row
    least: Tensor | None = None  # fp32 [T, H]: the smallest probability that counts
    unsure: Tensor | None = None  # bool [T, H]: rows that say nothing of keys
    how: Hashable = None  # what `least` and `unsure` follow from, beside the answer
    in_8_bits: bool = False  # products are those of a tensor core that multiplies in 8 bits


def rows_of(errors: OutputErrors, requests: tuple[int, ...], tokens: range) -> Rows:
    """The rows of these query tokens. A row's noise is its own error, or `errors.floor` if that is more."""
    key = ("rows", requests, tokens, errors.floor, errors.how, errors.least is None)
    right = errors.answer.kept(key, lambda: _right_rows(errors, requests, tokens))
    error = _by_head(errors.inputs.problem, errors.error, right.part)
    noise = torch.maximum(error.square().sum(-1, keepdim=True), right.least_noise)
    weight = 1 / (noise.clamp_min(TINY) / error.shape[-1])
    if errors.unsure is not None:
        rows, place = errors.unsure, ("unsure", requests, tokens, errors.how)
        unsure = errors.answer.kept(place, lambda: _by_head(errors.inputs.problem, rows, right.part) > 0)
        weight = torch.where(unsure, 0.0, weight)
    return Rows(right, error * weight, weight)


def _right_rows(errors: OutputErrors, requests: tuple[int, ...], tokens: range) -> RightRows:
    """A row's noise is no less than the rounding of the log-sum-exps by which splits are merged: that error lies along the row's
    output, and is not spread over its elements. It counts in fp32 alone.
    """
    inputs, answer = errors.inputs, errors.answer
    part = inputs.query_rows(requests, tokens)
    q, out, lse = (_by_head(inputs.problem, t, part) for t in (inputs.q, answer.out, answer.lse))
    shift = _by_head(inputs.problem, torch.as_tensor(answer.shift).expand(answer.lse.shape), part)
    size = out.square().sum(-1, keepdim=True)
    floor = (2 * UNIT_ROUNDOFF["fp32"] * lse.abs()).clamp_min(errors.floor)
    least = None if errors.least is None else _by_head(inputs.problem, errors.least, part)
    q, lse = without_shift(inputs.problem, q), lse - shift
    return RightRows(requests, tokens, part, q, out, size, lse, least, size * floor**2)


def _by_head(p: Problem, t: Tensor, part: Tensor) -> Tensor:
    """Rows `part` [N, Q] of a tensor [T, H, ...] by KV head, fp32 [M, R, ...]."""
    picked = bits(t)[part].view(t.dtype).float().view(*part.shape, p.stored_kv_heads, p.group_size, -1)
    return picked.permute(0, 2, 3, 1, 4).flatten(2, 3).flatten(0, 1)


def weighed_parts(problem: Problem, q_len: int) -> list[range]:
    """The query tokens of a request that are weighed, by parts: all, or `WEIGHED_TOKENS` of them, the last part among these.

    The last part alone sees the last keys of a causal prompt. The others are drawn from the problem's seed: parts at equal
    distances might all lie at one place of a kernel's tiles. Under a window other tokens see other keys, so all are weighed.
    """
    parts = parts_of(q_len)
    most = WEIGHED_TOKENS // ROWS_AT_ONCE
    if len(parts) <= most or problem.window is not None:
        return parts
    whole = parts[int(len(parts[0]) < ROWS_AT_ONCE) : -1]
    drawn = random.Random(f"{problem.seed} {q_len}").sample(whole, most - 1)
    return [*sorted(drawn, key=lambda part: part.start), parts[-1]]


def keys_and_values(inputs: Inputs, requests: tuple[int, ...], keys: range) -> tuple[Tensor, Tensor]:
    """Keys and values as meant, [M, C, D] each: in bf16 on a GPU, since weights need no more, and in fp32 on a CPU."""
    dtype = torch.bfloat16 if inputs.device.type == "cuda" else torch.float32
    found, scales = inputs.tokens_of(requests, keys.start, keys.stop), (inputs.k_scale, inputs.v_scale)
    k, v = (found[i].transpose(1, 2).to(dtype).flatten(0, 1) * scales[i] for i in (0, 1))
    return k, v


def probabilities(inputs: Inputs, rows: RightRows, k: Tensor) -> Tensor:
    """[M, R, C]: what each row would give to each key; 0 under `rows.least`. The lse is two more columns of the product."""
    if inputs.problem.soft_cap is not None:
        logits = ((rows.q * inputs.sm_scale).to(k.dtype) @ k.transpose(1, 2)).float()
        return _of_weight(capped(logits, inputs.problem).sub_(rows.lse).exp_().to(k.dtype), rows)
    high = rows.lse.to(k.dtype)
    low = (rows.lse - high.float()).to(k.dtype)
    spare = -(k.shape[-1] + 2) % 8  # a row of a multiple of 16 bytes is multiplied faster
    q = torch.nn.functional.pad(torch.cat(((rows.q * inputs.sm_scale).to(k.dtype), -high, -low), -1), (0, spare))
    ones = torch.nn.functional.pad(k.new_ones(*k.shape[:2], 2), (0, spare))
    return _of_weight((q @ torch.cat((k, ones), -1).transpose(1, 2)).exp_(), rows)


def _of_weight(prob: Tensor, rows: RightRows) -> Tensor:
    """Probabilities, and 0 for those under `rows.least`."""
    return prob if rows.least is None else torch.where(prob < rows.least.to(prob.dtype), 0.0, prob)


def along_outputs(rows: Rows, levels: Sequence[Tensor]) -> Tensor:
    """[M, blocks of all levels]: in MLA, the part of A that lies along the rows' own outputs, O = sum of p * <e, o> / s^2.

    It is taken out of A, which has -O. Rows whose own outputs are off by a share of r have O = sum of p * r * |o|^2 / s^2: 1 / p
    times as much as keys that count 1 + r times. In MLA r is large: values are the first part of keys, and planted keys lie along
    queries, so few values are most of an output, and what rounds their weights moves it along itself.
    `levels` are the weights of single keys, then of blocks, [M, R, blocks] each.
    """
    own = (rows.error * rows.right.out).sum(-1, keepdim=True).transpose(1, 2)  # <e, o> / s^2, [M, 1, R]
    return torch.cat([(own.to(level.dtype) @ level).float() for level in levels], -1).squeeze(1)


def grid_of(inputs: Inputs, rows: RightRows, keys: range) -> tuple[int, int, int, int]:
    """[M, G, Q, C]"""
    p = inputs.problem
    return len(rows.requests) * p.stored_kv_heads, p.group_size, len(rows.tokens), len(keys)
