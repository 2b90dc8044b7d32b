"""Further layers: other values, to which the first layer's reference applies."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernels.check.oracle import reference
from kernels.inputs.generate import draw
from kernels.step.layer_inputs import as_first, inputs_of_layer, refill
from tests.helpers.steps import MLA, same_bits, step_problem

PROBLEMS = {
    "paged": {},
    "NHD": {"kv_layout": "NHD"},
    "fp8": {"kv_dtype": "fp8_e4m3"},
    "fp8 queries": {"kv_dtype": "fp8_e4m3", "q_dtype": "fp8_e4m3"},
    "other values": {"head_dim_vo": 32},
    "ragged": {"routine": "ragged_prefill", "seq_lens": "random"},
    "mla": MLA,
    "sinks": {"sinks": True},
}


@pytest.mark.parametrize("keys", PROBLEMS.values(), ids=PROBLEMS.keys())
def test_the_reference_of_a_layer_is_the_first_one_s_rolled(keys: dict[str, object]):
    first = draw(step_problem(**keys), "cpu")
    for number in (1, 5, 17):
        layer = inputs_of_layer(first, number)

        assert torch.allclose(as_first(reference(layer), number), reference(first), rtol=1e-4, atol=1e-5)
        assert not same_bits(layer.q, first.q)
        assert not same_bits(layer.kv[0], first.kv[0])
        assert not same_bits(layer.kv[1], first.kv[1])
        assert layer.page_table is first.page_table
        assert layer.kv[0].stride() == first.kv[0].stride()


@pytest.mark.parametrize("keys", PROBLEMS.values(), ids=PROBLEMS.keys())
@pytest.mark.parametrize("what", ["q", "kv"])
def test_queries_or_cache_of_another_layer_give_another_answer(keys: dict[str, object], what: str):
    first = draw(step_problem(**keys), "cpu")
    third, fourth = inputs_of_layer(first, 2), inputs_of_layer(first, 3)
    mixed = reference(replace(third, **{what: getattr(fourth, what)}))
    right = reference(third)

    assert float((mixed - right).norm() / right.norm()) > 0.5


def test_damage_is_repaired():
    first = draw(step_problem(), "cpu")
    layer, right = inputs_of_layer(first, 3), inputs_of_layer(first, 3)
    layer.q.zero_()
    layer.kv[1].zero_()
    refill(first, layer, 3)

    assert same_bits(layer.q, right.q)
    assert same_bits(layer.kv[1], right.kv[1])
