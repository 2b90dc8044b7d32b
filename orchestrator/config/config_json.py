"""A model's `config.json`, as Hugging Face writes it, as the keys of a `Model`. What cannot be modelled is refused by name.

The keys are those of `transformers` and of models' own code; what a file leaves to that code stands in conf/model_types.yaml,
and the names and refusals of keys in conf/model_keys.yaml.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kernels.problem.routine import found as routines
from kernels.step.shapes import LayerShape
from orchestrator.config.base import own_table
from orchestrator.config.model import FULL, HEADS, WINDOWED, shipped
from orchestrator.errors import UserError, did_you_mean
from orchestrator.notes import note_once
from orchestrator.untrusted.door import from_json, reading
from orchestrator.untrusted.files import expanded, read_text

Keys = dict[str, Any]
KEYS: Mapping[str, Any] = own_table("model_keys")
LINEAR = "linear attention"
OF_ENTRY: dict[str, Callable[[Any], str]] = {  # the kind of a layer, by the key whose list has an entry for each
    **dict.fromkeys(
        ("layer_types", "layers_block_type", "hybrid_override_pattern"), lambda one: KEYS["kinds"].get(one, one.replace("_", " "))
    ),
    "hybrid_layer_pattern": lambda one: WINDOWED if one else FULL,  # MiMo
    "attn_type_list": lambda one: FULL if one else LINEAR,  # MiniMax
    # Nemotron NAS
    "block_configs": lambda one: (
        "MLP" if one["attention"].get("no_op") else LINEAR if one["attention"].get("replace_with_linear") else FULL
    ),
}
OF_NUMBER: dict[str, Callable[[Keys, int], str]] = {  # the kind of layer i, by the key that says it for all
    "linear_attn_config": lambda c, i: FULL if i + 1 in c["linear_attn_config"]["full_attn_layers"] else LINEAR,  # Kimi
    "full_attention_interval": lambda c, i: LINEAR if (i + 1) % c["full_attention_interval"] else FULL,  # Qwen3-Next
    "attn_layer_period": lambda c, i: FULL if i % c["attn_layer_period"] == c.get("attn_layer_offset", 0) else "Mamba",  # Jamba
    "attn_layer_indices": lambda c, i: FULL if i in c["attn_layer_indices"] else "Mamba",  # Bamba
    "full_attn_idxs": lambda c, i: FULL if i in c["full_attn_idxs"] else "convolution",  # LFM2
    "cross_attention_layers": lambda c, i: "cross attention" if i in c["cross_attention_layers"] else FULL,  # Mllama
    # Bailing, whose layers after the last whole group attend
    "layer_group_size": lambda c, i: LINEAR if (i + 1) % (n := c["layer_group_size"]) and i < _layers(c) // n * n else FULL,
    # RecurrentGemma
    "block_types": lambda c, i: WINDOWED if c["block_types"][i % len(c["block_types"])] == "attention" else LINEAR,
    "sliding_window_pattern": lambda c, i: _of_pattern(c["sliding_window_pattern"], i - 1 if c.get("is_encoder") else i),
    "max_window_layers": lambda c, i: FULL if c.get("use_sliding_window") and i < c["max_window_layers"] else WINDOWED,  # Qwen
}
# Of keys that may say what attention is; norms, dropout and experts do not.
NEAR = re.compile("(?!.*(norm|drop|mamba|moe_|expert)).*(attn|attention|window|layer|head|sparse|block|chunk|kv_|scale|cap)")
MAX_BYTES, MAX_LAYERS, MAX_NAME, MAX_SAID = 10**6, 1_000, 60, 600
MAX_TP = 16  # GPUs that share a model without more words
SHAPE = (*HEADS, "sliding_window", "windowed", "sinks", "kinds", "softmax_scale", "soft_cap", "index_topk", "is_encoder")


def is_named(value: object) -> bool:
    """Whether a value of `model=` is the path of a file, or of a folder with one, and no name of conf/model."""
    return isinstance(value, str) and (value.endswith(".json") or "/" in value or Path(value, "config.json").is_file())


def is_one(given: str) -> bool:
    """Whether a value of `import=` is the file of a model, or a folder with one."""
    try:
        path = Path(expanded(given))
        if path.is_dir() or path.suffix != ".json" or path.name.endswith("config.json"):
            return path.name.endswith("config.json") or (path / "config.json").is_file()
        found = from_json(read_text(path, "import", MAX_BYTES)) if path.stat().st_size <= MAX_BYTES else {}
    except (OSError, ValueError, UserError):  # whoever reads it then says what is wrong
        return False
    return not found.keys().isdisjoint(("model_type", "num_attention_heads"))


def read(given: str) -> Keys:
    """The keys of the model that a `config.json` describes, or the folder that holds one.

    A model that conf/model has keeps its name, page size and tensor-parallel sizes. Raises UserError for a file that cannot be
    read, and for a model that this project cannot describe.
    """
    path = Path(expanded(given))
    path = path / "config.json" if path.is_dir() else path
    if not path.exists() and re.fullmatch(r"[\w.-]+/[\w.-]+", given) and not given.endswith(".json"):
        files = f"a name of conf/model, or a path of a config.json, such as that of https://huggingface.co/{given}"
        raise UserError(f"model={given}: no such file;{did_you_mean(given, shipped())} allowed: {files}")
    with reading(f"model={given}", "give the config.json of a model"):
        return _named(_keys_of(_of_text(from_json(read_text(path, "model", MAX_BYTES))), f"model={given}"), path)


def _of_text(config: Mapping[str, Any]) -> Keys:
    """The part that describes the language model, with one name for each key, and what its class fills in."""
    part = next((config[name] for name in KEYS["parts"] if isinstance(config.get(name), dict)), None)
    if part is not None:
        return _of_text({**{key: config[key] for key in ("architectures", "_name_or_path") if key in config}, **part})
    named = {**config.get("attn_config", {}), **config} if isinstance(config.get("attn_config"), dict) else dict(config)
    if isinstance(own := named.get("attention_other_setting"), dict):  # of Step 3.5's windowed layers
        named |= {f"swa_{key}": value for key, value in own.items()}
    for key, names in KEYS["names"].items():
        if named.get(key) is None and (found := next((named[name] for name in names if named.get(name) is not None), None)):
            named[key] = found
    types, who = own_table("model_types"), named.get("model_type")
    return {**types.get(str(who), {}), **types.get(f"{who} {named.get('hidden_size')}", {}), **named}


def _note_unread(c: Keys, asked: str) -> None:
    """Names what a file says of its attention, or of its layers, that nothing here reads."""
    known = {*OF_ENTRY, *OF_NUMBER, *(name for names in KEYS["names"].values() for name in names)}
    known |= {key for table in ("names", "refused", "read", "other", "whole", "above_zero") for key in KEYS[table]}
    unread = [key for key, value in c.items() if key not in known and value not in (None, 0, 1, "", [], {}) and NEAR.match(key)]
    if unread:
        note_once(f"{asked}: not read: {', '.join(unread)[:MAX_SAID]}; check whether they change attention")


def _require_numbers(c: Keys, asked: str) -> None:
    for key, least in KEYS["whole"].items():
        if (value := c.get(key)) is not None and (type(value) is not int or value < least):
            raise UserError(f"{asked}: {key}={value!r}: allowed: a whole number, {least} or more; write it there")
    for key in KEYS["above_zero"]:
        if (value := c.get(key)) not in (None, 0) and (type(value) not in (int, float) or not value > 0):  # 0 is none
            raise UserError(f"{asked}: {key}={value!r}: allowed: a number above 0; write it there")
    if (window := c.get("sliding_window")) is not None and type(window) is not int:
        raise UserError(f"{asked}: sliding_window={window!r}: allowed: a whole number, one for all windowed layers; write it there")
    for key in ("layer_types", "layers_block_type", "block_types"):
        if (value := c.get(key)) is not None and not (isinstance(value, list) and all(isinstance(one, str) for one in value)):
            raise UserError(f"{asked}: {key}={str(value)[:MAX_NAME]}: allowed: a list of names, one for each layer; write it there")


def _keys_of(c: Keys, asked: str) -> Keys:
    who = str(c.get("model_type") or "this model")
    _require_numbers(c, asked)
    for key, what in KEYS["refused"].items():
        if (value := c.get(key)) and not (key == "attention_chunk_size" and c.get("sliding_window")):
            raise UserError(f"{asked}: {who} {what.format(value)} ({key}), and this project has no routine for that; give another")
    _note_unread(c, asked)
    if c.get("is_encoder_decoder"):
        note_once(f"{asked}: {who} has an encoder and cross attention too, which +sweep=encoder measures")
    if not isinstance(heads := c.get("num_attention_heads"), int):
        raise UserError(f"{asked}: num_attention_heads={heads!r}: allowed: a whole number, of query heads; write it there")
    if (layers := _layers(c)) > MAX_LAYERS:
        raise UserError(f"{asked}: num_hidden_layers={layers!r}: allowed: a whole number, up to {MAX_LAYERS:,}; write it there")
    window, kinds = _window_of(c), _kinds_of(c)
    if not (window and WINDOWED in kinds):
        kinds[FULL] += kinds.pop(WINDOWED, 0)
        window = None
    kinds = +kinds
    if not kinds.keys() & {FULL, WINDOWED}:
        named = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
        raise UserError(f"{asked}: none of the layers of {who} attends: {named}; give another model")
    found = {"model_type": c.get("model_type"), **_heads_of(c, heads, asked)}
    kv = found["num_kv_heads"]
    if window:
        found |= {"sliding_window": window, "windowed": _own_of_window(c, found)}
    found |= {
        "kinds": dict(kinds) if kinds.keys() != {FULL} else None,
        "sinks": bool(c.get("sinks") or c.get("add_full_attention_sink_bias")),
        "softmax_scale": _scale_of(c, found),
        "soft_cap": c.get("attn_logit_softcapping"),
        "max_positions": _positions_of(c),
        "index_topk": c.get("index_topk"),
        "is_encoder": _is_encoder(c),
        "routines": _routines_of(c),
        "layer": _layer_of(c) if kinds.keys() <= {FULL, WINDOWED} and not found.get("windowed") else None,
        "sizes": {"hidden_size": c.get("hidden_size"), "num_layers": c.get("num_hidden_layers")},
        "page_size": 64,
        # Engines split the heads over so many GPUs, and copy fewer KV heads (vllm/model_executor/models/qwen3.py).
        "tp": [n for n in range(1, MAX_TP + 1) if heads % n == 0 and (kv % n == 0 or n % kv == 0)],
        "architecture": next(iter(c.get("architectures") or ()), None),
        "path": c.get("_name_or_path"),
    }
    return {key: value for key, value in found.items() if value}


def _routines_of(c: Keys) -> dict[str, Keys]:
    """The sizes of layers that run a routine of a folder, of those whose keys are all there."""
    sizes = {name: {ours: c.get(theirs) for ours, theirs in one.config_keys.items()} for name, one in routines().items()}
    return {name: found for name, found in sizes.items() if found and all(found.values())}


def _heads_of(c: Keys, heads: int, asked: str) -> Keys:
    """The heads of the layers that attend to everything. `global_` keys are Gemma 4's, `block_configs` those of Nemotron NAS."""
    kv = c.get("num_global_key_value_heads") or c.get("num_key_value_heads")
    if c.get("kv_lora_rank"):
        rope, nope = c.get("qk_rope_head_dim") or 0, c.get("qk_nope_head_dim")
        if not nope or not (c.get("v_head_dim") or c.get("hidden_size")):
            name = "v_head_dim" if nope else "qk_nope_head_dim"
            raise UserError(f"{asked}: {name}={c.get(name)}: allowed: a whole number, of a latent's heads; write it there")
        latent = {"head_dim_ckv": c["kv_lora_rank"], "head_dim_kpe": rope}
        vo = c.get("v_head_dim") or c["hidden_size"] // heads  # MiniCPM3 leaves it out
        return {"num_qo_heads": heads, "num_kv_heads": heads, "head_dim_qk": nope + rope, "head_dim_vo": vo, **latent}
    if groups := {block["attention"].get("n_heads_in_group") for block in c.get("block_configs") or ()} - {None}:
        if len(groups) > 1:
            raise UserError(f"{asked}: its layers differ in their heads (n_heads_in_group {sorted(groups)}); give another model")
        kv = heads // groups.pop()
    if not (dim := c.get("global_head_dim") or c.get("head_dim") or (c.get("hidden_size") or 0) / heads):
        raise UserError(f"{asked}: hidden_size=None: allowed: a whole number, or one of head_dim; write it there")
    if dim != int(dim):
        raise UserError(f"{asked}: hidden_size={c['hidden_size']} does not divide by {heads} heads; write head_dim there")
    if (c.get("multi_query") and not c.get("new_decoder_architecture")) or c.get("multi_query_attention") is False:
        kv = 1 if c.get("multi_query") else heads  # whatever else Falcon and ChatGLM have there
    kv = kv or heads
    return {"num_qo_heads": heads, "num_kv_heads": kv, "head_dim_qk": int(dim), "head_dim_vo": c.get("v_head_dim") or int(dim)}


