"""What an engine is told to start: its model, and room for all points of the start."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kernels.engines.start import EngineStart, longest_request, memory_bytes, point_request
from orchestrator.config.settings import Settings
from orchestrator.planning.expand import expand

KINDS = ["sliding_attention", "full_attention"]


def start_of(settings: Settings) -> EngineStart:
    points = expand(settings)
    assert settings.model.layer is not None
    return EngineStart(points[0].backend, tuple(p.problem for p in points if p.shares == points[0].shares), settings.model.layer)


@pytest.mark.parametrize(
    ("words", "architecture", "keys"),
    [
        (["model=llama_3_1_70b"], "LlamaForCausalLM", {"num_attention_heads": 64, "head_dim": 128, "intermediate_size": 28672}),
        (["sweep.tp=8"], "LlamaForCausalLM", {"num_attention_heads": 8, "num_key_value_heads": 1, "intermediate_size": 3584}),
        (["model=mistral_7b_v0_3", "sweep.window=4096"], "LlamaForCausalLM", {"layer_types": ["sliding_attention"] * 4}),
        (["model=deepseek_v3"], "DeepseekV3ForCausalLM", {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "first_k_dense_replace": 4}),
        (["model=gpt_oss_120b"], "GptOssForCausalLM", {"layer_types": KINDS * 2, "sliding_window": 128, "num_local_experts": 8}),
        (["model=gpt_oss_120b", "sweep.window=[64]"], "GptOssForCausalLM", {"layer_types": KINDS * 2, "sliding_window": 64}),
    ],
)
def test_its_model_has_the_heads_of_the_sweep(
    words: list[str], architecture: str, keys: dict[str, object], settings: Callable[..., Settings]
):
    start = start_of(settings("+sweep=in_engine", *words))
    model = start.spec()["model"]

    assert model["architectures"] == [architecture] and model | keys == model
    assert start.in_words.startswith(f"{architecture}, 4 layers, dummy weights")
    assert ("1 of 8 GPUs" in start.in_words) == ("sweep.tp=8" in words)


@pytest.mark.parametrize(("window", "layers"), [("null", [1, 3]), ("128", [0, 2])])
def test_of_gpt_oss_the_layers_of_the_problem_s_kind_are_measured(
    window: str, layers: list[int], settings: Callable[..., Settings]
):
    start = start_of(settings("+sweep=in_engine", "model=gpt_oss_120b", f"sweep.window=[{window}]"))

    assert start.spec()["measured"] == layers
    assert start.in_words.endswith(f"dummy weights, measured in layers {layers[0]}, {layers[1]}")


@pytest.mark.parametrize("drafts", [0, 7])
def test_it_has_room_for_the_largest_of_its_points(drafts: int, settings: Callable[..., Settings]):
    found = settings("+sweep=in_engine", f"sweep.drafts=[{drafts}]", "sweep.batch_size=[1,64]", "sweep.s_kv=[8192,32768]")
    start = start_of(found)
    spec, largest = start.spec(), max(start.problems, key=lambda problem: problem.num_kv_tokens)
    token_bytes = 4 * 2 * 8 * 128 * 2  # layers, keys and values, heads, head_dim, bf16

    assert len(start.problems) == 4 and spec["batches"] == [1, 64] and spec["drafts"] == drafts
    assert spec["max_model_len"] == max(map(longest_request, start.problems))
    assert spec["cache_bytes"] > 64 * longest_request(largest) * token_bytes
    assert memory_bytes(largest, start.layer, 4) > spec["cache_bytes"]
    asked = point_request(largest)
    steps = asked["steps"]["warm"] + asked["steps"]["timed"] + asked["steps"]["profiled"]
    assert asked["prompt"] + steps * (drafts + 1) <= 32768 < asked["prompt"] + asked["most"]


def test_the_engine_has_the_maximum_that_the_problem_names(settings: Callable[..., Settings]):
    start = start_of(settings("+sweep=in_engine", "sweep.max_seq_len=[131072]", "sweep.s_kv=[8192]"))

    assert start.spec()["max_model_len"] == start.spec()["model"]["max_position_embeddings"] == 131072
