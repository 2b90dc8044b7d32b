"""What several FlashInfer adapters share: the names of its compiled modules, its workspace, how it takes scales and masks.

Read from flashinfer-python 0.7.2.post1 (`jit/attention/modules.py`, `prefill.py`, `decode.py`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kernels.adapter import Module
from kernels.dtypes import FP8, HALF

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.device import Device
    from kernels.inputs import Inputs
    from kernels.problem import Problem

WORKSPACE_BYTES = 256 * 2**20  # split-KV partials; FlashInfer recommends 128 MiB and refuses plans that need more
NO_POSITION_ENCODING, NO_SOFT_CAP, NO_FP16_QK = 0, False, False
FA3_HEAD_DIMS = frozenset({(64, 64), (128, 128), (256, 256), (192, 128)})


def workspace(inputs: Inputs) -> Tensor:
    """Zeroed scratch on the device; XQA's semaphores lie in it and must start as zeros."""
    import torch

    return torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=inputs.device)


def fa2_needs(problem: Problem, device: Device) -> dict[str, bool]:
    """The rule of fa2's tensor-core kernel, which serves prefill, and decode as `fa2_tc`."""
    return {
        "a CUDA device of SM80 or later": device.kind == "cuda" and device.major >= 8,
        "fp16 or bf16 queries": problem.q_dtype in HALF,
        "keys and values of the query's dtype or FP8": problem.kv_dtype in FP8 | {problem.q_dtype},
        "fp16 or bf16 output": problem.output_dtype in HALF,
    }


def fa3_needs(problem: Problem, device: Device) -> dict[str, bool]:
    """The rule of fa3's prefill kernel."""
    return {
        "SM90 (fa3)": device.is_sm(9),
        "queries, keys and values of one dtype": problem.q_dtype == problem.kv_dtype,
        "fp16, bf16 or FP8": problem.q_dtype in HALF | FP8,
        "fp16 or bf16 output": problem.output_dtype in HALF,
        "head_dims 64, 128, 256 or 192/128": (problem.head_dim_qk, problem.head_dim_vo) in FA3_HEAD_DIMS,
        "with FP8, head_dim 128 or 256": problem.q_dtype not in FP8 or problem.head_dim_qk == problem.head_dim_vo >= 128,
    }


def resolves_to_fa3(problem: Problem, device: Device) -> bool:
    """Whether FlashInfer's `auto` takes fa3 for a prefill (`utils.determine_attention_backend`)."""
    eight_bit_cache_alone = problem.kv_dtype in FP8 and problem.q_dtype not in FP8
    dims = (problem.head_dim_qk, problem.head_dim_vo) in FA3_HEAD_DIMS
    return device.is_sm(9) and dims and problem.tree is None and not eight_bit_cache_alone and problem.kv_dtype != "nvfp4"


def prefill_module(problem: Problem, backend: str) -> Module:
    """The batch prefill module that a wrapper loads; for fa2 it is a private variant, not what the public generator makes."""
    generator = "_gen_batch_prefill_primary_module" if backend == "fa2" else "gen_batch_prefill_module"
    return attention_module(generator, problem, (backend,), (NO_FP16_QK,))


def attention_module(generator: str, p: Problem, before: tuple[str, ...] = (), after: tuple[bool, ...] = ()) -> Module:
    """A module of `jit/attention/modules.py`: its key is dtypes, head dims, and whether there is a window or a soft cap."""
    dtypes, dims = (p.q_dtype, p.kv_dtype, p.output_dtype, "int32"), (p.head_dim_qk, p.head_dim_vo)
    args: tuple[str | int | bool, ...] = (*before, *dtypes, *dims, NO_POSITION_ENCODING, p.window is not None, NO_SOFT_CAP, *after)
    return Module(f"flashinfer.jit.attention.modules:{generator}", args)


def window_left(problem: Problem) -> int:
    """FlashInfer counts the keys before a query's own; -1 is no window."""
    return -1 if problem.window is None else problem.window - 1


def head_scales(inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
    """Scales of q, k and v for fa3's FP8 kernel, which takes them as tensors of one value a head, positionally."""
    import torch

    p = inputs.problem
    values = ((1.0, p.num_qo_heads), (inputs.k_scale, p.num_kv_heads), (inputs.v_scale, p.num_kv_heads))
    q, k, v = (torch.full((heads,), value, dtype=torch.float32, device=inputs.device) for value, heads in values)
    return q, k, v


def fp8_output_scale(problem: Problem) -> float:
    """What an FP8 output is divided by in the kernel: outputs over L keys shrink as 1/sqrt(L), below FP8's smallest numbers."""
    return 2.0 ** -round(math.log2(problem.s_kv) / 2) if problem.output_dtype in FP8 else 1.0