def _own_of_window(c: Keys, full: Keys) -> Keys:
    """How heads of windowed layers differ: those of MiMo are called `swa_`, in Gemma 4 the others are called `global_`."""
    dim = c.get("swa_head_dim") or (c.get("head_dim") if c.get("global_head_dim") else full["head_dim_qk"])
    kv = c.get("num_key_value_heads") if c.get("num_global_key_value_heads") else full["num_kv_heads"]
    vo = c.get("swa_v_head_dim") or (dim if c.get("global_head_dim") else full["head_dim_vo"])
    qo = c.get("swa_num_attention_heads") or full["num_qo_heads"]
    own = {"num_qo_heads": qo, "num_kv_heads": c.get("swa_num_key_value_heads") or kv, "head_dim_qk": dim, "head_dim_vo": vo}
    sinks = {"sinks": True} if c.get("add_swa_attention_sink_bias") else {}
    return {key: value for key, value in own.items() if value != full[key]} | sinks


def _window_of(c: Keys) -> int | None:
    """The window of windowed layers; None if there are none, or if it is as long as the longest request."""
    window, longest = c.get("sliding_window"), c.get("max_position_embeddings")
    if not isinstance(window, int) or window < 1 or c.get("use_sliding_window") is False or (longest and window >= longest):
        return None
    return window // 2 + 1 if _is_encoder(c) else window  # of an encoder the file has the width of both sides


