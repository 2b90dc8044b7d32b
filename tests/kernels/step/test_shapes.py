"""The sizes of a layer: that a model's layers add up to its parameters, and how many experts a batch wakes."""

from __future__ import annotations

import pytest
import yaml
from pydantic import ValidationError

from kernels.problem import Problem
from kernels.step.shapes import LayerShape, weight_bytes, weight_shapes
from orchestrator import ROOT
from orchestrator.config.model import Model
from tests.helpers.steps import DENSE, EXPERTS, MLA, step_problem

# Model: its parameters in 1e9, as its page says them, and those of its embeddings, vocab_size · hidden_size, once if they are tied.
PARAMETERS = {
    "llama_3_1_8b": (8.03, 2 * 128256 * 4096),
    "llama_3_1_70b": (70.6, 2 * 128256 * 8192),
    "llama_3_1_405b": (406, 2 * 128256 * 16384),
    "qwen3_32b": (32.8, 2 * 151936 * 5120),
    "qwen3_235b_a22b": (235, 2 * 151936 * 4096),
    "gpt_oss_120b": (116.8, 2 * 201088 * 2880),
    "gemma_3_27b": (27.0, 262208 * 5376),
    "mistral_7b_v0_3": (7.25, 2 * 32768 * 4096),
    "mistral_large_2407": (123, 2 * 32768 * 12288),
    "mistral_small_3_1_24b": (23.6, 2 * 131072 * 5120),
    "deepseek_v3": (671, 2 * 129280 * 7168),
    "deepseek_r1": (671, 2 * 129280 * 7168),
    "deepseek_v3_1": (671, 2 * 129280 * 7168),
    "deepseek_v3_2": (671, 2 * 129280 * 7168),  # as V3.1, from which it was trained on
    "kimi_k2": (1026, 2 * 163840 * 7168),
    "kimi_k2_5": (1026, 2 * 163840 * 7168),  # its language model is that of Kimi K2
    "qwen3_8b": (8.2, 2 * 151936 * 4096),
    "qwen3_14b": (14.8, 2 * 151936 * 5120),
    "qwen3_30b_a3b": (30.5, 2 * 151936 * 2048),
    "qwen3_coder_480b_a35b": (480, 2 * 151936 * 6144),
    "llama_3_3_70b": (70.6, 2 * 128256 * 8192),
    "gpt_oss_20b": (20.9, 2 * 201088 * 2880),
    "glm_4_5": (355, 2 * 151552 * 5120),
    "glm_4_5_air": (106, 2 * 151552 * 4096),
    "glm_5": (744, 2 * 154880 * 6144),
    "gemma_3_4b": (3.88, 262208 * 2560),
    "gemma_3_12b": (11.8, 262208 * 3840),
    "phi_3_mini_4k": (3.8, 2 * 32064 * 3072),
    "phi_4": (14.7, 2 * 100352 * 5120),
    "phi_4_mini": (3.8, 200064 * 3072),
    "minimax_m2_5": (230, 2 * 200064 * 3072),
    "mistral_small_4": (119, 2 * 131072 * 4096),
}
DENSE_LAYERS = {  # of these models: how many, and the size of their MLP
    "deepseek_v3": (3, 18432), "deepseek_r1": (3, 18432), "deepseek_v3_1": (3, 18432), "deepseek_v3_2": (3, 18432),
    "kimi_k2": (1, 18432), "kimi_k2_5": (1, 18432), "glm_4_5": (3, 12288), "glm_4_5_air": (1, 10944), "glm_5": (3, 12288),
}  # fmt: skip


def read(name: str) -> Model:
    return Model.model_validate(yaml.safe_load((ROOT / "conf" / "model" / f"{name}.yaml").read_text()))


def whole(model: Model) -> Problem:
    routine = "mla" if model.head_dim_ckv else "paged_decode"
    heads = {key: value for key, value in model.model_dump().items() if key.startswith(("num_", "head_"))}
    return Problem.model_validate({"routine": routine, "batch_size": 10**5, "s_qo": 1, "s_kv": 64, **heads})


@pytest.mark.parametrize("name", sorted(PARAMETERS))
def test_the_layers_of_a_model_add_up_to_its_parameters(name: str):
    model, (billions, embeddings) = read(name), PARAMETERS[name]
    assert model.layer is not None
    one_gpu = model.layer.model_copy(update={"mlp_gpus": 1})
    per_layer = weight_bytes(whole(model), one_gpu) / 2  # of a batch that wakes every expert
    dense, inner = DENSE_LAYERS.get(name, (0, 1))
    plain = one_gpu.model_copy(update={"num_experts": None, "intermediate_size": inner})
    of_a_dense_layer = weight_bytes(whole(model), plain) / 2
    layers = model.layer.num_layers
    assert layers is not None

    assert (layers - dense) * per_layer + dense * of_a_dense_layer + embeddings == pytest.approx(billions * 1e9, rel=0.01)


def test_every_model_of_the_project_whose_layers_are_alike_has_their_sizes():
    assert {path.stem for path in (ROOT / "conf" / "model").glob("*.yaml") if "\nlayer:" in path.read_text()} == set(PARAMETERS)


def test_one_gpu_holds_its_share_of_heads_and_mlp():
    found = weight_shapes(step_problem(tp=2), DENSE)

    assert found == {"qkv": ((8 + 2 + 2) * 16, 32), "output": (32, 8 * 16), "gate_up": (2 * 24, 32), "mlp_down": (32, 24)}


def test_the_products_of_mla_are_those_of_its_absorbed_form():
    found = weight_shapes(step_problem(**MLA), LayerShape(hidden_size=32, intermediate_size=48, q_lora_rank=20))
    direct = weight_shapes(step_problem(**MLA), DENSE)

    assert (found["down"], found["queries_up"]) == ((20 + 32 + 8, 32), (8 * 24, 20))
    assert (found["keys_up"], found["values_up"]) == ((8, 32, 16), (8, 16, 32))
    assert found["output"] == (32, 8 * 16)
    assert "queries_up" not in direct
    assert direct["down"] == (8 * 24 + 32 + 8, 32)


@pytest.mark.parametrize(("tokens", "awake"), [(1, 2), (2, 4), (4, 5), (1000, 8)])
def test_a_batch_wakes_the_experts_that_chance_gives_it(tokens: int, awake: int):
    assert EXPERTS.active_experts(tokens) == awake  # 8 · (1 - (6/8)^T), and two at least


def test_an_mlp_lies_on_as_many_gpus_as_hold_it():
    shape = LayerShape(hidden_size=32, intermediate_size=48, mlp_gpus=8)

    assert (shape.of_mlp(48, 1), shape.of_mlp(48, 16)) == (6, 3)


@pytest.mark.parametrize(
    ("keys", "words"),
    [({"num_experts": 8}, "come together"), ({"num_experts": 2, "experts_per_token": 3}, "at most num_experts=2")],
)
def test_experts_that_make_no_sense_are_refused(keys: dict[str, int], words: str):
    with pytest.raises(ValidationError, match=words):
        LayerShape(hidden_size=8, intermediate_size=8, **keys)
