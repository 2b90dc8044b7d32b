"""The right answer after tokens of the cache have changed: a kernel that keeps an answer or a copy does not give it."""

# n = changes that are tried together, Q = query tokens whose rows are judged, H = num_qo_heads, K = stored KV heads, G = H / K,
# m = tokens that change, D = head_dim

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import chain, zip_longest
from typing import Any, NamedTuple

from kernels.check.answer import Answer
from kernels.check.estimates import TINY
from kernels.check.oracle import exact, sizes
from kernels.check.tolerance import relative_error_of_logit, row_tolerances
from kernels.inputs import Inputs
from kernels.inputs.copied_tokens import Copied
from kernels.inputs.masks import seen_to, sees
from kernels.inputs.nvfp4 import dequantize
from kernels.inputs.sentinel_keys import context_positions
from kernels.inputs.sentinel_logit import PLANTED, parts_of
from kernels.inputs.tensors import bits, capped, token_major
from kernels.lazy import Tensor, torch
from kernels.problem import Problem
from kernels.problem.arithmetic import Arithmetic
from kernels.problem.dtypes import UNIT_ROUNDOFF
from kernels.problem.routine import by_routine

# Of one request at a time. In 8 bits, with a tolerance of 0.155, one try in 5 moves a row far enough. And of all requests together:
# Python draws each.
TRIES, DRAWN = 16, 128
# Drawn parts of all prompts together, their last apart, and one of each at least: an answer kept for half of every prompt is missed
# once in 64.
PARTS = 6
# Tokens of a request that change. Few are hard to notice for a kernel that looks at some tokens before it answers from memory. More
# of them move an answer where the arithmetic hides one: as many copies of a heavy key take over its row.
TOKENS = (1, 8, 64)
# Elements of the outputs [n, Q, H, D] that are computed at once: on a GPU 16 tries take as long as one, which is some hundred small
# kernels and a wait for the device.
AT_ONCE = 2**22
VISIBLE = 3.0  # tolerances: an answer that did not change is off by more in some row
LEFT = 0.3  # of the weight of each row, and of its sum of weighted values: so no row rests on the roundings of what has gone


class Change(NamedTuple):
    """The tokens of a request at `targets` become copies of that at `source`; the query tokens before `stop` are judged."""

    request: int
    stop: int
    source: int
    targets: tuple[int, ...]


@dataclass(frozen=True)
class ChangedTokens:
    """Tokens that become copies of others for one launch, and the right answer of `rows` then.

    `rows` int64 [n] are query tokens, at most `PLANTED`, of each request that changes. So many `requests` change by tokens of their
    own that their last rows see, and in each a kernel that gives its answer of before is off by more than a right one may be.
    """

    copied: Sequence[Any]  # of `Copied`; a routine of a folder says otherwise what changes, in lists of numbers
    rows: Tensor
    answer: Answer
    requests: int


@by_routine
def change_tokens(inputs: Inputs, answer: Answer, how: Arithmetic, coin: random.Random) -> list[ChangedTokens]:
    """Changes by chance, of those that move a row by far more than its tolerance: in each request where a few tries found one.

    A planted key is heavy wherever it stands. So the tokens that change may be any that the rows see. One request changes alone,
    then all others together: a kernel that looks at some tokens before it answers from memory sees more of many changes. Tokens of
    a shared prefix are every request's. Those that earlier query tokens of prompts see change last.
    """
    own = chain.from_iterable(_of_requests(inputs, answer, how, coin, group) for group in inputs.problem.apart)
    return [*own, *_of_prefix(inputs, answer, how, coin), *_of_parts(inputs, answer, how, coin)]


def _of_requests(
    inputs: Inputs, answer: Answer, how: Arithmetic, coin: random.Random, requests: Sequence[int]
) -> Iterator[ChangedTokens]:
    """Tokens of each of these requests that are no other's of them, of one request and of the others."""
    p = inputs.problem
    shown = _shown(inputs, answer, how, coin, {request: p.q_lens[request] for request in requests if p.kv_lens[request]})
    coin.shuffle(shown)
    for some in filter(None, (shown[:1], shown[1:])):
        yield _together(inputs, some, len(some))


