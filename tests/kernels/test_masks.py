"""The draft block's visibility and its packed form, bit by bit."""

from __future__ import annotations

import pytest
import torch

from kernels.masks import pack, require_packed, visibility


@pytest.mark.parametrize("s_qo", [1, 2, 4, 8, 31, 32, 33, 64, 65])
@pytest.mark.parametrize("mask", ["causal", "full"])
def test_bit_k_of_row_i_says_whether_query_i_sees_key_k(mask: str, s_qo: int):
    packed = pack(visibility(mask, s_qo, "cpu"), batch_size=3)
    words = packed.to(torch.int64)

    assert packed.shape == (3, s_qo, 2 * -(-s_qo // 32))
    assert packed.dtype == torch.uint16
    for i in range(s_qo):
        row = [bool(words[2, i, k // 16] >> (k % 16) & 1) for k in range(16 * packed.shape[2])]
        assert row == [k < s_qo and (mask == "full" or k <= i) for k in range(len(row))]


def test_a_tree_is_packed_as_it_is():
    tree = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 0, 1]], dtype=torch.bool)

    assert pack(tree, 1).tolist() == [[[0b001, 0], [0b011, 0], [0b101, 0]]]


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (None, "got none"),
        (torch.zeros(2, 4, 1, dtype=torch.uint16), "shape (2, 4, 1)"),
        (torch.zeros(3, 4, 2, dtype=torch.uint16), "shape (3, 4, 2)"),
        (torch.zeros(2, 4, 2, dtype=torch.int32), "torch.int32"),
        (torch.zeros(2, 4, 2, dtype=torch.uint16, device="meta"), "on meta"),
    ],
)
def test_a_wrong_mask_is_refused_before_any_launch(mask: torch.Tensor | None, words: str):
    with pytest.raises(ValueError, match="s_qo=4") as caught:
        require_packed(mask, batch_size=2, s_qo=4, device=torch.device("cpu"))

    assert words in str(caught.value)


def test_a_right_mask_passes_and_one_query_needs_none():
    right = pack(visibility("causal", 4, "cpu"), batch_size=2)

    assert require_packed(right, 2, 4, torch.device("cpu")) is right
    assert require_packed(None, 2, 1, torch.device("cpu")) is None
