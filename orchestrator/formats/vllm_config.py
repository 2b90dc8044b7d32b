"""Reads the YAML configs of vLLM's benchmarks/attention_benchmarks as points: batch specs × head shapes × backends."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import yaml

from kernels.problem import batch_spec
from kernels.problem.batch_spec import Segment
from orchestrator.config.engine import MAX_DRAFT, Engine, EngineCall, Flag, Layers, Phase, Workload, selected
from orchestrator.errors import UserError
from orchestrator.remainder import Remainder
from orchestrator.untrusted import yaml as untrusted_yaml

Rule = dict[str, Any]
Calls = dict[EngineCall, Flag | None]
Known = Mapping[str, frozenset[str]] | None

# The routines of a phase for a backend that has this project's name, the usual one first.
ROUTINES: dict[Phase, tuple[str, ...]] = {
    "decode": ("paged_decode",),
    "verify": ("paged_prefill", "paged_decode"),
    "prefill": ("paged_prefill",),
}
LATENT_ROUTINES: dict[Phase, tuple[str, ...]] = {"decode": ("mla",), "verify": ("mla",), "prefill": ("ragged_prefill",)}
NAME = re.compile(r"\{([A-Za-z_]\w*)\}")  # in a template
VERSION = re.compile(r"fa(\d)")  # the benchmark's names of FLASH_ATTN's versions for MLA's prompts
DEFAULT_SHAPE = {"num_q_heads": 32, "num_kv_heads": 8, "head_dim": 128, "block_size": 16}  # vLLM's defaults
DEFAULT_LATENT_SHAPE = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}  # DeepSeek-V3's
# A point is one layer, and has the lengths of its batch.
MODEL_KEYS = frozenset({"name", "num_layers", "max_model_len", *DEFAULT_SHAPE, *DEFAULT_LATENT_SHAPE})
KV_DTYPES = {"auto": "bf16", "fp8": "fp8_e4m3", "fp8_e4m3": "fp8_e4m3"}  # auto is the model's dtype, bf16
SPARSE, SPARSE_KV_DTYPES = "sparse_mla", {"auto": "bf16", "fp8": "fp8_ds_mla", "fp8_ds_mla": "fp8_ds_mla"}
# How to measure and where to print: timing=, check= and results.path replace these.
MEASURING_KEYS = (
    *("device", "repeats", "warmup_iters", "warmup_ms", "profile_memory", "use_cuda_graphs", "cuda_graphs", "benchmark", "output"),
    *("ncu_profile", "torch_profile", "torch_profile_dir", "torch_profile_iters"),
)
BACKEND_KEYS = ("backend", "backends", "decode_backends")
PROMPT_KEYS = ("prefill_backend", "prefill_backends")
BOTH_SIDES = "decode_vs_prefill"  # a mode: every batch is decoded, and prefilled too
POINT_KEYS = (
    *(*BACKEND_KEYS, *PROMPT_KEYS, "description", "batch_specs", "batch_spec_ranges", "batch_sizes"),
    *("model", "model_parameter_sweep", "kv_cache_dtype"),
)
MAX_SPECS = 10_000  # a file with more was not meant
MAX_LENGTH = 2**31 - 1
RANGE_KEYS = frozenset({"start", "stop", "step", "end_inclusive"})
ADVICE = "+sweep.backend=[auto,fa2] names backends of this project for all of its points"


def read(path: str, known: Known, major: int | None = None) -> tuple[list[Rule], str]:
    """Rules of a sweep for each batch spec and head shape, and a sentence on what of the file is ignored or left out.

    A name of vLLM becomes what its newest release runs by it on a GPU of this `major` compute capability, else on any GPU.
    `known` has the backends of each routine; None ignores the backends of the file. Raises UserError if nothing is left.
    """
    config = load(path, "a config of vLLM's attention_benchmarks", "batch_specs and backends")
    for key, value in config.data.items():
        if key not in (*POINT_KEYS, *MEASURING_KEYS):
            config.leave_out(key, f"{str(value)[:100]} has no counterpart here")
    names = _names(config, BACKEND_KEYS)
    latent = any("MLA" in name.upper() for _, name in names) or "kv_lora_rank" in config.mapping("model")
    shapes, specs = list(_shapes(config, latent)), list(_specs(config))
    rules: list[Rule] = []
    kinds = ([one for one in names if not _is_sparse(one)], [one for one in names if _is_sparse(one)])
    for some in filter(None, kinds) if names else kinds[:1]:
        chosen = _Chosen(config, some, known, latent, major)
        parts = [(where, *part) for where, spec in specs for part in _parts(config, where, spec, latent and not chosen.is_sparse)]
        rules += [rule for where, spec, phase in parts for shape in shapes for rule in _rules(chosen, where, spec, phase, shape)]
    if not specs:
        config.leave_out("batch_specs", "none that can be read; allowed: a list such as [8q1s1k, 2q2k_8q1s1k]")
    rest = config.rest.close(len(rules), ADVICE)
    given = ", ".join(key for key in MEASURING_KEYS if key in config.data)
    ignored = f"; {given} give way to timing= and check=" if given else ""
    return rules, f"{config.data.get('description') or 'batch specs'} ({path}{ignored}{rest})"


def _is_sparse(name: tuple[str, str]) -> bool:
    return "SPARSE" in name[1].upper()


def _names(config: YamlFile, keys: Sequence[str]) -> list[tuple[str, str]]:
    return [(where, str(name)) for key in keys for where, name in config.items(key)]


class _Chosen:
    """The calls that a file's backends make here: each with its flag, or without one for this project's own names."""

    def __init__(self, config: YamlFile, names: list[tuple[str, str]], known: Known, latent: bool, major: int | None) -> None:
        self.config, self.names, self.known, self.latent, self.major = config, names, known, latent, major
        self.is_sparse = is_sparse = bool(names) and all(map(_is_sparse, names))
        dtypes = SPARSE_KV_DTYPES if is_sparse else KV_DTYPES
        self.engine: Engine = selected("vllm")[0]
        self.majors = sorted({cc for flag in self.engine.flags for cc in flag.cc})
        self.routines = dict.fromkeys(ROUTINES, (SPARSE,)) if is_sparse else LATENT_ROUTINES if latent else ROUTINES
        dtype = str(config.data.get("kv_cache_dtype", "auto"))
        if dtype not in dtypes:
            config.leave_out("kv_cache_dtype", f"{dtype!r}: allowed: {', '.join(dtypes)}; bf16 is taken")
        self.kv_dtype = dtypes.get(dtype, "bf16")
        self.calls = cache(self._calls)

    def _calls(self, phase: Phase) -> Calls:
        """The calls of a phase; an empty name of a backend if the command line names some."""
        names, found = self.names, Calls()
        if self.known is None:
            return {EngineCall(self.routines[phase][0], ""): None}
        if self.latent and phase == "prefill" and not self.is_sparse:
            names = _names(self.config, PROMPT_KEYS)
            if not names:
                return self._default(phase)
        for where, name in names:
            found |= (calls := self._of_name(name, phase))
            if not calls:
                self.config.leave_out(where, f"by which {self.engine.title} runs no kernel of this project for {phase}", name)
        if not self.names:
            self.config.leave_out("backends", "none given; allowed: a list such as [FLASH_ATTN]")
        return found

    def _default(self, phase: Phase) -> Calls:
        majors = self.majors if self.major is None else [self.major]
        flags = (self.engine.default(Workload(major, "mla", phase, self.kv_dtype)) for major in majors)
        return {flag.calls[phase][0]: flag for flag in flags if flag is not None and flag.calls.get(phase)}

    def _of_name(self, name: str, phase: Phase) -> Calls:
        version = VERSION.fullmatch(name) if self.latent and phase == "prefill" and not self.is_sparse else None
        own = [routine for routine in self.routines[phase] if name in (self.known or {}).get(routine, ())]
        if own and not version:
            return {EngineCall(own[0], name): None}
        layers: Layers = "sparse_mla" if self.is_sparse else "mla" if self.latent else "full"
        found: dict[int, tuple[EngineCall, Flag]] = {}
        for major in self.majors:
            flag = self.engine.named("FLASH_ATTN" if version else name, Workload(major, layers, phase, self.kv_dtype))
            if flag is not None and (not version or f"flash_attn_{version[1]}" in flag.calls[phase][0].backend):
                found[major] = flag.calls[phase][0], flag
        return dict([found[self.major]] if self.major in found else found.values())  # elsewhere the plan says why not


def _parts(config: YamlFile, where: str, spec: str, latent: bool) -> Iterator[tuple[str, Phase]]:
    """A batch and its phase. MLA's prompts are calls of their own, and a chunk over a cached context is several."""
    if (segments := config.rest.collect(config.line(where), lambda: batch_spec.parse(spec))) is None:
        return
    if not latent:
        is_prefill = any(q > 1 and (q > MAX_DRAFT or q >= kv > 0) for _, q, kv in segments)
        yield spec, "prefill" if is_prefill else _decode(segments)
        return
    longest = MAX_LENGTH if config.data.get("mode") == BOTH_SIDES else MAX_DRAFT
    prompts = [s for s in segments if s[1] == s[2] > 1]
    decodes = [s for s in segments if s not in prompts and s[1] <= longest]
    if chunks := [s for s in segments if s not in prompts and s not in decodes]:
        what = "with chunks of prompts over cached tokens, which MLA runs as two calls and a merge"
        config.leave_out(where, what, batch_spec.spelled(chunks))
    if prompts:
        yield batch_spec.spelled(prompts), "prefill"
    if any(kv for _, _, kv in decodes):
        yield batch_spec.spelled(decodes), _decode(decodes)
    elif decodes:
        config.leave_out(where, "with requests without keys alone beside its prompts", batch_spec.spelled(decodes))


