"""The right cache after a write, and how one is judged; `docs/routines.md` says what each function does.

What is written is the true number, rounded once. A kernel computes that in fp32: so an element may be any number between the
roundings of the true one less and plus `FP32` of it, in a rotated pair of the pair's length. A copy is exact.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

from kernels.check.answer import Answer
from kernels.check.changed_token import ChangedTokens
from kernels.check.judgement import impossible
from kernels.check.oracle import Verdict
from kernels.inputs.checksums import sum_of_words
from kernels.inputs.tensors import rounded
from kernels.lazy import Tensor, torch
from kernels.problem.arithmetic import Arithmetic
from kernels.problem.dtypes import UNIT_ROUNDOFF
from kernels.routines.cache_write import inputs as own
from kernels.routines.cache_write.inputs import WriteInputs, copied_tokens, pairs

draw, redraw, write_values, other_cache = own.draw, own.redraw, own.write_values, own.other_cache
FP32 = 2.0**-21  # two products, their difference and a division, each rounded to fp32


@dataclass(frozen=True)
class WriteAnswer(Answer):
    """What `WriteInputs.truth` says, as `out` and `q`, and by how much arithmetic in fp32 may move each element."""

    q: Tensor = field(kw_only=True)
    moved: list[Tensor] = field(kw_only=True)

    def checksum(self) -> Tensor:
        return torch.stack([sum_of_words(one, True) for one in (self.out, self.q, *self.moved) if one.numel()]).sum()


def answer(inputs: WriteInputs) -> WriteAnswer:
    rows, style, largest = inputs.truth(), str(inputs.problem.axis("rope")), torch.finfo(inputs.pool.dtype).max
    moved = [FP32 * inputs.quantises * one.abs() for one in rows]
    if style != "none":
        for one, by in zip(inputs.rotating(*rows), inputs.rotating(*moved), strict=True):
            for part in pairs(by, style):
                part.copy_(FP32 * torch.hypot(*pairs(one, style)))
    (new, q), none = (one.clamp(-largest, largest) for one in rows), rows[0].new_zeros(1)
    return WriteAnswer(new, none, none, none, q=q, moved=moved)


def judge_whole(out: Tensor, inputs: WriteInputs, answer: WriteAnswer, how: Arithmetic, lse: Tensor | None = None) -> Verdict:
    """Compares a whole cache, new tokens with the answer and all other slots with what they held, and with rope queries `lse`."""
    pool, q = inputs.pool, answer.q
    for found, right in ((out, pool), (lse, q.to(pool.dtype))):
        if right.numel() and (found is None or found.numel() != right.numel() or found.dtype != right.dtype):
            words = f"a cache or queries are {None if found is None else found.dtype}, not {right.dtype} {tuple(right.shape)}"
            return Verdict(False, math.inf, math.inf, 1.0, words)
    verdict = _judged(inputs.by_slot(out)[inputs.at].view(out.dtype), answer.out, answer.moved[0], inputs)
    if lse is not None and not (queries := _judged(lse.view(q.shape), q, answer.moved[1], inputs)).passed:
        verdict = queries.failed("of the queries")
    changed = (inputs.by_slot(out) != inputs.by_slot(pool)).flatten(2).any(-1)
    changed[inputs.at] = False
    if strays := int(changed.sum()):
        verdict = verdict.failed(f"it wrote into {strays} slots of other tokens, or of none")
    return verdict.failed(words) if (words := impossible(inputs.problem, how)) else verdict


def _judged(found: Tensor, right: Tensor, moved: Tensor, inputs: WriteInputs) -> Verdict:
    """Rows [T, ..., D] of the cache's dtype, each element within its roundings."""
    wide, exact = found.float(), not inputs.quantises and inputs.problem.axis("rope") == "none"
    least, most = (rounded(right + sign * moved, found.dtype).float() for sign in (-1, 1))
    off = ~((wide >= least) & (wide <= most))  # also if it is NaN
    errors = (wide - right).norm(dim=-1) / right.norm(dim=-1).clamp_min(torch.finfo(torch.float32).tiny)
    worst, largest = (float(one.nan_to_num(nan=torch.inf).max()) for one in (errors, (wide - right).abs()))
    verdict = Verdict(True, worst, largest, UNIT_ROUNDOFF["fp32" if exact else inputs.problem.kv_dtype])
    if not (count := int(off.sum())):
        return verdict
    return verdict.failed(f"{count} of {off.numel()} elements are not the true ones rounded, first at {off.nonzero()[0].tolist()}")


def change_tokens(inputs: WriteInputs, before: WriteAnswer, how: Arithmetic, coin: random.Random) -> list[ChangedTokens]:
    """Three changes: a token of one request turns its signs, then one of each other request; and pages and angles are others.

    A kernel that looks at some tokens before it writes from memory sees a change of all requests together.
    """
    starts = zip(inputs.problem.q_starts, inputs.problem.q_lens, strict=False)
    tokens = [start + coin.randrange(count) for start, count in starts]
    coin.shuffle(tokens)
    found = []
    for copied in (*filter(None, (tokens[:1], tokens[1:])), []):
        with copied_tokens(inputs, copied):
            found.append(ChangedTokens(copied, before.out.new_zeros(0), answer(inputs), len(copied)))
    return found
