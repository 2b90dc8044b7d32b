"""Outputs stand between guards that are wide enough for the last row of a tile."""

from __future__ import annotations

import pytest
import torch

from kernels.inputs.guards import GUARD_BYTES, guarded_output, guards_are_intact

SHAPE = (3, 64, 128)  # query tokens, heads and elements of Llama 3.1 70B
ROW = SHAPE[1] * SHAPE[2]


@pytest.mark.parametrize("at", [-1, -15 * ROW, 3 * ROW, 3 * ROW + 15 * ROW, 3 * ROW + 16 * ROW - 1])
def test_a_write_as_far_away_as_a_tile_of_16_tokens_shows(at: int):
    out = guarded_output(SHAPE, "bf16", torch.device("cpu"))
    memory = torch.empty(0, dtype=out.dtype).set_(out.untyped_storage())

    assert out.isnan().all() and guards_are_intact(out)
    memory[GUARD_BYTES // out.element_size() + at] = 0.0
    assert not guards_are_intact(out)