def _of_parts(inputs: Inputs, answer: Answer, how: Arithmetic, coin: random.Random) -> Iterator[ChangedTokens]:
    """Tokens that drawn parts of prompts see, but for the last part: one part of each request at a time."""
    p = inputs.problem
    for group in p.apart:
        of_each = {
            one: [part.stop for part in parts_of(p.q_lens[one])[:-1] if part.start + p.kv_lens[one] >= p.q_lens[one]]
            for one in group
        }
        drawn = [coin.sample(stops, min(len(stops), -(-PARTS // len(group)))) for stops in of_each.values()]
        for each in zip_longest(*drawn):
            if shown := _shown(inputs, answer, how, coin, {one: stop for one, stop in zip(group, each, strict=True) if stop}):
                yield _together(inputs, shown, 0)


def _shown(inputs: Inputs, answer: Answer, how: Arithmetic, coin: random.Random, stops: dict[int, int]) -> list[_Try]:
    """Of each of these requests, up to its query token `stop`, the first change found that shows, with as few tokens as can be."""
    shown, missing = list[_Try](), list(stops)
    for tokens in TOKENS:
        room = min(DRAWN, AT_ONCE // _elements_of_rows(inputs.problem)) // max(1, len(missing))
        tries = range(max(1, min(TRIES, room)))
        drawn = [_drawn(inputs.problem, request, stops[request], tokens, coin) for request in missing for _ in tries]
        first = {one.change.request: one for one in reversed(list(_tried(inputs, answer, how, drawn))) if one.shows}
        shown += first.values()
        missing = [request for request in missing if request not in first]
    return shown


def _of_prefix(inputs: Inputs, answer: Answer, how: Arithmetic, coin: random.Random) -> Iterator[ChangedTokens]:
    """Tokens of the shared prefix, if there is one and some change of it shows."""
    p = inputs.problem
    prefix = range(p.prefix_tokens)
    for tokens in [count for count in TOKENS if count < len(prefix) for _ in range(TRIES)]:
        source, *targets = coin.sample(prefix, 1 + tokens)
        changes = [Change(request, p.q_lens[request], source, tuple(targets)) for request in range(p.batch_size)]
        tried = list(_tried(inputs, answer, how, changes))
        if any(one.shows for one in tried):
            some = [one for one in tried if one.left >= LEFT]
            yield replace(_together(inputs, some, 0), copied=tuple(_copies(tried[0].change)))
            return


def _copies(change: Change) -> Iterator[Copied]:
    return (Copied(change.request, change.source, target) for target in change.targets)


def _drawn(problem: Problem, request: int, stop: int, tokens: int, coin: random.Random) -> Change:
    """A sentinel token of a request, and so many that its query tokens before `stop` see and that no other request has."""
    q_len, length = problem.q_lens[request], problem.kv_lens[request]
    rows, before = range(max(0, stop - PLANTED), stop), length - q_len
    own = range(max(0, before + rows.start), before + stop)
    first = 0 if problem.window is None else max(0, own.start - problem.window + 1)
    seen = range(max(first, problem.prefix_tokens), seen_to(problem, request, rows))
    source = coin.choice([*(context_positions(problem, q_len, length) if stop == q_len else ()), *own])
    return Change(request, stop, source, _others(source, seen, tokens, coin))


def _others(source: int, seen: range, count: int, coin: random.Random) -> tuple[int, ...]:
    """Positions by chance of those that are `seen`, without `source`: a key copied onto itself does not change."""
    if len(seen) == 1:
        return tuple(seen)
    drawn = coin.sample(range(seen.start, seen.stop - (source in seen)), min(count, len(seen) - (source in seen)))
    return tuple(one + (source in seen and one >= source) for one in drawn)


@dataclass(frozen=True)
class _Try:
    """A change, the answers among which its own is, and what it does: how much a row has left at least, and by how many tolerances
    some row moves.
    """

    after: After
    number: int
    left: float
    apart: float

    @property
    def change(self) -> Change:
        return self.after.changes[self.number]

    @property
    def shows(self) -> bool:
        return self.left >= LEFT and self.apart > VISIBLE


def _elements_of_rows(p: Problem) -> int:
    return min(max(p.q_lens), PLANTED) * p.num_qo_heads * p.value_dim


def _tried(inputs: Inputs, answer: Answer, how: Arithmetic, changes: Sequence[Change]) -> Iterator[_Try]:
    at_once = max(1, AT_ONCE // _elements_of_rows(inputs.problem))
    for at in range(0, len(changes), at_once):
        after = After(inputs, answer, changes[at : at + at_once])
        for number, (left, apart) in enumerate(zip(*after.left_and_apart(how), strict=True)):
            yield _Try(after, number, left, apart)


def _together(inputs: Inputs, tried: Sequence[_Try], requests: int) -> ChangedTokens:
    """Changes of different requests as one, with the answers of all."""
    parts: dict[int, list[_Try]] = {}
    for one in tried:
        parts.setdefault(id(one.after), []).append(one)
    answers = [some[0].after.picked([one.number for one in some]) for some in parts.values()]
    rows, *of_answer = (torch.cat(of_parts) for of_parts in zip(*answers, strict=True))
    return ChangedTokens(tuple(copied for one in tried for copied in _copies(one.change)), rows, Answer(*of_answer), requests)


class After:
    """The answers after each of some changes: the last `Q` query tokens before its `stop`, the first several times if fewer."""

    def __init__(self, inputs: Inputs, answer: Answer, changes: Sequence[Change]) -> None:
        p = inputs.problem
        self.inputs, self.changes = inputs, changes
        self.counts = [min(one.stop, PLANTED) for one in changes]
        self.most, width = max(self.counts), max(len(one.targets) for one in changes)
        numbers = [
            [one.request, p.q_starts[one.request], p.kv_lens[one.request], p.q_lens[one.request], one.stop, count, one.source]
            + [*one.targets]
            + [-1] * (width - len(one.targets))
            for one, count in zip(changes, self.counts, strict=True)
        ]
        request, start, length, q_len, stop, count, *tokens = (
            torch.tensor(numbers).to(inputs.device, non_blocking=True).T[:, :, None]
        )
        token = (stop - self.most + torch.arange(self.most, device=inputs.device)).maximum(stop - count)  # [n, Q]
        self.rows, places = start + token, torch.cat(tokens, 1)  # the source, then the targets: [n, 1 + m]
        own, targets = (length - q_len + token)[..., None], places[:, None, 1:]
        self.seen = (sees(p, own, token[..., None], targets) & (targets >= 0))[:, :, None, None]  # [n, Q, 1, 1, m]
        self.places = request, places.clamp_min(0)
        self.before = self._by_head(answer.out[self.rows])
        each = answer.lse, answer.peak, answer.condition, torch.as_tensor(answer.shift).expand_as(answer.lse)
        of_softmax = answer.kept("of softmax", lambda: torch.stack(each).double())
        self.of_softmax = self._by_head(of_softmax[:, self.rows, :, None])

    def _by_head(self, t: Tensor) -> Tensor:
        """[..., H, D] as [..., K, G, D]."""
        return t.view(*t.shape[:-2], self.inputs.problem.stored_kv_heads, -1, t.shape[-1])

    def picked(self, numbers: Sequence[int]) -> tuple[Tensor, ...]:
        """The rows of some changes, int64 [rows], and their right answers, as the fields of `Answer`."""
        of_each = [range((number + 1) * self.most - self.counts[number], (number + 1) * self.most) for number in numbers]
        at = torch.tensor([row for rows in of_each for row in rows]).to(self.rows.device, non_blocking=True)
        answer, _ = self._answer_and_left
        return tuple(t.flatten(0, 1)[at] for t in (self.rows, *(getattr(answer, one.name) for one in fields(answer))))

    def left_and_apart(self, how: Arithmetic) -> list[list[float]]:
        """Of each change, in one transfer: how much a row has left at least, of its weight or of the length of its sum of values,
        and by how many of its tolerances some row moves.
        """
        answer, left = self._answer_and_left
        moved = (answer.out - self.before.flatten(2, 3)).norm(dim=-1) / sizes(answer.out)
        apart = (moved / row_tolerances(self.inputs, answer, how)).flatten(1).amax(1)
        found: list[list[float]] = torch.stack((left, apart.double())).tolist()
        return found

    @cached_property
    def _answer_and_left(self) -> tuple[Answer, Tensor]:
        """The answers after the changes, fp32 [n, Q, H, ...], and what a row has left at least, fp64 [n].

        A row of weight 1 loses the targets' weights w and values v, and gets those of the copies:
        (out - sum of w v + sum of w' v') / (1 - sum of w + sum of w'). The value v' is the source's, with opposite sign if it is
        not MLA's. Which rows see a copy follows from its target's position. The weights come from a logit and a log-sum-exp in
        fp32, whose roundings are relative errors of w and w'. In fp32 these matter.
        """
        before, (lse, peak, condition, shift), seen = self.before.double(), self.of_softmax, self.seen
        logits, values = self._logits_and_values()  # of the source and of the targets
        v, old = values[:, :1], values[:, 1:]
        new = v if self.inputs.problem.latent else -v
        weights = torch.where(seen, (logits - lse).exp()[..., 1:], 0.0)
        each = (logits[..., :1] - lse).exp()  # the weight of one copy
        copies = seen.sum(-1, keepdim=True)
        came = copies * each
        left = 1 - weights.sum(-1, keepdim=True) + came
        out = (before - _sums(weights, old) + came * _sums(torch.ones_like(each), new)) / left
        size, size_before = _lengths(out).clamp_min(TINY), _lengths(before)
        lengths, sizes_of_logits = values.norm(dim=-1).transpose(1, 2)[:, None, :, None], logits.abs()  # [n, 1, K, 1, 1 + m]
        rounded = relative_error_of_logit(self.inputs.problem, "fp32") * (sizes_of_logits + peak.abs() + shift.abs())
        rounded += 2 * UNIT_ROUNDOFF["fp32"] * (sizes_of_logits + lse.abs())
        errors = rounded * torch.cat((came, weights), -1) / left * (lengths + size) / size
        # The source is there too, and equal keys are rounded alike: if they add up, they are one key of weight (1 + copies) w.
        squares = (condition * size_before).square() + ((1 + copies).square() - 1) * (each * lengths[..., :1]).square()
        logits_lost = torch.where(seen, logits[..., 1:], -torch.inf).amax(-1, keepdim=True)
        of_softmax = _lse_and_peak(lse, peak, left, logits_lost, torch.where(copies > 0, logits[..., :1], -torch.inf))
        found = (*of_softmax, squares.sqrt() / (size * left), shift, errors.sum(-1, keepdim=True))
        after = Answer(out.float().flatten(2, 3), *(t.float().flatten(2) for t in found))
        kept = size * left / size_before.clamp_min(TINY)
        return after, left.minimum(kept).flatten(1).amin(1)

    def _logits_and_values(self) -> tuple[Tensor, Tensor]:
        """The logits of the sources, then of the targets, with the query tokens, whether they see them or not, fp64
        [n, Q, K, G, 1 + m], and their values [n, 1 + m, K, D].
        """
        inputs = self.inputs
        k, v = (t.float() for t in self._stored())  # [n, 1 + m, K, D]
        q = self._by_head(bits(inputs.q)[self.rows].view(inputs.q.dtype).float())
        with exact():
            logit = torch.einsum("nqkgd,nmkd->nqkgm", q, k) * (inputs.sm_scale * inputs.k_scale)
        return capped(logit, inputs.problem).double(), v.double() * inputs.v_scale

    def _stored(self) -> list[Tensor]:
        """Key and value of the tokens at `places` as stored, [n, 1 + m, K, D]; nvfp4 widened to fp32."""
        inputs, (request, place), n = self.inputs, self.places, self.inputs.problem.slots_per_page
        at = inputs.page_table[request, place // n].long(), place % n

        def picked(caches: Sequence[Tensor]) -> list[Tensor]:
            return [bits(token_major(inputs.problem, cache))[at].view(cache.dtype) for cache in caches]

        if inputs.kv_scales is None:
            return picked(inputs.kv)
        return [dequantize(*pair) for pair in zip(picked(inputs.kv), picked(inputs.kv_scales), strict=True)]


def _sums(weights: Tensor, values: Tensor) -> Tensor:
    """Sums of values [n, m, K, D] by weights [n, Q, K, G, m]: [n, Q, K, G, D]."""
    return torch.einsum("nqkgm,nmkd->nqkgd", weights, values)


def _lengths(t: Tensor) -> Tensor:
    found: Tensor = t.norm(dim=-1, keepdim=True)
    return found


def _lse_and_peak(lse: Tensor, peak: Tensor, left: Tensor, lost: Tensor, came: Tensor) -> tuple[Tensor, Tensor]:
    """Log-sum-exp and largest logit after the change, from those before, and the largest logits that went and came (-inf: unseen).

    Nobody knows the second largest logit. If the largest is lost, its row is told to be shared by several keys, which only widens
    its tolerance.
    """
    shared = (lost >= peak - 1) & (came < peak)
    lse = lse.maximum(lse + left.clamp_min(TINY).log())
    return torch.where(shared, lse + math.log(2), lse), peak.maximum(came)
