"""Reads the YAML configs of vLLM's benchmarks/attention_benchmarks as points: batch specs × head shapes × backends."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from string import Formatter
from typing import Any

from kernels.problem import batch_spec
from orchestrator.formats import yaml_file
from orchestrator.formats.yaml_file import YamlFile

Rule = dict[str, Any]

# vLLM's backends that call FlashInfer, and the backend here that calls the same function. See vllm/v1/attention/backends:
# flashinfer.py calls the wrappers with backend=auto (tensor cores in decode), mla/flashinfer_mla.py calls
# trtllm_batch_decode_with_kv_cache_mla. vLLM's other backends are other libraries: FlashAttention, FlashMLA, Triton, CUTLASS.
BACKENDS = {
    ("paged_decode", "FLASHINFER"): "auto",
    ("paged_prefill", "FLASHINFER"): "auto",
    ("mla", "FLASHINFER_MLA"): "trtllm-native",
}
DEFAULT_SHAPE = {"num_q_heads": 32, "num_kv_heads": 8, "head_dim": 128, "block_size": 16}  # vLLM's defaults
DEFAULT_LATENT_SHAPE = {  # of MLA, as in DeepSeek-V3
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
# `num_layers` is accepted and ignored: a point is one layer.
MODEL_KEYS = frozenset({"name", "num_layers", *DEFAULT_SHAPE, *DEFAULT_LATENT_SHAPE})
KV_DTYPES = {"auto": "bf16", "fp8": "fp8_e4m3", "fp8_e4m3": "fp8_e4m3"}  # auto is the model's dtype, bf16
FLASHINFER_MLA_PAGES = (32, 64)  # that FlashInfer's kernel supports; vLLM's benchmark always uses 64
# How to measure and where to print: timing=, check= and results.path replace these.
MEASURING_KEYS = ("device", "repeats", "warmup_iters", "profile_memory", "use_cuda_graphs", "benchmark", "output")
BACKEND_KEYS = ("backend", "backends", "decode_backends")
POINT_KEYS = (
    *BACKEND_KEYS,
    "description",
    "batch_specs",
    "batch_spec_ranges",
    "batch_sizes",
    "model",
    "model_parameter_sweep",
    "kv_cache_dtype",
)
MAX_SPECS = 10_000  # a file with more was not meant
MAX_LENGTH = 2**31 - 1
RANGE_KEYS = frozenset({"start", "stop", "step", "end_inclusive"})


def read(path: str, known: Mapping[str, frozenset[str]] | None) -> tuple[list[Rule], str]:
    """A rule of a sweep for each batch spec and head shape, and a sentence on the keys of the file that are ignored.

    `known` has the backends of each routine; None ignores the backends of the file. Raises UserError that names every line and
    word that has no counterpart here.
    """
    config = yaml_file.load(path, "a config of vLLM's attention_benchmarks", "batch_specs and backends")
    for key, value in config.data.items():
        if key not in (*POINT_KEYS, *MEASURING_KEYS):
            config.add_error(key, f"{value!r} has no counterpart here; allowed: {', '.join((*POINT_KEYS, *MEASURING_KEYS))}")
    shapes, names = list(_shapes(config)), list(_names(config))
    latent = any("MLA" in name.upper() for _, name in names) or "kv_lora_rank" in config.mapping("model")
    rules = []
    for where, spec in _specs(config):
        routine = _routine(config, where, spec, latent)
        backends = [] if routine is None else _backends(config, routine, names, known)
        for shape in shapes if routine else ():
            heads = _latent_keys(config, shape, names) if latent else _problem_keys(config, shape)
            keys = {"routine": routine, **heads, **batch_spec.keys_of(spec)}
            if config.errors.problem(config.line(where), keys):
                rules.append({**keys, "backend": backends})
    if not rules and not config.errors.found:
        config.add_error("batch_specs", "none given; allowed: a list such as [8q1s1k, 2q2k_8q1s1k]")
    config.errors.raise_if_any("delete or correct these lines; +sweep.backend=[auto,fa2] names backends for all of its points")
    given = ", ".join(key for key in MEASURING_KEYS if key in config.data)
    return (
        rules,
        f"{config.data.get('description') or 'batch specs'} ({path}{f'; {given} give way to timing= and check=' if given else ''})",
    )


def _names(config: YamlFile) -> Iterator[tuple[str, str]]:
    for key in BACKEND_KEYS:
        for where, name in config.items(key):
            yield where, str(name)


def _backends(
    config: YamlFile, routine: str, names: list[tuple[str, str]], known: Mapping[str, frozenset[str]] | None
) -> list[str]:
    """Our names of the file's backends. One without a counterpart is an error, once."""
    if known is None:
        return []
    found = []
    for where, name in names:
        ours = BACKENDS.get((routine, name.upper()), name)
        if ours in known[routine]:
            found.append(ours)
        else:
            config.add_error(where, f"{name!r} is no backend here for {routine}; allowed: {', '.join(_allowed(routine, known))}")
    if not names:
        config.add_error("backends", "none given; allowed: a list such as [FLASHINFER]")
    return found


