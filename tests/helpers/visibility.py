"""Which keys a query attends to, straight from the definition of the masks."""

from __future__ import annotations

from kernels.problem import Problem


def sees(p: Problem, q_len: int, length: int, query: int, key: int) -> bool:
    """Whether a query of a request attends to a key: both are positions, the query's in its draft of `q_len` tokens."""
    draft, own = key - (length - q_len), length - q_len + query
    if p.window is not None and key <= own - p.window:
        return False
    if p.tree is None or draft < 0:
        return p.mask == "full" or draft < 0 or key <= own
    while query > draft:
        query = p.tree[query]
    return query == draft
