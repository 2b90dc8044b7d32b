"""FlashAttention-3, which vLLM and SGLang take by default on Hopper: over pages (decode, drafts to verify, prefill) and ragged.

Not FlashInfer's `fa3`, which is another implementation of the same algorithm. Rules and calls read from the source of the wheel
tokenspeed-fa3 3.0.0.post20260810 (`flash_attn_interface.py`, `flash_attn_config.py`), which holds the forward pass for SM90 alone.

Its kernels need a plan: how far to split each request's keys, and which block takes which part. A model step makes it once
(`get_scheduler_metadata`), as vLLM does, or a small kernel in every call, that is in every layer. Each way is a backend here.

It has no custom mask. Over trees of drafts it is called twice, as SGLang does (`kernels/libraries/flash_attn_common.py`).
"""

# T = query tokens of all requests, H = num_qo_heads, K = num_kv_heads, B = batch_size, D = head_dim

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from kernels.adapter import Device, Inputs, Module, Need, PlanStep, Problem, Runner, Since
from kernels.lazy import Tensor, torch
from kernels.libraries import flash_attn_3_common as common
from kernels.libraries.flash_attn_common import FlashAttention, Keys, all_keys, context, drafts, merged, need_of_empty, tree_needs
from kernels.libraries.flashinfer_common import FLASHINFER, RELEASES
from kernels.libraries.flashinfer_modules import MERGE_MODULE
from kernels.problem.dtypes import HALF, torch_dtype
from kernels.problem.features import ALL_BUT_BLOCKS, Feature

FIRST_WITH_SINKS = "3.0.0.post20260408"
SMALLEST_KEY_TILE = 64  # tokens; up to 224, by head_dim, dtype and mask (`tile_size.h`)
SMALLEST_QUERY_TILE = 128  # rows, of a query token and a query head of the KV head; up to 192


