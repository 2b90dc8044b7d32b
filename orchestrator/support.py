"""The support table of the docs, from the adapters' own rules: what is served where, and by which kernel features. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

from kernels import registry
from kernels.adapter import Adapter
from kernels.device import Device
from kernels.problem import Problem
from orchestrator.grid import Grid, markdown
from orchestrator.machines import known_devices

ARCHITECTURES = {
    "SM80": "a100",
    "SM89": "l40s",
    "SM90": "h200",
    "SM100": "b200",
    "SM103": "b300",
    "SM120": "rtx5090",
    "CPU": "cpu",
}
HEADS = {"num_qo_heads": 64, "num_kv_heads": 8, "head_dim_qk": 128, "head_dim_vo": 128}
LATENT = {"num_qo_heads": 128, "num_kv_heads": 128, "head_dim_qk": 192, "head_dim_vo": 128, "head_dim_ckv": 512, "head_dim_kpe": 64}
ROUTINES: dict[str, dict[str, Any]] = {
    "paged_decode": HEADS,
    "paged_prefill": HEADS,
    "ragged_prefill": HEADS,
    "mla": LATENT,
}
DTYPES = tuple(product(("bf16", "fp16", "fp32", "fp8_e4m3", "fp8_e5m2"), ("bf16", "fp16", "fp32", "fp8_e4m3", "fp8_e5m2", "nvfp4")))
# What a cell names: query tokens a request over 8,192 tokens; for prompts the last 512 of them, or all.
S_QO = {str(s_qo): s_qo for s_qo in (1, 4, 32)}
PROMPTS = {"chunk": 512, "whole": 8192}
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
    "FP8 output": {"q_dtype": "fp8_e4m3", "kv_dtype": "fp8_e4m3", "out_dtype": "fp8_e4m3"},
}
NOT_OF: dict[str, frozenset[str]] = {  # features that a routine does not have
    "ragged_prefill": frozenset({"page of 1", "page of 16", "page of 128", "NHD pages"}),
    "mla": frozenset(
        {"sliding window", "sinks", "NHD pages", "5 heads a KV head", "head_dim 64", "head_dim 256", "head_dim 192/128"}
    ),
}

PAGE = """# What each backend serves

Made by `make support` from the adapters' rules (`needs` in `kernels/adapters/`), with flashinfer-python 0.7.2.post1. Of the column
SM90 an H200 has run both sides of the rules' edges: the sweeps `rule_edges_paged`, `rule_edges_ragged` and `rule_edges_mla`, whose
allowed points were all right against the oracle, and most of whose forbidden ones were forced (`check.force_unsupported=true`) and
failed; docs/design.md says which were not. `tests/gpu/test_rules_gpu.py` runs them all on the GPU it finds. The other GPUs' columns
are read from FlashInfer's sources: no such GPU was at hand.

Cells are the numbers of query tokens a request (`s_qo` of {s_qo}) that are served over 8,192 tokens at causal masks, pages of 64
tokens, and 64 query heads over 8 KV heads of 128 (MLA: 128 heads over a latent of 512 + 64); for ragged prefill `whole` is a
prompt of 8,192 tokens and `chunk` its last 512. Dtypes that a backend serves nowhere are left out.
"""


def page(plugins: tuple[str, ...] = ()) -> str:
    """`docs/support.md`."""
    devices = {arch: known_devices()[name] for arch, name in ARCHITECTURES.items()}
    found = registry.adapters(plugins)
    parts = [PAGE.format(s_qo=", ".join(S_QO))]
    for routine in ROUTINES:
        adapters = [adapter for (of, _), adapter in found.items() if of == routine]
        parts += [f"## {routine}\n", markdown([dtype_grid(adapters, devices), feature_grid(routine, adapters, devices)]), ""]
    return "\n".join(parts).rstrip() + "\n"


def dtype_grid(adapters: list[Adapter], devices: dict[str, Device]) -> Grid:
    """Backend and dtypes down, architectures across, query lengths in the cell."""
    rows = [row for adapter in adapters for row in _dtype_rows(adapter, devices)]
    return Grid("query tokens a request that are served", ("backend", "queries", "keys, values", *devices), tuple(rows))


def _dtype_rows(adapter: Adapter, devices: dict[str, Device]) -> Iterator[tuple[str, ...]]:
    for q, kv in DTYPES:
        cells = [_served(adapter, device, q, kv) for device in devices.values()]
        if any(cells):
            yield (adapter.name, q, kv, *(cell or "–" for cell in cells))


def _served(adapter: Adapter, device: Device, q: str, kv: str) -> str:
    return " ".join(
        name for name, s_qo in _lengths_of(adapter).items() if serves(adapter, device, s_qo=s_qo, q_dtype=q, kv_dtype=kv)
    )


def _lengths_of(adapter: Adapter) -> dict[str, int]:
    return PROMPTS if adapter.routine == "ragged_prefill" else S_QO


def feature_grid(routine: str, adapters: list[Adapter], devices: dict[str, Device]) -> Grid:
    """Backend down, features across; in the cell the architectures on which it has them."""
    features = {name: keys for name, keys in FEATURES.items() if name not in NOT_OF.get(routine, frozenset())}
    rows = []
    for adapter in adapters:
        cells = [_where(adapter, devices, keys) for keys in features.values()]
        rows.append((adapter.name, adapter.query_lengths, *cells))
    return Grid("features, by architecture", ("backend", "query lengths", *features), tuple(rows))


def _where(adapter: Adapter, devices: dict[str, Device], keys: dict[str, Any]) -> str:
    """`yes` where every architecture that serves the backend has the feature, else those that have it."""
    plain = [arch for arch, device in devices.items() if _serves_anything(adapter, device, {})]
    able = [arch for arch, device in devices.items() if _serves_anything(adapter, device, keys)]
    if not able:
        return "–"
    return "yes" if set(able) >= set(plain) else " ".join(able)


def _serves_anything(adapter: Adapter, device: Device, keys: dict[str, Any]) -> bool:
    if adapter.routine == "ragged_prefill" and "tree" not in keys:
        keys = {key: value for key, value in keys.items() if key != "s_qo"}
    return any(serves(adapter, device, **{"s_qo": s_qo, **keys}) for s_qo in _lengths_of(adapter).values())


def serves(adapter: Adapter, device: Device, **keys: object) -> bool:
    """Whether a backend serves a usual problem of its routine, changed by `keys`, on a device."""
    usual = {"routine": adapter.routine, "batch_size": 8, "s_kv": 8192, **ROUTINES[adapter.routine]}
    if adapter.routine == "mla" and keys.get("kv_dtype") == "nvfp4":
        return False  # no such problem
    return not adapter.unmet(Problem.model_validate({**usual, **keys}), device)
