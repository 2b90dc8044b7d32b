"""The shapes of each model follow from its public config.json. Excerpts of those are here, with their own key names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator import ROOT
from orchestrator.config.model import layers_of

HUB = "https://huggingface.co/"
FILES = {path.stem: path for path in (ROOT / "conf" / "model").glob("*.yaml")}
KEYS = {"name", "num_qo_heads", "num_kv_heads", "head_dim_qk", "head_dim_vo", "page_size", "tp"}
MLA = {
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}

# file name -> where the config.json is, and what it says (of text_config, where the model also takes images)
PUBLIC: dict[str, tuple[str, dict[str, int | None]]] = {
    "llama_3_1_8b": (
        HUB + "meta-llama/Llama-3.1-8B",
        {"num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096},
    ),
    "llama_3_1_70b": (
        HUB + "meta-llama/Llama-3.1-70B",
        {"num_attention_heads": 64, "num_key_value_heads": 8, "hidden_size": 8192},
    ),
    "llama_3_1_405b": (
        HUB + "meta-llama/Llama-3.1-405B",
        {"num_attention_heads": 128, "num_key_value_heads": 8, "hidden_size": 16384},
    ),
    "qwen3_32b": (
        HUB + "Qwen/Qwen3-32B",
        {"num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "hidden_size": 5120, "sliding_window": None},
    ),
    "qwen3_235b_a22b": (
        HUB + "Qwen/Qwen3-235B-A22B",
        {"num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 128, "hidden_size": 4096, "sliding_window": None},
    ),
    "gpt_oss_120b": (
        HUB + "openai/gpt-oss-120b",
        {"num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "hidden_size": 2880, "sliding_window": 128},
    ),
    "deepseek_v3": (
        HUB + "deepseek-ai/DeepSeek-V3",
        {"num_attention_heads": 128, "num_key_value_heads": 128, "hidden_size": 7168, **MLA},
    ),
    "deepseek_r1": (
        HUB + "deepseek-ai/DeepSeek-R1",
        {"num_attention_heads": 128, "num_key_value_heads": 128, "hidden_size": 7168, **MLA},
    ),
    "kimi_k2": (
        HUB + "moonshotai/Kimi-K2-Instruct",
        {"num_attention_heads": 64, "num_key_value_heads": 64, "hidden_size": 7168, **MLA},
    ),
    "gemma_3_27b": (
        HUB + "google/gemma-3-27b-it",
        {"num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128, "hidden_size": 5376, "sliding_window": 1024},
    ),
    "mistral_7b_v0_3": (
        HUB + "mistralai/Mistral-7B-v0.3",
        {"num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096, "sliding_window": None},
    ),
    "mistral_small_3_1_24b": (
        HUB + "mistralai/Mistral-Small-3.1-24B-Instruct-2503",
        {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "hidden_size": 5120, "sliding_window": None},
    ),
    "mistral_large_2407": (
        HUB + "mistralai/Mistral-Large-Instruct-2407",
        {"num_attention_heads": 96, "num_key_value_heads": 8, "hidden_size": 12288},
    ),
}
SINKS = {"gpt_oss_120b"}  # a learned weight of each layer, which config.json does not mention


def expected(name: str) -> dict[str, Any]:
    """What a model's file says, from its public config.json; without what serving it decides (page_size, tp)."""
    public = PUBLIC[name][1]
    heads = public["num_attention_heads"]
    assert heads
    shape: dict[str, Any] = {"name": name, "num_qo_heads": heads, "num_kv_heads": public["num_key_value_heads"]}
    if "kv_lora_rank" in public:
        nope, rope = public["qk_nope_head_dim"], public["qk_rope_head_dim"]
        assert nope
        assert rope
        shape |= {"head_dim_qk": nope + rope, "head_dim_vo": public["v_head_dim"]}
        shape |= {"head_dim_ckv": public["kv_lora_rank"], "head_dim_kpe": rope}
    else:
        head_dim = public.get("head_dim") or (public["hidden_size"] or 0) / heads
        shape |= {"head_dim_qk": head_dim, "head_dim_vo": head_dim}
    if public.get("sliding_window"):
        shape["sliding_window"] = public["sliding_window"]
    if name in SINKS:
        shape["sinks"] = True
    return shape


def read(name: str) -> dict[str, Any]:
    loaded = yaml.safe_load(FILES[name].read_text())
    assert isinstance(loaded, dict)
    return loaded


def test_every_model_has_its_public_numbers_here_and_the_other_way_round() -> None:
    assert set(FILES) == set(PUBLIC)


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_the_shape_follows_from_the_public_config(name: str) -> None:
    model = read(name)
    assert set(model) >= KEYS
    assert {key: value for key, value in model.items() if key not in {"page_size", "tp", "layer"}} == expected(name)


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_the_first_line_names_the_source(name: str) -> None:
    first = FILES[name].read_text().splitlines()[0]
    assert first.startswith(f"# {PUBLIC[name][0]} config.json: ")


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_each_tensor_parallel_size_divides_the_heads(name: str) -> None:
    model = read(name)
    assert model["tp"]
    assert model["tp"] == sorted(set(model["tp"]))
    assert [tp for tp in model["tp"] if model["num_qo_heads"] % tp] == []


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_kv_heads_are_split_or_replicated_evenly(name: str) -> None:
    model = read(name)
    heads = model["num_kv_heads"]
    assert model["num_qo_heads"] % heads == 0
    assert [tp for tp in model["tp"] if heads % tp and tp % heads] == []


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_a_page_holds_64_tokens(name: str) -> None:
    assert read(name)["page_size"] == 64


@pytest.mark.parametrize("name", ["../model/llama_3_1_70b", "{folder}/evil", "../sweep/smoke", "..", "", "a\0b", "x" * 5000])
def test_a_models_name_opens_no_file_elsewhere(name: str, tmp_path: Path):
    (tmp_path / "evil.yaml").write_text("layer: {num_layers: 77}\n")

    assert layers_of(name.format(folder=tmp_path)) is None
    assert layers_of("llama_3_1_70b") == 80
