"""A shared prefix as two calls and a merge, on FlashInfer: one call over the prefix with all queries, one over each request's rest.

`multi_level` is its MultiLevelCascadeAttentionWrapper. The others are compositions of its wrappers as engines write them (vLLM's
`use_cascade_attention`): they choose the kernel of each call. Rules read from flashinfer-python 0.7.2.post1: `cascade.py`,
`prefill.py`, `decode.py`, and `data/include/flashinfer/attention/cascade.cuh` for the merge, whose log-sum-exps are of base 2.
"""

# T = query tokens, H = num_qo_heads, D = head_dim, B = batch_size

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from kernels.adapter import Device, EngineMaximum, Inputs, Module, Need, Problem, QueryLengths, Runner, Since
from kernels.lazy import Tensor, torch
from kernels.libraries import flashinfer_common as common
from kernels.libraries.flashinfer_calls import plan
from kernels.libraries.flashinfer_modules import MERGE_MODULE
from kernels.libraries.flashinfer_plans import parts_words
from kernels.libraries.flashinfer_wrappers import decode_wrapper, prepared, scale_window_dtypes
from kernels.problem.features import USUAL, Feature

Kernel = Literal["fa2", "fa3"]
PREFILL_PASSES: frozenset[Feature] = USUAL | {"a soft cap of logits"}
DECODE_PASSES: frozenset[Feature] = PREFILL_PASSES - {"a full mask", "query lengths that differ"}  # causal drafts of one length


@dataclass(frozen=True, kw_only=True)
class InTwoCalls(common.FlashInferAdapter):
    """What the compositions share: no trees, since the prefix call knows no draft, and 16-bit partial outputs for the merge."""

    routine: str = "cascade"
    query_lengths: QueryLengths = "varlen"
    takes_soft_cap: bool = True
    gives_lse: bool = True
    max_seq_len: EngineMaximum = "unread"  # planned from the lengths themselves, and pages by request
    skips_unused: bool = True
    passes: frozenset[Feature] | None = PREFILL_PASSES

    def since(self, problem: Problem, device: Device) -> tuple[Since, ...]:
        return common.since_of_wrappers(problem)

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        return (
            common.needs_sm80(device),
            *common.fa2_dtype_needs(problem),
            common.needs_equal_head_dims(problem),
            common.needs_no_tree(problem),
            Need("head_dim 64, 128 or 256", problem.head_dim_qk in (64, 128, 256)),
            Need("output of the query's dtype", problem.output_dtype == problem.q_dtype),
        )

    def workspace_bytes(self, problem: Problem) -> int:
        return 2 * common.split_workspace_bytes(problem) + 2 * problem.qo_bytes


