"""The decode wrapper's kernels that Hopper does not have: trtllm-gen, CuTe DSL and cuTile. None of them has run here.

`BatchDecodeWithPagedKVCacheWrapper(backend=...)` plans each with its own copy of the lengths and of the pages. `trtllm-gen` here
and in FlashInfer's benchmark is this path; `trtllm-native` is the function that engines call (`trtllm_decode.py`). Rules read
from flashinfer-python 0.7.2.post1: `decode.py` (plan and run), `cute_dsl/attention/wrappers/batch_decode.py`,
`attention/kernels/cutile/fmha_decode_bsr_cutile.py`; from cuda-tile 1.7.0: its requirements.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import Any

from kernels.adapter import Device, EngineMaximum, Inputs, Need, Problem, QueryLengths, Runner
from kernels.inputs.step_lengths import host_lengths
from kernels.lazy import Tensor
from kernels.libraries import flashinfer_common as common
from kernels.libraries.flashinfer_calls import bound
from kernels.libraries.flashinfer_wrappers import decode_wrapper, needs_tokens_for_drafts, plan_decode, prepared
from kernels.problem.dtypes import FP8, HALF
from kernels.problem.features import USUAL, Feature
from kernels.problem.fields import TMA_MEMORY, KvMemory

# Among them a soft cap, which the plans refuse.
PASSES: frozenset[Feature] = (USUAL - {"a full mask", "query lengths that differ"}) | {
    "attention sinks", "a soft cap of logits", "a sliding window",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class OtherWrapperDecode(common.FlashInferAdapter):
    """What the three share: the wrapper, its plan, and a call that scales values in the kernel."""

    routine: str = "paged_decode"
    query_lengths: QueryLengths = "uniform"
    reads_memory: frozenset[KvMemory] = TMA_MEMORY
    passes: frozenset[Feature] | None = PASSES
    rules_hold_for: tuple[str, ...] = common.READ_ONLY

    def workspace_bytes(self, problem: Problem) -> int:
        return common.split_workspace_bytes(problem)

    @abstractmethod
    def runner(self, wrapper: Any, call: dict[str, Any], inputs: Inputs) -> Runner:
        """The call on a planned wrapper; `call` has the arguments of `run` that all three take."""

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        # Without tensor cores the wrapper makes no query offsets, which its trtllm-gen call names.
        wrapper = decode_wrapper(inputs, self.name, use_tensor_cores=True)
        return prepared(self, partial(self._planned, wrapper), inputs, device)

    def _planned(self, wrapper: Any, inputs: Inputs) -> Runner:
        p, out = inputs.problem, inputs.empty_output()
        plan_decode(wrapper, inputs, host_lengths(inputs), self.table(inputs))
        scale = common.fp8_output_scale(p)
        call = {"k_scale": inputs.k_scale, "v_scale": inputs.v_scale / scale, "out": out, "enable_pdl": p.enable_pdl}
        if p.sinks:
            call["sinks"] = inputs.sinks
        return self.runner(wrapper, call, inputs)

    def table(self, inputs: Inputs) -> Tensor | None:
        """The page table that the plan gets; None: the wrapper makes its own, as wide as the longest request."""
        return None


@dataclass(frozen=True, kw_only=True)
class TrtllmGen(OtherWrapperDecode):
    """trtllm-gen as the wrapper calls it. The plan takes the batch's longest request for the maximum, however wide a table is."""

    name: str = "trtllm-gen"
    takes_window: bool = True
    takes_sinks: bool = True
    takes_pdl: bool = True
    passes: frozenset[Feature] | None = PASSES | {"block scales"}

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        return (*common.trtllm_gen_needs(problem, device), needs_tokens_for_drafts(problem))

    def runner(self, wrapper: Any, call: dict[str, Any], inputs: Inputs) -> Runner:
        scales = common.trtllm_gen_block_scales(inputs)
        return Runner(
            bound(wrapper.run, inputs.q, inputs.kv, kv_cache_sf=scales, **call),
            call["out"],
            "trtllm-gen_wrapper",  # not the name of the function's kernel: reports rank each path for itself
            inputs.problem.q_dtype,
            caller_scale=common.fp8_output_scale(inputs.problem),
        )


