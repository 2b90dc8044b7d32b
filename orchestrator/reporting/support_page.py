"""The page docs/support.md, from the adapters' own rules: which problems each backend supports on which architecture. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import Any

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
    "padded graph, drafts": {"s_qo": 4, "graph_batch": 64},
    "FP8 output": {"q_dtype": "fp8_e4m3", "kv_dtype": "fp8_e4m3", "out_dtype": "fp8_e4m3"},
}
NO_SUCH_FEATURES: dict[str, frozenset[str]] = {  # features that do not exist in a routine
    "cascade": frozenset({"sliding window", "padded graph", "padded graph, drafts"}),
    "merge_states": frozenset({"padded graph", "padded graph, drafts"}),
    "ragged_prefill": frozenset({"page of 1", "page of 16", "page of 128", "NHD pages", "padded graph", "padded graph, drafts"}),
    "mla": frozenset(
        {"sliding window", "sinks", "NHD pages", "5 heads a KV head", "head_dim 64", "head_dim 256", "head_dim 192/128"}
    ),
}

PAGE = """# What each backend supports

Which problems does each backend serve on each GPU architecture?
`make support` writes this page from the adapters' rules (`needs` in `kernels/adapters/`), with flashinfer-python 0.7.2.post1.
The [glossary](glossary.md) explains the words.

How far the columns were tested:

- **SM90:** an H200 ran problems on both sides of each condition, in the sweeps `rule_edges_*`.
  All supported points of that day passed the check.
  Most unsupported points were forced (`check.force_unsupported=true`) and failed.
  [backends.md](backends.md#how-the-rules-were-tested) names the exceptions.
- **Other GPUs:** no such GPU was available, so these columns follow the libraries' source code.
- [backends.md](backends.md#what-has-run) says what has run since, and what has not.
- `tests/gpu/test_rules_gpu.py` runs these sweeps on the GPU that it finds.

How to read the first table of each routine:

- A cell has the supported numbers of query tokens per request (`s_qo`), out of {s_qo}.
- The problem has 8,192 tokens of context, a causal mask, pages of 64 tokens, and 64 query heads with 8 KV heads of 128.
- MLA has 128 heads and a latent of 512 + 64.
- In a cascade all requests share the first 4,096 tokens.
- `merge_states` merges 8 states of each query token, and its kernels read no keys.
- In ragged prefill, `whole` is a prompt of 8,192 tokens, and `chunk` is its last 512 tokens.
- Dtypes that a backend supports nowhere are left out.

In the second table, `library` is the package of a backend's kernels.
`fa3` is FlashInfer's kernel, and `flash_attn_3` is FlashAttention-3.
"""


def page(plugins: tuple[str, ...] = ()) -> str:
    """The text of `docs/support.md`, with the backends of plugins added.

    Raises ImportError, ValueError or AttributeError for a module that is no plugin.
    """
    devices = {arch: known_devices()[name] for arch, name in ARCHITECTURES.items()}
    found = registry.adapters(plugins)
    parts = [PAGE.format(s_qo=", ".join(DRAFT_LENGTHS))]
    for routine in USUAL_SHAPES:
        adapters = [adapter for (of, _), adapter in found.items() if of == routine]
        parts += [f"## {routine}\n", markdown([dtype_grid(adapters, devices), feature_grid(routine, adapters, devices)]), ""]
    return "\n".join(parts).rstrip() + "\n"


def dtype_grid(adapters: list[Adapter], devices: dict[str, Device]) -> Grid:
    """A row for each backend and pair of dtypes, a column for each architecture; cells name the supported query lengths."""
    rows = [row for adapter in adapters for row in _alike_in_one(list(_dtype_rows(adapter, devices)))]
    return Grid("supported query tokens per request", ("backend", "queries", "keys, values", *devices), tuple(rows))


def _alike_in_one(rows: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """One row in place of those of a backend that serves every pair of dtypes, or every dtype of keys under one of queries."""
    lacking = {pair for pair in DTYPE_PAIRS if pair not in {(row[1], row[2]) for row in rows}}
    if len({row[3:] for row in rows}) != 1 or any(kv != "nvfp4" for _, kv in lacking):
        by_query = [[row for row in rows if row[1] == q] for q in dict.fromkeys(row[1] for row in rows)]
        return [row for alike in by_query for row in _any_keys(alike)]
    return [(rows[0][0], "any", "any but nvfp4" if lacking else "any", *rows[0][3:])]


def _any_keys(rows: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """One row in place of those of one query dtype that has every dtype of keys and values, as a merge that reads neither has."""
    alike = len({row[3:] for row in rows}) == 1 and {row[2] for row in rows} == {*Q_DTYPES, "nvfp4"}
    return [(*rows[0][:2], "any", *rows[0][3:])] if alike else rows


def _dtype_rows(adapter: Adapter, devices: dict[str, Device]) -> Iterator[tuple[str, ...]]:
    for q, kv in DTYPE_PAIRS:
        cells = [_supported_lengths(adapter, device, q, kv) for device in devices.values()]
        if any(cells):
            yield (adapter.name, q, kv, *(cell or "–" for cell in cells))


def _supported_lengths(adapter: Adapter, device: Device, q: str, kv: str) -> str:
    return " ".join(
        name for name, s_qo in _lengths_of(adapter).items() if supports(adapter, device, s_qo=s_qo, q_dtype=q, kv_dtype=kv)
    )


def _lengths_of(adapter: Adapter) -> dict[str, int]:
    return PROMPT_LENGTHS if adapter.routine == "ragged_prefill" else DRAFT_LENGTHS


def feature_grid(routine: str, adapters: list[Adapter], devices: dict[str, Device]) -> Grid:
    """A row for each backend, a column for each feature; cells name the architectures that support it."""
    features = {name: keys for name, keys in FEATURES.items() if name not in NO_SUCH_FEATURES.get(routine, frozenset())}
    rows = []
    for adapter in adapters:
        cells = [_architectures(adapter, devices, keys) for keys in features.values()]
        rows.append((adapter.name, _libraries(adapter), adapter.query_lengths, *cells))
    return Grid("features, by architecture", ("backend", "library", "query lengths", *features), tuple(rows))


def _libraries(adapter: Adapter) -> str:
    more = f", for some problems {', '.join(adapter.also_calls)}" if adapter.also_calls else ""
    return ", ".join(adapter.distributions) + more


def _architectures(adapter: Adapter, devices: dict[str, Device], keys: dict[str, Any]) -> str:
    """The architectures on which a backend supports some keys; `yes` if these are all that support the usual problem."""
    plain = [arch for arch, device in devices.items() if _supports_any_length(adapter, device, {})]
    able = [arch for arch, device in devices.items() if _supports_any_length(adapter, device, keys)]
    if not able:
        return "–"
    return "yes" if plain and set(able) >= set(plain) else " ".join(able)


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
    usual_keys = {"routine": routine, "batch_size": 8, "s_kv": 8192, **USUAL_SHAPES[routine]}
    return Problem.model_validate({**usual_keys, **dict(keys)})