@dataclass(frozen=True, kw_only=True)
class FlashAttn3(FlashAttention):
    name: str = "flash_attn_3"
    takes_sinks: bool = True
    takes_no_keys: bool = True
    gives_lse: bool = True
    distributions: tuple[str, ...] = ("tokenspeed-fa3",)
    also_calls: tuple[str, ...] = FLASHINFER  # its merge, over a draft tree
    imports: str = "flash_attn_3"
    # Read from 20260810; the two before have the same operators, but that 20251110's `fwd` has no sinks.
    rules_hold_for: tuple[str, ...] = ("tokenspeed-fa3>=3.0.0.post20251110,<3.1", *RELEASES)
    extra: str = "fa3"
    # "This flash attention build does not support tanh softcapping" (`FLASHATTENTION_DISABLE_SOFTCAP`).
    passes: frozenset[Feature] | None = ALL_BUT_BLOCKS
    takes_num_splits: bool = True  # as the most, if the plan is given
    is_planned: bool = True  # gets scheduler metadata that was made before

    def distributions_for(self, problem: Problem) -> tuple[str, ...]:
        return self.distributions if problem.tree is None else self.all_distributions

    def since(self, problem: Problem, device: Device) -> tuple[Since, ...]:
        return (Since(FIRST_WITH_SINKS, "attention sinks", problem.sinks),)

    def skips_unused_in(self, problem: Problem) -> bool:
        """Not where TMA may load whole pages: a masked value is then still multiplied by its probability 0.

        By the source TMA is used if a page is a multiple of the kernel's tile of keys, and the queries fill more than one of its
        tiles. Otherwise rows behind a request's length are never loaded. An H200 said the same (docs/backends.md).
        """
        rows = problem.s_qo * problem.group_size
        return problem.page_size < SMALLEST_KEY_TILE or rows <= SMALLEST_QUERY_TILE

    def gives_lse_in(self, problem: Problem, device: Device) -> bool:
        return problem.tree is None  # over a draft tree two calls are merged

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        p = problem
        return (
            *common.operand_needs(p, device),
            need_of_empty(p),
            *(tree_needs(p) if self.also_calls else (Need("a causal or full mask", p.tree is None),)),
            Need("no log-sum-exp over a draft tree, whose two calls are merged", p.tree is None or not p.return_lse),
            self._dims_need(p),
            common.aligned_need(p),
        )

    def _dims_need(self, p: Problem) -> Need:
        """The wheel leaves out other pairs of unequal sizes."""
        equal = p.head_dim_qk == p.head_dim_vo <= common.MAX_HEAD_DIM
        if self.routine != "ragged_prefill":
            return Need("equal head_dims of keys and values, up to 256", equal)
        of_deepseek = (p.head_dim_qk, p.head_dim_vo) == common.OF_DEEPSEEK and p.q_dtype in HALF
        return Need("equal head_dims of keys and values, up to 256, or 192 and 128 in 16 bits", equal or of_deepseek)

    def modules(self, problem: Problem, device: Device) -> tuple[Module, ...]:
        return (MERGE_MODULE,) if self._in_two_calls(problem) else ()

    def _in_two_calls(self, p: Problem) -> bool:
        """Whether a draft tree is followed. Backends that do not merge, forced over a tree, make one call without a mask."""
        return p.tree is not None and bool(self.also_calls)

    def workspace_bytes(self, problem: Problem) -> int:
        p = problem
        partial = common.partial_bytes(p)
        return partial if p.tree is None else partial + 8 * p.num_q_tokens * (p.num_qo_heads * (p.head_dim_vo + 4) + p.s_qo)

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        p, out = inputs.problem, inputs.empty_output()
        keys = context(inputs) if self._in_two_calls(p) else all_keys(inputs)
        launch: Callable[[], object] = (whole := self._call(inputs, keys, out, metadata := self._planned(inputs, keys)))
        config = f"num_splits={common.splits_of(whole())}"
        plan_step = self._plan_step(inputs, keys, metadata)
        if self._in_two_calls(p):
            of_drafts, keys = out.new_empty(out.shape), drafts(inputs)
            launch = merged(whole, self._call(inputs, keys, of_drafts, self._planned(inputs, keys)), out, of_drafts)
            config += " calls=context,drafts,merge"
        return common.runner_of(
            inputs, launch, out, f"{config} {common.GIVEN if self.is_planned else common.MADE_IN_CALL}", plan_step
        )

    def _planned(self, inputs: Inputs, of: Keys) -> Tensor | None:
        return _metadata(inputs, of, self.num_splits or common.HEURISTIC) if self.is_planned else None

    def _plan_step(self, inputs: Inputs, of: Keys, metadata: Tensor | None) -> PlanStep | None:
        """None over a draft tree, whose pages of single tokens a step would make again too."""
        if inputs.problem.tree is not None:
            return None
        return common.planned_again(metadata, lambda: self._planned(inputs, of))

    def _call(self, inputs: Inputs, of: Keys, out: Tensor, metadata: Tensor | None) -> Callable[[], tuple[Tensor, ...]]:
        """One call of the operator: it writes `out` and returns it, the log-sum-exp [H, T], and the partial results of splits."""
        p, ops = inputs.problem, _operators()
        scales = common.descales(inputs, len(of.qo_indptr) - 1)
        sinks = None if inputs.sinks is None else inputs.sinks.to(torch_dtype(p.output_dtype))
        left_right = common.window(p)
        last = () if sinks is None else (sinks,)  # the last argument, which the first release does not have

        def launch() -> tuple[Tensor, ...]:
            found: tuple[Tensor, ...] = ops.fwd(
                inputs.q, of.k, of.v, None, None, None, out,
                of.qo_indptr, of.kv_indptr, None, None, of.kv_lens, of.s_qo, of.s_kv,
                of.page_table, None, None, None, None, None,
                *scales, inputs.sm_scale, of.causal, *left_right, 0, p.soft_cap or 0.0, True,
                metadata, self.num_splits or common.HEURISTIC, None, 0, *last,
            )  # fmt: skip
            return found

        return launch


@cache
def _operators() -> Any:
    """The library's operators. Its Python functions are not used: they cannot write into an output that is given."""
    importlib.import_module("flash_attn_3._C")  # registers them
    return torch.ops.flash_attn_3


def _metadata(inputs: Inputs, of: Keys, num_splits: int) -> Tensor:
    """The plan of a model step, which all layers share."""
    p = inputs.problem
    metadata: Tensor = _operators().get_scheduler_metadata(
        len(of.qo_indptr) - 1, of.s_qo, of.s_kv, p.num_qo_heads, p.num_kv_heads, p.head_dim_qk, p.head_dim_vo, inputs.q.dtype,
        inputs.kv_lens if of.kv_lens is None else of.kv_lens, of.qo_indptr, None, None, None, None,
        None if of.page_table is None else of.k.shape[1], 0, of.causal, *common.window(p), 0, False, num_splits, None, 0,
    )  # fmt: skip
    return metadata


def _all(routine: str) -> tuple[FlashAttn3, ...]:
    no_tree: dict[str, Any] = {"also_calls": (), "passes": ALL_BUT_BLOCKS - {"a tree of drafts"}}
    if routine == "ragged_prefill":
        return (FlashAttn3(routine=routine, **no_tree),)
    planned = FlashAttn3(routine=routine)
    if routine == "cascade":
        return (planned,)
    unplanned = FlashAttn3(routine=routine, name="flash_attn_3_unplanned", is_planned=False)
    capped = FlashAttn3(routine=routine, name="flash_attn_3_32_splits", num_splits=common.SPLITS_OF_VLLM, **no_tree)
    return (planned, unplanned, capped)


ADAPTERS = tuple(adapter for routine in ("paged_decode", "paged_prefill", "ragged_prefill", "cascade") for adapter in _all(routine))
