"""The right answer after one token of the cache has changed: a kernel that keeps an answer or a copy does not give it."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernels.check.answer import Answer
from kernels.check.estimates import TINY
from kernels.check.precision import exact
from kernels.check.tolerance import relative_error_of_logit
from kernels.inputs.masks import hidden
from kernels.inputs.sentinel_keys import context_positions
from kernels.inputs.sentinel_logit import PLANTED
from kernels.problem.dtypes import UNIT_ROUNDOFF

if TYPE_CHECKING:
    from kernels.inputs import Inputs

TRIES = 8
VISIBLE = 3.0  # tolerances: an answer that did not change is off by more in some row
LEFT = 0.3  # of the weight of each row: what the token leaves or brings, so that no row rests on the roundings of the others


@dataclass(frozen=True)
class ChangedToken:
    """A token whose key and value get opposite signs (`flip_token`), and the right answer of `rows` then.

    `rows` are the last query tokens of its request, at most `PLANTED`. Peaks and log-sum-exps of the answer are the larger ones of
    before and after, since they only widen the tolerance.
    """

    request: int
    position: int
    rows: slice
    answer: Answer


def choose_token(inputs: Inputs, answer: Answer, tolerance: float, coin: random.Random) -> ChangedToken | None:
    """A token by chance, of those that a row depends on by far more than its tolerance. None if a few tries found none."""
    p = inputs.problem
    for _ in range(TRIES):
        request = coin.randrange(p.batch_size)
        q_len, length = p.q_lens[request], p.kv_lens[request]
        drafts = range(length - min(q_len, PLANTED), length)
        position = coin.choice([*context_positions(p, q_len, length), *drafts])
        found, left = _after(inputs, answer, request, position)
        before = answer.out[found.rows]
        after = found.answer.out
        apart = (after - before).norm(dim=-1) / after.norm(dim=-1).clamp_min(1e-30)
        if left >= LEFT and float(apart.max()) > VISIBLE * tolerance:
            return found
    return None


def _after(inputs: Inputs, answer: Answer, request: int, position: int) -> tuple[ChangedToken, float]:
    """The answer after the change, and the least weight that a row has then, beside its weight before.

    A row of weight 1 loses the token's weight w and value v, and gets w' and -v: (out - w v - w' v) / (1 - w + w').
    The weights come from a logit and a log-sum-exp in fp32, whose roundings are relative errors of w and w'. In fp32 these matter.
    In double precision w' overflows for no logit: one of -100 becomes one of 100.
    """
    import torch

    p, queries = inputs.problem, inputs.queries(request)
    rows = slice(max(queries.start, queries.stop - PLANTED), queries.stop)
    count, heads = rows.stop - rows.start, p.num_qo_heads
    k, v = (t[0].float().repeat_interleave(p.group_size, 0) for t in inputs.tokens(request, position, position + 1))  # [H, D]
    with exact():
        logit = torch.einsum("qhd,hd->qh", inputs.q[rows].float(), k) * (inputs.sm_scale * inputs.k_scale)
    before, lse, peak = (t[rows].double() for t in (answer.out, answer.lse, answer.peak))
    lost, came = ((sign * logit.double() - lse).exp()[..., None] for sign in (1, -1))  # [Q, H, 1]
    first = p.q_lens[request] - count
    turned = -logit.double()
    if (unseen := hidden(p, request, range(first, first + count), range(position, position + 1), inputs.device)) is not None:
        lost, came = (torch.where(unseen.view(count, 1, 1), 0.0, weight) for weight in (lost, came))
        turned = torch.where(unseen.view(count, 1), peak, turned)
    v, left = v.double().expand(count, heads, -1) * inputs.v_scale, 1 - lost + came
    out = (before - (lost + came) * v) / left
    size = out.norm(dim=-1).clamp_min(TINY)
    logits = relative_error_of_logit(p, "fp32") * (logit.abs() + peak.abs())
    rounded = logits + 2 * UNIT_ROUNDOFF["fp32"] * (logit.abs() + lse.abs())
    error = rounded * ((lost + came) / left).squeeze(-1) * (v.norm(dim=-1) + size) / size
    condition = answer.condition[rows] * before.norm(dim=-1) / (size * left.squeeze(-1))
    lse, peak = lse.maximum(lse + left.squeeze(-1).clamp_min(TINY).log()), peak.maximum(turned)
    after = Answer(out.float(), lse.float(), peak.float(), condition.float(), error.float())
    return ChangedToken(request, position, rows, after), float(left.min())
