"""Bounds root mean squares of errors: of the rows of each query head of a request, and of all rows of a request.

The worst row alone says little of a kernel that is off by nearly the tolerance in every row. Rounding is so in few: errors of rows
are nearly independent, so their root mean square is a fraction of the tolerance, the surer the more rows there are. Each row's
error counts in its own tolerance, so that one of wide tolerance decides nothing.
"""

# T = query tokens of all requests, H = num_qo_heads, D = head_dim_vo, B = requests

from __future__ import annotations

import math
from dataclasses import dataclass

from kernels.check.tolerance import logit_error
from kernels.lazy import Tensor, torch
from kernels.problem import Problem
from kernels.problem.arithmetic import Arithmetic

# Of the tolerance, for many rows. On an H200 right kernels had up to 0.37, in 16 bits (XQA over FP8 caches) and in fp8_e4m3
# (FlashAttention-3 over prompts), and emulated ones up to 0.41 of 16 rows. A kernel that narrows 16-bit operands is granted the
# error of their logits besides, which few rows have: up to 0.18. Emulations of a kernel that does not scale probabilities up before
# it rounds them, as SGLang's Triton kernels, had 0.31 of 64 rows over 131,072 keys. docs/correctness_numbers.md has the table.
SHARE, SHARE_NARROWED = 0.55, 0.45


def limit_of(rows: int, problem: Problem, how: Arithmetic) -> float:
    """The largest root mean square of so many rows' errors, in their tolerances. One row may have all of its tolerance."""
    share = SHARE_NARROWED if logit_error(problem, how.compute_dtype) else SHARE
    return share + (1 - share) / math.sqrt(max(1, rows))


def largest(squares: Tensor, scale: Tensor, problem: Problem, how: Arithmetic) -> tuple[Tensor, ...]:
    """The largest root mean square of a query head of a request, and of a request, in limits, each with its place among all: four
    numbers on the device.

    `squares` are those of errors, [T, H, D]. `scale` [T, H] is the tolerance of each row as a length.
    """
    p, rows = problem, squares.sum(-1) / scale.square().clamp_min(torch.finfo(torch.float32).tiny)  # of rows without keys
    if len(set(p.q_lens)) == 1:
        sums = rows.view(p.batch_size, -1, p.num_qo_heads).sum(1)
    else:
        request = torch.repeat_interleave(torch.arange(p.batch_size), torch.tensor(p.q_lens)).to(rows.device)
        sums = rows.new_zeros(p.batch_size, p.num_qo_heads).index_add_(0, request, rows)
    found: list[Tensor] = []
    for together, of in ((1, sums), (p.num_qo_heads, sums.mean(1, keepdim=True))):
        limits = [q_len * limit_of(q_len * together, p, how) ** 2 for q_len in p.q_lens]
        limit = limits[0] if len(set(limits)) == 1 else sums.new_tensor(limits)[:, None]
        found += (of / limit).sqrt().flatten().max(0)
    return tuple(found)


@dataclass(frozen=True)
class MeanErrors:
    """What `largest` found, on the host."""

    found: tuple[float, ...] | list[float]
    problem: Problem
    how: Arithmetic

    @property
    def reason(self) -> str:
        """What is wrong, in words; empty if nothing is."""
        p, (of_head, head, of_request, request) = self.problem, self.found
        if of_head > 1:
            of, number = divmod(int(head), p.num_qo_heads)
            return _in_words(f"the rows of query head {number} of request {of}", of_head, self._limit(of))
        if of_request > 1:
            return _in_words(f"the rows of request {int(request)}", of_request, self._limit(request, p.num_qo_heads))
        return ""

    def _limit(self, request: float, heads: int = 1) -> float:
        return limit_of(self.problem.q_lens[int(request)] * heads, self.problem, self.how)

    @property
    def worst_head(self) -> float:
        """Root mean square of the head that is nearest to its limit, in tolerances."""
        return self.found[0] * self._limit(self.found[1] // self.problem.num_qo_heads)

    @property
    def most(self) -> float:
        """What no head exceeds that passes, in tolerances."""
        return limit_of(min(self.problem.q_lens), self.problem, self.how)


def _in_words(what: str, found: float, limit: float) -> str:
    return f"{what}: off by {found * limit:.3f} of the tolerance in root mean square, more than {limit:.3f}"