def _decode(segments: Sequence[Segment]) -> Phase:
    return "decode" if all(q == 1 for _, q, _ in segments) else "verify"


def _rules(chosen: _Chosen, where: str, spec: str, phase: Phase, shape: Mapping[str, Any]) -> Iterator[Rule]:
    """A rule for each problem that the calls of a batch have; they may differ in routine, page size and dtype of queries."""
    backends: dict[tuple[Any, ...], list[str]] = {}
    for call, flag in chosen.calls(phase).items():
        keys = _keys(call.routine, flag, shape, chosen.latent, chosen.kv_dtype)
        backends.setdefault(tuple(keys.items()), []).append(call.backend)
    lengths = batch_spec.keys_of(spec)
    for problem, names in backends.items():
        keys = {**dict(problem), **lengths}
        if chosen.config.rest.problem(chosen.config.line(where), keys):
            yield {**keys, "backend": names}


def _keys(routine: str, flag: Flag | None, shape: Mapping[str, Any], latent: bool, kv_dtype: str) -> dict[str, object]:
    """The problem of a call without its lengths, MLA before absorption. vLLM casts queries to FP8 for kernels that take such."""
    heads: dict[str, object] = {
        "routine": routine,
        "sinks": False,
        "num_qo_heads": shape["num_q_heads"],
        "num_kv_heads": shape["num_q_heads"] if latent else shape["num_kv_heads"],
        "head_dim_qk": shape["qk_nope_head_dim"] + shape["qk_rope_head_dim"] if latent else shape["head_dim"],
        "head_dim_vo": shape["v_head_dim"] if latent else shape.get("v_head_dim", shape["head_dim"]),
    }
    if latent and routine == "ragged_prefill":
        return {**heads, "q_dtype": "bf16", "kv_dtype": "bf16"}
    rounds, pages, page = (latent, None, 0) if flag is None else (flag.rounds_q, flag.pages, flag.page)
    if routine in ("mla", SPARSE):
        heads |= {"head_dim_ckv": shape["kv_lora_rank"], "head_dim_kpe": shape["qk_rope_head_dim"]}
    return {
        **heads,
        "q_dtype": kv_dtype if rounds and kv_dtype.startswith("fp8") and routine != SPARSE else "bf16",
        "kv_dtype": kv_dtype,
        "page_size": shape["block_size"] if pages is None or shape["block_size"] in pages else page,
    }


