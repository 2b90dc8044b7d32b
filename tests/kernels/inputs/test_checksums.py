"""Checksums of shared inputs: every change of a word shows, and every other order of words or of vectors of the cache."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from kernels.inputs import Inputs, checksums
from kernels.inputs.checksums import checksums as sums_of
from kernels.inputs.generate import draw, redraw
from kernels.problem import Problem


def page_swapped(x: Inputs) -> None:
    x.page_table[0] = x.page_table[0].flip(0)


def lengths_swapped(x: Inputs) -> None:
    x.kv_indices[:2] = x.kv_indices[:2].flip(0)


def queries_swapped(x: Inputs) -> None:
    x.q[0] = x.q[0].flip(0)


def elements_of_a_query_rolled(x: Inputs) -> None:
    x.q[0, 0] = x.q[0, 0].roll(8)


def tokens_swapped(x: Inputs) -> None:
    x.kv[0][1] = x.kv[0][1].flip(1)


def heads_swapped(x: Inputs) -> None:
    x.kv[1][1] = x.kv[1][1].flip(0)


def pages_swapped(x: Inputs) -> None:
    x.kv[1][:2] = x.kv[1][:2].flip(0)


def elements_of_a_key_rolled(x: Inputs) -> None:
    """By whole words, as a kernel does that brings keys into an order of its own in place."""
    x.kv[0][1, 0, 2] = x.kv[0][1, 0, 2].roll(8)


def one_bit(x: Inputs) -> None:
    x.kv[1].view(torch.int16)[0, 0, 0, 0] ^= 1


def mask_of_the_tree(x: Inputs) -> None:
    x.visible[0, 1] = True


@pytest.mark.parametrize("at_once", [checksums.AT_ONCE, 7])
@pytest.mark.parametrize(
    "damage",
    [
        page_swapped,
        lengths_swapped,
        queries_swapped,
        elements_of_a_query_rolled,
        tokens_swapped,
        heads_swapped,
        pages_swapped,
        elements_of_a_key_rolled,
        one_bit,
        mask_of_the_tree,
    ],
)
def test_damage_changes_one_sum_and_is_mended(
    damage: Callable[[Inputs], None], at_once: int, problem: Callable[..., Problem], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(checksums, "AT_ONCE", at_once)
    x = draw(problem(q_dtype="bf16", kv_dtype="bf16", mask="binary", tree=(-1, 0, 0)), "cpu")
    right = sums_of(x)
    damage(x)

    assert int((sums_of(x) != right).sum()) == 1
    redraw(x)
    assert torch.equal(sums_of(x), right)
