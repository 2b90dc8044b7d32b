"""The wrong kernels, to prove that the check can fail: what is wrong with each, and where it is wrong at all.

They are backends like any other (`mode=check_power`, or `adapters=[kernels.mutants]`).
"""

from __future__ import annotations

from functools import partial

from kernels.mutants import faults, victims
from kernels.mutants.mutant import LeavesOutput, Mutant, ReturnsPreparedAnswer, Wrong
from kernels.mutants.reference_case import ReferenceCase
from kernels.mutants.victims import Applies
from kernels.problem import ROUTINES

Entry = tuple[str, str, Wrong, Applies]  # name, what is wrong, how, where it is wrong at all


def _split_dropped(splits: int) -> Entry:
    how, applies = partial(faults.split_dropped, splits=splits), partial(victims.ranges, splits)
    return f"split_of_{splits}_dropped", f"one of {splits} splits of the KV is dropped", how, applies


def _tokens_missing_in_one_head(count: int) -> Entry:
    how, applies = partial(faults.tokens_of_one_head, count=count), partial(victims.fine_parts, count)
    return f"{count}_tokens_lost_in_one_head", f"{count} tokens in a row are not read in one KV head", how, applies


WRONG: tuple[Entry, ...] = (
    ("full_draft", "every query sees the whole draft: full instead of causal", faults.full_draft, victims.drafts),
    ("mask_one_late", "the mask is shifted by one: each query sees the next draft token", faults.mask_late, victims.drafts),
    ("mask_one_early", "the mask is shifted by one: no query sees its own token", faults.mask_early, victims.always),
    ("draft_alone", "draft tokens see the context and themselves, but no draft before them", faults.draft_alone, victims.drafts),
    ("previous_draft_missed", "each draft token misses the one just before it", faults.previous_draft_missed, victims.drafts),
    ("first_draft_missed", "each draft token misses the first one", faults.first_draft_missed, victims.drafts),
    ("mask_of_request_0", "the mask of request 0 is used for all", faults.mask_of_request_0, victims.other_drafts),
    ("top_left_causal", "the causal mask begins at the first key instead of ending at the last", faults.top_left, victims.context),
    ("last_page_ignored", "the last page is not read", faults.last_page_ignored, victims.pages),
    ("no_mask", "nothing is masked, not even the unused slots at the end", faults.past_the_end_unmasked, victims.part_page),
    ("last_page_to_its_end", "the last page is read to its end, where no token lies", faults.past_the_end, victims.part_page),
    ("page_of_another", "a planted page in the middle is that of another request", faults.page_of_another, victims.two_requests),
    ("pages_of_another", "the page table of another request is read", faults.pages_of_another, victims.two_requests),
    ("two_pages_swapped", "the last two pages are swapped", faults.two_pages_swapped, victims.order_matters),
    ("pages_reversed", "pages are read in reverse order", faults.pages_reversed, victims.order_matters),
    ("one_token_short", "the KV length is short by one", faults.one_token_short, victims.always),
    ("first_token_dropped", "the first token is dropped", faults.first_token_dropped, victims.own_first_token),
    *map(_split_dropped, (8, 32, 128)),
    *map(_tokens_missing_in_one_head, (64, 16)),
    ("merged_without_weights", "two splits are averaged instead of weighted", faults.merged_without_weights, victims.context),
    ("softmax_scale_missing", "logits are not scaled", faults.softmax_scale_missing, victims.always),
    ("k_scale_missing", "the scale of the keys is forgotten", faults.k_scale_missing, victims.scaled),
    ("v_scale_missing", "the scale of the values is forgotten", faults.v_scale_missing, victims.scaled),
    ("scales_exchanged", "keys have the scale of the values and values that of the keys",
     faults.scales_exchanged, victims.scaled_separately),
    ("heads_exchanged", "two query heads of a group are exchanged", faults.heads_exchanged, victims.groups),
    ("group_off_by_one", "the last query head of a group reads the next KV head", faults.next_kv_head, victims.kv_heads),
    ("values_one_late", "key i meets the value of token i + 1", faults.values_one_late, victims.context),
    ("saturated", "probabilities saturate in 8 bits", faults.saturated, victims.scaled),
    ("row_copied", "the last draft token gets the answer of the one before", faults.row_copied, victims.drafts),
    ("bf16_sums", "sums over the keys are kept in bf16", faults.bf16_sums, victims.long_context),
    ("window_ignored", "the sliding window is ignored", faults.no_window, victims.windowed),
    ("tree_as_chain", "a tree is read as a chain", faults.causal_tree, victims.branches),
    ("sinks_ignored", "attention sinks are ignored", faults.sinks_ignored, lambda p: {"attention sinks": p.sinks}),
)  # fmt: skip


def _of_routine(routine: str) -> tuple[Mutant, ...]:
    """Every wrong kernel as a backend of a routine."""
    right = ReferenceCase.answer
    return (
        *(Mutant.for_routine(routine, name, how, about, applies) for name, about, how, applies in WRONG),
        LeavesOutput.for_routine(routine, "output_left", right, "the output is left as it was"),
        ReturnsPreparedAnswer.for_routine(routine, "previous_run", right, "the output of a previous run is returned"),
    )


ADAPTERS = tuple(adapter for routine in ROUTINES for adapter in _of_routine(routine))