def _specs(config: YamlFile) -> Iterator[tuple[str, str]]:
    specs = [(where, str(spec)) for where, spec in config.items("batch_specs")]
    for where, made in config.items("batch_spec_ranges"):
        specs += [(where, spec) for spec in config.rest.collect(config.line(where), partial(_ranged, made)) or ()]
    sizes = config.items("batch_sizes") or [("", "")]
    if (count := len(specs) * len(sizes)) > MAX_SPECS:
        config.leave_out("batch_sizes", f"with the specs they give {count:,} batches; allowed: up to {MAX_SPECS:,}")
        return
    for where, spec in specs:
        if sizes[0][0] and not spec.startswith("q"):
            config.leave_out(where, f"{spec!r} beside batch_sizes: allowed: specs without a count, such as q4s1k")
            continue
        yield from ((where, f"{size}{spec}") for _, size in sizes)


def _ranged(made: Any) -> list[str]:
    """The specs that a template gives over its ranges. Raises ValueError for anything else."""
    if not isinstance(made, dict) or not isinstance(made.get("template"), str):
        raise ValueError(f"{made!r}: allowed: a mapping with a template such as '{{bs}}q1s1k' and a range for each name in it")
    template, given = made["template"], {key: value for key, value in made.items() if key != "template"}
    names = list(dict.fromkeys(NAME.findall(template)))
    if set("{}") & set(NAME.sub("", template)):
        words = "a brace without its partner, or with more in it; allowed: only names in its braces, such as {bs}"
        raise ValueError(f"template {template!r}: {words}")
    if set(names) != given.keys():
        raise ValueError(f"template {template!r}: its names are {sorted(names)}, the ranges are of {sorted(map(str, given))}")
    spans = [_span(name, given[name]) for name in names]
    if (count := math.prod(map(len, spans))) > MAX_SPECS:
        raise ValueError(f"template {template!r}: its ranges give {count:.3g} specs; allowed: up to {MAX_SPECS:,}")
    return [template.format(**dict(zip(names, chosen, strict=True))) for chosen in itertools.product(*spans)]