@dataclass(frozen=True, kw_only=True)
class TwoCalls(InTwoCalls):
    """One wrapper for each call, and one merge in place. Heads are split for the merge if a block would be too large."""

    prefix_kernel: Kernel
    rest: Literal["fa2_tc", "fa3"]  # the decode wrapper on tensor cores, or the prefill wrapper

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        uses_fa3 = "fa3" in (self.prefix_kernel, self.rest)
        new = [need for need in common.fa3_needs(problem, device) if need.sentence in FA3_ALONE] if uses_fa3 else []
        drafts = (
            Need("the same number of query tokens for every request (decode wrapper)", problem.min_s_qo is None),
            Need("causal drafts (decode wrapper)", problem.s_qo == 1 or problem.mask == "causal"),
        )
        return (*super().needs(problem, device), *new, *(drafts if self.rest == "fa2_tc" else ()))

    def since(self, problem: Problem, device: Device) -> tuple[Since, ...]:
        by_decode = self.rest == "fa2_tc" and problem.s_qo > 1
        return (*super().since(problem, device), Since("0.6.16", "more than one query token a request (decode wrapper)", by_decode))

    def modules(self, problem: Problem, device: Device) -> tuple[Module, ...]:
        kernels = dict.fromkeys((self.prefix_kernel, self.rest.removesuffix("_tc")))
        return (*(common.prefill_module(problem, kernel) for kernel in kernels), MERGE_MODULE)

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        both = levels(inputs)
        over_prefix = _prefill_wrapper(inputs, both[0], self.prefix_kernel)
        by_decode = self.rest == "fa2_tc"
        over_rest = decode_wrapper(inputs, "fa2", True, both[1][1:]) if by_decode else _prefill_wrapper(inputs, both[1], "fa3")
        return prepared(self, partial(self._planned, over_prefix, over_rest), inputs, device)

    def _planned(self, over_prefix: Any, over_rest: Any, inputs: Inputs) -> Runner:
        """Plans both wrappers for a batch. The outputs of the calls are new ones."""
        both = levels(inputs)
        p, (out, lse) = inputs.problem, common.output_with_lse(inputs)
        of_prefix = torch.empty_like(out), torch.empty_like(lse)
        call_prefix = _call_on(over_prefix, inputs, both[0], causal=False)
        of_rest: dict[str, Any] = {"q_len_per_req": p.s_qo} if self.rest == "fa2_tc" else {"causal": p.mask == "causal"}
        call_rest = _call_on(over_rest, inputs, both[1], **of_rest)
        merge = common.in_place_merge(out, lse, *of_prefix)

        def launch() -> None:
            call_prefix(out=of_prefix[0], lse=of_prefix[1], return_lse=True)
            call_rest(out=out, lse=lse, return_lse=True)
            merge()

        name = f"{self.prefix_kernel} + {self.rest} + merge_state_in_place"
        more: dict[str, Any] = {"lse": lse if p.return_lse else None, "lse_base": "2"}
        wrappers = {"prefix": (over_prefix, self.prefix_kernel), "rest": (over_rest, self.rest.removesuffix("_tc"))}
        more["kernel_config"] = parts_words(wrappers)
        return Runner(launch, out, name, p.output_dtype, inputs.v_scale, **more)


FA3_ALONE = frozenset({"SM90 (fa3)", "queries, keys and values of one dtype"})  # of fa3's rule: what fa2's does not ask for too


@dataclass(frozen=True, kw_only=True)
class MultiLevel(InTwoCalls):
    """FlashInfer's own composition. It lets each wrapper choose its kernel and merges in place, without a split of the heads."""

    name: str = "multi_level"

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        fits = common.merge_threads(problem) <= common.MAX_THREADS
        one_block = Need("up to 128 heads of 64, 64 of 128 or 32 of 256, whose merge is one block", fits)
        return (*super().needs(problem, device), one_block)

    def modules(self, problem: Problem, device: Device) -> tuple[Module, ...]:
        kernel = "fa3" if common.resolves_to_fa3(problem, device, self.is_from) else "fa2"
        return (common.prefill_module(problem, kernel), MERGE_MODULE)

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        from flashinfer import MultiLevelCascadeAttentionWrapper

        buffers = ([tensor.clone() for tensor in tensors] for tensors in _by_kind(inputs))
        scratch = common.workspace(inputs, common.split_workspace_bytes(inputs.problem))
        wrapper = MultiLevelCascadeAttentionWrapper(2, scratch, inputs.problem.kv_layout, True, *buffers)
        run_last = wrapper._batch_prefill_wrappers[-1].run
        return prepared(self, partial(_planned_levels, wrapper, run_last), inputs, device)


