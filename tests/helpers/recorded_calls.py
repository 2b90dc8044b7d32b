"""What reaches a kernel library: its entry points, replaced by ones that write down their arguments.

The arguments are bound to the real signatures first, so a call that the library would refuse for its names raises TypeError.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from kernels.adapter import Adapter, Runner
from kernels.device import Device
from kernels.inputs import Inputs
from tests.helpers.engine_kernels import STAND_INS, modules

FUNCTIONS = (
    "flashinfer.decode.xqa_batch_decode_with_kv_cache",
    "flashinfer.decode.trtllm_batch_decode_with_kv_cache",
    "flashinfer.prefill.trtllm_fmha_v2_prefill",
    "flashinfer.prefill.trtllm_batch_context_with_kv_cache",
    "flashinfer.merge_state_in_place",
    "flashinfer.cascade.merge_state_in_place",
)
WRAPPERS = (
    "flashinfer.BatchAttention",
    "flashinfer.BatchPODWithPagedKVCacheWrapper",
    "flashinfer.BatchDecodeWithPagedKVCacheWrapper",
    "flashinfer.BatchPrefillWithPagedKVCacheWrapper",
    "flashinfer.BatchPrefillWithRaggedKVCacheWrapper",
    "flashinfer.cascade.BatchPrefillWithPagedKVCacheWrapper",
    "flashinfer.mla.BatchMLAPagedAttentionWrapper",
)
MERGES = "flashinfer.cascade.get_cascade_module"  # a module's functions have no names for their arguments
OPERATORS = "kernels.adapters.flash_attn_3._operators"
FP8_OPERATORS = "kernels.adapters.flash_mla._fp8_operators"

# Engines' entry points, by module; all else of these modules is as in `engine_kernels.py`.
OF_ENGINES = (
    "unified_attention", "flash_attn_varlen_func", "get_scheduler_metadata", "decode_attention_fwd", "extend_attention_fwd",
    "_flash_attn_fwd", "flash_attn_with_kvcache", "flash_mla_with_kvcache", "tokenspeed_mla_decode",
)  # fmt: skip
MERGE = "kernels.libraries.flash_attn_common._merge"

Log = list[tuple[str, dict[str, Any]]]  # the name of each call, and its arguments by name


def _bound(real: Callable[..., Any], *args: Any, **keys: Any) -> dict[str, Any]:
    return _signature(inspect.unwrap(real)).bind(*args, **keys).arguments


@functools.cache
def _signature(real: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(real)


@functools.cache
def _place(path: str) -> tuple[ModuleType, str]:
    """The module of a dotted name, and the name there."""
    module, _, name = path.rpartition(".")
    return importlib.import_module(module), name


def _function(path: str, log: Log) -> Callable[..., None]:
    module, name = _place(path)
    real = getattr(module, name)

    def record(*args: Any, **keys: Any) -> None:
        log.append((name, _bound(real, *args, **keys)))

    return record


def _wrapper(path: str, log: Log) -> type:
    module, name = _place(path)
    real = getattr(module, name)

    class Wrapper:
        """Resolves `auto` to fa2 at its first plan, as FlashInfer's wrappers do."""

        def __init__(self, *args: Any, **keys: Any) -> None:
            arguments = _bound(real.__init__, self, *args, **keys)
            self._backend = arguments.get("backend", "auto")
            self._cute_dsl_wrapper = SimpleNamespace(_reduction="none", _kv_splits=1)  # what a plan of that kernel leaves
            log.append((f"{name}.__init__", {key: value for key, value in arguments.items() if key != "self"}))

        def plan(self, *args: Any, **keys: Any) -> None:
            self._backend = "fa2" if self._backend == "auto" else self._backend
            self._note("plan", getattr(real, "_plan_impl", real.plan), *args, **keys)

        def run(self, *args: Any, **keys: Any) -> tuple[torch.Tensor, torch.Tensor] | None:
            self._note("run", real.run, *args, **keys)
            if name.startswith("BatchPOD"):
                return args[0], args[2]
            return (args[0], torch.zeros(args[0].shape[:2])) if args and keys.get("return_lse") else None

        def _note(self, what: str, method: Callable[..., Any], *args: Any, **keys: Any) -> None:
            arguments = _bound(method, self, *args, **keys)
            log.append((f"{name}.{what}", {"wrapper": id(self), **{k: v for k, v in arguments.items() if k != "self"}}))

        @property
        def resolved_backend(self) -> str:
            return str(self._backend)

    return Wrapper


class _Operators:
    """FlashAttention-3's two operators, whose arguments have no names here."""

    def __init__(self, log: Log) -> None:
        self.log = log

    def get_scheduler_metadata(self, *args: Any) -> torch.Tensor:
        self.log.append(("get_scheduler_metadata", {str(i): arg for i, arg in enumerate(args)}))
        return torch.zeros(1)

    def fwd(self, *args: Any) -> tuple[torch.Tensor, ...]:
        self.log.append(("fwd", {str(i): arg for i, arg in enumerate(args)}))
        q, out = args[0], args[6]
        return out, torch.zeros(q.shape[1], q.shape[0])


