"""How many layers a step has, and what cannot be a step."""

from __future__ import annotations

from kernels.problem import Problem
from kernels.step.shapes import LayerShape, weight_bytes
from kernels.step.size import L2_BYTES, MAX_LAYERS, least_layers, size_of, unmet, wanted_layers

LLAMA = LayerShape(hidden_size=8192, intermediate_size=28672, num_layers=80)
H200 = 4.8
GB = 10**9


def llama(**keys: object) -> Problem:
    heads = {"num_qo_heads": 64, "num_kv_heads": 8, "head_dim_qk": 128, "head_dim_vo": 128}
    return Problem.model_validate({"batch_size": 1, "s_qo": 1, "s_kv": 8192, **heads, **keys})


def test_a_short_call_gets_12_layers_and_a_long_one_4():
    assert wanted_layers(llama(), LLAMA, H200) == 12
    assert wanted_layers(llama(batch_size=8, s_kv=32768), LLAMA, H200) == 4
    assert wanted_layers(llama(batch_size=64, s_kv=131072), LLAMA, H200) == 4


def test_the_layers_but_one_of_a_small_model_do_not_fit_the_l2_of_any_gpu():
    small = LayerShape(hidden_size=1024, intermediate_size=1024)
    problem = llama(num_qo_heads=16, num_kv_heads=2, s_kv=1024)
    layers = wanted_layers(problem, small, H200)

    assert 12 < (layers - 1) < MAX_LAYERS
    assert (layers - 1) * (weight_bytes(problem, small) + problem.kv_bytes) >= L2_BYTES
    assert wanted_layers(problem, small.model_copy(update={"num_layers": 9}), H200) == 9
    assert wanted_layers(llama(s_kv=16), LayerShape(hidden_size=64, intermediate_size=64), H200) == MAX_LAYERS


def test_memory_takes_layers_away_down_to_the_fewest_that_are_precise():
    short, long = llama(batch_size=8), llama(batch_size=64, s_kv=131072)
    a_layer = size_of(short, LLAMA, H200, 10**15).layer_bytes

    assert size_of(short, LLAMA, H200, 141 * GB).layers == wanted_layers(short, LLAMA, H200)
    assert size_of(llama(), LLAMA, H200, 22 * GB).layers == 7
    assert size_of(llama(), LLAMA, H200, GB).layers == least_layers(llama(), H200) == 4
    assert size_of(long, LLAMA, H200, 127 * GB).layers == 3  # 34 GB of cache each
    assert size_of(long, LLAMA, H200, GB).layers == least_layers(long, H200) == 2
    assert size_of(short, LLAMA, H200, 10**15, layers=30).layers == 30
    assert size_of(short, LLAMA, H200, 10**15, layers=30).shared_bytes > 30 * a_layer


def test_what_a_step_cannot_model_is_said():
    assert unmet(llama(kv_dtype="fp8_e4m3")) == []
    assert "nvfp4" in unmet(llama(kv_dtype="nvfp4"))[0]
    assert "rotary" in unmet(llama(head_dim_qk=33, head_dim_vo=33))[0]