def _allowed(routine: str, known: Mapping[str, frozenset[str]]) -> list[str]:
    return [*(theirs for of, theirs in BACKENDS if of == routine), *sorted(known[routine])]


def _routine(config: YamlFile, where: str, spec: object, latent: bool) -> str | None:
    """Decode if every request has one query token, else paged prefill: vLLM's caches are always paged."""
    segments = config.errors.collect(config.line(where), lambda: batch_spec.parse(str(spec)))
    if segments is None:
        return None
    if not latent:
        return "paged_decode" if all(q == 1 for _, q, _ in segments) else "paged_prefill"
    if any(q == kv > 1 for _, q, kv in segments):
        config.add_error(
            where, f"{spec!r} has a prompt, which vLLM's MLA backends run as plain attention; give it a config of its own"
        )
        return None
    return "mla"


def _specs(config: YamlFile) -> Iterator[tuple[str, str]]:
    specs = [(where, str(spec)) for where, spec in config.items("batch_specs")]
    for where, made in config.items("batch_spec_ranges"):
        specs += [(where, spec) for spec in config.errors.collect(config.line(where), lambda made=made: _ranged(made)) or ()]  # type: ignore[misc]
    sizes = config.items("batch_sizes") or [("", "")]
    if (count := len(specs) * len(sizes)) > MAX_SPECS:
        config.add_error("batch_sizes", f"with the specs they give {count:,} batches; allowed: up to {MAX_SPECS:,}")
        return
    for where, spec in specs:
        if sizes[0][0] and not spec.startswith("q"):
            config.add_error(where, f"{spec!r} beside batch_sizes: allowed: specs without a count, such as q4s1k")
            continue
        yield from ((where, f"{size}{spec}") for _, size in sizes)


def _ranged(made: Any) -> list[str]:
    """The specs that a template gives over its ranges. Raises ValueError for anything else."""
    if not isinstance(made, dict) or not isinstance(made.get("template"), str):
        raise ValueError(f"{made!r}: allowed: a mapping with a template such as '{{bs}}q1s1k' and a range for each name in it")
    try:
        fields = [(name, how, sign) for _, name, how, sign in Formatter().parse(made["template"]) if name is not None]
    except ValueError:
        raise ValueError(f"template {made['template']!r}: a brace without its partner") from None
    if not all(name.isidentifier() and not how and not sign for name, how, sign in fields):
        raise ValueError(f"template {made['template']!r}: allowed: only names in its braces, such as {{bs}}")
    names = [name for name, _, _ in fields]
    names = list(dict.fromkeys(names))
    if set(names) != made.keys() - {"template"}:
        given = sorted(made.keys() - {"template"})
        raise ValueError(f"template {made['template']!r}: its names are {sorted(set(names))}, the ranges are of {given}")
    spans = [[given] if isinstance(given := made[name], int | str) else _span(name, given) for name in names]
    if (count := math.prod(map(len, spans))) > MAX_SPECS:
        raise ValueError(f"template {made['template']!r}: its ranges give {count:.3g} specs; allowed: up to {MAX_SPECS:,}")
    return [made["template"].format(**dict(zip(names, chosen, strict=True))) for chosen in itertools.product(*spans)]


