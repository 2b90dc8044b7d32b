"""What reaches a kernel library: its entry points, replaced by ones that write down their arguments.

The arguments are bound to the real signatures first, so a call that the library would refuse for its names raises TypeError.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch

from kernels.adapter import Adapter, Runner
from kernels.device import Device
from kernels.inputs import Inputs

FUNCTIONS = (
    "flashinfer.decode.xqa_batch_decode_with_kv_cache",
    "flashinfer.decode.trtllm_batch_decode_with_kv_cache",
    "flashinfer.prefill.trtllm_fmha_v2_prefill",
    "flashinfer.prefill.trtllm_batch_context_with_kv_cache",
)
WRAPPERS = (
    "flashinfer.BatchDecodeWithPagedKVCacheWrapper",
    "flashinfer.BatchPrefillWithPagedKVCacheWrapper",
    "flashinfer.BatchPrefillWithRaggedKVCacheWrapper",
    "flashinfer.mla.BatchMLAPagedAttentionWrapper",
)
OPERATORS = "kernels.adapters.flash_attn_3._operators"

Log = list[tuple[str, dict[str, Any]]]  # the name of each call, and its arguments by name


def _bound(real: Callable[..., Any], *args: Any, **keys: Any) -> dict[str, Any]:
    return inspect.signature(inspect.unwrap(real)).bind(*args, **keys).arguments


def _function(path: str, log: Log) -> Callable[..., None]:
    module, _, name = path.rpartition(".")
    real = getattr(importlib.import_module(module), name)

    def record(*args: Any, **keys: Any) -> None:
        log.append((name, _bound(real, *args, **keys)))

    return record


def _wrapper(path: str, log: Log) -> type:
    module, _, name = path.rpartition(".")
    real = getattr(importlib.import_module(module), name)

    class Wrapper:
        """Resolves `auto` to fa2 at its first plan, as FlashInfer's wrappers do."""

        def __init__(self, *args: Any, **keys: Any) -> None:
            arguments = _bound(real.__init__, self, *args, **keys)
            self._backend = arguments.get("backend", "auto")
            log.append((f"{name}.__init__", {key: value for key, value in arguments.items() if key != "self"}))

        def plan(self, *args: Any, **keys: Any) -> None:
            self._backend = "fa2" if self._backend == "auto" else self._backend
            self._note("plan", getattr(real, "_plan_impl", real.plan), *args, **keys)

        def run(self, *args: Any, **keys: Any) -> None:
            self._note("run", real.run, *args, **keys)

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
        return (torch.zeros(1),)


@contextmanager
def recording() -> Iterator[Log]:
    """The calls that reach FlashInfer and FlashAttention-3 while it lasts."""
    log: Log = []
    patches = [
        *(patch(path, _function(path, log)) for path in FUNCTIONS),
        *(patch(path, _wrapper(path, log)) for path in WRAPPERS),
        patch(OPERATORS, functools.partial(_Operators, log)),
        patch("kernels.flashinfer_common.WORKSPACE_BYTES", 1024),  # 256 MiB take a while to be zeroed
    ]
    for one in patches:
        one.start()
    try:
        yield log
    finally:
        for one in patches:
            one.stop()


def what_reaches(adapter: Adapter, inputs: Inputs, device: Device) -> tuple[object, ...]:
    """Everything that one preparation and one call hand to the library, and what is left to the caller, to be compared.

    Raises AssertionError for a backend that calls none of the entry points.
    """
    with recording() as log:
        runner: Runner = adapter.prepare(inputs, device)
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
    return tuple(sorted((k, frozen(v)) for k, v in vars(value).items())) if hasattr(value, "__dict__") else value


def _is_scratch(value: torch.Tensor) -> bool:
    """Whether a tensor is a workspace or an output, whose content is not read."""
    return value.numel() == 1024 or (value.is_floating_point() and value.dtype.itemsize > 1 and bool(value.isnan().any()))