def _is_encoder(c: Keys) -> bool:
    """Whether each token sees those after it too. Models that do so within an image alone say "vision"."""
    return bool(c.get("is_encoder")) or c.get("use_bidirectional_attention") is True


def _kinds_of(c: Keys) -> Counter[str]:
    """How many layers there are of each kind."""
    for key, of_entry in OF_ENTRY.items():
        if c.get(key):
            return Counter(map(of_entry, c[key]))
    kind_of = next((kind_of for key, kind_of in OF_NUMBER.items() if c.get(key)), lambda c, i: WINDOWED)
    return Counter(kind_of(c, i) for i in range(_layers(c)))


def _layers(c: Keys) -> int:
    return c.get("num_hidden_layers") or 1


def _of_pattern(every: int | str, i: int) -> str:
    """Of Gemma and Cohere, where the last of so many layers attends to everything (of ModernBERT the first); Exaone writes LLLG."""
    is_full = every[i % len(every)] == "G" if isinstance(every, str) else (i + 1) % every == 0
    return FULL if is_full else WINDOWED


def _scale_of(c: Keys, found: Keys) -> float | None:
    """The factor of the scores before the softmax, if it is not 1/sqrt(head_dim_qk)."""
    usual = found["head_dim_qk"] ** -0.5
    scale = c.get("softmax_scale") or c.get("attention_multiplier") or usual  # the second is Granite's
    if c.get("query_pre_attn_scalar"):
        scale = c["query_pre_attn_scalar"] ** -0.5
    rope = c.get("rope_scaling") or c.get("rope_parameters") or {}
    if "head_dim_ckv" in found and rope.get("mscale_all_dim"):  # vllm/model_executor/models/deepseek_v2.py, yarn_get_mscale
        factor = rope.get("factor") or 1
        scale *= (0.1 * rope["mscale_all_dim"] * math.log(factor) + 1) ** 2 if factor > 1 else 1
    return None if math.isclose(scale, usual, rel_tol=1e-9) else scale


