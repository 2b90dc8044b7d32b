"""Reads the YAML configs of vLLM's benchmarks/attention_benchmarks: batch specs over head shapes and backends, as points."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from string import Formatter
from typing import Any

import yaml

from kernels import batch_spec
from orchestrator.errors import UserError
from orchestrator.formats.complaints import Complaints

Rule = dict[str, Any]

# Its backends that run FlashInfer's kernels, by what they call (vllm/v1/attention/backends/flashinfer.py, mla/flashinfer_mla.py):
# the wrappers with backend=auto, tensor cores in decode; trtllm_batch_decode_with_kv_cache_mla. Ours can stand for them. The
# others are libraries of their own (FlashAttention, FlashMLA, Triton kernels, vLLM's CUTLASS kernel, ...).
BACKENDS = {
    ("paged_decode", "FLASHINFER"): "auto",
    ("paged_prefill", "FLASHINFER"): "auto",
    ("mla", "FLASHINFER_MLA"): "trtllm-native",
}
MODEL = {"num_q_heads": 32, "num_kv_heads": 8, "head_dim": 128, "block_size": 16}  # its defaults
LATENT = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}  # of MLA: DeepSeek's
MODEL_KEYS = frozenset({"name", "num_layers", *MODEL, *LATENT})  # one layer is timed, whatever their number
KV_DTYPES = {"auto": "bf16", "fp8": "fp8_e4m3", "fp8_e4m3": "fp8_e4m3"}  # its benchmark computes in the model's own dtype, bf16
FLASHINFER_MLA_PAGES = (32, 64)  # that FlashInfer's kernel takes; its benchmark gives it 64 whatever the config says
# How to measure and where to print, which timing=, check= and results.path say here.
HOW = ("device", "repeats", "warmup_iters", "profile_memory", "use_cuda_graphs", "benchmark", "output")
NAMES = ("backend", "backends", "decode_backends")
KEYS = (
    *NAMES,
    "description",
    "batch_specs",
    "batch_spec_ranges",
    "batch_sizes",
    "model",
    "model_parameter_sweep",
    "kv_cache_dtype",
)
RANGE = frozenset({"start", "stop", "step", "end_inclusive"})


@dataclass
class Config:
    """A config as plain data, with the line of every key and item; keys within keys have dots."""

    complaints: Complaints
    data: dict[str, Any]
    lines: dict[str, int] = field(default_factory=dict)

    def line(self, where: str) -> int:
        return self.lines.get(where, 1)

    def complain(self, where: str, words: str) -> None:
        self.complaints.add(self.line(where), f"{where}: {words}")

    def section(self, key: str) -> dict[str, Any]:
        """What a key maps to; empty where it is not given, and where it is no mapping, which is a complaint."""
        found = self.data.get(key) or {}
        if isinstance(found, dict):
            return found
        self.complain(key, f"{found!r}: allowed: a mapping")
        return {}

    def items(self, key: str) -> list[tuple[str, Any]]:
        """The items of a list under a key, each with its place; none where it is not given; one where it is no list."""
        found = self.data.get(key)
        if not isinstance(found, list):
            return [] if found is None else [(key, found)]
        return [(f"{key}[{i}]", item) for i, item in enumerate(found)]


def read(path: str, known: Mapping[str, frozenset[str]] | None) -> tuple[list[Rule], str]:
    """A rule of a sweep for each batch spec and head shape, and words on what of the file is said elsewhere here.

    `known` has the backends of each routine; without it the file's are not asked. Raises UserError that names every line and
    word that has no counterpart.
    """
    config = _load(path)
    for key, value in config.data.items():
        if key not in (*KEYS, *HOW):
            config.complain(key, f"{value!r} has no counterpart here; allowed: {', '.join((*KEYS, *HOW))}")
    shapes, names = list(_shapes(config)), list(_names(config))
    latent = any("MLA" in name.upper() for _, name in names) or "kv_lora_rank" in config.section("model")
    rules = []
    for where, spec in _specs(config):
        routine = _routine(config, where, spec, latent)
        backends = [] if routine is None else _backends(config, routine, names, known)
        for shape in shapes if routine else ():
            heads = _latent_keys(config, shape, names) if latent else _problem_keys(config, shape)
            keys = {"routine": routine, **heads, **batch_spec.keys_of(spec)}
            if config.complaints.problem(config.line(where), keys):
                rules.append({**keys, "backend": backends})
    if not rules and not config.complaints.said:
        config.complain("batch_specs", "none given; allowed: a list such as [8q1s1k, 2q2k_8q1s1k]")
    config.complaints.settle("delete or mend these lines; +sweep.backend=[auto,fa2] names backends for all of its points")
    given = ", ".join(key for key in HOW if key in config.data)
    return (
        rules,
        f"{config.data.get('description') or 'batch specs'} ({path}{f'; {given} give way to timing= and check=' if given else ''})",
    )


def _load(path: str) -> Config:
    complaints = Complaints(path)
    try:
        node = yaml.compose(Path(path).read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
        data = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        words = f"{path}:{mark.line + 1 if mark else 1}: no YAML: {getattr(error, 'problem', None) or error}"
        raise UserError(f"{words}; give a config of vLLM's attention_benchmarks") from None
    if not isinstance(data, dict):
        raise UserError(f"{path}:1: no mapping; give a config of vLLM's attention_benchmarks, with batch_specs and backends")
    config = Config(complaints, data)
    _number(node, "", config.lines)
    return config


def _number(node: yaml.Node, where: str, lines: dict[str, int]) -> None:
    """Notes the line of every key and item."""
    parts: list[tuple[str, yaml.Node, yaml.Node]] = []
    if isinstance(node, yaml.MappingNode):
        parts = [(f"{where}.{key.value}".lstrip("."), key, value) for key, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        parts = [(f"{where}[{i}]", item, item) for i, item in enumerate(node.value)]
    for name, mark, value in parts:
        lines[name] = mark.start_mark.line + 1
        _number(value, name, lines)


def _names(config: Config) -> Iterator[tuple[str, str]]:
    for key in NAMES:
        for where, name in config.items(key):
            yield where, str(name)


def _backends(config: Config, routine: str, names: list[tuple[str, str]], known: Mapping[str, frozenset[str]] | None) -> list[str]:
    """Our names of the file's backends; each that has none is a complaint, once."""
    if known is None:
        return []
    found = []
    for where, name in names:
        ours = BACKENDS.get((routine, name.upper()), name)
        if ours in known[routine]:
            found.append(ours)
        else:
            config.complain(where, f"{name!r} is no backend here for {routine}; allowed: {', '.join(_allowed(routine, known))}")
    if not names:
        config.complain("backends", "none given; allowed: a list such as [FLASHINFER]")
    return found


