"""A step on a CPU: what it computes, and that attention reads what the step wrote just before."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernels.check.oracle import reference
from kernels.inputs.generate import draw
from kernels.step.graph import Step, stand_in
from kernels.step.layer import LatentLayer, Mlp, Rotary, gated, norm
from kernels.step.layer_inputs import as_first
from kernels.step.shapes import LayerShape, weight_shapes
from tests.helpers.steps import DENSE, EXPERTS, MLA, layers_of, same_bits, step_of, step_problem

LORA = LayerShape(hidden_size=32, intermediate_size=48, q_lora_rank=20)
CASES: dict[str, tuple[dict[str, Any], LayerShape]] = {
    "dense": ({}, DENSE),
    "fp16 queries": ({"q_dtype": "fp16", "kv_dtype": "fp16"}, DENSE),
    "fp8 cache": ({"kv_dtype": "fp8_e4m3"}, DENSE),
    "fp8": ({"q_dtype": "fp8_e4m3", "kv_dtype": "fp8_e4m3"}, DENSE),
    "experts": ({}, EXPERTS),
    "one expert token": ({"batch_size": 1, "s_qo": 1}, EXPERTS),
    "ragged": ({"routine": "ragged_prefill", "s_qo": 100}, DENSE),
    "drawn lengths": ({"seq_lens": "random", "min_s_qo": 1}, DENSE),
    "mla": (MLA, LORA),
    "mla, whole queries": (MLA, DENSE),
    "mla, fp8": ({**MLA, "kv_dtype": "fp8_e4m3"}, EXPERTS),
}


@pytest.mark.parametrize(("keys", "shape"), CASES.values(), ids=CASES.keys())
def test_a_step_writes_queries_and_new_keys_exactly_as_they_are_known(keys: dict[str, Any], shape: LayerShape):
    layers = layers_of(step_problem(**keys), shape, 2)
    known = [[t.clone() for t in (layer.inputs.q, *layer.inputs.kv)] for layer in layers]
    step = Step(layers, shape.hidden_size, [stand_in(layer) for layer in layers])
    for layer in layers:
        layer.planted.poison()
    spoilt = [not same_bits(layer.inputs.q, q) for layer, (q, *_) in zip(layers, known, strict=True)]
    step()

    assert all(spoilt)
    for layer, tensors in zip(layers, known, strict=True):
        assert all(same_bits(now, then) for now, then in zip((layer.inputs.q, *layer.inputs.kv), tensors, strict=True))
    assert step.residual.isfinite().all()


def test_the_known_values_do_not_depend_on_what_was_computed():
    (layer,) = layers_of(step_problem(kv_dtype="fp8_e4m3"), count=1)
    known = [t.clone() for t in (layer.inputs.q, *layer.inputs.kv)]
    layer.planted.poison()
    layer.before(torch.full((6, 32), float("nan"), dtype=torch.bfloat16))

    assert all(same_bits(now, then) for now, then in zip((layer.inputs.q, *layer.inputs.kv), known, strict=True))


def test_attention_in_a_step_gives_the_reference_in_every_layer():
    layers = layers_of(step_problem(), count=3)
    step, runners = step_of(layers)
    for layer, runner in zip(layers, runners, strict=True):
        runner.out.fill_(float("nan"))
        layer.planted.poison()
    step()
    right = reference(layers[0].inputs)

    for number, runner in enumerate(runners):
        assert torch.allclose(as_first(runner.out, number).float(), right, atol=0.02)


def test_the_next_product_reads_what_attention_wrote():
    layers = layers_of(step_problem(), count=2)
    outs = [torch.zeros(6, 8, 16, dtype=torch.bfloat16) for _ in layers]
    value = [1.0]
    step = Step(layers, 32, [(lambda out=out: out.fill_(value[0]), out) for out in outs])
    step()
    before = step.residual.clone()
    value[0] = -1.0
    step()

    assert not torch.equal(before, step.residual)


def test_a_step_is_the_same_every_time():
    step, _ = step_of(layers_of(step_problem(), EXPERTS), EXPERTS)
    step()
    once = step.residual.clone()
    step()

    assert torch.equal(once, step.residual)


def test_a_layer_adds_its_output_product_and_its_mlp_to_the_residual():
    (layer,) = layers_of(step_problem(), count=1)
    x, out = torch.randn(6, 32).bfloat16(), torch.randn(6, 8, 16).bfloat16()
    wide = {name: w.float() for name, w in layer.weights.items()}
    middle = x.float() + out.float().flatten(1) @ wide["output"].T
    expected = middle + gated(norm(middle), wide["gate_up"], wide["mlp_down"])
    layer.after(x, out)

    assert torch.allclose(x.float(), expected, atol=0.1)


def test_each_token_gets_its_experts_weighed_by_the_router():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, 32, generator=generator)
    names = weight_shapes(step_problem(batch_size=5, s_qo=1), EXPERTS)
    weights = {name: torch.randn(size, generator=generator) / 8 for name, size in names.items()}
    found = Mlp(EXPERTS, 5, torch.device("cpu"))(x, weights)
    awake = EXPERTS.active_experts(5)
    expected = []
    for token in range(5):
        share = (x[token] @ weights["router"].T).topk(2).values.softmax(0)
        experts = [(2 * token + i) % awake for i in range(2)]
        parts = [gated(x[token : token + 1], weights["experts_up"][e], weights["experts_down"][e])[0] for e in experts]
        expected.append(share[0] * parts[0] + share[1] * parts[1])
        assert experts[0] != experts[1]
    shared = gated(x, weights["gate_up"], weights["mlp_down"])

    assert torch.allclose(found, torch.stack(expected) + shared, atol=1e-4)


def test_the_absorbed_form_gives_the_logits_and_values_of_the_heads():
    (layer,) = layers_of(step_problem(**MLA), LORA, 1)
    assert isinstance(layer, LatentLayer)
    q, latent = torch.randn(8, 1, 16), torch.randn(32)
    up, back = layer.weights["keys_up"].float(), layer.weights["values_up"].float()
    absorbed = torch.bmm(q, up.transpose(1, 2))[:, 0]  # as `_project` does

    assert torch.allclose(absorbed @ latent, torch.einsum("hn,hcn,c->h", q[:, 0], up, latent), atol=1e-3)
    out = torch.randn(6, 8, 32)
    layer.weights["values_up"] = back
    assert torch.allclose(layer._values(out), torch.einsum("thc,hvc->thv", out, back), atol=1e-4)


def test_the_rotary_embedding_turns_by_the_position():
    rotary = Rotary(draw(step_problem(batch_size=1, s_qo=2, s_kv=100), "cpu"))
    x = torch.ones(2, 1, 16)
    turned = rotary(x)

    assert torch.allclose(turned.norm(dim=-1), x.norm(dim=-1), rtol=0.01)
    angle = torch.tensor([98.0, 99.0])
    assert torch.allclose(turned[:, 0, 0], angle.cos() - angle.sin(), atol=0.01)
    assert torch.allclose(turned[:, 0, 8], angle.cos() + angle.sin(), atol=0.01)


@pytest.mark.parametrize("keys", [{}, MLA, {"head_dim_vo": 32}, {"q_dtype": "fp8_e4m3", "kv_dtype": "fp8_e4m3"}])
def test_the_stand_in_copies_the_queries(keys: dict[str, Any]):
    (layer,) = layers_of(step_problem(**keys), count=1)
    call, out = stand_in(layer)
    call()
    width = min(out.shape[-1], layer.inputs.q.shape[-1])

    assert out.shape == layer.inputs.empty_output().shape
    assert torch.equal(out[..., :width].float(), layer.inputs.q[..., :width].float())
