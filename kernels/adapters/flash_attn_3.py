"""FlashAttention-3, which vLLM and SGLang take by default on Hopper: over pages (decode, drafts to verify, prefill) and ragged.

Not FlashInfer's `fa3`, which is another implementation of the same algorithm. Rules and calls read from the source of the wheel
tokenspeed-fa3 3.0.0.post20260810 (`flash_attn_interface.py`, `flash_attn_config.py`), which holds the forward pass for SM90 alone.

Its kernels need a plan: how far to split each request's keys, and which block takes which part. A model step may make it once
(`get_scheduler_metadata`), as vLLM does, and SGLang for one query token. Otherwise a small kernel makes it in every call, that is
in every layer. Each way is a backend here.

It has no custom mask. Over trees of drafts it is called twice, as SGLang does (`kernels/libraries/flash_attn_common.py`).
"""

# T = query tokens of all requests, H = num_qo_heads, K = num_kv_heads, B = batch_size, D = head_dim

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from kernels.adapter import Adapter, EngineMaximum, Module, Need, PlanStep, QueryLengths, Runner, Since, nothing_to_plan
from kernels.libraries.flash_attn_common import Keys, all_keys, context, drafts, merged, tree_needs
from kernels.libraries.flashinfer_common import FLASHINFER, RELEASES, window_left
from kernels.libraries.flashinfer_modules import MERGE_MODULE
from kernels.problem.dtypes import FP8, HALF, torch_dtype
from kernels.problem.features import ALL_BUT_BLOCKS

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.device import Device
    from kernels.inputs import Inputs
    from kernels.inputs.step_lengths import HostLengths
    from kernels.problem import Problem
    from kernels.problem.features import Feature

MAX_HEAD_DIM = 256  # smaller ones are padded to 64, 128, 192 or 256; the wheel leaves out pairs of unequal sizes
HEURISTIC = 0  # num_splits: the library chooses
SPLITS_OF_VLLM = 32  # `flash_attn_max_num_splits_for_cuda_graph`: vLLM's limit for steps in a full CUDA graph
MAX_SPLITS = 128  # of the heuristic
FIRST_WITH_SINKS = "3.0.0.post20260408"
SMALLEST_KEY_TILE = 64  # tokens; up to 224, by head_dim, dtype and mask (`tile_size.h`)
SMALLEST_QUERY_TILE = 128  # rows, of a query token and a query head of the KV head; up to 192


