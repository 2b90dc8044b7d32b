"""Slots of the cache that hold no token: who writes there is noticed, whatever they hold and however it is stored."""

from __future__ import annotations

import pytest
import torch

from kernels.inputs.generate import draw, redraw
from kernels.inputs.tensors import as_integers, token_major
from kernels.inputs.unused_slots import UnusedSlots
from kernels.problem import Problem
from tests.helpers.problems import SMALL

MLA = {"routine": "mla", "num_kv_heads": 8, "head_dim_ckv": 16, "head_dim_kpe": 16}
PADDED = {"graph_batch": 4}


@pytest.mark.parametrize("nan", [False, True])
@pytest.mark.parametrize(
    "keys",
    [
        {"kv_dtype": "bf16"},
        {"q_dtype": "fp32", "kv_dtype": "fp32", "kv_layout": "NHD"},
        {"kv_dtype": "fp8_e4m3"},
        {"kv_dtype": "fp8_e5m2"},
        {"kv_dtype": "nvfp4", "head_dim_qk": 32, "head_dim_vo": 32},
        MLA,
        PADDED,
    ],
)
def test_one_bit_that_was_written_is_noticed_once(keys: dict[str, object], nan: bool):
    x = draw(Problem.model_validate({**SMALL, "page_size": 16, "s_qo": 1, **keys}), "cpu")
    unused = UnusedSlots([x])
    page, slot = (int(at[-1]) for at in x.unused_slots)
    stored = [as_integers(x, cache)[0] for cache in (*(x.kv[:1] if x.problem.latent else x.kv), *(x.kv_scales or ()))]
    for cache in stored:
        unused.fill(nan)
        unused.look()
        assert unused.were_intact()
        token_major(x.problem, cache)[page, slot, -1, -1] ^= 1
        unused.fill(not nan)  # the one that writes may not be asked before others fill them again
        assert not unused.were_intact()
        unused.look()
        assert unused.were_intact()


def test_what_a_new_draw_writes_is_no_damage():
    x = draw(Problem.model_validate({**SMALL, "page_size": 16}), "cpu")
    unused = UnusedSlots([x])
    unused.fill(nan=True)
    unused.look()
    redraw(x)
    unused.drawn_again()
    unused.look()

    assert unused.were_intact()


def test_without_such_slots_there_is_nothing_to_notice():
    x = draw(Problem.model_validate({**SMALL, "page_size": 16, "s_kv": 96}), "cpu")
    unused = UnusedSlots([x])
    unused.fill(nan=True)

    assert not torch.isnan(x.kv[0]).any() and unused.were_intact()
