"""The right answer after one token of the cache has changed: a kernel that keeps an answer or a copy does not give it."""

# Q = query tokens whose rows are judged, H = num_qo_heads, D = head_dim

from __future__ import annotations

import math
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
    from torch import Tensor

    from kernels.inputs import Inputs

TRIES = 16  # in 8 bits, with a tolerance of 0.155, one try in 5 moves a row far enough
VISIBLE = 3.0  # tolerances: an answer that did not change is off by more in some row
LEFT = 0.3  # of the weight of each row, and of its sum of weighted values: so no row rests on the roundings of what has gone


@dataclass(frozen=True)
class ChangedToken:
    """A token that becomes a copy of another of its request (`copied_token`), and the right answer of `rows` then.

    `rows` are the last query tokens of the request, at most `PLANTED`.
    """

    request: int
    source: int  # position of the token that is copied
    target: int  # position of the token that changes
    rows: slice
    answer: Answer


def choose_token(inputs: Inputs, answer: Answer, tolerance: float, coin: random.Random) -> ChangedToken | None:
    """A change by chance, of those that move a row by far more than its tolerance. None if a few tries found none.

    A planted key is heavy wherever it stands. So the token that changes may be any that the rows see.
    """
    p = inputs.problem
    for _ in range(TRIES):
        request = coin.randrange(p.batch_size)
        q_len, length = p.q_lens[request], p.kv_lens[request]
        drafts = range(length - min(q_len, PLANTED), length)
        source = coin.choice([*context_positions(p, q_len, length), *drafts])
        first = 0 if p.window is None else max(0, drafts.start - p.window + 1)
        found, left = _after(inputs, answer, request, source, coin.randrange(first, length))
        before, after = answer.out[found.rows], found.answer.out
        apart = (after - before).norm(dim=-1) / after.norm(dim=-1).clamp_min(TINY)
        if left >= LEFT and float(apart.max()) > VISIBLE * tolerance:
            return found
    return None


def _after(inputs: Inputs, answer: Answer, request: int, source: int, target: int) -> tuple[ChangedToken, float]:
    """The answer after the change, and how much a row has left at least: of its weight, or of the length of its sum of values.

    A row of weight 1 loses the target's weight w and value v, and gets those of the copy: (out - w v + w' v') / (1 - w + w').
    The value v' is the source's, with opposite sign if it is not MLA's. Which rows see the copy follows from the target's position.
    The weights come from a logit and a log-sum-exp in fp32, whose roundings are relative errors of w and w'. In fp32 these matter.
    """
    import torch

    queries = inputs.queries(request)
    rows = slice(max(queries.start, queries.stop - PLANTED), queries.stop)
    before, lse, peak, condition = (t[rows].double() for t in (answer.out, answer.lse, answer.peak, answer.condition))
    seen = _seen(inputs, request, target, len(lse))
    (old_logit, old), (logit, v) = (_logits_and_values(inputs, rows, request, one) for one in (target, source))
    new = v if inputs.problem.latent else -v
    lost, came = (torch.where(seen, (one - lse).exp(), 0.0) for one in (old_logit, logit))
    left = 1 - lost + came
    out = (before - lost[..., None] * old + came[..., None] * new) / left[..., None]
    size = out.norm(dim=-1).clamp_min(TINY)
    error = torch.zeros_like(size)
    for one, value, weight in ((old_logit, old, lost), (logit, new, came)):
        logits = relative_error_of_logit(inputs.problem, "fp32") * (one.abs() + peak.abs())
        rounded = logits + 2 * UNIT_ROUNDOFF["fp32"] * (one.abs() + lse.abs())
        error += rounded * weight / left * (value.norm(dim=-1) + size) / size
    # The source is there too, and two equal keys are rounded alike: if they add up, they are one key of weight 2 w, so 4 w^2.
    squares = (condition * before.norm(dim=-1)).square() + 3 * (came * new.norm(dim=-1)).square()
    of_softmax = _lse_and_peak(lse, peak, left, torch.where(seen, old_logit, -torch.inf), torch.where(seen, logit, -torch.inf))
    after = Answer(*(t.float() for t in (out, *of_softmax, squares.sqrt() / (size * left), error)))
    kept = size * left / before.norm(dim=-1).clamp_min(TINY)
    return ChangedToken(request, source, target, rows, after), float(left.minimum(kept).min())


def _seen(inputs: Inputs, request: int, position: int, count: int) -> Tensor:
    """Bool [Q, 1]: which of the last `count` query tokens of a request see this position."""
    import torch

    p = inputs.problem
    first = p.q_lens[request] - count
    unseen = hidden(p, request, range(first, first + count), range(position, position + 1), inputs.device)
    return torch.ones(count, 1, dtype=torch.bool, device=inputs.device) if unseen is None else ~unseen.expand(count, 1)


def _logits_and_values(inputs: Inputs, rows: slice, request: int, position: int) -> tuple[Tensor, Tensor]:
    """The logits of a token with these query tokens, whether they see it or not, fp64 [Q, H], and its value [1, H, D]."""
    import torch

    group = inputs.problem.group_size
    k, v = (t[0].float().repeat_interleave(group, 0) for t in inputs.tokens(request, position, position + 1))  # [H, D]
    with exact():
        logit = torch.einsum("qhd,hd->qh", inputs.q[rows].float(), k) * (inputs.sm_scale * inputs.k_scale)
    return logit.double(), v.double()[None] * inputs.v_scale


def _lse_and_peak(lse: Tensor, peak: Tensor, left: Tensor, lost: Tensor, came: Tensor) -> tuple[Tensor, Tensor]:
    """Log-sum-exp and largest logit after the change, [Q, H] each, from those before and the logits of both keys (-inf: unseen).

    Nobody knows the second largest logit. If the largest is lost, its row is told to be shared by several keys, which only widens
    its tolerance.
    """
    import torch

    shared = (lost >= peak - 1) & (came < peak)
    lse = lse.maximum(lse + left.clamp_min(TINY).log())
    return torch.where(shared, lse + math.log(2), lse), peak.maximum(came)