class _Fp8Operators:
    """FlashMLA's two operators for an FP8 latent, whose arguments have no names either."""

    def __init__(self, log: Log) -> None:
        self.log = log

    def get_mla_decoding_metadata_dense_fp8(self, *args: Any) -> tuple[torch.Tensor, ...]:
        self.log.append(("get_mla_decoding_metadata_dense_fp8", {str(i): arg for i, arg in enumerate(args)}))
        return torch.zeros(1, 8), torch.zeros(1)

    def fwd_kvcache_mla_fp8(self, *args: Any) -> tuple[torch.Tensor, ...]:
        self.log.append(("fwd_kvcache_mla_fp8", {str(i): arg for i, arg in enumerate(args)}))
        q, _, width = args[:3]
        return torch.zeros(*q.shape[:-1], width), torch.zeros(1)


class _Merges:
    """The functions of FlashInfer's module of merges."""

    def __init__(self, log: Log) -> None:
        self.log = log

    def __getattr__(self, name: str) -> Callable[..., None]:
        assert name in ("merge_state", "merge_state_in_place", "merge_states"), name
        return lambda *args: self.log.append((name, {str(i): arg for i, arg in enumerate(args)}))


def _engine_function(name: str, real: Callable[..., Any], log: Log) -> Callable[..., Any]:
    """Writes down its arguments, and returns what the adapters read."""

    def record(*args: Any, **keys: Any) -> Any:
        bound = _bound(real, *args, **keys)
        log.append((name, bound))
        if name == "get_scheduler_metadata":
            return torch.zeros(1)
        if bound.get("return_softmax_lse"):
            return bound["out"], torch.zeros(bound["q"].shape[1], bound["q"].shape[0])
        if name != "flash_mla_with_kvcache":
            return None
        return torch.zeros(*keys["q"].shape[:-1], keys["head_dim_v"]), torch.zeros(keys["q"].shape[:3]).transpose(1, 2)

    return record


@contextmanager
def recording() -> Iterator[Log]:
    """The calls that reach FlashInfer, FlashAttention-3 and the libraries of engines while it lasts."""
    log: Log = []
    of_engines = {
        module: {name: _engine_function(name, one, log) if name in OF_ENGINES else one for name, one in contents.items()}
        for module, contents in STAND_INS.items()
    }
    patches = [
        *(patch.object(*_place(path), _function(path, log)) for path in FUNCTIONS),
        *(patch.object(*_place(path), _wrapper(path, log)) for path in WRAPPERS),
        patch(OPERATORS, functools.partial(_Operators, log)),
        patch(FP8_OPERATORS, functools.partial(_Fp8Operators, log)),
        patch(MERGES, functools.partial(_Merges, log)),
        patch(MERGE, lambda: lambda *args: log.append(("merge", {str(i): arg for i, arg in enumerate(args)}))),
        patch("kernels.libraries.flashinfer_common.WORKSPACE_BYTES", 1024),  # 256 MiB take a while to be zeroed
    ]
    # Not `patch.dict`: it would also take away what is imported meanwhile, and PyTorch refuses to be imported twice.
    libraries = modules(of_engines)
    installed = {name: sys.modules[name] for name in libraries if name in sys.modules}
    sys.modules.update(libraries)
    for one in patches:
        one.start()
    try:
        yield log
    finally:
        for one in patches:
            one.stop()
        for name in libraries:
            del sys.modules[name]
        sys.modules.update(installed)


def what_reaches(adapter: Adapter, inputs: Inputs, device: Device) -> tuple[object, ...]:
    """Everything that one preparation and one call hand to the library, and what is left to the caller, to be compared.

    Raises AssertionError for a backend that calls none of the entry points.
    """
    with _scratch_is_nan(), recording() as log:
        runner: Runner = adapter.prepared(inputs, device)
        runner()
    assert log, (
        f"{adapter.name} of {adapter.routine} calls no entry point of tests/helpers/recorded_calls.py: add those of its library"
    )
    return (*((name, frozen({k: v for k, v in keys.items() if k != "wrapper"})) for name, keys in log), runner.caller_scale)


def frozen(value: object) -> object:
    """A value that can be compared, with tensors as dtype, shape and content."""
    if isinstance(value, torch.Tensor):
        content = value.contiguous().view(torch.uint8).numpy().tobytes() if not _is_scratch(value) else b""
        return str(value.dtype), tuple(value.shape), content
    if isinstance(value, dict):
        return tuple((key, frozen(one)) for key, one in value.items())
    if isinstance(value, list | tuple):
        return tuple(frozen(one) for one in value)
    if isinstance(value, Enum):
        return str(value)
    return tuple(sorted((k, frozen(v)) for k, v in vars(value).items())) if hasattr(value, "__dict__") else value


@contextmanager
def _scratch_is_nan() -> Iterator[None]:
    """Fresh memory holds NaN, so that `_is_scratch` knows it and two preparations are equal."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)  # with it, PyTorch fills what it allocates
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def _is_scratch(value: torch.Tensor) -> bool:
    """Whether a tensor is a workspace or an output, whose content is not read."""
    return value.numel() == 1024 or (value.is_floating_point() and value.dtype.itemsize > 1 and bool(value.isnan().any()))
