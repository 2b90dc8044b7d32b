"""The right cache after a write, and what takes the place of attention's functions; `docs/adding_a_routine.md` says what each does.

What is written is the true number, rounded once. A kernel computes that in fp32: so an element may be any number between the
roundings of the true one less and plus `FP32` of it, in a rotated pair of the pair's length. A copy is exact. No other slot
changes.
"""

# T = new tokens of all requests, R = rows of a token in the cache, H = query heads, D = head_dim

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import Tensor

from kernels.check.answer import Answer
from kernels.check.changed_token import ChangedTokens
from kernels.check.judgement import impossible
from kernels.check.oracle import Verdict
from kernels.inputs.checksums import sum_of_words
from kernels.inputs.tensors import rounded
from kernels.problem.arithmetic import Arithmetic
from kernels.problem.dtypes import UNIT_ROUNDOFF
from kernels.routines.cache_write.inputs import WriteInputs, copied_tokens, draw, other_cache, redraw, small_inputs, write_values

__all__ = [
    "answer", "change_tokens", "checksums", "copied_tokens", "draw", "judge_changed", "judge_rows", "judge_whole",
    "other_cache", "poison_unused_slots", "redraw", "small_inputs", "write_values",
]  # fmt: skip
FP32 = 2.0**-21  # two products, their difference and a division, each rounded to fp32


@dataclass(frozen=True)
class WriteAnswer(Answer):
    """True elements in units of the cache: `out` [T, R, D] and `q` [T, H, D], and by how much arithmetic in fp32 may move each."""

    q: Tensor = field(kw_only=True)
    moved: tuple[Tensor, Tensor] = field(kw_only=True)

    def checksum(self) -> Tensor:
        return torch.stack([sum_of_words(one, True) for one in (self.out, self.q, *self.moved) if one.numel()]).sum()


def pairs(rows: Tensor, style: str) -> tuple[Tensor, Tensor]:
    """What is rotated together: elements of both halves of each row (neox), or neighbours (interleaved)."""
    half = rows.shape[-1] // 2
    return (rows[..., :half], rows[..., half:]) if style == "neox" else (rows[..., ::2], rows[..., 1::2])


def rotate(rows: Tensor, angles: Tensor, style: str) -> None:
    """Rotates rows [T, n, D] by angles [T, D] in place: Su et al., RoFormer, 2021, equation 34."""
    (a, b), (cos, sin) = pairs(rows, style), angles[:, None].chunk(2, -1)
    turned = a * cos - b * sin, b * cos + a * sin
    a.copy_(turned[0]), b.copy_(turned[1])


def true_rows(inputs: WriteInputs, **other: Any) -> list[Tensor]:
    """True rows [T, R, D] and queries [T, H, D] in units of the cache; with `other` angles, style, scale or q_scale wrong ones."""
    style, new, q = str(other.get("style", inputs.problem.axis("rope"))), inputs.new.float(), inputs.q.float()
    if style != "none":
        for rows in inputs.rotating(new, q):
            rotate(rows, other.get("angles", inputs.angles[inputs.position.long()]), style)
    return [new / other.get("scale", inputs.scale)[:, None], q / other.get("q_scale", inputs.q_scale)]


def answer(inputs: WriteInputs) -> WriteAnswer:
    rows, style, largest = true_rows(inputs), str(inputs.problem.axis("rope")), torch.finfo(inputs.pool.dtype).max
    moved = [FP32 * inputs.quantises * one.abs() for one in rows]
    if style != "none":
        for one, by in zip(inputs.rotating(*rows), inputs.rotating(*moved), strict=True):
            for part in pairs(by, style):
                part.copy_(FP32 * torch.hypot(*pairs(one, style)))
    new, q = (one.clamp(-largest, largest) for one in rows)
    none = new.new_zeros(1)
    return WriteAnswer(new, none, none, none, q=q, moved=(moved[0], moved[1]))


def checksums(inputs: WriteInputs) -> Tensor:
    """An int64 for each tensor."""
    tensors = [tensor for tensor in vars(inputs).values() if isinstance(tensor, Tensor) and tensor.numel()]
    return torch.stack([sum_of_words(tensor, of_vectors=tensor.dim() > 1) for tensor in tensors])


