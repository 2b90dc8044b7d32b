"""TensorRT-LLM's decode kernels through flashinfer.decode.trtllm_batch_decode_with_kv_cache.

`trtllm-native` is what FlashInfer's benchmark calls the entry point's own choice: trtllm-gen on the SM100 family, XQA on
SM90 and SM12x. `trtllm-gen` asks for that kernel by name. Rules read from flashinfer-python 0.7.2.post1: `decode.py`,
`xqa.py`, `jit/xqa.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from kernels.adapter import Adapter, Module, QueryLengths, Runner
from kernels.dtypes import HALF
from kernels.masks import require_packed

if TYPE_CHECKING:
    import torch

    from kernels.device import Device
    from kernels.inputs import Inputs
    from kernels.problem import Problem

WORKSPACE_BYTES = 256 * 2**20  # XQA: 8 MiB of semaphores, which must start as zeros, and scratch whose size it does not check
SWAP_AB_ROWS = 32  # up to so many rows (s_qo * group) of drafts leave the Hopper FP8 kernel for the generic one


def xqa_needs(problem: Problem, device: Device) -> dict[str, bool]:
    return {
        "SM90 or SM12x (XQA), or the SM100 family (trtllm-gen)": device.is_sm(9, 12),
        "equal head_dim of keys and values": problem.head_dim_qk == problem.head_dim_vo,
        "fp16 or bf16 queries": problem.q_dtype in HALF,
        "keys and values of the query's dtype or fp8_e4m3": problem.kv_dtype in (problem.q_dtype, "fp8_e4m3"),
        "output of the query's dtype, or fp8_e4m3 with such keys": problem.output_dtype == problem.q_dtype
        or problem.output_dtype == problem.kv_dtype == "fp8_e4m3",
        "page_size 16, 32, 64 or 128": problem.page_size in (16, 32, 64, 128),
        "head_dim a multiple of 16, from 16 to 256, or to 512 at s_qo 1": problem.head_dim_qk % 16 == 0
        and problem.head_dim_qk <= (512 if problem.s_qo == 1 and problem.group_size <= 16 else 256),
    }


def trtllm_gen_needs(problem: Problem, device: Device) -> dict[str, bool]:
    return {
        "the SM100 family (10.0 or 10.3)": device.is_sm(10),
        "equal head_dim of keys and values": problem.head_dim_qk == problem.head_dim_vo,
        "fp16, bf16 or fp8_e4m3 queries": problem.q_dtype in HALF | {"fp8_e4m3"},
        "keys and values of the query's dtype, or fp8_e4m3 under bf16 queries": problem.kv_dtype == problem.q_dtype
        or (problem.q_dtype, problem.kv_dtype) == ("bf16", "fp8_e4m3"),
        "page_size 16, 32 or 64": problem.page_size in (16, 32, 64),
        "head_dim 64, 128 or 256": problem.head_dim_qk in (64, 128, 256),
        "causal drafts": problem.s_qo == 1 or problem.mask == "causal",
    }


@dataclass(frozen=True)
class TrtllmDecode(Adapter):
    routine: ClassVar[str] = "paged_decode"
    name: str
    entry_backend: str  # what the entry point is asked for: "auto" or "trtllm-gen"
    query_lengths: QueryLengths = "uniform"

    def needs(self, problem: Problem, device: Device) -> dict[str, bool]:
        gen = self.entry_backend == "trtllm-gen" or device.is_sm(10)
        return trtllm_gen_needs(problem, device) if gen else xqa_needs(problem, device)

    def modules(self, problem: Problem, device: Device) -> tuple[Module, ...]:
        if device.is_sm(10):
            return ()  # trtllm-gen comes as compiled kernels
        p = problem
        shape = (p.page_size, p.head_dim_qk, p.group_size)
        return (Module("flashinfer.jit.xqa:gen_xqa_module", (p.q_dtype, p.kv_dtype, *shape, False, p.output_dtype, p.s_qo)),)

    def extra_bytes(self, problem: Problem) -> int:
        return WORKSPACE_BYTES

    def prepare(self, inputs: Inputs) -> Runner:
        import torch
        from flashinfer.decode import trtllm_batch_decode_with_kv_cache

        p, out = inputs.problem, inputs.empty_output()
        xqa = self.entry_backend == "auto" and torch.cuda.get_device_capability(inputs.device)[0] != 10
        mask = require_packed(inputs.packed_mask, p.batch_size, p.s_qo, inputs.device) if xqa else None
        workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=inputs.device)

        def launch() -> None:
            trtllm_batch_decode_with_kv_cache(
                query=inputs.q,
                kv_cache=inputs.kv,
                workspace_buffer=workspace,
                block_tables=inputs.page_table,
                seq_lens=inputs.kv_lens,
                max_seq_len=p.s_kv,
                bmm1_scale=inputs.sm_scale * inputs.k_scale,
                bmm2_scale=inputs.v_scale,
                kv_layout=p.kv_layout,
                backend="xqa" if xqa else "trtllm-gen",
                q_len_per_req=p.s_qo,
                mask=mask,
                out=out,
            )

        if not xqa:
            return Runner(launch, out, "trtllm-gen", p.q_dtype)
        # The Hopper kernel rounds queries and probabilities to the cache's 8 bits; the generic one widens the cache.
        return Runner(launch, out, *(("xqa_hopper_fp8", "fp8_e4m3") if _on_hopper_fp8(p, inputs.device) else ("xqa", p.q_dtype)))


def _on_hopper_fp8(p: Problem, device: torch.device) -> bool:
    """Whether XQA serves this call with its Hopper FP8 kernel rather than the generic one (`flashinfer/xqa.py`)."""
    import torch

    hopper = torch.cuda.get_device_capability(device)[0] == 9 and p.kv_dtype == "fp8_e4m3" and p.head_dim_qk <= 256
    few_rows = p.s_qo > 1 and p.s_qo * p.group_size <= SWAP_AB_ROWS
    return hopper and not few_rows


ADAPTERS = (TrtllmDecode("trtllm-native", entry_backend="auto"), TrtllmDecode("trtllm-gen", entry_backend="trtllm-gen"))
