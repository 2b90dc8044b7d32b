"""One wrong thing in a few keys of one request, and the answer of a kernel that does it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, get_args

from kernels.mutants.reference_case import ReferenceCase

if TYPE_CHECKING:
    from torch import Tensor

Kind = Literal["lost", "doubled", "halved", "shifted", "stale", "pair", "swapped", "scaled"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Span = tuple[int, int]  # the first and the last


@dataclass(frozen=True)
class Fault:
    """What is wrong in one request: `size` keys from `start` on in one KV head, or one (query, draft key) pair in all heads.

    lost: not counted. doubled: counted twice. halved: counted with half their weight, as by a wrong merge of splits. shifted: each
    key meets the value of the key before it. stale: keys and values are those of the `size` keys before. pair: the mask is turned
    over for query `query` of the last ones and key `start`. swapped: the values are exchanged with those of `size` keys from
    `other` on. scaled: the keys or the values, as `of` says, are multiplied by `factor`.
    Not all rows need be wrong: `heads` says which query heads of the KV head's group are, and `tokens` which query tokens.
    """

    kind: Kind
    size: int
    start: int
    kv_head: int
    query: int = 0
    other: int = 0
    factor: float = 1.0
    of: Literal["keys", "values"] = "values"
    heads: Span | None = None
    tokens: Span | None = None

    def __str__(self) -> str:
        name = "pair" if self.kind == "pair" else f"{self.kind} {self.size}"
        if self.heads is None and self.tokens is None:
            return f"{name}: {self._where()}"
        heads = "" if self.heads is None else f", query heads {self.heads[0]} to {self.heads[1]} of its group"
        tokens = "" if self.tokens is None else f", queries {self.tokens[0]} to {self.tokens[1]}"
        return f"{name} in some rows: {self._where()}{heads}{tokens}"

    def _where(self) -> str:
        if self.kind == "pair":
            return f"query {self.query}, key {self.start}" + ("" if self.heads is None else f", KV head {self.kv_head}")
        keys = f"keys {self.start} to {self.start + self.size - 1}"
        if self.kind == "swapped":
            keys = f"values of {keys} and {self.other} to {self.other + self.size - 1}"
        if self.kind == "scaled":
            keys = f"{self.of} times {self.factor:g} of {keys}"
        return f"{keys} of KV head {self.kv_head}"


def answer_with(case: ReferenceCase, fault: Fault) -> Tensor:
    """[Q, H, D_vo]: the request's answer with the fault in it."""
    wrong = _in_all_heads(case, fault)
    if fault.kind == "pair" and fault.heads is None:
        return wrong
    group, right = case.problem.group_size, case.answer()
    first, last = (0, group - 1) if fault.heads is None else fault.heads
    heads = slice(fault.kv_head * group + first, fault.kv_head * group + last + 1)
    tokens = slice(None) if fault.tokens is None else slice(fault.tokens[0], fault.tokens[1] + 1)
    right[tokens, heads] = wrong[tokens, heads]
    return right


def _in_all_heads(case: ReferenceCase, fault: Fault) -> Tensor:
    """The answer if the fault were in all KV heads and rows."""
    if fault.kind == "pair":
        seen = case.seen.clone()
        seen[fault.query, fault.start] = ~seen[fault.query, fault.start]
        return case.sees(seen).answer()
    if fault.kind in ("lost", "doubled", "halved"):
        return _weighted(case, slice(fault.start, fault.start + fault.size), {"lost": 0.0, "doubled": 2.0}.get(fault.kind, 0.5))
    return _with_others(case, fault).answer()


def _with_others(case: ReferenceCase, fault: Fault) -> ReferenceCase:
    """The case with the keys and values that a kernel with this fault reads."""
    import torch

    keys = slice(fault.start, fault.start + fault.size)
    k, v = case.k.clone(), case.v.clone()
    if fault.kind == "swapped":
        others = slice(fault.other, fault.other + fault.size)
        v[keys], v[others] = case.v[others], case.v[keys]
    elif fault.kind == "scaled":
        (k if fault.of == "keys" else v)[keys] *= fault.factor
    else:
        back = torch.arange(keys.start, keys.stop, device=case.k.device) - (1 if fault.kind == "shifted" else fault.size)
        v[keys] = case.v[back.clamp(min=0)]
        if fault.kind == "stale":
            k[keys] = case.k[back.clamp(min=0)]
    return replace(case, k=k, v=v)


def _weighted(case: ReferenceCase, keys: slice, factor: float) -> Tensor:
    """The answer if these keys count `factor` times."""
    scores = case.scores()
    peak = scores.amax(-1, keepdim=True)
    weights = (scores - peak).exp_()
    weights[..., keys] *= factor
    total = weights.sum(-1, keepdim=True)
    if case.sinks is not None:
        total = total + (case.sinks.view(*peak.shape[:2], 1, 1) - peak).exp()
    return case.merge(weights, total)
