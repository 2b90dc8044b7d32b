"""The model that an engine loads for a problem: a config.json of a few layers with the problem's heads. Pure Python, no torch.

Weights are dummies. One GPU has its share of the heads and of the MLP under tensor parallelism, without communication.
"""

from __future__ import annotations

from typing import Any

from kernels.problem import Problem
from kernels.step.shapes import LayerShape, nope_dim

VOCABULARY = 32_000  # of the embeddings, so that they take little memory
Config = dict[str, Any]


def unmet(problem: Problem) -> list[str]:
    """What a problem lacks to be a layer of a model that engines load, as sentences of what it needs."""
    needs = {
        "keys and values of one head_dim, or a latent (MLA)": problem.latent or problem.head_dim_qk == problem.head_dim_vo,
        "routine paged_decode, or mla": problem.routine in ("paged_decode", "mla"),
        "one output, without a log-sum-exp": not problem.return_lse,
        "dependent launch and splits left to the engine": problem.enable_pdl is None,
    }
    return [sentence for sentence, met in needs.items() if not met]


def config_of(problem: Problem, layer: LayerShape, layers: int) -> Config:
    """A config.json: DeepSeek-V3's class for a latent, gpt-oss's for sinks, else Llama's. All layers are of the problem's kind."""
    shared = {
        "vocab_size": VOCABULARY,
        "hidden_size": layer.hidden_size,
        "intermediate_size": _mlp_size(problem, layer),
        "num_hidden_layers": layers,
        "num_attention_heads": problem.num_qo_heads,
        "num_key_value_heads": problem.num_kv_heads,
        "max_position_embeddings": 1 << 20,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
    }
    if problem.latent:
        return shared | _latent(problem, layer, layers)
    kind = "full_attention" if problem.window is None else "sliding_attention"
    windows = {"layer_types": [kind] * layers, "sliding_window": problem.window} if problem.window else {}
    shared |= {"head_dim": problem.head_dim_qk, "hidden_act": "silu", "rms_norm_eps": 1e-5}
    if problem.sinks:
        experts = {"num_local_experts": layer.num_experts or 8, "num_experts_per_tok": layer.experts_per_token or 1}
        of_class = {"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "layer_types": [kind] * layers}
        own_mlp = {"intermediate_size": layer.of_mlp(layer.intermediate_size, problem.tp)}
        return shared | {"sliding_window": problem.window or 128} | experts | of_class | own_mlp
    return shared | windows | {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}


def in_words(config: Config, problem: Problem) -> str:
    """What a row says of the model."""
    share = f", the share of 1 of {problem.tp} GPUs by heads and MLP, without communication" if problem.tp > 1 else ""
    return f"{config['architectures'][0]}, {config['num_hidden_layers']} layers, dummy weights{share}"


def _mlp_size(problem: Problem, layer: LayerShape) -> int:
    """The inner size of a dense MLP on one GPU. Of a model with experts it is as wide as those of one token together."""
    whole = layer.intermediate_size * (layer.experts_per_token or 1) + (layer.shared_intermediate_size or 0)
    return -(-layer.of_mlp(whole, problem.tp) // 64) * 64


def _latent(problem: Problem, layer: LayerShape, layers: int) -> Config:
    return {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "first_k_dense_replace": layers,  # no layer has experts
        "q_lora_rank": layer.q_lora_rank,
        "kv_lora_rank": problem.head_dim_ckv,
        "qk_nope_head_dim": nope_dim(problem),
        "qk_rope_head_dim": problem.head_dim_kpe,
        "v_head_dim": problem.head_dim_vo,
    }
