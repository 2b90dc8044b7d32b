"""Tokens of the cache become copies of others for a while."""

# n = tokens that change, K = stored KV heads, D = head_dim

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from kernels.inputs import Inputs
from kernels.inputs.tensors import as_integers, bits, slots, token_major
from kernels.lazy import Tensor, torch
from kernels.problem.routine import by_routine


class Copied(NamedTuple):
    """The token of a request at `target` becomes a copy of that at `source`."""

    request: int
    source: int
    target: int


@by_routine
@contextmanager
def copied_tokens(inputs: Inputs, copied: Sequence[Copied]) -> Iterator[None]:
    """Each target is its source while it lasts, in all KV heads, with a value of opposite sign.

    So the two cancel, which moves an answer more than a plain copy. MLA's value is a part of its key: there it is a plain copy.
    No target may be named twice.
    """
    p = inputs.problem
    request, source, target = torch.tensor(copied).to(inputs.device, non_blocking=True).T
    at, to = slots(inputs, request, source), slots(inputs, request, target)
    caches = _caches(inputs)
    kept = [cache[to] for cache in caches]
    try:
        new = [cache[at] for cache in caches]
        if not p.latent:
            _, signs = as_integers(inputs, inputs.kv[1])
            new[1].bitwise_xor_(signs)
        for cache, values in zip(caches, new, strict=True):
            cache[to] = values
        yield
    finally:
        for cache, was in zip(caches, kept, strict=True):
            cache[to] = was


def _caches(inputs: Inputs) -> list[Tensor]:
    """Views [P, N, K, D] of all that is stored of tokens as integers: keys, values and their block scales. MLA's latent is both."""
    p = inputs.problem
    caches = [as_integers(inputs, cache)[0] for cache in (inputs.kv[:1] if p.latent else inputs.kv)]
    return [token_major(p, cache) for cache in (*caches, *map(bits, inputs.kv_scales or ()))]
