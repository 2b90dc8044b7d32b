"""FlashInfer's BatchDecodeWithPagedKVCacheWrapper: CUDA cores, tensor cores, fa3, its own choice (`auto`), and cuDNN.

The tensor-core kernels are those of prefill. Attention sinks are a variant of them that this wrapper cannot load with a window
(`jit_args` without `jit_kwargs`), so `fa2_tc` and `fa3` with sinks take the wrapper of prefill, as FlashInfer's
BatchAttentionWithAttentionSinkWrapper does "for prefill and decode". The others drop `run(sinks=)` without a word, but for cuDNN.

Rules read from flashinfer-python 0.7.2.post1: `decode.py`, `utils.cuh` (DISPATCH_GQA_GROUP_SIZE), `utils.py`
(determine_attention_backend); checked on an H200. The same files from 0.5.3 on say what has come since (`since`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from kernels.adapter import Device, EngineMaximum, Inputs, Module, Need, Problem, QueryLengths, Runner, Since
from kernels.inputs.step_lengths import HostLengths, host_lengths
from kernels.libraries import flashinfer_calls as calls
from kernels.libraries import flashinfer_common as common
from kernels.libraries import flashinfer_wrappers as wrappers
from kernels.libraries.flashinfer_plans import DECODE, plan_words
from kernels.libraries.same_call import with_key
from kernels.problem import default_output
from kernels.problem.dtypes import FP8, HALF
from kernels.problem.features import USUAL, Feature
from kernels.problem.fields import UNREAD_MEMORY, KvMemory

SINKS: frozenset[Feature] = frozenset({"attention sinks"})
CUDA_CORE_GROUPS = frozenset({1, 2, 3, 4, 6, 8, 16})
PASSES: frozenset[Feature] = (USUAL - {"query lengths that differ"}) | {"a soft cap of logits", "a sliding window"}


@dataclass(frozen=True, kw_only=True)
class WrapperDecode(common.FlashInferAdapter):
    """What the backends share: the wrapper, its plan and its call."""

    wrapper_backend: str
    use_tensor_cores: bool = False
    sink_kernel: str = ""  # the prefill kernel whose variant serves attention sinks, if one does
    routine: str = "paged_decode"
    query_lengths: QueryLengths = "uniform"
    takes_window: bool = True
    takes_soft_cap: bool = True
    gives_lse: bool = True
    max_seq_len: EngineMaximum = "unread"  # planned from the lengths themselves, and pages by request
    takes_pdl: bool = True
    # `scheduler.cuh` plans a part of 0 pages for a request without keys; `hopper/prefill_sm90.cuh` writes 0 ("We exit early").
    # The plan refuses such a request with drafts (`needs_tokens_for_drafts`).
    takes_empty: bool = True
    takes_no_keys: bool = True  # `state.cuh`, `prefill.cuh` and `hopper/epilogue.cuh` write 0 and -inf
    skips_unused: bool = True
    passes: frozenset[Feature] | None = PASSES

    def since(self, problem: Problem, device: Device) -> tuple[Since, ...]:
        """Older plans have no `q_len_per_req` (0.6.13), or no mask for it but in `cute-dsl` (0.6.16)."""
        drafts = Since("0.6.16", "more than one query token a request", problem.s_qo > 1)
        return (*common.since_of_wrappers(problem), drafts)

    def on_variant(self, problem: Problem) -> bool:
        """Whether the variant with attention sinks serves this problem, through the wrapper of prefill."""
        return problem.sinks and bool(self.sink_kernel)

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        of_wrapper = (common.needs_causal_drafts(problem), wrappers.needs_tokens_for_drafts(problem))
        of_variant = (wrappers.needs_no_tree_with_sinks(problem), wrappers.needs_tokens_with_sinks(problem))
        return (
            common.needs_sm80(device),
            common.needs_equal_head_dims(problem),
            *(of_variant if self.on_variant(problem) else of_wrapper),
            *((wrappers.needs_no_cap_with_sinks(problem),) if self.sink_kernel else ()),
            common.needs_half_output(problem),
        )

    def workspace_bytes(self, problem: Problem) -> int:
        return common.split_workspace_bytes(problem)

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        variant = self.on_variant(inputs.problem)
        if variant:
            wrapper = wrappers.paged_wrapper(inputs, self.sink_kernel, self.sink_kernel)
        else:
            wrapper = wrappers.decode_wrapper(inputs, self.wrapper_backend, self.use_tensor_cores)
        planned = self._planned_variant if variant else self._planned
        return with_key(wrappers.prepared(self, partial(planned, wrapper), inputs, device), wrapper)

    def _planned(self, wrapper: Any, inputs: Inputs) -> Runner:
        self._plan(wrapper, inputs, host_lengths(inputs))
        p, out, lse_args = inputs.problem, inputs.empty_output(), common.lse_arguments(inputs)
        resolved = calls.resolved_decode_backend(wrapper)
        more: dict[str, Any] = {"lse": lse_args.get("lse"), "lse_base": "2", "plan_step": partial(self._plan, wrapper, inputs)}
        on_cuda_cores = resolved == "fa2" and not self.use_tensor_cores
        more["kernel_config"] = plan_words(wrapper, DECODE if on_cuda_cores else resolved)
        run = partial(wrapper.run, inputs.q, inputs.kv)
        if resolved == "fa3" and p.q_dtype in FP8:
            launch = partial(run, *common.head_scales(inputs), out=out, **lse_args)
            return Runner(launch, out, resolved, p.q_dtype, **more)
        name = f"{resolved}_tc" if resolved == "fa2" and self.use_tensor_cores else resolved
        compute_dtype = default_output(p.q_dtype)  # FP8 queries are widened
        sinks = {"sinks": inputs.sinks} if resolved == "cudnn" else {}  # the others drop them without a word
        launch = partial(run, k_scale=inputs.k_scale, out=out, enable_pdl=p.enable_pdl, **sinks, **lse_args)
        # Given v_scale, FlashInfer would launch a second kernel for it. Engines fold it into the next projection.
        return Runner(launch, out, name, compute_dtype, caller_scale=inputs.v_scale, **more)

    def _plan(self, wrapper: Any, inputs: Inputs, lengths: HostLengths) -> None:
        p = inputs.problem
        table = inputs.page_table if self.wrapper_backend == "cudnn" else None
        causal = p.s_qo > 1 and p.mask != "full"  # the plan refuses a full mask; it has no word for a tree
        wrappers.plan_decode(wrapper, inputs, lengths, table, is_causal=causal)

    def _planned_variant(self, wrapper: Any, inputs: Inputs) -> Runner:
        wrappers.plan_paged(wrapper, inputs, host_lengths(inputs))
        p, out, second = inputs.problem, inputs.empty_output(), common.lse_arguments(inputs)
        name = "fa2_tc" if self.sink_kernel == "fa2" else self.sink_kernel
        call = {"k_scale": inputs.k_scale, "out": out, "enable_pdl": p.enable_pdl, **second}
        launch = partial(wrapper.run, inputs.q, inputs.kv, inputs.sinks, **call)
        compute_dtype = default_output(p.q_dtype)
        config = " ".join(filter(None, ["variant=AttentionSink", plan_words(wrapper, self.sink_kernel)]))
        more: dict[str, Any] = {"kernel_config": config, "plan_step": partial(wrappers.plan_paged, wrapper, inputs)}
        more |= {"lse": second.get("lse"), "lse_base": "2"}
        return Runner(launch, out, name, compute_dtype, caller_scale=inputs.v_scale, **more)


@dataclass(frozen=True, kw_only=True)
class Fa2(WrapperDecode):
    """The decode kernel on CUDA cores. It multiplies in fp32 for every dtype, FP8 queries included."""

    query_lengths: QueryLengths = "single"

    def since(self, problem: Problem, device: Device) -> tuple[Since, ...]:
        """DISPATCH_GQA_GROUP_SIZE has grown."""
        grown = (("0.6.18", 6), ("0.7.1", 16))
        of_groups = (Since(release, f"{size} query heads a KV head", problem.group_size == size) for release, size in grown)
        return (*super().since(problem, device), *of_groups)

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        p = problem
        half_queries = p.q_dtype in HALF and p.kv_dtype in FP8 | {p.q_dtype}
        fp8_queries = p.q_dtype in FP8 and p.kv_dtype == p.q_dtype
        return (
            *super().needs(p, device),
            Need("16-bit queries over keys of their dtype or FP8, or FP8 queries over keys of theirs", half_queries or fp8_queries),
            Need("1, 2, 3, 4, 6, 8 or 16 query heads a KV head", p.group_size in CUDA_CORE_GROUPS),
            Need("head_dim 64, 128, 256 or 512", p.head_dim_qk in (64, 128, 256, 512)),
        )

    def modules(self, problem: Problem, device: Device) -> tuple[Module, ...]:
        return (common.attention_module("gen_batch_decode_module", problem),)


@dataclass(frozen=True, kw_only=True)
class Fa2TensorCores(WrapperDecode):
    """The prefill kernel serving decode on tensor cores; with s_qo > 1 its mask is bottom-right causal."""

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        return (
            *super().needs(problem, device),
            *common.fa2_dtype_needs(problem),
            Need("head_dim 64, 128, 256 or 512", problem.head_dim_qk in (64, 128, 256, 512)),
        )

    def since(self, problem: Problem, device: Device) -> tuple[Since, ...]:
        return (*super().since(problem, device), common.since_of_512(problem))

    def modules(self, problem: Problem, device: Device) -> tuple[Module, ...]:
        return (wrappers.sink_module(problem, "fa2") if self.on_variant(problem) else common.prefill_module(problem, "fa2"),)


@dataclass(frozen=True, kw_only=True)
class Fa3(WrapperDecode):
    """The Hopper kernel of prefill serving decode, as `auto` took it for 16-bit queries before fa2. 0.5.3 knows fa2 alone."""

    rules_hold_for: tuple[str, ...] = ("flashinfer-python>=0.6.0,<0.8",)

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        return (
            *common.fa3_needs(problem, device),
            common.needs_equal_head_dims(problem),
            # The wrapper of decode: "currently only supported on the fa2 tensor-core backend".
            Need("one query token a request; more only with attention sinks (fa3)", problem.s_qo == 1 or problem.sinks),
            wrappers.needs_no_tree_with_sinks(problem),
            wrappers.needs_no_cap_with_sinks(problem),
            wrappers.needs_16_bits_with_sinks(problem),
        )

    def modules(self, problem: Problem, device: Device) -> tuple[Module, ...]:
        return (wrappers.sink_module(problem, "fa3") if problem.sinks else common.prefill_module(problem, "fa3"),)


@dataclass(frozen=True, kw_only=True)
class Auto(Fa2TensorCores):
    """FlashInfer's own choice: fa2 on tensor cores for 16-bit queries; on SM90, fa3 if queries and keys are FP8.

    0.6.0 to 0.6.3 took fa3 on SM90 for every dtype, also for an FP8 cache under 16-bit queries, which fa3 does not serve.
    """

    def kernel(self, problem: Problem, device: Device) -> str:
        """What it resolves to in the release that it is asked about."""
        if self.is_from("0.6.4") or not self.is_from("0.6.0"):
            return "fa3" if problem.q_dtype in FP8 else "fa2"
        return "fa3" if device.is_sm(9) else "fa2"

    def takes_pdl_in(self, problem: Problem, device: Device) -> bool:
        return self.kernel(problem, device) == "fa2"  # fa3 drops `enable_pdl` (`attention/hopper/prefill_sm90.cuh`)

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        if self.kernel(problem, device) == "fa2":
            return super().needs(problem, device)
        if problem.q_dtype not in FP8:
            return (*common.fa3_needs(problem, device), common.needs_equal_head_dims(problem))
        return (
            *WrapperDecode.needs(self, problem, device),
            Need("16-bit queries, or SM90, whose fa3 alone takes FP8 queries", device.is_sm(9)),
            Need("with FP8 queries, one query token a request (fa3)", problem.s_qo == 1),
            Need("with FP8 queries, keys and values of the same FP8 dtype", problem.kv_dtype == problem.q_dtype),
            Need("with FP8 queries, no soft cap (fa3 drops it)", problem.soft_cap is None),
            Need("with FP8 queries, head_dim 64, 128 or 256", problem.head_dim_qk in (64, 128, 256)),
        )

    def modules(self, problem: Problem, device: Device) -> tuple[Module, ...]:
        return (common.prefill_module(problem, self.kernel(problem, device)),)


@dataclass(frozen=True, kw_only=True)
class Cudnn(WrapperDecode):
    """cuDNN's graph; with s_qo > 1 its mask is bottom-right causal. Compiles nothing ahead."""

    takes_soft_cap: bool = False
    max_seq_len: EngineMaximum = "passed"  # the width of the page table bounds the graph's walk
    takes_pdl: bool = False
    reads_memory: frozenset[KvMemory] = UNREAD_MEMORY
    takes_empty: bool = False  # no engine decodes with it in a graph, and its source is not open
    skips_unused: bool = False  # seen on an H200: with drafts, cuDNN multiplies NaN by zero
    distributions: tuple[str, ...] = common.CUDNN
    rules_hold_for: tuple[str, ...] = common.READ_ONLY

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        p, served = problem, problem.s_qo > 1 or device.is_sm(10)
        return (
            *super().needs(p, device),
            common.needs_one_half_dtype(p),
            Need("a head_dim that is a multiple of 16 up to 256", p.head_dim_qk % 16 == 0 and p.head_dim_qk <= 256),
            # cudnn-frontend 1.32: "decode only mode, i.e. s_q == 1, not supported with sink_token", but for its engines for SM100.
            Need("with attention sinks, more than one query token a request or the SM100 family", not p.sinks or served),
            common.needs_no_lse_with_sinks(p),
            # Seen on an H200, with a log-sum-exp and without; its source is not open.
            Need("with a request without keys, no sinks", not p.lacks_keys or not p.sinks),
        )


_WITH_SINKS: dict[str, Any] = {"use_tensor_cores": True, "takes_sinks": True, "passes": PASSES | SINKS}
ADAPTERS = (
    Fa2(name="fa2", wrapper_backend="fa2"),
    Fa2TensorCores(name="fa2_tc", **_WITH_SINKS, wrapper_backend="fa2", sink_kernel="fa2"),
    Fa3(name="fa3", **_WITH_SINKS, wrapper_backend="fa3", sink_kernel="fa3", takes_pdl=False),
    Auto(name="auto", wrapper_backend="auto", use_tensor_cores=True),
    Cudnn(name="cudnn", wrapper_backend="cudnn", takes_sinks=True, passes=PASSES | SINKS),
    # One call over everything, to which a shared prefix in two calls is compared.
    Fa2TensorCores(routine="cascade", name="fa2_tc", **_WITH_SINKS, wrapper_backend="fa2", sink_kernel="fa2"),
    Auto(routine="cascade", name="auto", wrapper_backend="auto", use_tensor_cores=True),
)
