"""Which blocks of keys a request's last query sees in full, and how many query tokens see them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernels.check.estimates import Levels, weighed_parts

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from kernels.problem import Problem

LEVELS_SIDE_BY_SIDE = 4  # a level of single keys is cut into so many rows, which are then as wide as the next level


@dataclass(frozen=True)
class WholeBlocks:
    """Whole blocks in rows of equal length, each of blocks of one size. A short row holds its last block several times.

    So the worst block of each size is found in three small kernels, where one search for each size would take four each.
    """

    sizes: tuple[int, ...]  # keys of the blocks in each row
    index: Tensor  # int32 [rows * width]: where the blocks lie among all
    seen: Tensor  # fp32 [rows, width]: how many weighed query tokens see at least half of a block, at least


def whole_blocks(p: Problem, lengths: tuple[int, int], start: int, levels: Levels, device: torch.device) -> WholeBlocks | None:
    """Of requests with these numbers of query tokens and keys. Blocks begin behind key `start`. None if no block is whole."""
    import torch

    length, at = lengths[1], 0
    rows = _rows_by_key(p, lengths, device)
    found: list[tuple[int, Tensor, Tensor]] = []
    seen_from = 0 if p.window is None else max(0, length - p.window)
    width = max(-(-count // (LEVELS_SIDE_BY_SIDE if size == 1 else 1)) for size, count in levels)
    for size, count in levels:
        first, stop = -(-max(0, seen_from - start) // size), min((length - start) // size, count)
        half_seen = rows[start + size * first + size // 2 :: size][: max(0, stop - first)]
        index = torch.arange(at + first, at + max(first, stop), dtype=torch.int32, device=device)
        parts = [slice(begin, begin + width) for begin in range(0, len(index), width)]
        found += [(size, index[part], half_seen[part]) for part in parts]
        at += count
    if not found:
        return None
    places = torch.cat([_filled(index, width) for _, index, _ in found])
    seen = torch.stack([_filled(seen_by, width) for _, _, seen_by in found])
    return WholeBlocks(tuple(size for size, _, _ in found), places, seen)


def _filled(row: Tensor, width: int) -> Tensor:
    """The row, with its last element behind it up to this width."""
    import torch

    return torch.cat((row, row[-1:].expand(width - len(row))))


def _rows_by_key(p: Problem, lengths: tuple[int, int], device: torch.device) -> Tensor:
    """[keys]: how many weighed query tokens of a request see a key, at least: all of a full mask, later ones of any other."""
    import torch

    (q_len, length), tokens = lengths, [token for part in weighed_parts(p, lengths[0]) for token in part]
    if p.mask == "full":
        return torch.full((length,), float(len(tokens)), device=device)
    positions = torch.tensor(tokens, device=device) + length - q_len
    later = len(tokens) - torch.searchsorted(positions, torch.arange(length, device=device))
    return later.clamp_min(1).float()


def side_by_side(tensors: Sequence[Tensor]) -> Tensor:
    """All elements of some tensors, [n]."""
    import torch

    return tensors[0].flatten() if len(tensors) == 1 else torch.cat([one.flatten() for one in tensors])