@dataclass(frozen=True, kw_only=True)
class CuteDsl(OtherWrapperDecode):
    """The CuTe DSL kernel for Blackwell. The plan takes the batch's longest request for the maximum. It is compiled in the plan."""

    name: str = "cute-dsl"
    takes_window: bool = True
    takes_sinks: bool = True
    takes_pdl: bool = True
    distributions: tuple[str, ...] = (*common.FLASHINFER, "nvidia-cutlass-dsl")

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        p, one_dtype = problem, problem.q_dtype in HALF | FP8 and problem.kv_dtype == problem.q_dtype
        return (
            common.needs_sm100(device),
            common.needs_equal_head_dims(p),
            Need("fp16, bf16 or FP8 queries, and keys and values of the same dtype", one_dtype),
            Need("fp16, bf16 or FP8 output", p.output_dtype in HALF | FP8),
            Need("page_size 8, 16, 32 or 64", p.page_size in (8, 16, 32, 64)),
            Need("a head_dim that is a multiple of 64", p.head_dim_qk % 64 == 0),
            common.needs_causal_drafts(p),
            needs_tokens_for_drafts(p),
        )

    def runner(self, wrapper: Any, call: dict[str, Any], inputs: Inputs) -> Runner:
        kernel, out = wrapper._cute_dsl_wrapper, call["out"]  # what the plan chose is nowhere else
        adds = kernel._reduction == "atomic"  # with splits the kernel adds to its output, so clearing it is part of every call

        def launch() -> None:
            if adds:
                out.zero_()
            wrapper.run(inputs.q, inputs.kv, **call)

        launch()  # with sinks it is compiled at the first call
        return Runner(
            launch, out, "cute-dsl", inputs.problem.q_dtype, caller_scale=common.fp8_output_scale(inputs.problem),
            kernel_config=f"kv_splits={kernel._kv_splits} reduction={kernel._reduction}",
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class CuTile(OtherWrapperDecode):
    """The cuTile kernel. Its split count comes from the width of the page table. The first call tries several tile sizes."""

    name: str = "cutile"
    query_lengths: QueryLengths = "single"
    max_seq_len: EngineMaximum = "passed"
    distributions: tuple[str, ...] = (*common.FLASHINFER, "cuda-tile")

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        p = problem
        return (
            # cuda-tile 1.7.0: its compiler "only supports Blackwell GPU and Ampere/Ada GPU".
            Need("SM8x, the SM100 family or SM12x (cuTile compiles for no Hopper GPU)", device.is_sm(8, 10, 12)),
            common.needs_equal_head_dims(p),
            common.needs_one_half_dtype(p),
            Need("NHD pages", p.kv_layout == "NHD"),
            Need("a head_dim that is a power of two", p.head_dim_qk.bit_count() == 1),
            Need("a page_size that is a power of two", p.page_size.bit_count() == 1),
        )

    def table(self, inputs: Inputs) -> Tensor | None:
        """The engine's table with 0 in its unused entries, as the wrapper's own has: the kernel loads several pages at once."""
        p, table = inputs.problem, inputs.page_table
        return None if p.max_seq_len is None else table.where(table < p.num_pages, 0)

    def workspace_bytes(self, problem: Problem) -> int:
        # Partial outputs take the place of the workspace.
        return common.split_workspace_bytes(problem) + 4 * problem.batch_size * problem.table_width

    def runner(self, wrapper: Any, call: dict[str, Any], inputs: Inputs) -> Runner:
        run = partial(wrapper.run, inputs.q, inputs.kv, **call)
        run()
        return Runner(run, call["out"], "cutile", inputs.problem.q_dtype)


ADAPTERS = (TrtllmGen(), CuteDsl(), CuTile())
