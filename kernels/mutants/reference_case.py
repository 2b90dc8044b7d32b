"""One request's attention written out from its definition, for kernels that get one thing of it wrong."""

# Q = query tokens, L = KV length, H = num_qo_heads, K = stored KV heads, G = H / K, D = head_dim

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kernels.inputs.masks import hidden
from kernels.inputs.sentinel_logit import PLANTED

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.inputs import Inputs
    from kernels.problem import Problem


@dataclass(frozen=True)
class ReferenceCase:
    """A request's last query tokens in fp32: q [Q, H, D], k [L, K, D] and v [L, K, D_vo] as meant, `seen` bool [Q, L]."""

    inputs: Inputs
    request: int
    q: Tensor
    k: Tensor
    v: Tensor
    seen: Tensor
    sm_scale: float
    sinks: Tensor | None
    soft_cap: float | None = None

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
        return self.key[-len(self.q) :, None]

    @property
    def key(self) -> Tensor:
        """[L]: positions."""
        import torch

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
        """[Q, H]: the natural log-sum-exp of each row. A problem that asks for one has no sinks."""
        return self.scores().logsumexp(-1).permute(2, 0, 1).flatten(1, 2)

    def total(self, weights: Tensor, peak: Tensor) -> Tensor:
        """[K, G, Q, 1]: the sums of weights exp(logit - peak) [K, G, Q, L], and the sink's."""
        total = weights.sum(-1, keepdim=True)
        return total if self.sinks is None else total + (self.sinks.view(*peak.shape[:2], 1, 1) - peak).exp()

    def merge(self, weights: Tensor, total: Tensor) -> Tensor:
        """[Q, H, D_vo] from weights [K, G, Q, L] and their sums."""
        out = (weights.flatten(1, 2) @ self.v.transpose(0, 1)).view(*weights.shape[:3], -1) / total
        return out.permute(2, 0, 1, 3).flatten(1, 2)

    def answer(self, saturation: float | None = None) -> Tensor:
        """Attention from its definition."""
        scores = self.scores()
        peak = scores.amax(-1, keepdim=True)
        weights = (scores - peak).exp_()
        weights = weights if saturation is None else weights.clamp_(max=saturation)
        return self.merge(weights, self.total(weights, peak))


def case_of(inputs: Inputs, request: int) -> ReferenceCase:
    """A request as it should be computed."""
    import torch

    p = inputs.problem
    length, q_len = p.kv_lens[request], p.q_lens[request]
    k, v = (t.float() for t in inputs.tokens(request, 0, length))
    rows = range(max(0, q_len - PLANTED), q_len)
    unseen = hidden(p, request, rows, range(length), inputs.device)
    seen = torch.ones(len(rows), length, dtype=torch.bool, device=inputs.device) if unseen is None else ~unseen
    q = inputs.q[inputs.queries(request)][rows.start :].float()
    k, v = k * inputs.k_scale, v * inputs.v_scale
    return ReferenceCase(inputs, request, q, k, v, seen, inputs.sm_scale, inputs.sinks, p.soft_cap)
