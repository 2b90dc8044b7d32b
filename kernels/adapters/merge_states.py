"""The merge of partial answers alone: `num_states` outputs and log-sum-exps of each query token become one.

The states are given, so what is timed is the last step of a composition (`flashinfer_cascade.py`, `flashinfer_chunks.py`).
`kernels/inputs/states.py` makes them: each request's keys are cut into ranges, and a state is attention over one of them. The
merged answer must be attention over all keys. A query that sees no key of a range has a log-sum-exp of minus infinity there.

Rules read from flashinfer-python 0.7.2.post1, `cascade.py` and `data/include/flashinfer/attention/cascade.cuh`.
"""

# T = query tokens, n = num_states, H = num_qo_heads, D_vo = value head_dim

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

from kernels.adapter import Adapter, Device, EngineMaximum, Inputs, Module, Need, Problem, QueryLengths, Runner, Since
from kernels.inputs.copies import States
from kernels.inputs.states import State, merged
from kernels.libraries import flashinfer_common as common
from kernels.libraries.flashinfer_modules import MERGE_MODULE
from kernels.problem.dtypes import size_bytes
from kernels.problem.features import FEATURES, Feature


@dataclass(frozen=True, kw_only=True)
class Merge(Adapter):
    """What all merges share. Masks, windows, lengths and scales are in the states; a sink would have to be in one of them."""

    routine: str = "merge_states"
    query_lengths: QueryLengths = "varlen"
    takes_window: bool = True
    takes_two_sided_window: bool = True
    takes_prefix_mask: bool = True
    takes_more_queries: bool = True
    takes_soft_cap: bool = True
    gives_lse: bool = True
    max_seq_len: EngineMaximum = "unread"
    skips_unused: bool = True
    passes: frozenset[Feature] | None = frozenset(FEATURES) - {"attention sinks"}

    def workspace_bytes(self, problem: Problem) -> int:
        """The states, and what making one of them takes: logits and weights in fp32, and keys and values of its range."""
        p = problem
        rows, keys = p.num_q_tokens * p.num_qo_heads, -(-p.s_kv // (p.num_states or 1))
        states = p.kv_bytes + size_bytes("fp32", 4 * rows * p.value_dim)
        return states + size_bytes("fp32", 4 * p.s_qo * p.num_qo_heads * keys + 3 * keys * p.kv_token_elements)


@dataclass(frozen=True, kw_only=True)
class TorchMerge(Merge):
    """One state after the other with PyTorch, in fp32 to the end."""

    name: str = "torch_merge"
    distributions: tuple[str, ...] = ("torch",)
    merge: Callable[[State, State], State] = merged

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        return ()

    def workspace_bytes(self, problem: Problem) -> int:
        elements = problem.num_q_tokens * problem.num_qo_heads * problem.value_dim
        return super().workspace_bytes(problem) + size_bytes("fp32", 6 * elements)

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        out, lse, scale = inputs.empty_output(), inputs.empty_lse(), common.fp8_output_scale(inputs.problem)
        given = States(inputs, token_first=False, base="e")

        def launch() -> None:
            state = reduce(self.merge, given.states)
            out.copy_(state.out / scale)
            if lse is not None:
                lse.copy_(state.lse)

        name = f"{self.name}_{inputs.device.type}"
        return Runner(launch, out, name, "fp32", caller_scale=scale, lse=lse, copies=(given,))


@dataclass(frozen=True, kw_only=True)
class FlashInferMerge(Merge):
    """What FlashInfer's merges share: log-sum-exps of base 2, and a token's heads in one block.

    The kernels are called by their module. The functions of the library make a new output in each call, and a call here writes the
    same one.
    """

    distributions: tuple[str, ...] = common.FLASHINFER
    imports: str = "flashinfer"
    rules_hold_for: tuple[str, ...] = common.RELEASES  # `cascade.cu` has the same functions since 0.5.3

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        return (
            common.needs_sm80(device),
            common.needs_half_output(problem),
            Need("head_dim 64, 128, 256 or 512 of the values", problem.value_dim in (64, 128, 256, 512)),
        )

    def modules(self, problem: Problem, device: Device) -> tuple[Module, ...]:
        return (MERGE_MODULE,)


def _in_one_block(problem: Problem) -> bool:
    return common.merge_threads(problem) <= common.MAX_THREADS


@dataclass(frozen=True, kw_only=True)
class MergeStates(FlashInferMerge):
    """`merge_states`: one call. It has a second kernel for as many states as tokens or more, with a block for each head."""

    name: str = "merge_states"

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        fits = _in_one_block(problem) or _with_block_per_head(problem)
        words = "up to 128 heads of 64, 64 of 128 or 32 of 256 and 512, or no fewer states than query tokens"
        return (*super().needs(problem, device), Need(words, fits))

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        from flashinfer.cascade import get_cascade_module

        p, (out, lse), module = inputs.problem, common.output_with_lse(inputs), get_cascade_module()
        memory = States(inputs, token_first=True, base="2")

        def launch() -> None:
            module.merge_states(memory.out, memory.lse, out, lse)

        name = "MergeStatesLargeNumIndexSets" if _with_block_per_head(p) else "MergeStates"
        return Runner(launch, out, name, "fp32", lse=lse if p.return_lse else None, lse_base="2", copies=(memory,))


def _with_block_per_head(problem: Problem) -> bool:
    return (problem.num_states or 1) >= problem.num_q_tokens


@dataclass(frozen=True, kw_only=True)
class MergeStateChain(FlashInferMerge):
    """`merge_state` of the first two states, and `merge_state_in_place` of each further one, as compositions call them."""

    name: str = "merge_state_chain"

    def since(self, problem: Problem, device: Device) -> tuple[Since, ...]:
        """Before 0.7.0 two states without a key made NaN (`cascade.cuh`, MergeState)."""
        may_be_empty = problem.window is not None or min(problem.kv_lens) < (problem.num_states or 1)
        return (Since("0.7.0", "two states without a key (a window, or fewer keys than states)", may_be_empty),)

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        return (
            *super().needs(problem, device),
            Need("up to 128 heads of 64, 64 of 128 or 32 of 256 and 512, whose merge is one block", _in_one_block(problem)),
        )

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        from flashinfer.cascade import get_cascade_module

        p, (out, lse), module = inputs.problem, common.output_with_lse(inputs), get_cascade_module()
        memory = States(inputs, token_first=False, base="2")
        first, second, *others = memory.states

        def launch() -> None:
            module.merge_state(*first, *second, out, lse)
            for other in others:
                module.merge_state_in_place(out, lse, *other, None)

        name = "MergeState" if not others else f"MergeState + {len(others)} MergeStateInPlace"
        given_lse = lse if p.return_lse else None
        return Runner(launch, out, name, "fp32", lse=given_lse, lse_base="2", copies=(memory,), rounded_merges=len(others))


ADAPTERS = (MergeStates(), MergeStateChain(), TorchMerge())
