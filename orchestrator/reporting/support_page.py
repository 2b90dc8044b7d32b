"""The page docs/support.md, from the adapters' own rules: which problems each backend supports on which architecture. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from itertools import product
from typing import Any, TypeAlias

import yaml

from kernels import registry
from kernels.adapter import Adapter
from kernels.device import Device
from kernels.problem import Problem
from orchestrator.grouped import grouped
from orchestrator.machines import known_devices
from orchestrator.tables import Grid, markdown

USUAL: dict[str, Any] = yaml.safe_load(files(__package__).joinpath("support_page.yaml").read_text(encoding="utf-8"))
ARCHITECTURES: dict[str, str] = USUAL["architectures"]  # and a GPU of each
FEATURES: dict[str, dict[str, Any]] = {
    name: {key: tuple(value) if isinstance(value, list) else value for key, value in keys.items()}
    for name, keys in USUAL["features"].items()
}
Q_DTYPES = ("bf16", "fp16", "fp32", "fp8_e4m3", "fp8_e5m2")
DTYPE_PAIRS = tuple(product(Q_DTYPES, (*Q_DTYPES, "nvfp4")))  # of queries, and of keys and values
# The query tokens per request that cells name, over 8,192 tokens of context; of prompts the last 512 tokens, or all.
DRAFT_LENGTHS = {str(s_qo): s_qo for s_qo in (1, 4, 32)}
PROMPT_LENGTHS = {"chunk": 512, "whole": 8192}
CONTEXT = 8192
Answers: TypeAlias = tuple[tuple[str, ...], ...]  # what is served, in columns


def page(plugins: tuple[str, ...] = ()) -> str:
    """`docs/support.md`, also of plugins. Raises ImportError, ValueError or AttributeError for a module that is no plugin."""
    devices = {arch: known_devices()[name] for arch, name in ARCHITECTURES.items()}
    found = registry.adapters(plugins)
    parts = [USUAL["page"].format(s_qo=", ".join(DRAFT_LENGTHS), context=CONTEXT, features=", ".join(FEATURES))]
    for routine in USUAL["shapes"]:
        adapters = [adapter for (of, _), adapter in found.items() if of == routine]
        grids = [dtype_grid(adapters, devices), feature_grid(routine, adapters, devices)]
        parts += [f"## {routine}\n", markdown(grids, "|"), ""]
    return "\n".join(parts).rstrip() + "\n"


def dtype_grid(adapters: list[Adapter], devices: dict[str, Device]) -> Grid:
    """A row for all backends that serve the same: the query lengths by architecture, for all dtypes that are served alike."""
    served = {adapter.name: _by_dtypes(adapter, devices) for adapter in adapters}
    rows = [(names, dtypes, lengths) for names, alike in _alike(served) for dtypes, lengths in alike]
    return Grid("supported query tokens per request", ("backend", "dtypes", "query tokens, by architecture"), tuple(rows))


def _alike(served: Mapping[str, Answers]) -> list[tuple[str, Answers]]:
    """The names that have one answer, together, in the order of the first of them."""
    together = grouped((answers, name) for name, answers in served.items())
    return [(", ".join(names), answers) for answers, names in together.items() if answers]


def _by_dtypes(adapter: Adapter, devices: dict[str, Device]) -> tuple[tuple[str, str], ...]:
    """Pairs of dtypes, and what is served of them: the query lengths by architecture."""
    pairs = grouped((_lengths_by_architecture(adapter, devices, *dtypes), dtypes) for dtypes in DTYPE_PAIRS)
    return tuple((_spelled(found), served) for served, found in pairs.items() if served)


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
    """A row for all backends of one library that serve the same: the features that they do not, or on some architectures only."""
    features = {name: keys for name, keys in FEATURES.items() if name not in USUAL["no_such_features"].get(routine, ())}
    served = {}
    for adapter in adapters:
        able = {name: _architectures(adapter, devices, keys) for name, keys in features.items()}
        words = ", ".join(f"{name}{found or ''}" for name, found in able.items() if found != "")
        served[adapter.name] = ((_libraries(adapter), adapter.query_lengths, words or "–"),)
    rows = tuple((names, *alike[0]) for names, alike in _alike(served))
    return Grid("query lengths, and what is not served", ("backend", "library", "query lengths", "not served"), rows)


def _libraries(adapter: Adapter) -> str:
    more = f", for some problems {', '.join(adapter.also_calls)}" if adapter.also_calls else ""
    return ", ".join(adapter.distributions) + more


def _architectures(adapter: Adapter, devices: dict[str, Device], keys: dict[str, Any]) -> str | None:
    """None if no architecture supports some keys; empty if all do that support the usual problem."""
    plain = [arch for arch, device in devices.items() if _supports_any_length(adapter, device, {})]
    able = [arch for arch, device in devices.items() if _supports_any_length(adapter, device, keys)]
    if not able:
        return None
    return "" if plain and set(able) >= set(plain) else f" (only {' '.join(able)})"


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
    given = {"routine": routine, "batch_size": 8, "s_kv": CONTEXT, **USUAL["shapes"][routine], **dict(keys)}
    listed = {"batch_size", "s_qo", "s_kv"} if "batch_spec" in given else set()
    return Problem.model_validate({key: value for key, value in given.items() if key not in listed})
