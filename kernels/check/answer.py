"""What the check knows of the right output of a problem."""

# T = query tokens of all requests, H = num_qo_heads, D = head_dim

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Answer:
    """The right output of a problem, and what is needed to weigh its keys again.

    The probability of a key with logit x is exp(x - lse). `condition` is sqrt(sum of p^2 |v|^2) / |out|: by how much of its length
    independent relative errors of 1 in all weights p would move a row. It is near 1 for values v that do not cancel.
    """

    out: Tensor  # fp32 [T, H, D_vo]
    lse: Tensor  # fp32 [T, H]: natural logarithm of the sum over keys (and sink) of exp(logit)
    peak: Tensor  # fp32 [T, H]: the largest logit
    condition: Tensor  # fp32 [T, H]
    error: Tensor | float = 0.0  # fp32 [T, H]: by how much of its length a row of `out` itself may be off, if not by far less
