"""Draft trees of speculative decoders, each given by the parent of every token. Pure Python.

Token 0 is the last accepted token, the root. The others are drafts. Parents come before their children, so the first `n` tokens
of a tree are a tree too, and one description serves every `s_qo`.
"""

from __future__ import annotations

import heapq
from itertools import islice
from typing import Annotated

from pydantic import Field, PositiveInt, model_validator

from kernels.data import Data

MAX_TOKENS = 1 << 16
Branches = Annotated[tuple[PositiveInt, ...], Field(min_length=1)]
Path = Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)]


class TreeTooSmall(ValueError):
    """A tree has fewer tokens than a draft asks for."""


class Tree(Data):
    """One way to build a draft tree: exactly one of `branches`, `top_k` and `paths`.

    `branches`: children of every token by level, breadth first, the last number repeated. [1] is a chain, [2] the binary tree.
    `top_k`: up to this many children per token, likeliest tokens first. A child of rank r is half as likely as that of rank
    r - 1 (EAGLE-2 keeps the drafts of highest joint probability). `depth` bounds the levels.
    `paths`: Medusa's choices, each a list of ranks from the root.
    """

    branches: Branches | None = None
    top_k: PositiveInt | None = None
    depth: PositiveInt | None = None
    paths: tuple[Path, ...] | None = None

    @model_validator(mode="after")
    def _one_way(self) -> Tree:
        given = [key for key in ("branches", "top_k", "paths") if getattr(self, key) is not None]
        if len(given) != 1 or (self.depth is not None and given != ["top_k"]):
            raise ValueError(f"a tree needs one of branches, top_k (with depth) and paths; this one has {given or 'none'}")
        known = {(), *(self.paths or ())}
        if orphan := next((path for path in self.paths or () if path[:-1] not in known), None):
            raise ValueError(f"path {list(orphan)} hangs on {list(orphan[:-1])}, which is not a path of this tree; add it")
        return self

    def parents(self, s_qo: int) -> tuple[int, ...]:
        """Parent of each of the first `s_qo` tokens, -1 for the root. Raises TreeTooSmall if the tree has fewer tokens."""
        if s_qo > MAX_TOKENS:
            raise TreeTooSmall(f"a tree has up to {MAX_TOKENS:,} tokens, fewer than s_qo={s_qo}")
        if self.branches is not None:
            found = _by_level(self.branches, s_qo)
        elif self.top_k is not None:
            found = _likeliest(self.top_k, self.depth or s_qo, s_qo)
        else:
            ordered = [(), *sorted(set(self.paths or ()), key=lambda path: (len(path), path))]  # as Medusa sorts its choices
            at = {path: i for i, path in enumerate(ordered)}
            found = [-1, *(at[path[:-1]] for path in ordered[1:])][:s_qo]
        if len(found) < s_qo:
            raise TreeTooSmall(f"the tree has {len(found)} tokens, its root included, fewer than s_qo={s_qo}")
        return tuple(found)


def _by_level(branches: tuple[int, ...], size: int) -> list[int]:
    parents, level, depth = [-1], [0], 0
    while len(parents) < size:
        children = branches[min(depth, len(branches) - 1)]
        room = size - len(parents)
        born = list(islice((parent for parent in level for _ in range(children)), room))
        level = list(range(len(parents), len(parents) + len(born)))
        parents += born
        depth += 1
    return parents


def _likeliest(top_k: int, depth: int, size: int) -> list[int]:
    """Best first. A token's cost is the sum of the ranks from the root to it; of equal costs, the token nearer to the root wins."""
    parents = [-1]
    top_k = min(top_k, size)  # later ranks are dearer than as many tokens as are asked for
    waiting = [(rank + 1, 1, rank, 0) for rank in range(top_k)]  # cost, level, rank, parent
    heapq.heapify(waiting)
    while waiting and len(parents) < size:
        cost, level, _, parent = heapq.heappop(waiting)
        token = len(parents)
        parents.append(parent)
        if level < depth:
            for rank in range(top_k):
                heapq.heappush(waiting, (cost + rank + 1, level + 1, rank, token))
    return parents


def depths(tree: tuple[int, ...]) -> list[int]:
    """For each token of a tree, the number of draft keys it sees: the tokens from the root to itself, both included."""
    found: list[int] = []
    for parent in tree:
        found.append(1 if parent < 0 else found[parent] + 1)
    return found