def _planned_levels(wrapper: Any, run_last: Callable[..., object], inputs: Inputs) -> Runner:
    """Plans FlashInfer's own composition. `run_last` is its last level's own call, which takes an output."""
    p, out, lse = inputs.problem, inputs.empty_output(), inputs.empty_lse()
    scaled = {**scale_window_dtypes(inputs), "sm_scale": inputs.sm_scale * inputs.k_scale}  # its run takes no k_scale
    del scaled["o_data_type"]  # its plan has no choice of it
    wrapper.plan(*_by_kind(inputs), *_heads(p), causal=p.mask == "causal", **scaled)
    # Its run takes no output either: the last level's is merged into and returned. So that one is given ours.
    by_level = wrapper._batch_prefill_wrappers
    by_level[-1].run = partial(run_last, out=out, **({} if lse is None else {"lse": lse}))
    kernels = [str(one._backend) for one in by_level]
    config = parts_words(dict(zip(("prefix", "rest"), zip(by_level, kernels, strict=True), strict=True)))
    more: dict[str, Any] = {"lse": lse, "lse_base": "2", "kernel_config": config}
    launch = partial(wrapper.run, inputs.q, inputs.kv)
    return Runner(launch, out, f"multi_level: {' + '.join(kernels)}", p.output_dtype, inputs.v_scale, **more)


class Level(NamedTuple):
    """What one call reads, int32 on the device: queries and pages [requests + 1], page numbers, and last page lengths."""

    qo_indptr: Tensor
    kv_indptr: Tensor
    kv_indices: Tensor
    last_page_len: Tensor


def levels(inputs: Inputs) -> tuple[Level, Level]:
    """The shared prefix with all queries as one request, and the rest of each request."""
    p, device = inputs.problem, inputs.device
    n = p.prefix_pages
    pair = partial(torch.tensor, dtype=torch.int32, device=device)
    prefix = Level(pair([0, p.num_q_tokens]), pair([0, n]), inputs.page_table[0, :n].contiguous(), pair([p.page_size]))
    request = torch.arange(p.batch_size + 1, device=device, dtype=torch.int32)
    own = torch.cat([inputs.kv_indices[start + n : stop] for start, stop in pairwise(inputs.kv_indptr.tolist())])
    return prefix, Level(inputs.qo_indptr, inputs.kv_indptr - request * n, own, inputs.last_page_len)


def _by_kind(inputs: Inputs) -> list[list[Tensor]]:
    """What both levels read, as FlashInfer's own composition takes it: a list of each kind of tensor."""
    return [list(tensors) for tensors in zip(*levels(inputs), strict=True)]


def _prefill_wrapper(inputs: Inputs, level: Level, kernel: Kernel) -> Any:
    """A prefill wrapper for levels of these shapes, not planned yet."""
    from flashinfer import BatchPrefillWithPagedKVCacheWrapper

    buffers = ("qo_indptr_buf", "paged_kv_indptr_buf", "paged_kv_indices_buf", "paged_kv_last_page_len_buf")
    reserved = {name: tensor.clone() for name, tensor in zip(buffers, level, strict=True)}
    scratch, layout = common.workspace(inputs, common.split_workspace_bytes(inputs.problem)), inputs.problem.kv_layout
    return BatchPrefillWithPagedKVCacheWrapper(scratch, layout, use_cuda_graph=True, backend=kernel, **reserved)


def _call_on(wrapper: Any, inputs: Inputs, level: Level, **how: Any) -> Callable[..., object]:
    """Plans a wrapper for a level, and gives its call. `how`: `causal` of prefill, or `q_len_per_req` of decode."""
    queries = (level.qo_indptr.cpu(),) if "causal" in how else ()
    pages = (level.kv_indptr.cpu(), level.kv_indices, level.last_page_len.cpu())
    plan(wrapper, *queries, *pages, *_heads(inputs.problem), q_dtype=inputs.q.dtype, **scale_window_dtypes(inputs), **how)
    return partial(wrapper.run, inputs.q, inputs.kv, k_scale=inputs.k_scale)


def _heads(p: Problem) -> tuple[int, int, int, int]:
    return p.num_qo_heads, p.num_kv_heads, p.head_dim_qk, p.page_size


ADAPTERS = (
    TwoCalls(name="two_calls_fa2", prefix_kernel="fa2", rest="fa2_tc", passes=DECODE_PASSES),
    TwoCalls(name="two_calls_fa3", prefix_kernel="fa3", rest="fa3"),
    TwoCalls(name="two_calls_fa3_fa2", prefix_kernel="fa3", rest="fa2_tc", passes=DECODE_PASSES),
    MultiLevel(),
)
