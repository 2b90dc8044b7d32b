"""`model=PATH/config.json`: keys of Hugging Face become a model, and what cannot be modelled is refused by its name."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.composing.compose import composed
from orchestrator.config import config_json
from orchestrator.config.settings import Settings, load
from orchestrator.errors import UserError
from orchestrator.planning.expand import expand
from tests.helpers.command_line import Invoke

QWEN = {  # nine keys of Qwen3-32B's
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "num_attention_heads": 64, "num_key_value_heads": 8,
    "head_dim": 128, "hidden_size": 5120, "intermediate_size": 25600, "num_hidden_layers": 64, "torch_dtype": "bfloat16",
}  # fmt: skip
SMALL: dict[str, Any] = {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "num_hidden_layers": 12}
SLIDING, FULL = "sliding_attention", "full_attention"
PLAN = ("+sweep=smoke", "mode=plan", "device=h100")


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    def found(keys: object) -> dict[str, Any]:
        (tmp_path / "config.json").write_text(json.dumps(keys))
        return config_json.read(str(tmp_path / "config.json"))

    return found


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"head_dim": None, "hidden_size": 1024}, {"head_dim_qk": 128, "head_dim_vo": 128}),
        ({"num_key_value_heads": None}, {"num_kv_heads": 8}),
        ({"num_key_value_heads": None, "multi_query": True}, {"num_kv_heads": 1}),
        ({"v_head_dim": 32}, {"head_dim_qk": 64, "head_dim_vo": 32}),
        ({"layer_types": [FULL, SLIDING] * 6, "sliding_window": 128}, {"sliding_window": 128, "kinds": {"full": 6, "windowed": 6}}),
        ({"sliding_window": 4096, "sliding_window_pattern": 4}, {"kinds": {"full": 3, "windowed": 9}}),
        ({"sliding_window": 4096, "sliding_window_pattern": "LLG"}, {"kinds": {"full": 4, "windowed": 8}}),
        ({"sliding_window": 4096}, {"sliding_window": 4096, "kinds": {"windowed": 12}}),
        ({"sliding_window": 4096, "max_position_embeddings": 4096}, {"kinds": None, "sliding_window": None}),
        ({"sliding_window": 4096, "model_type": "qwen2"}, {"kinds": None}),
        ({"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 10}, {"kinds": {"full": 10, "windowed": 2}}),
        ({"hybrid_override_pattern": "M-M*M-ME"}, {"kinds": {"Mamba": 4, "MLP": 3, "full": 1}, "layer": None}),
        ({"attn_layer_period": 6, "attn_layer_offset": 3}, {"kinds": {"Mamba": 10, "full": 2}}),
        ({"attn_type_list": [0, 0, 1]}, {"kinds": {"linear attention": 2, "full": 1}}),
        ({"attention_multiplier": 0.0156}, {"softmax_scale": 0.0156}),
        ({"query_pre_attn_scalar": 64}, {"softmax_scale": None}),
        ({"query_pre_attn_scalar": 256}, {"softmax_scale": 1 / 16}),
        ({"attn_logit_softcapping": 30.0}, {"soft_cap": 30.0}),
        ({"model_type": "gpt_oss", "hidden_size": 512}, {"sinks": True, "kinds": {"full": 6, "windowed": 6}}),
        ({"max_position_embeddings": 8192, "rope_scaling": {"rope_type": "linear", "factor": 4.0}}, {"max_positions": 32768}),
        (
            {"n_positions": 9, "rope_scaling": {"type": "yarn", "factor": 4, "original_max_position_embeddings": 32768}},
            {"max_positions": 131072},
        ),
        ({"n_kv_heads": 4, "num_key_value_heads": None}, {"num_kv_heads": 4}),
        ({"attn_config": {"kv_n_heads": 4}, "num_key_value_heads": None}, {"num_kv_heads": 4}),
        ({"num_attention_groups": 1, "num_key_value_heads": None}, {"num_kv_heads": 1}),
        ({"model_type": "falcon"}, {"num_kv_heads": 1}),
        ({"model_type": "falcon", "new_decoder_architecture": True}, {"num_kv_heads": 2}),
        ({"num_key_value_heads": None, "multi_query_attention": False, "multi_query_group_num": 2}, {"num_kv_heads": 8}),
        ({"kv_lora_rank": 32, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "hidden_size": 512}, {"head_dim_vo": 64}),
        ({"model_type": "recurrent_gemma"}, {"kinds": {"linear attention": 8, "windowed": 4}, "sliding_window": 2048}),
        ({"attn_layer_indices": [3, 9]}, {"kinds": {"Mamba": 10, "full": 2}}),
        ({"full_attn_idxs": [3, 9]}, {"kinds": {"convolution": 10, "full": 2}}),
        ({"layers_block_type": ["mamba", "hybrid"]}, {"kinds": {"Mamba": 1, "full": 1}}),
        ({"window_size": 64, "global_attn_every_n_layers": 4}, {"kinds": {"full": 3, "windowed": 9}}),
        ({"model_type": "gemma3n_text"}, {"softmax_scale": 1.0, "sliding_window": 512, "kinds": {"full": 2, "windowed": 10}}),
        ({"model_type": "bert"}, {"is_encoder": True, "kinds": None}),
        ({"model_type": "modernbert", "local_attention": 128, "global_attn_every_n_layers": 5},
         {"is_encoder": True, "sliding_window": 65, "kinds": {"full": 3, "windowed": 9}}),
        ({"use_bidirectional_attention": True, "sliding_window": 512}, {"is_encoder": True, "sliding_window": 257}),
        ({"use_bidirectional_attention": "vision"}, {"is_encoder": None}),
        ({"cross_attention_layers": [3, 8]}, {"kinds": {"full": 10, "cross attention": 2}}),
        ({"layer_group_size": 5}, {"kinds": {"linear attention": 8, "full": 4}}),  # the 5th, the 10th, and the rest
        ({"model_type": "jamba"}, {"kinds": {"Mamba": 11, "full": 1}}),
        ({"sliding_window": 512, "layer_types": [FULL, SLIDING] * 6,
          "attention_other_setting": {"attention_type": SLIDING, "num_attention_heads": 12, "num_attention_groups": 2}},
         {"windowed": {"num_qo_heads": 12}}),
        ({"sliding_window": -1, "attn_logit_softcapping": 0}, {"kinds": None, "soft_cap": None}),
        ({"max_attn_value": 30.0, "model_max_length": 4096}, {"soft_cap": 30.0, "max_positions": 4096}),
        ({"num_attention_heads": 40, "num_key_value_heads": 10}, {"tp": [1, 2, 5, 10]}),
        ({"num_attention_heads": 32, "num_key_value_heads": 4}, {"tp": [1, 2, 4, 8, 16]}),  # KV heads are copied for 8 and 16
    ],
)  # fmt: skip
def test_keys_of_a_file_become_those_of_a_model(keys: dict[str, Any], expected: dict[str, Any], read: Callable[..., Any]):
    found = read({**SMALL, **keys})

    assert {key: found.get(key) for key in expected} == expected
    assert found == read({"text_config": {**SMALL, **keys}})


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"intermediate_size": [64] * 12}, {"intermediate_size": 64}),  # Gemma 3n
        ({"intermediate_size": [64, 32]}, None),
        ({"n_routed_experts": 8}, None),  # and how many of them a token takes is not said
        ({"num_experts": 8, "moe_topk": [2] * 12, "moe_intermediate_size": [16] * 12, "num_shared_expert": [1] * 12},
         {"intermediate_size": 16, "num_experts": 8, "experts_per_token": 2, "shared_intermediate_size": 16}),  # Hunyuan
        ({"moe_num_experts": 4, "moe_k": 2}, {"intermediate_size": 96, "num_experts": 4, "experts_per_token": 2}),  # ERNIE
        ({"num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 32},
         {"intermediate_size": 96, "num_experts": 4, "experts_per_token": 2, "shared_intermediate_size": 32}),  # Granite
        ({"intermediate_size": None, "hidden_dim": 48}, {"intermediate_size": 48}),  # Mistral's own params.json
    ],
)  # fmt: skip
def test_the_sizes_of_a_layer_are_read_or_left_out(keys: dict[str, Any], expected: object, read: Callable[..., Any]):
    sizes = {"hidden_size": 512, "num_layers": 12}
    found = read({**SMALL, "hidden_size": 512, "intermediate_size": 96, **keys})

    assert found.get("layer") == (None if expected is None else {**sizes, **expected})


def test_an_encoder_runs_without_a_causal_mask_alone(tmp_path: Path, invoke: Invoke):
    (tmp_path / "config.json").write_text(json.dumps({**SMALL, "model_type": "bert"}))
    causal, full = (invoke(sweep, f"model={tmp_path}", *PLAN[1:]) for sweep in ("+sweep=smoke", "+sweep=encoder"))

    assert (causal.returncode, "is an encoder, whose tokens see those after them; type +sw" in causal.stderr) == (2, True)
    assert (full.returncode, "24 of 192 points do not run: model model_8_2_64 is an encoder" in full.stderr) == (0, True)
    assert "points of mask=prefix are none of its own" in full.stderr and "type +sweep=encoder" not in full.stderr


def test_what_measures_an_encoder_is_the_sweep_of_encoders(tmp_path: Path, invoke: Invoke):
    (tmp_path / "config.json").write_text(json.dumps({**SMALL, "model_type": "bert"}))
    done = invoke("mode=report", "device=h200", f"model={tmp_path}")

    assert done.returncode == 2
    assert f"to measure: python -m orchestrator +sweep=encoder model={tmp_path}" in done.stderr


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("bert-base", "; any other, such as an encoder: save its page's config.json and type model=PATH/config.json; "),
        ("google-bert/bert-base", "or a path of a config.json, such as that of https://huggingface.co/google-bert/bert-base"),
        ("Llama-3.1-70B-Instruct", "unknown 'Llama-3.1-70B-Instruct'; did you mean 'llama_3_1_70b'?"),
        ("meta-llama/Llama-3.1-70B-Instruct", "no such file; did you mean 'llama_3_1_70b'?"),
    ],
)
def test_a_model_without_a_file_is_answered_with_what_to_type(name: str, words: str, invoke: Invoke):
    done = invoke("+sweep=encoder", f"model={name}", *PLAN[1:])

    assert done.returncode == 2 and words in done.stderr


def test_a_latent_has_the_scale_of_its_yarn(read: Callable[..., Any]):
    latent = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
    found = read({**SMALL, **latent, "rope_scaling": {"type": "yarn", "factor": 40, "mscale_all_dim": 1.0}})

    assert [found[key] for key in ("head_dim_qk", "head_dim_vo", "head_dim_ckv", "head_dim_kpe")] == [192, 128, 512, 64]
    assert found["num_kv_heads"] == 8
    assert found["softmax_scale"] == pytest.approx((0.1 * math.log(40) + 1) ** 2 / math.sqrt(192))  # as captured traces have it


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"model_type": "llama4_text", "attention_chunk_size": 8192}, "llama4_text attends within chunks of 8192 tokens"),
        ({"compress_ratios": [0, 4]}, "a window and a compressed cache (compress_ratios)"),
        ({"sparse_attention_config": {"sparse_topk_blocks": 16}}, "attends sparsely, to blocks of keys"),
        ({"is_encoder_decoder": True, "relative_attention_num_buckets": 32}, "adds biases of positions"),
        ({"model_type": "rwkv7"}, "recurrent layers, which do not attend"),
        ({"model_type": "bloom"}, "adds ALiBi"),
        ({"layer_types": ["mamba"] * 12}, "none of the layers of this model attends: 12 Mamba"),
        ({"num_attention_heads": None}, "num_attention_heads=None: allowed: a whole number"),
        ({"head_dim": None, "hidden_size": 1000, "num_attention_heads": 7}, "hidden_size=1000 does not divide by 7 heads"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers=1000000000: allowed: a whole number, up to 1,000"),
        ({"query_pre_attn_scalar": -4}, "query_pre_attn_scalar=-4: allowed: a number above 0"),
        ({"head_dim": "big"}, "head_dim='big': allowed: a whole number"),
        ({"head_dim": None}, "hidden_size=None: allowed: a whole number"),
        ({"num_key_value_heads": 0}, "num_key_value_heads=0: allowed: a whole number, 1 or more"),
        ({"kv_lora_rank": 32, "v_head_dim": 64}, "qk_nope_head_dim=None: allowed: a whole number"),
        ({"kv_lora_rank": 32, "qk_nope_head_dim": 64}, "v_head_dim=None: allowed: a whole number"),
        ({"sliding_window": [64]}, "sliding_window=[64]: allowed: a whole number"),
        ({"layer_types": [1]}, "layer_types=[1]: allowed: a list of names"),
        ({"state_size": 16}, "Mamba layers, which do not attend"),
        ({"mb_per_layer": 2}, "shares one cache"),
        ({"model_type": "gpt_neo"}, "alternates kinds of layers"),
        ({"blocksparse_block_size": 64}, "to blocks of 64 keys"),
        ({"dual_chunk_attention_config": {"chunk_size": 9}}, "within chunks and across"),
        ({"model_type": "llama4_text"}, "within chunks of 8192 tokens"),
        ({"model_type": "baichuan", "hidden_size": 5120}, "adds ALiBi"),
    ],
)
def test_what_cannot_be_modelled_is_refused_by_name(keys: dict[str, Any], words: str, read: Callable[..., Any]):
    with pytest.raises(UserError) as raised:
        read({**SMALL, **keys})
    assert str(raised.value).startswith("model=")
    assert words in str(raised.value)


def test_keys_that_are_not_read_are_named(tmp_path: Path, invoke: Invoke):
    quiet = {
        "attention_bias": True,
        "layer_norm_eps": 1e-6,
        "attn_logit_softcapping": None,
        "vocab_size": 9,
        "sparse_of_theirs": False,
    }
    (tmp_path / "config.json").write_text(json.dumps({**QWEN, **quiet, "sparse_topk": 16, "head_scale_of_theirs": 2.0}))

    said = [line for line in invoke(*PLAN, f"model={tmp_path}").stderr.splitlines() if "not read" in line]
    assert [line.partition("not read: ")[2].partition(";")[0] for line in said] == ["sparse_topk, head_scale_of_theirs"]


def test_a_file_of_another_kind_is_wrong_input(tmp_path: Path, invoke: Invoke):
    for text in ("[1]", "{", "{}", '{"a": 1, "a": 2}'):
        (tmp_path / "config.json").write_text(text)
        done = invoke(*PLAN, f"model={tmp_path}/config.json")
        assert (done.returncode, done.stderr.splitlines()[0][:13]) == (2, "error: model=")
    assert "No such file" in invoke(*PLAN, "model=nowhere/config.json").stderr


@pytest.mark.parametrize("given", ["model={path}/config.json", "model={path}", "import={path}"])
def test_the_config_of_a_shipped_model_plans_as_the_model(given: str, tmp_path: Path, invoke: Invoke):
    (tmp_path / "config.json").write_text(json.dumps(QWEN))
    plan = ("+sweep=specdec_long_ctx", "mode=plan", "device=h100", "format=json")
    found = json.loads(invoke(*plan, given.format(path=tmp_path)).stdout)

    assert found == json.loads(invoke(*plan, "model=qwen3_32b").stdout)
    assert found[0]["rows"] == [["qwen3_32b", "1", "64", "8", "128", "128", "64", "1,920"]]
    assert found[1]["rows"] == [["run", "956"], ["unsupported", "960"], ["skipped", "4"]]


@pytest.mark.parametrize("name", ["config.json", "qwen.json", ""])
def test_a_model_that_is_imported_is_a_typed_one(name: str, tmp_path: Path, invoke: Invoke):
    (tmp_path / (name or "config.json")).write_text(json.dumps({**QWEN, "hidden_size": 4096}))
    words = ["+sweep=ragged_prefill", "model.page_size=16", *PLAN[1:]]
    imported, typed = (invoke(*words, f"{key}={tmp_path}/{name}") for key in ("import", "model"))

    assert (imported.returncode, imported.stdout, imported.stderr) == (typed.returncode, typed.stdout, typed.stderr)
    assert "takes the place of the heads that sweep ragged_prefill sets" in imported.stderr
    both = invoke(*words, f"import={tmp_path}/{name}", "model=gpt_oss_120b")
    assert (both.returncode, "model=gpt_oss_120b: each is a model, and a command has one" in both.stderr) == (2, True)


def test_models_of_files_are_told_apart_and_take_single_keys(tmp_path: Path):
    names = []
    for heads in (16, 32):
        (tmp_path / "config.json").write_text(json.dumps({**QWEN, "num_attention_heads": heads}))
        names.append(load(composed([*PLAN, f"model={tmp_path}/config.json", "model.page_size=16"])).model)

    assert [(one.name, one.page_size) for one in names] == [("qwen3_16_8_128", 16), ("qwen3_32_8_128", 16)]


@pytest.mark.parametrize("changes", [{"num_hidden_layers": 35}, {"num_hidden_layers": 1}, {"hidden_size": 2048}])
def test_a_file_with_other_sizes_is_no_shipped_model(changes: dict[str, int], read: Callable[..., Any]):
    mistral = {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "hidden_size": 4096, "num_hidden_layers": 32}

    assert (read(mistral)["name"], read({**mistral, **changes})["name"]) == ("llama_3_1_8b", "model_32_8_128")


def test_the_name_of_a_hub_is_no_path(invoke: Invoke):
    done = invoke(*PLAN, "model=Qwen/Qwen3-32B")
    assert (done.returncode, "did you mean 'qwen3_32b'? allowed: a name of conf/model" in done.stderr) == (2, True)


def test_windowed_layers_may_have_heads_of_their_own(settings: Callable[..., Settings]):
    one = ("+sweep=smoke", "model=gemma_4_26b_a4b", "sweep.tp=[2]", "sweep.window=[null,1024]", "sweep.batch_size=[1]")
    problems = {point.problem.window: point.problem for point in expand(settings(*one))}

    assert {window: (p.num_kv_heads, p.head_dim_qk) for window, p in problems.items()} == {None: (1, 512), 1024: (4, 256)}


def test_a_model_with_windows_alone_has_them_in_every_point(settings: Callable[..., Settings]):
    assert {point.problem.window for point in expand(settings("+sweep=smoke", "model=phi_3_mini_4k"))} == {2047}


@pytest.mark.parametrize(
    ("words", "scale", "cap"),
    [
        (["model=gemma_3_27b"], 168**-0.5, None),
        (["model=deepseek_v3", "sweep.routine=ragged_prefill", "sweep.s_qo=[1]"], 0.1352337788608801, None),
        (["model=qwen3_8b", "+model.soft_cap=30.0"], None, 30.0),
        (["model=gemma_3_27b", "sweep.softmax_scale=[0.1]"], 0.1, None),
        (["model=gemma_3_27b", "+sweep.num_qo_heads=[16]"], None, None),  # of other heads
    ],
)
def test_a_model_has_its_own_softmax(words: list[str], scale: float | None, cap: float | None, settings: Callable[..., Settings]):
    points = expand(settings("+sweep=smoke", "sweep.backend=[torch_sdpa]", *words))

    assert {(point.problem.softmax_scale, point.problem.soft_cap) for point in points} == {(scale, cap)}