def _positions_of(c: Keys) -> int | None:
    """The longest request, as vLLM 0.33.0 derives it (vllm/config/model.py), or longer by YaRN: from the file, or by its class."""
    longest: int | None = c.get("max_position_embeddings")
    rope = c.get("rope_scaling") or c.get("rope_parameters") or {}
    factor, kind = rope.get("factor") or 1, rope.get("rope_type") or rope.get("type")
    if not longest or "gemma3" in str(c.get("model_type")):
        return longest
    if kind in ("linear", "dynamic"):
        return int(longest * factor)
    yarn = rope.get("original_max_position_embeddings", 0) * factor if kind == "yarn" else 0
    return max(longest, int(yarn), c.get("positions_with_yarn") or 0)


def _layer_of(c: Keys) -> Keys | None:
    """The sizes of a layer's matrix products, if the file has them (`kernels.step.shapes.LayerShape`)."""
    # Some files list a size for each layer, which is none of all if the layers differ.
    c = {key: value[0] if isinstance(value, list) and len({*map(str, value)}) == 1 else value for key, value in c.items()}
    experts, inner = c.get("num_experts"), c.get("intermediate_size")
    if experts:
        inner = c.get("moe_intermediate_size") or inner
    if not isinstance(inner, int):
        return None
    shared = c.get("shared_expert_intermediate_size") or (c.get("n_shared_experts") or 0) * inner if experts else 0
    found = {
        "hidden_size": c.get("hidden_size"),
        "intermediate_size": inner,
        "num_experts": experts,
        "experts_per_token": c.get("num_experts_per_tok") if experts else None,
        "shared_intermediate_size": shared,
        "q_lora_rank": c.get("q_lora_rank"),
        "num_layers": c.get("num_hidden_layers"),
    }
    found = {key: value for key, value in found.items() if value}
    try:
        LayerShape.model_validate(found)
    except ValidationError:  # what attention is does not depend on it
        return None
    return found


