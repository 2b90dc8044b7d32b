"""The page docs/support.md, from the adapters' own rules: which problems each backend supports on which architecture. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import product
from typing import Any, TypeAlias

from kernels import registry
from kernels.adapter import Adapter
from kernels.device import Device
from kernels.problem import Problem
from orchestrator.machines import known_devices
from orchestrator.tables import Grid, markdown

ARCHITECTURES = {
    "SM80": "a100",
    "SM89": "l40s",
    "SM90": "h200",
    "SM100": "b200",
    "SM103": "b300",
    "SM120": "rtx5090",
    "CPU": "cpu",
}
USUAL_HEADS = {"num_qo_heads": 64, "num_kv_heads": 8, "head_dim_qk": 128, "head_dim_vo": 128}
USUAL_MLA_HEADS = {
    "num_qo_heads": 128,
    "num_kv_heads": 128,
    "head_dim_qk": 192,
    "head_dim_vo": 128,
    "head_dim_ckv": 512,
    "head_dim_kpe": 64,
}
USUAL_SHAPES: dict[str, dict[str, Any]] = {
    "paged_decode": USUAL_HEADS,
    "paged_prefill": USUAL_HEADS,
    "ragged_prefill": USUAL_HEADS,
    "mla": USUAL_MLA_HEADS,
    "cascade": {**USUAL_HEADS, "shared_prefix": 4096},
    "merge_states": {**USUAL_HEADS, "num_states": 8},
}
Q_DTYPES = ("bf16", "fp16", "fp32", "fp8_e4m3", "fp8_e5m2")
DTYPE_PAIRS = tuple(product(Q_DTYPES, (*Q_DTYPES, "nvfp4")))  # of queries, and of keys and values
# The query tokens per request that cells name, over 8,192 tokens of context; of prompts the last 512 tokens, or all.
DRAFT_LENGTHS = {str(s_qo): s_qo for s_qo in (1, 4, 32)}
PROMPT_LENGTHS = {"chunk": 512, "whole": 8192}
CONTEXT = 8192
TREE = (-1, 0, 0, 1)
FEATURES: dict[str, dict[str, Any]] = {
    "full mask": {"s_qo": 4, "mask": "full"},
    "tree mask": {"s_qo": 4, "mask": "binary", "tree": TREE},
    "ragged drafts": {"s_qo": 4, "min_s_qo": 1},
    "ragged contexts": {"seq_lens": "random"},
    "sliding window": {"window": 128},
    "sinks": {"sinks": True},
    "page of 1": {"page_size": 1},
    "page of 16": {"page_size": 16},
    "page of 128": {"page_size": 128},
    "NHD pages": {"kv_layout": "NHD"},
    "5 heads a KV head": {"num_qo_heads": 40},
    "head_dim 64": {"head_dim_qk": 64, "head_dim_vo": 64},
    "head_dim 256": {"head_dim_qk": 256, "head_dim_vo": 256},
    "head_dim 192/128": {"head_dim_qk": 192, "head_dim_vo": 128},
    "log-sum-exp": {"return_lse": True},
    "padded graph": {"graph_batch": 64},
    "padded drafts": {"s_qo": 4, "graph_batch": 64},
    "requests without keys": {"batch_spec": "7q1s8k_q1s0"},
    "FP8 output": {"q_dtype": "fp8_e4m3", "kv_dtype": "fp8_e4m3", "out_dtype": "fp8_e4m3"},
}
Answers: TypeAlias = tuple[tuple[str, str], ...]  # what is served, in two columns
NO_SUCH_FEATURES: dict[str, frozenset[str]] = {  # features that do not exist in a routine
    "cascade": frozenset({"sliding window", "padded graph", "padded drafts", "requests without keys"}),
    "merge_states": frozenset({"padded graph", "padded drafts", "requests without keys"}),
    "ragged_prefill": frozenset({"page of 1", "page of 16", "page of 128", "NHD pages", "padded graph", "padded drafts"}),
    "mla": frozenset(
        {"sliding window", "sinks", "NHD pages", "5 heads a KV head", "head_dim 64", "head_dim 256", "head_dim 192/128"}
    ),
}

PAGE = """# What each backend supports