def _allowed(routine: str, known: Mapping[str, frozenset[str]]) -> list[str]:
    return [*(theirs for of, theirs in BACKENDS if of == routine), *sorted(known[routine])]


def _routine(config: Config, where: str, spec: object, latent: bool) -> str | None:
    """Decode where every request has one query token, else prefill over pages, as vLLM keeps every cache in pages."""
    segments = config.complaints.hear(config.line(where), lambda: batch_spec.parse(str(spec)))
    if segments is None:
        return None
    if not latent:
        return "paged_decode" if all(q == 1 for _, q, _ in segments) else "paged_prefill"
    if any(q == kv > 1 for _, q, kv in segments):
        config.complain(
            where, f"{spec!r} has a prompt, which vLLM's MLA backends run as plain attention; give it a config of its own"
        )
        return None
    return "mla"


def _specs(config: Config) -> Iterator[tuple[str, str]]:
    specs = [(where, str(spec)) for where, spec in config.items("batch_specs")]
    for where, made in config.items("batch_spec_ranges"):
        specs += [(where, spec) for spec in config.complaints.hear(config.line(where), lambda made=made: _ranged(made)) or ()]  # type: ignore[misc]
    sizes = config.items("batch_sizes") or [("", "")]
    for where, spec in specs:
        if sizes[0][0] and not spec.startswith("q"):
            config.complain(where, f"{spec!r} beside batch_sizes: allowed: specs without a count, such as q4s1k")
            continue
        yield from ((where, f"{size}{spec}") for _, size in sizes)


