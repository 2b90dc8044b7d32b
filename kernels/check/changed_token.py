"""The right answer after one token of the cache has changed: a kernel that keeps an answer or a copy does not give it."""

# n = changes that are tried together, Q = query tokens whose rows are judged, H = num_qo_heads, K = stored KV heads, D = head_dim

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from kernels.check.answer import Answer
from kernels.check.estimates import TINY
from kernels.check.oracle import exact
from kernels.check.tolerance import relative_error_of_logit
from kernels.inputs import Inputs
from kernels.inputs.masks import hidden
from kernels.inputs.nvfp4 import dequantize
from kernels.inputs.sentinel_keys import context_positions
from kernels.inputs.sentinel_logit import PLANTED
from kernels.inputs.tensors import bits, token_major
from kernels.problem import Problem
from kernels.problem.dtypes import UNIT_ROUNDOFF

TRIES = 16  # in 8 bits, with a tolerance of 0.155, one try in 5 moves a row far enough
# Elements of the outputs [n, Q, H, D] that are computed at once: on a GPU 16 tries take as long as one, which is some hundred small
# kernels and a wait for the device.
AT_ONCE = 2**20
VISIBLE = 3.0  # tolerances: an answer that did not change is off by more in some row
LEFT = 0.3  # of the weight of each row, and of its sum of weighted values: so no row rests on the roundings of what has gone