def _span(name: str, given: Any) -> Sequence[int | str]:
    if isinstance(given, int | str):
        return [given]
    words = f"{name}={given!r}: allowed:"
    is_range = isinstance(given, dict) and {"start", "stop"} <= given.keys() <= RANGE_KEYS
    if not is_range or not all(isinstance(given.get(key, 1), int) for key in RANGE_KEYS) or given.get("step", 1) < 1:
        raise ValueError(f"{words} a value, or {{start: 1, stop: 16, step: 1, end_inclusive: true}}, a step from 1")
    if not 0 <= given["start"] <= MAX_LENGTH or not 0 <= given["stop"] <= MAX_LENGTH:
        raise ValueError(f"{words} a start and a stop from 0 to {MAX_LENGTH}")
    return range(given["start"], given["stop"] + bool(given.get("end_inclusive", True)), given.get("step", 1))


def _shapes(config: YamlFile, latent: bool) -> Iterator[dict[str, Any]]:
    """The model's keys for each value of its sweep, without those that are unknown."""
    model, swept = config.mapping("model"), config.mapping("model_parameter_sweep")
    for key in swept.keys() - {"values", "param_name", "label_format"}:
        config.leave_out(f"model_parameter_sweep.{key}", f"{swept[key]!r} has no counterpart here")
    if not isinstance(values := swept.get("values", [{}]), list):
        config.leave_out("model_parameter_sweep.values", f"{values!r}: allowed: a list")
        values = []
    for i, value in enumerate(values):
        change = value if isinstance(value, dict) else {str(swept.get("param_name")): value}
        understood = [_is_shape(config, "model", model), _is_shape(config, f"model_parameter_sweep.values[{i}]", change)]
        if all(understood):
            yield {**DEFAULT_SHAPE, **(DEFAULT_LATENT_SHAPE if latent else {}), **model, **change}


