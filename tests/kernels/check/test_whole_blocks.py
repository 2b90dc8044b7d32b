"""The blocks that a request's last query sees in full, found together, are those found one by one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from kernels.check.significance import whole_blocks
from kernels.problem import Problem


def levels_of(keys: int) -> tuple[tuple[int, int], ...]:
    sizes, levels = 4, [(1, keys)]
    while True:
        levels.append((sizes, -(-keys // sizes)))
        if levels[-1][1] == 1:
            return tuple(levels)
        sizes *= 2


@pytest.mark.parametrize("window", [None, 50])
@pytest.mark.parametrize(("s_kv", "start", "keys"), [(64, 0, 64), (203, 0, 203), (203, 128, 75), (203, 0, 256), (5, 0, 5)])
def test_the_largest_of_each_size_is_that_of_its_whole_blocks(
    s_kv: int, start: int, keys: int, window: int | None, problem: Callable[..., Problem]
):
    p = problem(s_kv=s_kv, s_qo=4, window=window, batch_size=1)
    levels, first_key = levels_of(keys), 0 if window is None else max(0, s_kv - window)
    values = torch.rand(sum(count for _, count in levels), generator=torch.Generator().manual_seed(s_kv))
    blocks, wanted, at = whole_blocks(p, (4, s_kv), start, levels, values.device), dict[int, float](), 0
    for size, count in levels:
        begins = [start + size * block for block in range(count)]
        whole = [at + block for block, begin in enumerate(begins) if first_key <= begin and begin + size <= s_kv]
        wanted |= {size: float(values[whole].max())} if whole else {}
        at += count
    assert blocks is not None
    found = dict[int, float]()
    for size, largest in zip(blocks.sizes, values[blocks.index.long()].view(len(blocks.sizes), -1).amax(1).tolist(), strict=True):
        found[size] = max(largest, found.get(size, 0.0))

    assert found == wanted
    assert ((blocks.seen >= 1) & (blocks.seen <= 4)).all()


def test_there_may_be_none(problem: Callable[..., Problem]):
    p = problem(s_kv=200, s_qo=1, window=16, batch_size=1)

    assert whole_blocks(p, (1, 200), 0, levels_of(64), torch.device("cpu")) is None