def poison_unused_slots(inputs: WriteInputs, value: float) -> None:
    """Every slot is compared as it is."""


def judge_rows(out: Tensor, inputs: WriteInputs, answer: WriteAnswer, how: Arithmetic) -> Verdict:
    """Compares a whole cache: elements of new tokens with the answer, and all other slots with what they held."""
    pool, other = inputs.pool, f"the cache is {out.dtype} {tuple(out.shape)}, not {inputs.pool.dtype} {tuple(inputs.pool.shape)}"
    if out.shape != pool.shape or out.dtype != pool.dtype:
        return Verdict(False, math.inf, math.inf, 1.0, other)
    written = inputs.by_slot(out)[inputs.at].view(out.dtype).view(answer.out.shape)
    verdict = _judged(written, answer.out, answer.moved[0], inputs, "row")
    changed = (inputs.by_slot(out) != inputs.by_slot(pool)).flatten(2).any(-1)
    changed[inputs.at] = False
    strays = int(changed.sum())
    return verdict.failed(f"it wrote into {strays} slots of other tokens, or of none") if strays else verdict


def judge_whole(out: Tensor, inputs: WriteInputs, answer: WriteAnswer, how: Arithmetic, lse: Tensor | None = None) -> Verdict:
    """Compares a cache, and with rope the queries `lse`, [T, H, D]."""
    verdict = judge_rows(out, inputs, answer, how)
    if words := impossible(inputs.problem, how):
        verdict = replace(verdict, passed=False, reason=words)
    if not answer.q.numel():
        return verdict
    if lse is None or lse.numel() != answer.q.numel() or lse.dtype != inputs.pool.dtype:
        return verdict.failed(f"the backend wrote no queries in {inputs.problem.kv_dtype}")
    queries = _judged(lse.view(answer.q.shape), answer.q, answer.moved[1], inputs, "query")
    return verdict if queries.passed else replace(verdict.failed(queries.reason), rel_err=max(verdict.rel_err, queries.rel_err))


def _judged(found: Tensor, right: Tensor, moved: Tensor, inputs: WriteInputs, what: str) -> Verdict:
    """Rows [T, n, D] of the cache's dtype, each element within its roundings."""
    wide, exact = found.float(), not inputs.quantises and inputs.problem.axis("rope") == "none"
    least, most = (rounded(right + sign * moved, found.dtype).float() for sign in (-1, 1))
    off = ~((wide >= least) & (wide <= most))  # also if it is NaN
    errors = (wide - right).norm(dim=-1) / right.norm(dim=-1).clamp_min(torch.finfo(torch.float32).tiny)
    worst, largest = (float(one.nan_to_num(nan=torch.inf).max()) for one in (errors, (wide - right).abs()))
    verdict = Verdict(True, worst, largest, UNIT_ROUNDOFF["fp32" if exact else inputs.problem.kv_dtype])
    if not (count := int(off.sum())):
        return verdict
    token, row = divmod(int(off.any(-1).flatten().nonzero()[0]), right.shape[1])
    return verdict.failed(
        f"{count} of {off.numel()} elements are not the true ones rounded, first in {what} {row} of token {token}"
    )


def change_tokens(inputs: WriteInputs, before: WriteAnswer, how: Arithmetic, coin: random.Random) -> list[ChangedTokens]:
    """Two changes: a token of each request turns its signs; and pages and angles are others."""
    starts = zip(inputs.problem.q_starts, inputs.problem.q_lens, strict=False)
    changes: tuple[list[int], ...] = [start + coin.randrange(count) for start, count in starts], []
    found = []
    for copied in changes:
        with copied_tokens(inputs, copied):
            found.append(ChangedTokens(copied, before.out.new_zeros(0), answer(inputs), len(copied)))
    return found


def judge_changed(out: Tensor, lse: Tensor | None, inputs: WriteInputs, changed: ChangedTokens, how: Arithmetic) -> Verdict:
    with copied_tokens(inputs, changed.copied):
        return judge_whole(out, inputs, cast("WriteAnswer", changed.answer), how, lse)
