"""One request's attention written out from its definition, for kernels that get one thing of it wrong."""

# Q = query tokens, L = KV length, H = num_qo_heads, K = stored KV heads, G = H / K, D = head_dim

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from kernels.inputs import Inputs
from kernels.inputs.masks import hidden
from kernels.inputs.sentinel_logit import PLANTED, parts_of
from kernels.lazy import Tensor, torch
from kernels.problem import Problem

NONE = -1e30  # largest logit of a row that sees no key: its output is 0, as most kernels write it


@dataclass(frozen=True)
class ReferenceCase:
    """Some query tokens of a request in fp32: q [Q, H, D], k [L, K, D] and v [L, K, D_vo] as meant, `seen` bool [Q, L].

    `first` is the number of the first of them; None: they are the request's last.
    """

    inputs: Inputs
    request: int
    q: Tensor
    k: Tensor
    v: Tensor
    seen: Tensor
    sm_scale: float
    sinks: Tensor | None
    soft_cap: float | None = None
    first: int | None = None

    @property
    def problem(self) -> Problem:
        return self.inputs.problem

    @property
    def length(self) -> int:
        return self.k.shape[0]

    @property
    def draft_start(self) -> int:
        return self.length - self.problem.q_lens[self.request]

    @property
    def own(self) -> Tensor:
        """[Q, 1]: position of each query's own key."""
        tokens = self.tokens
        return self.draft_start + torch.arange(tokens.start, tokens.stop, device=self.q.device)[:, None]

    @property
    def tokens(self) -> range:
        """Which query tokens of the request these are."""
        q_len = self.problem.q_lens[self.request]
        first = q_len - len(self.q) if self.first is None else self.first
        return range(first, first + len(self.q))

    def parts(self) -> Iterator[ReferenceCase]:
        """All query tokens of the request, in parts that fit into memory."""
        for tokens in parts_of(self.problem.q_lens[self.request]):
            q, seen = _of_tokens(self.inputs, self.request, tokens)
            yield replace(self, q=q, seen=seen, first=tokens.start)

    @property
    def key(self) -> Tensor:
        """[L]: positions."""
        return torch.arange(self.length, device=self.q.device)

    def sees(self, seen: Tensor) -> ReferenceCase:
        return replace(self, seen=seen)

    def scores(self) -> Tensor:
        """Masked logits, [K, G, Q, L]."""
        p = self.problem
        q = self.q.view(len(self.q), p.stored_kv_heads, p.group_size, -1).permute(1, 2, 0, 3).flatten(1, 2)  # [K, G*Q, D]
        scores = (q * self.sm_scale @ self.k.permute(1, 2, 0)).view(p.stored_kv_heads, p.group_size, len(self.q), -1)
        if self.soft_cap is not None:
            scores = self.soft_cap * (scores / self.soft_cap).tanh()
        return scores.masked_fill_(~self.seen, float("-inf"))

    def lse(self) -> Tensor:
        """[Q, H]: the natural log-sum-exp of each row, a sink counted."""
        found = self.scores().logsumexp(-1)  # [K, G, Q]
        if self.sinks is not None:
            found = found.logaddexp(self.sinks.view(*found.shape[:2], 1))
        return found.permute(2, 0, 1).flatten(1, 2)

    def total(self, weights: Tensor, peak: Tensor) -> Tensor:
        """[K, G, Q, 1]: the sums of weights exp(logit - peak) [K, G, Q, L], and the sink's."""
        total = weights.sum(-1, keepdim=True)
        return total if self.sinks is None else total + (self.sinks.view(*peak.shape[:2], 1, 1) - peak).exp()

    def merge(self, weights: Tensor, total: Tensor) -> Tensor:
        """[Q, H, D_vo] from weights [K, G, Q, L] and their sums."""
        out = (weights.flatten(1, 2) @ self.v.transpose(0, 1)).view(*weights.shape[:3], -1) / total.clamp_min(1e-30)
        return out.permute(2, 0, 1, 3).flatten(1, 2)

    def answer(self, saturation: float | None = None) -> Tensor:
        """Attention from its definition."""
        scores = self.scores()
        peak = scores.amax(-1, keepdim=True).clamp_min(NONE)
        weights = (scores - peak).exp_()
        weights = weights if saturation is None else weights.clamp_(max=saturation)
        return self.merge(weights, self.total(weights, peak))


def case_of(inputs: Inputs, request: int) -> ReferenceCase:
    """The last query tokens of a request, as they should be computed."""
    q_len, length = inputs.problem.q_lens[request], inputs.problem.kv_lens[request]
    k, v = (t.float() for t in inputs.tokens(request, 0, length))
    tokens = range(max(0, q_len - PLANTED), q_len)
    q, seen = _of_tokens(inputs, request, tokens)
    k, v = k * inputs.k_scale, v * inputs.v_scale
    return ReferenceCase(inputs, request, q, k, v, seen, inputs.sm_scale, inputs.sinks, inputs.problem.soft_cap, tokens.start)


def _of_tokens(inputs: Inputs, request: int, tokens: range) -> tuple[Tensor, Tensor]:
    """Queries [Q, H, D] of these tokens, and which keys they see, bool [Q, L]."""
    length = inputs.problem.kv_lens[request]
    unseen = hidden(inputs.problem, request, tokens, range(length), inputs.device)
    seen = torch.ones(len(tokens), length, dtype=torch.bool, device=inputs.device) if unseen is None else ~unseen
    return inputs.q[inputs.queries(request)][tokens.start : tokens.stop].float(), seen