def _named(found: Keys, path: Path) -> Keys:
    """The keys with a name: of the like model of conf/model, whose rest it takes; of several, that of the file's folder."""
    architecture, said = found.pop("architecture", None), found.pop("path", None)
    sizes = found.pop("sizes")
    names = "_".join(_plain(part) for part in (*path.resolve().parts[:-1], said or ""))
    alike = [name for name, model in shipped().items() if _is_alike(found, sizes, model)]
    if alike:
        name = max(alike, key=lambda one: (one in names) * len(one))
        known = shipped()[name]
        rest = {key: known[key] for key in ("name", "page_size", "tp", "layer") if key in known}
        return {**found, **rest, "max_positions": found.get("max_positions") or known.get("max_positions")}
    own = _plain(str(said).rpartition("/")[2]) if said else re.sub(r"_?for_?\w+$|_?model$", "", _plain(architecture or "model"))
    heads = "_".join(str(found[key]) for key in HEADS[:3])
    return {**found, "name": f"{own[:MAX_NAME] or 'model'}_{heads}"}


def _is_alike(found: Keys, sizes: Keys, model: Mapping[str, Any]) -> bool:
    """Whether a file's model is that of conf/model: what attention is agrees, and so do the sizes that the file has."""
    layer, of_model = {**sizes, **found.get("layer", {})}, model.get("layer") or {}
    types = found.get("model_type") in (None, model.get("model_type"))
    agree = all(value is None or of_model.get(key) in (None, value) for key, value in layer.items())
    return types and agree and all(_equal(found.get(key), model.get(key)) for key in SHAPE)


def _equal(one: Any, other: Any) -> bool:
    both = isinstance(one, float) and isinstance(other, float)
    return math.isclose(one, other, rel_tol=1e-6) if both else (one or None) == (other or None)


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")