@dataclass(frozen=True, kw_only=True)
class FlashAttn3(Adapter):
    name: str = "flash_attn_3"
    query_lengths: QueryLengths = "varlen"
    takes_window: bool = True
    takes_sinks: bool = True
    gives_lse: bool = True
    max_seq_len: EngineMaximum = "passed"
    takes_empty: bool = True  # vLLM captures full graphs with it, whose padded requests have no token
    distributions: tuple[str, ...] = ("tokenspeed-fa3",)
    also_calls: tuple[str, ...] = FLASHINFER  # its merge, over a draft tree
    imports: str = "flash_attn_3"
    # Read from 20260810; the two before have the same operators, but that 20251110's `fwd` has no sinks.
    rules_hold_for: tuple[str, ...] = ("tokenspeed-fa3>=3.0.0.post20251110,<3.1", *RELEASES)
    extra: str = "fa3"
    passes: frozenset[Feature] | None = ALL_BUT_BLOCKS
    is_planned: bool = True  # gets scheduler metadata that was made before
    num_splits: int = HEURISTIC

    def distributions_for(self, problem: Problem) -> tuple[str, ...]:
        return self.distributions if problem.tree is None else self.all_distributions

    def since(self, problem: Problem, device: Device) -> tuple[Since, ...]:
        return (Since(FIRST_WITH_SINKS, "attention sinks", problem.sinks),)

    def skips_unused_in(self, problem: Problem) -> bool:
        """Not where TMA may load whole pages: a masked value is then still multiplied by its probability 0.

        By the source TMA is used if a page is a multiple of the kernel's tile of keys, and the queries fill more than one of its
        tiles. Otherwise rows behind a request's length are never loaded. An H200 said the same (`benchmarks/unused_slots.py`).
        """
        rows = problem.s_qo * problem.group_size
        return problem.page_size < SMALLEST_KEY_TILE or rows <= SMALLEST_QUERY_TILE

    def gives_lse_in(self, problem: Problem, device: Device) -> bool:
        return problem.tree is None  # over a draft tree two calls are merged

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        p = problem
        return (
            Need("SM90 (FlashAttention-3)", device.is_sm(9)),
            Need("queries, keys and values of one dtype", p.q_dtype == p.kv_dtype),
            Need("fp16, bf16 or fp8_e4m3", p.q_dtype in HALF | {"fp8_e4m3"}),
            Need("output in the query's dtype, or bf16 with FP8 queries", p.output_dtype == _output_dtype(p)),
            *self._tree_needs(p),
            Need("no log-sum-exp over a draft tree, whose two calls are merged", p.tree is None or not p.return_lse),
            self._dims_need(p),
            Need("a head_dim that is a multiple of 8, with FP8 of 16", p.head_dim_qk % (16 if p.q_dtype in FP8 else 8) == 0),
        )

    def _dims_need(self, p: Problem) -> Need:
        equal = p.head_dim_qk == p.head_dim_vo <= MAX_HEAD_DIM
        if self.routine != "ragged_prefill":
            return Need("equal head_dims of keys and values, up to 256", equal)
        of_deepseek = (p.head_dim_qk, p.head_dim_vo) == (192, 128) and p.q_dtype in HALF
        return Need("equal head_dims of keys and values, up to 256, or 192 and 128 in 16 bits", equal or of_deepseek)

    def _tree_needs(self, p: Problem) -> tuple[Need, ...]:
        if not self.also_calls:
            return (Need("a causal or full mask", p.tree is None),)
        return tree_needs(p)

    def modules(self, problem: Problem, device: Device) -> tuple[Module, ...]:
        return (MERGE_MODULE,) if self._in_two_calls(problem) else ()

    def _in_two_calls(self, p: Problem) -> bool:
        """Whether a draft tree is followed. Backends that do not merge, forced over a tree, make one call without a mask."""
        return p.tree is not None and bool(self.also_calls)

    def workspace_bytes(self, problem: Problem) -> int:
        p = problem
        splits = min(MAX_SPLITS, -(-p.longest // 64))  # partial outputs and their log-sum-exp, fp32
        partial = 4 * min(splits * p.num_q_tokens * p.num_qo_heads * (p.head_dim_vo + 1), 2**28)
        return partial if p.tree is None else partial + 8 * p.num_q_tokens * (p.num_qo_heads * (p.head_dim_vo + 4) + p.s_qo)

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        p, out = inputs.problem, inputs.empty_output()
        keys = context(inputs) if self._in_two_calls(p) else all_keys(inputs)
        launch: Callable[[], object] = (whole := self._call(inputs, keys, out, metadata := self._planned(inputs, keys)))
        config = f"num_splits={_splits(whole())}"
        plan_step = self._plan_step(inputs, keys, metadata)
        if self._in_two_calls(p):
            of_drafts, keys = _like(out), drafts(inputs)
            launch = merged(whole, self._call(inputs, keys, of_drafts, self._planned(inputs, keys)), out, of_drafts)
            config += " calls=context,drafts,merge"
        config += f" scheduler_metadata={'given' if self.is_planned else 'made in the call'}"
        if not p.return_lse:
            return Runner(launch, out, "flash_attn_3", p.q_dtype, kernel_config=config, plan_step=plan_step)

        last_lse: list[Tensor] = []  # the log-sum-exp of the last call, fp32 [H, T], natural: the library makes a new one in each

        def with_lse() -> None:
            last_lse[:] = whole()[1:2]

        with_lse()
        more: dict[str, Any] = {"kernel_config": config, "plan_step": plan_step}
        return Runner(with_lse, out, "flash_attn_3", p.q_dtype, lse=lambda: last_lse[0].T, **more)

    def _planned(self, inputs: Inputs, of: Keys) -> Tensor | None:
        return _metadata(inputs, of, self.num_splits) if self.is_planned else None

    def _plan_step(self, inputs: Inputs, of: Keys, metadata: Tensor | None) -> PlanStep | None:
        """Makes the metadata again and copies them to where the call reads them, as vLLM does for steps in a full CUDA graph.

        It needs the lengths on the device alone. None over a draft tree, whose pages of single tokens a step would make again too.
        """
        if inputs.problem.tree is not None:
            return None
        if metadata is None:
            return nothing_to_plan

        def plan(_lengths: HostLengths) -> None:
            metadata.copy_(_metadata(inputs, of, self.num_splits))

        return plan

    def _call(self, inputs: Inputs, of: Keys, out: Tensor, metadata: Tensor | None) -> Callable[[], tuple[Tensor, ...]]:
        """One call of the operator: it writes `out` and returns it, the log-sum-exp [H, T], and the partial results of splits."""
        p, ops = inputs.problem, _operators()
        is_scaled = p.q_dtype in FP8 or p.kv_dtype in FP8
        descales = _descales(inputs, len(of.qo_indptr) - 1) if is_scaled else (None, None, None)
        sinks = None if inputs.sinks is None else inputs.sinks.to(torch_dtype(p.output_dtype))
        window = _window(p)
        last = () if sinks is None else (sinks,)  # the last argument, which the first release does not have

        def launch() -> tuple[Tensor, ...]:
            found: tuple[Tensor, ...] = ops.fwd(
                inputs.q, of.k, of.v, None, None, None, out,
                of.qo_indptr, of.kv_indptr, None, None, of.kv_lens, of.s_qo, of.s_kv,
                of.page_table, None, None, None, None, None,
                *descales, inputs.sm_scale, of.causal, *window, 0, 0.0, True,
                metadata, self.num_splits, None, 0, *last,
            )  # fmt: skip
            return found

        return launch


def _like(out: Tensor) -> Tensor:
    import torch

    return torch.empty_like(out)


def _window(p: Problem) -> tuple[int, int]:
    return window_left(p), 0 if p.window is not None else -1


def _output_dtype(p: Problem) -> str:
    return "bf16" if p.q_dtype in FP8 else p.q_dtype


@cache
def _operators() -> Any:
    """The library's operators. Its Python functions are not used: they cannot write into an output that is given."""
    import torch

    importlib.import_module("flash_attn_3._C")  # registers them
    return torch.ops.flash_attn_3


def _descales(inputs: Inputs, requests: int) -> tuple[Tensor, Tensor, Tensor]:
    """Scales of q, k and v, fp32 [requests, K] each."""
    import torch

    shape = (requests, inputs.problem.num_kv_heads)
    q, k, v = (torch.full(shape, scale, device=inputs.device) for scale in (1.0, inputs.k_scale, inputs.v_scale))
    return q, k, v


def _metadata(inputs: Inputs, of: Keys, num_splits: int) -> Tensor:
    """The plan of a model step, which all layers share."""
    p = inputs.problem
    metadata: Tensor = _operators().get_scheduler_metadata(
        len(of.qo_indptr) - 1, of.s_qo, of.s_kv, p.num_qo_heads, p.num_kv_heads, p.head_dim_qk, p.head_dim_vo, inputs.q.dtype,
        inputs.kv_lens if of.kv_lens is None else of.kv_lens, of.qo_indptr, None, None, None, None,
        None if of.page_table is None else of.k.shape[1], 0, of.causal, *_window(p), 0, False, num_splits, None, 0,
    )  # fmt: skip
    return metadata


def _splits(found: tuple[Tensor, ...]) -> int:
    """How many parts the library made of the keys, at most: the partial outputs of a call have one entry for each."""
    partial = found[2] if len(found) > 2 else None
    return partial.shape[0] if partial is not None and partial.numel() else 1


def _all(routine: str) -> tuple[FlashAttn3, ...]:
    no_tree: dict[str, Any] = {"also_calls": (), "passes": ALL_BUT_BLOCKS - {"a tree of drafts"}}
    if routine == "ragged_prefill":
        return (FlashAttn3(routine=routine, **no_tree),)
    planned = FlashAttn3(routine=routine)
    if routine == "cascade":
        return (planned,)
    unplanned = FlashAttn3(routine=routine, name="flash_attn_3_unplanned", is_planned=False)
    capped = FlashAttn3(routine=routine, name="flash_attn_3_32_splits", num_splits=SPLITS_OF_VLLM, **no_tree)
    return (planned, unplanned, capped)


ADAPTERS = tuple(adapter for routine in ("paged_decode", "paged_prefill", "ragged_prefill", "cascade") for adapter in _all(routine))