class Change(NamedTuple):
    """The token of a request at `target` becomes a copy of that at `source`."""

    request: int
    source: int
    target: int


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
    drawn = _drawn(p, coin)
    at_once = max(1, AT_ONCE // (min(max(p.q_lens), PLANTED) * p.num_qo_heads * p.value_dim))
    for at in range(0, TRIES, at_once):
        after = After(inputs, answer, drawn[at : at + at_once])
        for number, (left, apart) in enumerate(zip(*after.left_and_apart(), strict=True)):
            if left >= LEFT and apart > VISIBLE * tolerance:
                return after.token(number)
    return None


def _drawn(problem: Problem, coin: random.Random) -> list[Change]:
    """As many changes as are tried: a sentinel token of a request, and a token that its last query tokens see."""
    found, sentinels = [], dict[tuple[int, int], list[int]]()
    for _ in range(TRIES):
        request = coin.randrange(problem.batch_size)
        lengths = q_len, length = problem.q_lens[request], problem.kv_lens[request]
        drafts = range(length - min(q_len, PLANTED), length)
        if lengths not in sentinels:
            sentinels[lengths] = [*context_positions(problem, q_len, length), *drafts]
        first = 0 if problem.window is None else max(0, drafts.start - problem.window + 1)
        source = coin.choice(sentinels[lengths])
        found.append(Change(request, source, _other(source, range(first, length), coin)))
    return found


def _other(source: int, seen: range, coin: random.Random) -> int:
    """A position by chance of those that are `seen`, and not `source`: a key copied onto itself does not change."""
    if source not in seen or len(seen) == 1:
        return coin.choice(seen)
    drawn = coin.randrange(seen.start, seen.stop - 1)
    return drawn + (drawn >= source)


class After:
    """The answers after each of some changes, one at a time: those of the last `Q` query tokens of each change's request.

    A shorter request has its first query token several times, in front.
    """

    def __init__(self, inputs: Inputs, answer: Answer, changes: Sequence[Change]) -> None:
        p = inputs.problem
        self.inputs, self.changes = inputs, changes
        self.counts = [min(p.q_lens[one.request], PLANTED) for one in changes]
        most = max(self.counts)
        stops = [inputs.queries(one.request).stop for one in changes]
        rows = [[max(stop - most + i, stop - count) for i in range(most)] for stop, count in zip(stops, self.counts, strict=True)]
        tokens = [(one.request, one.target) for one in changes] + [(one.request, one.source) for one in changes]
        places = [(request, *divmod(at, p.slots_per_page)) for request, at in tokens]
        parts = torch.tensor(rows).flatten(), self._seen(most).flatten().long(), torch.tensor(places).T.flatten()
        there = torch.cat(parts).to(inputs.device)  # in one transfer, since each waits for the device
        shape, each = (len(changes), most), len(changes) * most
        self.rows, self.seen = there[:each].view(shape), there[each : 2 * each].view(*shape, 1).bool()
        self.places = there[2 * each :].view(3, -1)  # of the tokens that change, then of those they become: request, page, slot
        self.before = answer.out[self.rows]
        of_softmax = answer.kept("of softmax", lambda: torch.stack((answer.lse, answer.peak, answer.condition)).double())
        self.of_softmax = of_softmax[:, self.rows]

    def token(self, number: int) -> ChangedToken:
        """A change, and the right answer of its request's rows."""
        change, count = self.changes[number], self.counts[number]
        stop = self.inputs.queries(change.request).stop
        answer, _ = self._answer_and_left
        own = [getattr(answer, one.name)[number, -count:] for one in fields(answer)]
        return ChangedToken(*change, slice(stop - count, stop), Answer(*own))

    def left_and_apart(self) -> list[list[float]]:
        """Of each change, in one transfer: how much a row has left at least, of its weight or of the length of its sum of values,
        and by how much of its length some row moves.
        """
        answer, left = self._answer_and_left
        apart = (answer.out - self.before).norm(dim=-1) / answer.out.norm(dim=-1).clamp_min(TINY)
        found: list[list[float]] = torch.stack((left, apart.flatten(1).amax(1).double())).tolist()
        return found

    @cached_property
    def _answer_and_left(self) -> tuple[Answer, Tensor]:
        """The answers after the changes, fp32 [n, Q, H, ...], and what a row has left at least, fp64 [n].

        A row of weight 1 loses the target's weight w and value v, and gets those of the copy: (out - w v + w' v') / (1 - w + w').
        The value v' is the source's, with opposite sign if it is not MLA's. Which rows see the copy follows from the target's
        position. The weights come from a logit and a log-sum-exp in fp32, whose roundings are relative errors of w and w'. In fp32
        these matter.
        """
        before, (lse, peak, condition), seen = self.before.double(), self.of_softmax, self.seen
        logits, (old, v) = self._logits_and_values()  # of both tokens
        new = v if self.inputs.problem.latent else -v
        weights = lost, came = torch.where(seen, (logits - lse).exp(), 0.0)
        left = 1 - lost + came
        out = (before - lost[..., None] * old + came[..., None] * new) / left[..., None]
        size, size_before = out.norm(dim=-1).clamp_min(TINY), before.norm(dim=-1)
        lengths, sizes_of_logits = torch.stack((old, v)).norm(dim=-1), logits.abs()
        rounded = relative_error_of_logit(self.inputs.problem, "fp32") * (sizes_of_logits + peak.abs())
        rounded += 2 * UNIT_ROUNDOFF["fp32"] * (sizes_of_logits + lse.abs())
        errors = rounded * weights / left * (lengths + size) / size
        # The source is there too, and two equal keys are rounded alike: if they add up, they are one key of weight 2 w, so 4 w^2.
        squares = (condition * size_before).square() + 3 * (came * lengths[1]).square()
        of_softmax = _lse_and_peak(lse, peak, left, *torch.where(seen, logits, -torch.inf))
        after = Answer(*(t.float() for t in (out, *of_softmax, squares.sqrt() / (size * left), errors[0] + errors[1])))
        kept = size * left / size_before.clamp_min(TINY)
        return after, left.minimum(kept).flatten(1).amin(1)

    def _seen(self, most: int) -> Tensor:
        """Bool [n, Q]: which of the query tokens see the target of their change. Found on the CPU."""
        p = self.inputs.problem
        seen = torch.ones(len(self.changes), most, dtype=torch.bool)
        for one, change, count in zip(seen, self.changes, self.counts, strict=True):
            q_len = p.q_lens[change.request]
            unseen = hidden(
                p, change.request, range(q_len - count, q_len), range(change.target, change.target + 1), torch.device("cpu")
            )
            if unseen is not None:
                one[most - count :] = ~unseen.expand(count, 1)[:, 0]
                one[: most - count] = one[most - count].item()
        return seen

    def _logits_and_values(self) -> tuple[Tensor, Tensor]:
        """The logits of the targets, then of the sources, with the query tokens, whether they see them or not, fp64 [2, n, Q, H],
        and their values [2, n, 1, H, D].
        """
        inputs, two = self.inputs, (2, len(self.changes))
        k, v = (t.float().repeat_interleave(inputs.problem.group_size, 1) for t in self._stored())  # [2 * n, H, D]
        q = bits(inputs.q)[self.rows].view(inputs.q.dtype).float()
        with exact():
            logit = torch.einsum("nqhd,nhd->nqh", torch.cat((q, q)), k) * (inputs.sm_scale * inputs.k_scale)
        return logit.double().view(*two, *logit.shape[1:]), (v.double()[:, None] * inputs.v_scale).view(*two, 1, *v.shape[1:])

    def _stored(self) -> list[Tensor]:
        """Key and value of the tokens at `places` as stored, [2 * n, K, D]; nvfp4 widened to fp32."""
        inputs, (request, page, slot) = self.inputs, self.places
        at = inputs.page_table[request, page].long(), slot

        def picked(caches: Sequence[Tensor]) -> list[Tensor]:
            return [bits(token_major(inputs.problem, cache))[at].view(cache.dtype) for cache in caches]

        if inputs.kv_scales is None:
            return picked(inputs.kv)
        return [dequantize(*pair) for pair in zip(picked(inputs.kv), picked(inputs.kv_scales), strict=True)]


def _lse_and_peak(lse: Tensor, peak: Tensor, left: Tensor, lost: Tensor, came: Tensor) -> tuple[Tensor, Tensor]:
    """Log-sum-exp and largest logit after the change, [Q, H] each, from those before and the logits of both keys (-inf: unseen).

    Nobody knows the second largest logit. If the largest is lost, its row is told to be shared by several keys, which only widens
    its tolerance.
    """
    shared = (lost >= peak - 1) & (came < peak)
    lse = lse.maximum(lse + left.clamp_min(TINY).log())
    return torch.where(shared, lse + math.log(2), lse), peak.maximum(came)
