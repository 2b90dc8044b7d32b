"""The wrong kernels, to prove that the check can fail: what is wrong with each, and where it is wrong at all.

They are backends like any other (`mode=check_power`, or `adapters=[kernels.mutants]`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from kernels.inputs.tensors import usual_scale
from kernels.lazy import Tensor
from kernels.mutants import faults, victims
from kernels.mutants.faults import victim
from kernels.mutants.mutant import LeavesOutput, Mutant, ReturnsPreparedAnswer, WithoutKeys, Wrong
from kernels.mutants.reference_case import ReferenceCase
from kernels.mutants.victims import Applies
from kernels.problem.fields import attending
from kernels.problem.validation import KEYLESS_ROUTINES

LONG = 131072  # tokens, over which sums in bf16 go astray
Entry = tuple[str, str, Wrong, Applies]  # name, what is wrong, how, where it is wrong at all


def _sees(seen: Callable[[ReferenceCase], Tensor]) -> Wrong:
    """A kernel whose queries see these keys, bool [Q, L]."""
    return lambda case: case.sees(seen(case)).answer()


WRONG: tuple[Entry, ...] = (
    ("full_draft", "every query sees the whole draft: full instead of causal", _sees(lambda c: c.seen | True), victims.drafts),
    ("mask_one_late", "the mask is shifted by one: each query sees the next draft token",
     _sees(lambda c: c.seen | (c.key == c.own + 1)), victims.drafts),
    ("mask_one_early", "the mask is shifted by one: no query sees its own token",
     _sees(lambda c: c.seen & (c.key != c.own)), victims.always),
    ("mask_one_early_at_first", "the mask is shifted by one for all but the last 64 queries of a prompt",
     _sees(lambda c: c.seen & ((c.key != c.own) | (c.own >= c.length - 64))), victims.prompts),
    ("draft_alone", "draft tokens see the context and themselves, but no draft before them",
     _sees(lambda c: c.seen & ((c.key < c.draft_start) | (c.key == c.own))), victims.drafts),
    ("previous_draft_missed", "each draft token misses the one just before it",
     _sees(lambda c: c.seen & ~((c.key == c.own - 1) & (c.key >= c.draft_start))), victims.drafts),
    ("first_draft_missed", "each draft token misses the first one",
     _sees(lambda c: c.seen & ~((c.key == c.draft_start) & (c.own > c.draft_start))), victims.drafts),
    ("mask_of_request_0", "the mask of request 0 is used for all",  # the draft is taken to begin where that of request 0 does
     _sees(lambda c: c.key <= (c.own - c.draft_start + c.problem.kv_lens[0] - c.problem.q_lens[0]).clamp(min=0)),
     victims.other_drafts),
    ("top_left_causal", "the causal mask begins at the first key instead of ending at the last",
     _sees(lambda c: c.key <= c.own - c.draft_start), victims.context),
    ("last_page_ignored", "the last page is not read",
     _sees(lambda c: c.seen & (c.key < (c.length - 1) // c.problem.slots_per_page * c.problem.slots_per_page)), victims.pages),
    ("no_mask", "nothing is masked, not even the unused slots at the end",
     lambda c: (longer := faults.to_the_end(c)).sees(longer.seen | True).answer(), victims.part_page),
    ("last_page_to_its_end", "the last page is read to its end, where no token lies",
     lambda c: faults.to_the_end(c).answer(), victims.part_page),
    ("page_of_another", "a planted page in the middle is that of another request", faults.page_of_another, victims.two_requests),
    ("pages_of_another", "the page table of another request is read", faults.pages_of_another, victims.two_requests),
    ("two_pages_swapped", "the last two pages are swapped", faults.two_pages_swapped, victims.order_matters),
    ("pages_reversed", "pages are read in reverse order",  # the last comes first, with what lies in its unused slots
     lambda c: faults.with_pages(c, faults.pages_of(c).flip(0)), victims.order_matters),
    ("strides_ignored", "the strides of the cache are ignored: pages are read as if they lay in pairs",
     faults.as_pairs, victims.strided),
    ("one_token_short", "the KV length is short by one", _sees(lambda c: c.seen & (c.key < c.length - 1)), victims.always),
    ("first_token_dropped", "the first token is dropped", _sees(lambda c: c.seen & (c.key > 0)), victims.own_first_token),
    *((f"split_of_{n}_dropped", f"one of {n} splits of the KV is dropped",
       partial(faults.split_dropped, splits=n), partial(victims.ranges, n)) for n in (8, 32, 128)),
    *((f"{n}_tokens_lost_in_one_head", f"{n} tokens in a row are not read in one KV head",
       partial(faults.tokens_of_one_head, count=n), partial(victims.fine_parts, n)) for n in (64, 16)),
    ("merged_without_weights", "two splits are averaged instead of weighted", faults.merged_without_weights, victims.context),
    ("softmax_scale_missing", "logits are not scaled", lambda c: replace(c, sm_scale=1.0).answer(),
     victims.not_unscaled),
    ("softmax_scale_usual", "logits are scaled by 1/sqrt(head_dim_qk), whatever the model's scale is",
     lambda c: replace(c, sm_scale=usual_scale(c.problem)).answer(), victims.of_model_scale),
    ("soft_cap_ignored", "the soft cap is ignored", lambda c: replace(c, soft_cap=None).answer(), victims.capped),
    ("soft_cap_before_scale", "the soft cap is applied to q.k, and the scale to what it gives",
     lambda c: replace(c, soft_cap=(c.soft_cap or 0.0) * c.sm_scale).answer(),  # cap * tanh(q.k / cap) * scale
     lambda p: victims.capped(p) | victims.not_unscaled(p)),
    ("soft_cap_doubled", "the soft cap is twice as high as it should be",
     lambda c: replace(c, soft_cap=2 * (c.soft_cap or 0.0)).answer(), victims.capped),
    ("k_scale_missing", "the scale of the keys is forgotten",
     lambda c: replace(c, k=c.k / c.inputs.k_scale).answer(), victims.scaled),
    ("v_scale_missing", "the scale of the values is forgotten", lambda c: c.answer() / c.inputs.v_scale, victims.scaled),
    ("scales_exchanged", "keys have the scale of the values and values that of the keys",
     faults.scales_exchanged, lambda p: victims.scaled(p) | {"keys and values of different scales": not p.latent}),
    ("last_step_lost", "the last 16 elements of queries and keys are not multiplied",
     partial(faults.elements_lost, count=16), victims.long_keys),
    ("last_chunk_lost", "the last 8 are not", partial(faults.elements_lost, count=8),
     lambda p: victims.long_keys(p) | victims.in_16_bits(p)),
    ("heads_exchanged", "two query heads of a group are exchanged",
     faults.heads_exchanged, lambda p: {"two query heads a KV head or more": p.group_size > 1}),
    ("group_off_by_one", "the last query head of a group reads the next KV head",
     faults.next_kv_head, lambda p: {"two KV heads or more": p.stored_kv_heads > 1}),
    ("values_one_late", "key i meets the value of token i + 1",
     lambda c: replace(c, v=c.v.roll(-1, dims=0)).answer(), victims.context),
    ("saturated", "probabilities saturate in 8 bits",  # scaled so high that those above a quarter of a row's largest do
     lambda c: c.answer(saturation=0.25), victims.scaled),
    ("row_copied", "the last draft token gets the answer of the one before", faults.row_copied, victims.drafts),
    *((f"{n}_zero_keys_counted", f"{n} slots of zeros behind the end are counted",
       partial(faults.zero_keys, count=n), victims.below_0) for n in (1, 127)),
    ("maximum_not_subtracted", "exponentials are of logits as they are",
     partial(faults.maximum_replaced, replaced=lambda peak: 0 * peak), victims.shifted),
    ("maximum_from_0", "the running maximum starts at 0",
     partial(faults.maximum_replaced, replaced=lambda peak: peak.clamp(min=0.0)),
     lambda p: victims.below_0(p) | {"no sinks, which would leave nothing of such a row": not p.sinks}),
    *((f"not_rescaled{tail}", f"sums are not scaled down where the maximum grows, from the {end} key on",
       partial(faults.not_rescaled, backwards=bool(tail)), victims.growing) for tail, end in (("", "first"), ("_back", "last"))),
    ("bf16_logits", "logits are rounded to bf16 before the softmax", faults.bf16_logits,
     lambda p: victims.shifted(p) | victims.in_16_bits(p)),
    ("bf16_sums", "sums over the keys are kept in bf16", faults.bf16_sums,
     lambda p: {f"a victim of {LONG} tokens or more": p.kv_lens[victim(p)] >= LONG}),
    ("window_ignored", "the sliding window is ignored",
     _sees(lambda c: (c.key <= c.own) | (c.problem.mask == "full")), victims.windowed),
    ("window_one_sided", "the window of a full mask hides all that lies ahead",
     _sees(lambda c: c.seen & (c.key <= c.own)), victims.two_sided),
    ("window_behind_alone", "the window of a full mask hides nothing ahead",
     _sees(lambda c: c.seen | (c.key > c.own)), victims.two_sided_and_left),
    ("prefix_as_causal", "the tokens of a prefix see none behind themselves", _sees(lambda c: c.key <= c.own), victims.prefixed),
    ("prefix_one_longer", "the prefix is one token longer",
     _sees(lambda c: c.seen | (c.key.maximum(c.own) <= c.draft_start + (c.problem.mask_prefix or 0))), victims.longer_than_prefix),
    ("tree_as_chain", "a tree is read as a chain", _sees(lambda c: c.key <= c.own), victims.branches),
    ("sinks_ignored", "attention sinks are ignored",
     lambda c: replace(c, sinks=None).answer(), lambda p: {"attention sinks": p.sinks}),
)  # fmt: skip


_LSE, _WITH_SINK = partial(victims.keyless_lse, False), partial(victims.keyless_lse, True)
WITHOUT_KEYS: tuple[tuple[str, str, dict[str, Any], Applies], ...] = (
    ("keyless_nan", "output of a request without keys is NaN", {"out": math.nan}, victims.keyless),
    ("keyless_garbage", "output of a request without keys is not 0", {"out": 2.0**-7}, victims.keyless),
    ("keyless_lse_0", "log-sum-exp of a request without keys is 0", {"lse": 0.0}, _LSE),
    ("keyless_lse_inf", "log-sum-exp of a request without keys is +infinity", {"lse": math.inf}, _LSE),
    ("keyless_lse_low", "log-sum-exp of a request without keys is the lowest", {"lse": -3e38}, _LSE),
    ("keyless_sink_lost", "log-sum-exp of a request without keys lacks the sink", {"lse": -math.inf}, _WITH_SINK),
)
RIGHT = ReferenceCase.answer
ADAPTERS: tuple[Mutant, ...] = (
    *(
        kind(routine=routine, name=name, about=about, wrong=how, applies=applies)
        for routine in attending()
        for kind, name, about, how, applies in (
            *((Mutant, *entry) for entry in WRONG),
            (LeavesOutput, "output_left", "the output is left as it was", RIGHT, victims.always),
            (ReturnsPreparedAnswer, "previous_run", "the output of a previous run is returned", RIGHT, victims.always),
        )
    ),
    *(
        WithoutKeys(routine=routine, name=name, about=f"the {about}", wrong=RIGHT, applies=applies, **numbers)
        for routine in KEYLESS_ROUTINES
        for name, about, numbers, applies in WITHOUT_KEYS
    ),
)