Which problems does each backend serve on each GPU architecture?

    python -m orchestrator mode=support

`make docs` writes this page from the backends' own rules (`needs` in `kernels/adapters/`), with flashinfer-python 0.7.2.post1.
An H200 and an H100 ran problems on both sides of each condition; the rules of other GPUs follow the libraries' source code.

The problem: {context:,} tokens of context, a causal mask, pages of 64 tokens, 64 query heads with 8 KV heads of 128.
MLA has 128 heads and a latent of 512 + 64; a cascade shares its first 4,096 tokens; `merge_states` merges 8 states.

- First table of a routine: the numbers of query tokens for each request that are served, out of {s_qo}, by dtypes.
  `bf16/fp8_e4m3` are queries over keys and values; one dtype is that of all.
  In ragged prefill `whole` is a prompt, and `chunk` its last 512 tokens.
  Dtypes that are served nowhere are left out.
- Second table: `single` (one query token a request), `uniform` (one number for all requests) or `varlen`, and what else is served.
  Architectures stand in brackets if they are fewer than in the first table.

`fa3` is FlashInfer's kernel, and `flash_attn_3` is FlashAttention-3.
"""


def page(plugins: tuple[str, ...] = ()) -> str:
    """The text of `docs/support.md`, with the backends of plugins added.

    Raises ImportError, ValueError or AttributeError for a module that is no plugin.
    """
    devices = {arch: known_devices()[name] for arch, name in ARCHITECTURES.items()}
    found = registry.adapters(plugins)
    parts = [PAGE.format(s_qo=", ".join(DRAFT_LENGTHS), context=CONTEXT)]
    for routine in USUAL_SHAPES:
        adapters = [adapter for (of, _), adapter in found.items() if of == routine]
        parts += [f"## {routine}\n", markdown([dtype_grid(adapters, devices), feature_grid(routine, adapters, devices)]), ""]
    return "\n".join(parts).rstrip() + "\n"


def dtype_grid(adapters: list[Adapter], devices: dict[str, Device]) -> Grid:
    """A row for all backends that serve the same: the query lengths by architecture, for all dtypes that are served alike."""
    served = {adapter.name: _by_dtypes(adapter, devices) for adapter in adapters}
    rows = [(names, dtypes, lengths) for names, alike in _alike(served) for dtypes, lengths in alike]
    return Grid("supported query tokens per request", ("backend", "dtypes", "query tokens, by architecture"), tuple(rows))


def _alike(served: Mapping[str, Answers]) -> list[tuple[str, Answers]]:
    """The names that have one answer, together, in the order of the first of them."""
    together: dict[Answers, list[str]] = {}
    for name, answers in served.items():
        together.setdefault(answers, []).append(name)
    return [(", ".join(names), answers) for answers, names in together.items() if answers]


def _by_dtypes(adapter: Adapter, devices: dict[str, Device]) -> tuple[tuple[str, str], ...]:
    """Pairs of dtypes, and what is served of them: the query lengths by architecture."""
    pairs: dict[str, list[tuple[str, str]]] = {}
    for q, kv in DTYPE_PAIRS:
        if served := _lengths_by_architecture(adapter, devices, q, kv):
            pairs.setdefault(served, []).append((q, kv))
    return tuple((_spelled(found), served) for served, found in pairs.items())


def _spelled(pairs: list[tuple[str, str]]) -> str:
    """`any` is every dtype, of pairs or of keys; one dtype is that of queries and keys alike."""
    lacking = set(DTYPE_PAIRS) - set(pairs)
    if all(kv == "nvfp4" for _, kv in lacking):
        return "any but nvfp4" if lacking else "any"
    whole = {q for q in Q_DTYPES if not any(of == q for of, _ in lacking)}
    return ", ".join(dict.fromkeys(f"{q}/any" if q in whole else q if q == kv else f"{q}/{kv}" for q, kv in pairs))


def _lengths_by_architecture(adapter: Adapter, devices: dict[str, Device], q: str, kv: str) -> str:
    """Such as `1 4 32: SM90 SM100; 1: SM80`, and empty if nothing is served."""
    by_lengths: dict[str, list[str]] = {}
    for arch, device in devices.items():
        able = {"q_dtype": q, "kv_dtype": kv}
        if lengths := " ".join(name for name, s_qo in _lengths_of(adapter).items() if supports(adapter, device, s_qo=s_qo, **able)):
            by_lengths.setdefault(lengths, []).append(arch)
    return "; ".join(f"{lengths}: {_named(found)}" for lengths, found in by_lengths.items())


def _named(architectures: list[str]) -> str:
    gpus = [arch for arch in ARCHITECTURES if arch != "CPU"]
    rest = [arch for arch in architectures if arch not in gpus]
    return " ".join(["all GPUs", *rest] if len(architectures) - len(rest) == len(gpus) else architectures)


def _lengths_of(adapter: Adapter) -> dict[str, int]:
    return PROMPT_LENGTHS if adapter.routine == "ragged_prefill" else DRAFT_LENGTHS


def feature_grid(routine: str, adapters: list[Adapter], devices: dict[str, Device]) -> Grid:
    """A row for all backends of one library that serve the same features; architectures stand in brackets if not all do."""
    features = {name: keys for name, keys in FEATURES.items() if name not in NO_SUCH_FEATURES.get(routine, frozenset())}
    served = {}
    for adapter in adapters:
        able = {name: _architectures(adapter, devices, keys) for name, keys in features.items()}
        words = ", ".join(f"{name}{found}" for name, found in able.items() if found is not None)
        served[adapter.name] = ((_libraries(adapter), f"{adapter.query_lengths}: {words or 'nothing else'}"),)
    rows = tuple((names, *alike[0]) for names, alike in _alike(served))
    return Grid("query lengths and features", ("backend", "library", "serves"), rows)


def _libraries(adapter: Adapter) -> str:
    more = f", for some problems {', '.join(adapter.also_calls)}" if adapter.also_calls else ""
    return ", ".join(adapter.distributions) + more


def _architectures(adapter: Adapter, devices: dict[str, Device], keys: dict[str, Any]) -> str | None:
    """None if no architecture supports some keys; empty if all do that support the usual problem."""
    plain = [arch for arch, device in devices.items() if _supports_any_length(adapter, device, {})]
    able = [arch for arch, device in devices.items() if _supports_any_length(adapter, device, keys)]
    if not able:
        return None
    return "" if plain and set(able) >= set(plain) else f" ({' '.join(able)})"


def _supports_any_length(adapter: Adapter, device: Device, keys: dict[str, Any]) -> bool:
    if adapter.routine == "ragged_prefill" and "tree" not in keys:
        keys = {key: value for key, value in keys.items() if key != "s_qo"}
    return any(supports(adapter, device, **{"s_qo": s_qo, **keys}) for s_qo in _lengths_of(adapter).values())


def supports(adapter: Adapter, device: Device, **keys: object) -> bool:
    """Whether a backend supports the usual problem of its routine, with these keys changed, on a device."""
    if adapter.routine == "mla" and keys.get("kv_dtype") == "nvfp4":
        return False  # there is no such problem
    return not adapter.unmet(_problem(adapter.routine, tuple(keys.items())), device)


@cache  # one problem for all backends and devices
def _problem(routine: str, keys: tuple[tuple[str, Any], ...]) -> Problem:
    usual_keys = {"routine": routine, "batch_size": 8, "s_kv": CONTEXT, **USUAL_SHAPES[routine]}
    given = {**usual_keys, **dict(keys)}
    listed = {"batch_size", "s_qo", "s_kv"} if "batch_spec" in given else set()
    return Problem.model_validate({key: value for key, value in given.items() if key not in listed})