def _span(name: str, given: Any) -> range:
    is_range = isinstance(given, dict) and {"start", "stop"} <= given.keys() <= RANGE_KEYS
    if not is_range or not all(isinstance(given.get(key, 1), int) for key in RANGE_KEYS) or given.get("step", 1) < 1:
        raise ValueError(
            f"{name}={given!r}: allowed: a value, or {{start: 1, stop: 16, step: 1, end_inclusive: true}}, a step from 1"
        )
    if not 0 <= given["start"] <= MAX_LENGTH or not 0 <= given["stop"] <= MAX_LENGTH:
        raise ValueError(f"{name}={given!r}: allowed: a start and a stop from 0 to {MAX_LENGTH}")
    return range(given["start"], given["stop"] + bool(given.get("end_inclusive", True)), given.get("step", 1))


def _shapes(config: YamlFile) -> Iterator[dict[str, Any]]:
    """The model's keys for each value of its sweep; those with unknown keys are errors and left out."""
    model, swept = config.mapping("model"), config.mapping("model_parameter_sweep")
    for key in swept.keys() - {"values", "param_name", "label_format"}:
        config.add_error(f"model_parameter_sweep.{key}", f"{swept[key]!r} has no counterpart here")
    values = swept.get("values", [{}])
    if not isinstance(values, list):
        config.add_error("model_parameter_sweep.values", f"{values!r}: allowed: a list")
        return
    for i, value in enumerate(values):
        change = value if isinstance(value, dict) else {str(swept.get("param_name")): value}
        understood = [_is_shape(config, "model", model), _is_shape(config, f"model_parameter_sweep.values[{i}]", change)]
        if all(understood):
            yield {**DEFAULT_SHAPE, **DEFAULT_LATENT_SHAPE, **model, **change}


def _is_shape(config: YamlFile, where: str, keys: Mapping[str, Any]) -> bool:
    unknown_keys = [key for key in keys if key not in MODEL_KEYS]
    for key in unknown_keys:
        config.add_error(
            _place(config, where, key), f"{key}={keys[key]!r} has no counterpart; allowed: {', '.join(sorted(MODEL_KEYS))}"
        )
    wrong = [key for key in keys if key in (*DEFAULT_SHAPE, *DEFAULT_LATENT_SHAPE) and type(keys[key]) is not int]
    for key in wrong:
        config.add_error(_place(config, where, key), f"{key}={keys[key]!r}: allowed: a whole number")
    return not unknown_keys and not wrong


def _place(config: YamlFile, where: str, key: str) -> str:
    """The key in its section, or the section if the key has no line of its own."""
    return f"{where}.{key}" if f"{where}.{key}" in config.lines else where


def _problem_keys(config: YamlFile, shape: Mapping[str, Any]) -> dict[str, object]:
    cache = str(config.data.get("kv_cache_dtype", "auto"))
    if cache not in KV_DTYPES:
        config.add_error("kv_cache_dtype", f"{cache!r}: allowed: {', '.join(KV_DTYPES)}")
    return {
        "q_dtype": "bf16",
        "kv_dtype": KV_DTYPES.get(cache, "bf16"),
        "sinks": False,
        "num_qo_heads": shape["num_q_heads"],
        "num_kv_heads": shape["num_kv_heads"],
        "head_dim_qk": shape["head_dim"],
        "head_dim_vo": shape["head_dim"],
        "page_size": shape["block_size"],
    }


def _latent_keys(config: YamlFile, shape: Mapping[str, Any], names: list[tuple[str, str]]) -> dict[str, object]:
    """MLA before absorption. With an FP8 latent vLLM casts the queries to FP8 too: its kernels need one dtype for both."""
    keys = _problem_keys(config, shape)
    own_pages = shape["block_size"] in FLASHINFER_MLA_PAGES or all(name.upper() != "FLASHINFER_MLA" for _, name in names)
    return keys | {
        "q_dtype": keys["kv_dtype"],
        "num_kv_heads": shape["num_q_heads"],
        "head_dim_qk": shape["qk_nope_head_dim"] + shape["qk_rope_head_dim"],
        "head_dim_vo": shape["v_head_dim"],
        "head_dim_ckv": shape["kv_lora_rank"],
        "head_dim_kpe": shape["qk_rope_head_dim"],
        "page_size": shape["block_size"] if own_pages else max(FLASHINFER_MLA_PAGES),
    }
