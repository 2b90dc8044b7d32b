"""Which query sees which key, and the packed and flat forms that kernels take, bit by bit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from kernels.inputs.masks import flat_custom, hidden, pack, packed_batch, visibility
from kernels.problem import Problem
from kernels.problem.trees import Tree

SIZES = [1, 2, 4, 8, 31, 32, 33, 64, 65]


def unpacked(packed: torch.Tensor) -> list[list[bool]]:
    """Bits of packed rows [n, W], lowest first."""
    return [[bool(word >> bit & 1) for word in row for bit in range(16)] for row in packed.to(torch.int64).tolist()]


@pytest.mark.parametrize("s_qo", SIZES)
@pytest.mark.parametrize("mask", ["causal", "full"])
def test_bit_k_of_row_i_says_whether_query_i_sees_key_k(problem: Callable[..., Problem], mask: str, s_qo: int):
    packed = pack(visibility(problem(mask=mask, s_qo=s_qo), "cpu"))

    assert packed.shape == (s_qo, 2 * -(-s_qo // 32))
    assert packed.dtype == torch.uint16
    for i, row in enumerate(unpacked(packed)):
        assert row == [k < s_qo and (mask == "full" or k <= i) for k in range(len(row))]


def test_a_tree_is_packed_as_it_is():
    tree = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 0, 1]], dtype=torch.bool)

    assert pack(tree).tolist() == [[0b001, 0], [0b011, 0], [0b101, 0]]


def ancestors(tree: tuple[int, ...], i: int) -> set[int]:
    return {i} | (ancestors(tree, tree[i]) if tree[i] >= 0 else set())


@pytest.mark.parametrize("tree", [Tree(branches=(2,)), Tree(top_k=4, depth=6), Tree(branches=(4, 2, 1))])
@pytest.mark.parametrize("s_qo", [1, 2, 7, 33])
def test_a_query_of_a_tree_sees_its_ancestors_itself_and_the_context(problem: Callable[..., Problem], tree: Tree, s_qo: int):
    parents = tree.parents(s_qo)
    p = problem(mask="t", tree=parents, s_qo=s_qo, s_kv=50, batch_size=1)
    rows = unpacked(pack(visibility(p, "cpu")))
    flat = flat_custom(p, "cpu").view(s_qo, 50)

    for i in range(s_qo):
        seen = {k for k in range(s_qo) if rows[i][k]}
        assert seen == ancestors(parents, i)
        assert {k for k in range(50) if flat[i, k]} == set(range(50 - s_qo)) | {50 - s_qo + k for k in seen}


def test_a_chain_is_the_causal_mask_bit_by_bit(problem: Callable[..., Problem]):
    chain = problem(mask="chain", tree=Tree(branches=(1,)).parents(40), s_qo=40)

    assert torch.equal(visibility(chain, "cpu"), visibility(problem(s_qo=40), "cpu"))
    assert torch.equal(flat_custom(chain, "cpu"), flat_custom(problem(s_qo=40), "cpu"))


def test_ragged_drafts_are_packed_row_after_row_as_wide_as_the_longest(problem: Callable[..., Problem]):
    p = problem(s_qo=40, min_s_qo=1, batch_size=5)
    packed, longest = packed_batch(p, "cpu"), pack(visibility(p, "cpu"))
    assert packed is not None

    assert packed.shape == (p.num_q_tokens, 4)
    assert packed.tolist() == [row for q in p.q_lens for row in longest[:q].tolist()]


def test_uniform_drafts_have_one_mask_a_request_and_one_query_needs_none(problem: Callable[..., Problem]):
    packed = packed_batch(problem(s_qo=4), "cpu")

    assert packed is not None and packed.shape == (2, 4, 2) and packed.is_contiguous()
    assert packed_batch(problem(s_qo=1), "cpu") is None


@pytest.mark.parametrize("window", [None, 1, 3, 30])
@pytest.mark.parametrize("mask", ["causal", "full", "binary"])
def test_what_is_hidden_does_not_depend_on_where_it_is_cut(problem: Callable[..., Problem], mask: str, window: int | None):
    if window is not None and mask != "causal":
        return
    tree = Tree(branches=(2,)).parents(6) if mask == "binary" else None
    p = problem(mask=mask, tree=tree, window=window, s_qo=6, s_kv=29, batch_size=1)
    whole = flat_custom(p, "cpu").view(6, 29)

    for rows, keys in (
        (range(2, 5), range(29)),
        (range(6), range(20, 26)),
        (range(5, 6), range(27, 29)),
        (range(6), range(23)),
    ):
        part = hidden(p, 0, rows, keys, "cpu")
        seen = torch.ones(len(rows), len(keys), dtype=torch.bool) if part is None else ~part
        assert torch.equal(seen, whole[rows.start : rows.stop, keys.start : keys.stop])