def _ranged(made: Any) -> list[str]:
    """The specs of a template over its ranges. Raises ValueError for what is no such thing."""
    if not isinstance(made, dict) or not isinstance(made.get("template"), str):
        raise ValueError(f"{made!r}: allowed: a mapping with a template such as '{{bs}}q1s1k' and a range for each name in it")
    try:
        names = [name for _, name, _, _ in Formatter().parse(made["template"]) if name is not None]
    except ValueError as error:
        raise ValueError(f"template {made['template']!r}: {error}") from None
    names = list(dict.fromkeys(names))
    if set(names) != made.keys() - {"template"}:
        given = sorted(made.keys() - {"template"})
        raise ValueError(f"template {made['template']!r}: its names are {sorted(set(names))}, the ranges are of {given}")
    spans = [[given] if isinstance(given := made[name], int | str) else _span(name, given) for name in names]
    return [made["template"].format(**dict(zip(names, chosen, strict=True))) for chosen in itertools.product(*spans)]


def _span(name: str, given: Any) -> range:
    right = isinstance(given, dict) and {"start", "stop"} <= given.keys() <= RANGE
    if not right or not all(isinstance(given.get(key, 1), int) for key in RANGE) or given.get("step", 1) < 1:
        raise ValueError(
            f"{name}={given!r}: allowed: a value, or {{start: 1, stop: 16, step: 1, end_inclusive: true}}, a step from 1"
        )
    return range(given["start"], given["stop"] + bool(given.get("end_inclusive", True)), given.get("step", 1))


def _shapes(config: Config) -> Iterator[dict[str, Any]]:
    """The model's keys, for each value of its sweep; only those whose words are understood."""
    model, swept = config.section("model"), config.section("model_parameter_sweep")
    for key in swept.keys() - {"values", "param_name", "label_format"}:
        config.complain(f"model_parameter_sweep.{key}", f"{swept[key]!r} has no counterpart here")
    values = swept.get("values", [{}])
    if not isinstance(values, list):
        config.complain("model_parameter_sweep.values", f"{values!r}: allowed: a list")
        return
    for i, value in enumerate(values):
        change = value if isinstance(value, dict) else {str(swept.get("param_name")): value}
        understood = [_is_shape(config, "model", model), _is_shape(config, f"model_parameter_sweep.values[{i}]", change)]
        if all(understood):
            yield {**MODEL, **LATENT, **model, **change}


def _is_shape(config: Config, where: str, keys: Mapping[str, Any]) -> bool:
    strange = [key for key in keys if key not in MODEL_KEYS]
    for key in strange:
        config.complain(
            _place(config, where, key), f"{key}={keys[key]!r} has no counterpart; allowed: {', '.join(sorted(MODEL_KEYS))}"
        )
    wrong = [key for key in keys if key in (*MODEL, *LATENT) and type(keys[key]) is not int]
    for key in wrong:
        config.complain(_place(config, where, key), f"{key}={keys[key]!r}: allowed: a whole number")
    return not strange and not wrong


def _place(config: Config, where: str, key: str) -> str:
    """The key within its section, or the section where the key has no line of its own."""
    return f"{where}.{key}" if f"{where}.{key}" in config.lines else where


def _problem_keys(config: Config, shape: Mapping[str, Any]) -> dict[str, object]:
    cache = str(config.data.get("kv_cache_dtype", "auto"))
    if cache not in KV_DTYPES:
        config.complain("kv_cache_dtype", f"{cache!r}: allowed: {', '.join(KV_DTYPES)}")
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


def _latent_keys(config: Config, shape: Mapping[str, Any], names: list[tuple[str, str]]) -> dict[str, object]:
    """MLA before absorption. Over an FP8 latent vLLM casts the queries to FP8 too, since its kernels take one dtype of both."""
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
