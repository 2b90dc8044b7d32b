"""FlashInfer's prefill wrappers: fa2, fa3, its own choice (`auto`), cuDNN and CUTLASS; over pages (a draft to verify) and ragged.

Rules read from flashinfer-python 0.7.2.post1, `prefill.py` and `utils.py`; checked on an H200 and on H100s, with sinks too.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from kernels.adapter import Device, EngineMaximum, Inputs, Module, Need, PlanStep, QueryLengths, Runner, Since
from kernels.inputs.step_lengths import host_lengths
from kernels.libraries import flashinfer_common as common
from kernels.libraries import flashinfer_wrappers as wrappers
from kernels.libraries.flashinfer_calls import fitted, plan
from kernels.libraries.flashinfer_plans import plan_words
from kernels.libraries.same_call import with_key
from kernels.problem import Problem, default_output
from kernels.problem.dtypes import FP8, size_bytes
from kernels.problem.features import USUAL, Feature
from kernels.problem.fields import UNREAD_MEMORY

FA2_HEAD_DIMS = frozenset({(64, 64), (128, 128), (256, 256), (512, 512), (192, 128)})
# Every plan takes these; `sinks` reach the variant alone, or the call of the wrapper over pages.
PLANNED: frozenset[Feature] = USUAL | {"a soft cap of logits", "a sliding window", "a prefix mask", "a tree of drafts"}
WITH_SINKS: frozenset[Feature] = PLANNED | {"attention sinks"}


@dataclass(frozen=True, kw_only=True)
class WrapperPrefill(common.FlashInferAdapter):
    """What the backends share: the rule of each kernel, the plan, the call."""

    query_lengths: QueryLengths = "varlen"
    takes_window: bool = True
    takes_prefix_mask: bool = True  # as a custom mask; kernels that have none say so
    takes_more_queries: bool = True
    takes_soft_cap: bool = True
    gives_lse: bool = True
    max_seq_len: EngineMaximum = "unread"  # planned from the lengths themselves, and pages by request
    skips_unused: bool = True
    takes_no_keys: bool = True  # fa2 goes over no tile (`prefill.cuh`), fa3 exits early (`hopper/prefill_sm90.cuh`): 0 and -inf

    def since(self, problem: Problem, device: Device) -> tuple[Since, ...]:
        return (*common.since_of_wrappers(problem), common.since_of_512(problem))

    @abstractmethod
    def make(self, inputs: Inputs, device: Device) -> Any:
        """A wrapper for batches of these shapes, not planned yet."""

    @abstractmethod
    def plan(self, wrapper: Any, inputs: Inputs) -> None:
        """Plans the wrapper for a batch."""

    def plan_step(self, wrapper: Any, inputs: Inputs) -> PlanStep | None:
        return None

    @abstractmethod
    def arguments(self, inputs: Inputs) -> tuple[object, ...]:
        """Queries, keys and values, and what else the planned wrapper's call takes by position."""

    def keywords(self, inputs: Inputs) -> dict[str, object]:
        return {}

    def takes_pdl_in(self, problem: Problem, device: Device) -> bool:
        return self.kernel(problem, device) == "fa2"  # fa3 drops `enable_pdl` (`attention/hopper/prefill_sm90.cuh`)

    def kernel(self, problem: Problem, device: Device) -> str:
        """The kernel that serves this problem: the backend's own, or what `auto` resolves to."""
        if self.name != "auto":
            return self.name
        return "fa3" if common.resolves_to_fa3(problem, device, self.is_from) else "fa2"

    def not_passed(self, problem: Problem, device: Device) -> tuple[str, ...]:
        """fa2's variant with sinks has a mask of its own, and drops a custom one without a word (`jit/attention/variants.py`)."""
        of_fa2 = self.takes_sinks and problem.sinks and self.kernel(problem, device) == "fa2"
        dropped = ["a prefix mask" if problem.tree is None else "a tree of drafts"] if of_fa2 and problem.has_custom_mask else []
        return (*super().not_passed(problem, device), *dropped)

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        rules = {"fa2": self._fa2, "fa3": self._fa3, "cudnn": self._cudnn, "cutlass": self._cutlass}
        return rules[self.kernel(problem, device)](problem, device)

    def _fa2(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        return (
            common.needs_sm80(device),
            *common.fa2_dtype_needs(problem),
            common.needs_half_output(problem),
            Need("head_dims 64, 128, 256, 512 or 192/128", (problem.head_dim_qk, problem.head_dim_vo) in FA2_HEAD_DIMS),
            _needs_whole_keys(problem),
            _needs_equal_head_dims_in_pages(problem),
            wrappers.needs_no_tree_with_sinks(problem),
            wrappers.needs_no_cap_with_sinks(problem),
        )

    def _fa3(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        p = problem
        no_tree = common.needs_no_tree(p)
        of_sinks = wrappers.needs_16_bits_with_sinks(p), wrappers.needs_no_cap_with_sinks(p)
        return (*common.fa3_needs(p, device), no_tree, _needs_equal_head_dims_in_pages(p), *of_sinks)

    def _cudnn(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        dims = (problem.head_dim_qk, problem.head_dim_vo)
        equal = dims[0] == dims[1] and dims[0] % 16 == 0 and dims[0] <= 256
        ragged_deepseek = not problem.paged and dims == (192, 128)
        every_lse = problem.s_qo > 1 or problem.num_qo_heads == problem.num_kv_heads  # else one of a KV head (NVBug 6783545)
        return (
            common.needs_sm80(device),
            common.needs_one_half_dtype(problem),
            common.needs_no_tree(problem),
            Need("more than one query token, or no grouped heads, with a log-sum-exp", not problem.return_lse or every_lse),
            Need("a head_dim that is a multiple of 16 up to 256, or 192/128 without pages", equal or ragged_deepseek),
        )

    def _cutlass(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        dims = (problem.head_dim_qk, problem.head_dim_vo)
        return (
            Need("SM100 family or SM110 (cutlass)", device.is_sm(10, 11)),
            common.needs_one_half_dtype(problem),
            common.needs_no_tree(problem),
            Need("head_dims 64, 128 or 192/128", dims in ((64, 64), (128, 128), (192, 128))),
        )

    def modules(self, problem: Problem, device: Device) -> tuple[Module, ...]:
        kernel = self.kernel(problem, device)
        if kernel == "cutlass":
            return (common.attention_module("gen_fmha_cutlass_sm100a_module", problem),)
        if wrappers.has_variant(problem, kernel):
            return (wrappers.sink_module(problem, kernel),)
        return () if kernel == "cudnn" else (common.prefill_module(problem, kernel),)

    def workspace_bytes(self, problem: Problem) -> int:
        scratch = common.split_workspace_bytes(problem) if problem.paged else common.WORKSPACE_BYTES
        return scratch + (2 * wrappers.mask_bits(problem) if problem.has_custom_mask else 0)

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        wrapper = self.make(inputs, device)
        return with_key(wrappers.prepared(self, partial(self._planned, wrapper), inputs, device), wrapper)

    def _planned(self, wrapper: Any, inputs: Inputs) -> Runner:
        self.plan(wrapper, inputs)
        p, out, second = inputs.problem, inputs.empty_output(), common.lse_arguments(inputs)
        lse: dict[str, Any] = {"lse": second.get("lse"), "lse_base": "2", "plan_step": self.plan_step(wrapper, inputs)}
        resolved = str(wrapper._backend)  # what `auto` became, read after the plan
        variant = "variant=AttentionSink" if wrappers.has_variant(p, resolved) else ""
        lse["kernel_config"] = " ".join(filter(None, [variant, plan_words(wrapper, resolved)]))
        run = partial(wrapper.run, *self.arguments(inputs), out=out, **second, **self.keywords(inputs))
        if p.q_dtype in FP8 and resolved == "fa3":
            return Runner(partial(run, *common.head_scales(inputs)), out, resolved, p.q_dtype, **lse)
        if resolved == "cudnn":  # given scales it leaves its planned path, so it gets none for 16 bits
            scales = {"q_scale": 1.0, "k_scale": inputs.k_scale, "v_scale": inputs.v_scale} if p.kv_dtype in FP8 else {}
            return Runner(partial(run, **scales), out, resolved, p.output_dtype, **lse)
        # Given v_scale, FlashInfer would launch a second kernel for it. Engines fold it into the next projection.
        scale = fitted(wrapper.run, {"k_scale": inputs.k_scale})
        launch = partial(run, **scale, enable_pdl=p.enable_pdl)
        return Runner(launch, out, resolved, default_output(p.q_dtype), inputs.v_scale, **lse)


def _needs_equal_head_dims_in_pages(problem: Problem) -> Need:
    return Need("equal head_dim of keys and values in pages", not problem.paged or problem.head_dim_qk == problem.head_dim_vo)


def _needs_whole_keys(problem: Problem) -> Need:
    """A key is copied 128 bytes at a time, `NUM_MMA_D / (8 / sizeof(DTypeKV))` times, rounded down; one of 64 bytes in one piece.

    So of 192 elements of 8 bits the last 64 are never loaded (`prefill.cuh`, `produce_kv` and `page_produce_kv`, the same in every
    release from 0.5.3 to 0.7.2.post1; flashinfer #4976). An H200 was off by 1.45, or gave NaN. Of 16 bits every size is whole.
    """
    size = size_bytes(problem.kv_dtype, problem.head_dim_qk)
    other = (problem.head_dim_qk, problem.head_dim_vo) not in FA2_HEAD_DIMS  # of which another condition speaks
    return Need("keys of 64 bytes or a multiple of 128, of which fa2 loads all", size == 64 or size % 128 == 0 or other)


@dataclass(frozen=True, kw_only=True)
class PagedPrefill(WrapperPrefill):
    """The keys of the draft are in the pages already. The wrapper is used as engines use it under CUDA graphs."""

    routine: str = "paged_prefill"
    takes_sinks: bool = True
    passes: frozenset[Feature] | None = WITH_SINKS

    def make(self, inputs: Inputs, device: Device) -> Any:
        return wrappers.paged_wrapper(inputs, self.name, self.kernel(inputs.problem, device))

    def plan(self, wrapper: Any, inputs: Inputs) -> None:
        wrappers.plan_paged(wrapper, inputs, host_lengths(inputs))

    def plan_step(self, wrapper: Any, inputs: Inputs) -> PlanStep | None:
        """None under a mask of its own: that would have to be made again, as long as the new lengths."""
        return None if inputs.problem.has_custom_mask else partial(wrappers.plan_paged, wrapper, inputs)

    def arguments(self, inputs: Inputs) -> tuple[object, ...]:
        variant = self.name != "cudnn" and inputs.problem.sinks
        return (inputs.q, inputs.kv, inputs.sinks) if variant else (inputs.q, inputs.kv)

    def keywords(self, inputs: Inputs) -> dict[str, object]:
        return {"sinks": inputs.sinks} if self.name == "cudnn" else {}  # which its call refuses


@dataclass(frozen=True, kw_only=True)
class RaggedPrefill(WrapperPrefill):
    """Keys and values are consecutive tokens. The wrapper is planned without CUDA graphs, as engines run prompts."""

    routine: str = "ragged_prefill"
    passes: frozenset[Feature] | None = PLANNED

    def since(self, problem: Problem, device: Device) -> tuple[Since, ...]:
        # From 0.6.0 to 0.6.18 `run` takes `k_scale`, but applies it to an NVFP4 cache alone (`kv_cache_sf`).
        scaled = Since("0.7.0", "FP8 caches (older releases ignore their scale)", problem.kv_dtype in FP8)
        return (*super().since(problem, device), scaled)

    def make(self, inputs: Inputs, device: Device) -> Any:
        from flashinfer import BatchPrefillWithRaggedKVCacheWrapper

        has_sinks = wrappers.has_variant(inputs.problem, self.name)
        kernel = wrappers.sink_variant(inputs.problem, self.name) if has_sinks else {"backend": self.name}
        return BatchPrefillWithRaggedKVCacheWrapper(common.workspace(inputs), "NHD", **kernel)

    def plan(self, wrapper: Any, inputs: Inputs) -> None:
        p = inputs.problem
        heads = (p.num_qo_heads, p.num_kv_heads, p.head_dim_qk, p.head_dim_vo)
        plan(wrapper, inputs.qo_indptr, inputs.kv_indptr, *heads, q_dtype=inputs.q.dtype, **wrappers.prefill_plan(inputs))

    def arguments(self, inputs: Inputs) -> tuple[object, ...]:
        tokens = (inputs.q, *(cache.squeeze(1) for cache in inputs.kv))
        if not wrappers.has_variant(inputs.problem, self.name):
            return tokens
        return (*tokens, inputs.sinks, inputs.sm_scale * inputs.k_scale)  # here the variant gets its scalar from the caller


def _paged() -> Iterator[WrapperPrefill]:
    """The backends over pages. Seen on an H200: with drafts, cuDNN multiplies NaN by zero."""
    yield from (PagedPrefill(name=name) for name in ("fa2", "fa3", "auto"))
    yield PagedPrefill(
        name="cudnn", takes_window=False, takes_sinks=False, takes_soft_cap=False, takes_more_queries=False,
        takes_no_keys=False, reads_memory=UNREAD_MEMORY, max_seq_len="passed", skips_unused=False, distributions=common.CUDNN,
        rules_hold_for=common.READ_ONLY,
    )  # fmt: skip


def _ragged() -> Iterator[WrapperPrefill]:
    """The backends without pages. `auto` refuses a variant, and cuDNN and CUTLASS have no argument for sinks."""
    yield from (RaggedPrefill(name=name, takes_sinks=True, passes=WITH_SINKS) for name in ("fa2", "fa3"))
    yield RaggedPrefill(name="auto")
    less: dict[str, Any] = {"takes_no_keys": False, "takes_window": False, "takes_soft_cap": False, "takes_more_queries": False}
    cudnn: dict[str, Any] = {"max_seq_len": "passed", "skips_unused": False, "distributions": common.CUDNN, **less}
    yield RaggedPrefill(name="cudnn", rules_hold_for=common.READ_ONLY, **cudnn)
    yield RaggedPrefill(name="cutlass", rules_hold_for=common.READ_ONLY, **less)


ADAPTERS = (
    *_paged(),
    *_ragged(),
    # One call over everything, to which a shared prefix in two calls is compared; fa2 serves that as the decode wrapper's `fa2_tc`.
    PagedPrefill(routine="cascade", name="fa3"),
)
