"""The dtype names of a sweep, their sizes and their torch counterparts. Only `torch_dtype` imports torch."""

from __future__ import annotations

from typing import Literal, get_args

from kernels.lazy import torch

DtypeName = Literal["fp32", "fp16", "bf16", "fp8_e4m3", "fp8_e5m2", "nvfp4", "fp8_ds_mla"]

DTYPES: tuple[str, ...] = get_args(DtypeName)
ALIASES = {"fp8": "fp8_e4m3"}  # as vLLM calls it
HALF = frozenset({"fp16", "bf16"})
FP8 = frozenset({"fp8_e4m3", "fp8_e5m2"})

# nvfp4: 4 bits an element, plus one fp8_e4m3 scale (8 bits) for every 16 elements.
# fp8_ds_mla: 656 bytes for the 576 elements of a token of DeepSeek's latent, most of them 8 bits (kernels/routines/sparse_mla).
SIZE_BITS = {
    "fp32": 32.0, "fp16": 16.0, "bf16": 16.0, "fp8_e4m3": 8.0, "fp8_e5m2": 8.0, "nvfp4": 4.5, "fp8_ds_mla": 8 * 656 / 576
}  # fmt: skip

# Unit roundoff u = 2**-(p), p the significand bits with the hidden one (IEEE 754; OCP FP8 and FP4 for the small ones).
UNIT_ROUNDOFF = {"fp32": 2**-24, "fp16": 2**-11, "bf16": 2**-8, "fp8_e4m3": 2**-4, "fp8_e5m2": 2**-3, "nvfp4": 2**-2}
UNIT_ROUNDOFF["fp8_ds_mla"] = UNIT_ROUNDOFF["bf16"]  # to which it decodes

_TORCH = {
    "int32": "int32",  # the index type of kernel modules; not a dtype of a sweep
    "fp32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
    "nvfp4": "uint8",  # two elements a byte; the scales are a separate tensor (kernels/inputs/nvfp4.py)
}


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype for a name in a sweep. Raises KeyError for a name that is not in `DTYPES`."""
    dtype: torch.dtype = getattr(torch, _TORCH[name])
    return dtype


def size_bytes(name: str, elements: int) -> int:
    """Bytes of `elements` elements of a dtype, including block scales."""
    return int(elements * SIZE_BITS[name] / 8)


def default_output(q_dtype: str) -> str:
    """The dtype of an output if the problem asks for none: the query's if it has 16 bits or more, else bf16."""
    return q_dtype if q_dtype in HALF or q_dtype == "fp32" else "bf16"
