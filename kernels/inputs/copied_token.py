"""One token of the cache becomes a copy of another for a while."""

# K = stored KV heads, D = head_dim

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from kernels.inputs import Inputs
from kernels.inputs.tensors import as_integers, bits, token_major


@contextmanager
def copied_token(inputs: Inputs, request: int, source: int, target: int) -> Iterator[None]:
    """The token of a request at `target` is that at `source` while it lasts, in all KV heads, with a value of opposite sign.

    So the two cancel, which moves an answer more than a plain copy. MLA's value is a part of its key: there it is a plain copy.
    """
    p, pages = inputs.problem, inputs.page_table[request]
    n = p.slots_per_page
    page, page_to = torch.stack((pages[source // n], pages[target // n])).tolist()  # one wait for the device
    at, to = (page, source % n), (page_to, target % n)
    caches = _caches(inputs)
    kept = [cache[to].clone() for cache in caches]
    try:
        for cache in caches:
            cache[to] = cache[at]
        if not p.latent:
            values, signs = as_integers(inputs, inputs.kv[1])
            token_major(p, values)[to].bitwise_xor_(signs)
        yield
    finally:
        for cache, was in zip(caches, kept, strict=True):
            cache[to] = was


def _caches(inputs: Inputs) -> list[Tensor]:
    """Views [P, N, K, D] of all that is stored of tokens: keys, values and their block scales. MLA's latent is both."""
    p = inputs.problem
    stored = (*(inputs.kv[:1] if p.latent else inputs.kv), *(inputs.kv_scales or ()))
    return [bits(token_major(p, cache)) for cache in stored]