def _is_shape(config: YamlFile, where: str, keys: Mapping[str, Any]) -> bool:
    """Whether the keys of a shape are whole numbers. One that has no counterpart is named, and the others are taken."""
    unknown = {key: f"has no counterpart; allowed: {', '.join(sorted(MODEL_KEYS))}" for key in keys if key not in MODEL_KEYS}
    numbers = [key for key in keys if key in DEFAULT_SHAPE or key in DEFAULT_LATENT_SHAPE]
    wrong = {key: "allowed: a whole number" for key in numbers if type(keys[key]) is not int}
    for key, why in {**unknown, **wrong}.items():
        place = f"{where}.{key}" if f"{where}.{key}" in config.lines else where  # a section in one line has that line
        config.leave_out(place, f"{key}={keys[key]!r}: {why}")
    return not wrong


@dataclass
class YamlFile:
    """The file as plain data, and the line of each place in it. A place is written `key.key[0]`."""

    rest: Remainder
    data: dict[str, Any]
    lines: dict[str, int] = field(default_factory=dict)

    def line(self, place: str) -> int:
        """The line of a place; 1 if it is not in the file."""
        return self.lines.get(place, 1)

    def leave_out(self, place: str, message: str, name: str = "") -> None:
        """Leaves out what is at a place. With a `name` the message is of many places."""
        self.rest.add(self.line(place), message if name else f"{place}: {message}", name)

    def mapping(self, key: str) -> dict[str, Any]:
        """The mapping under a key; empty if the key is absent, or is no mapping, which is left out."""
        found = self.data.get(key) or {}
        if isinstance(found, dict):
            return found
        self.leave_out(key, f"{found!r}: allowed: a mapping")
        return {}

    def items(self, key: str) -> list[tuple[str, Any]]:
        """The items of the list under a key, each with its place; a single value counts as a list of one."""
        found = self.data.get(key)
        if not isinstance(found, list):
            return [] if found is None else [(key, found)]
        return [(f"{key}[{i}]", item) for i, item in enumerate(found)]


def load(path: str, kind: str, keys: str) -> YamlFile:
    """Reads a file of a `kind` that has some `keys`. Raises UserError for what `plain_yaml` refuses, and if it is no mapping."""
    try:
        node, data = untrusted_yaml.read(path, "import")
    except UserError as error:
        raise UserError(f"{error}; give {kind}") from None
    if node is None or not isinstance(data, dict):
        raise UserError(f"{path}:1: no mapping; give {kind}, with {keys}")
    file = YamlFile(Remainder(path), data)
    _add_lines(node, "", file.lines)
    return file


def _add_lines(node: yaml.Node, place: str, lines: dict[str, int]) -> None:
    parts: list[tuple[str, yaml.Node, yaml.Node]] = []
    if isinstance(node, yaml.MappingNode):
        parts = [(f"{place}.{key.value}".lstrip("."), key, value) for key, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        parts = [(f"{place}[{i}]", item, item) for i, item in enumerate(node.value)]
    for name, mark, value in parts:
        lines[name] = mark.start_mark.line + 1
        _add_lines(value, name, lines)
