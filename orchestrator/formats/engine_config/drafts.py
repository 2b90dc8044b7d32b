"""vLLM's table of draft lengths by batch size, from the times of the backend that will run.

The table is `num_speculative_tokens_per_batch_size`. vLLM describes it in docs/features/speculative_decoding, on the page
dynamic_speculative_decoding.md: entries `[first batch, last batch, drafted tokens]`, the first one from 1, where a batch between
two entries has the one before (`v1/spec_decode/dynamic/utils.py`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, isqrt, log
from statistics import fmean
from typing import Any

from orchestrator.analysis.questions import expected_tokens
from orchestrator.analysis.step_rest import step_us
from orchestrator.config.draft_cost import Draft
from orchestrator.formats.engine_config.choice import call_of
from orchestrator.formats.engine_config.flags import Flag
from orchestrator.formats.engine_config.shapes import Shape

Rates = dict[int, float]  # tokens/s of a batch by s_qo


@dataclass(frozen=True)
class BatchDrafts:
    """The best number of drafted tokens of one batch size.

    `gain` is its tokens/s over those without drafts, by the geometric mean over `contexts`. `by_context` is the best number at each
    context alone, and `measured` are all numbers of drafted tokens that were compared. `without_rest` are those for which
    draft.rest has no step with as many query tokens.
    """

    size: int
    drafts: int
    gain: float
    contexts: tuple[int, ...]
    by_context: tuple[int, ...]
    measured: tuple[int, ...]
    without_rest: tuple[int, ...] = ()
    rough: int = 0  # of the times behind it


def best_drafts(shapes: Sequence[Shape], flag: Flag, draft: Draft) -> list[BatchDrafts]:
    """The best number of drafted tokens for each batch size at which one query token and more were measured with this flag.

    A batch is left out if the longest draft that draft.rest has a step for is its best one: a longer one may be better.
    """
    rates: dict[int, dict[tuple[Any, ...], Rates]] = defaultdict(lambda: defaultdict(dict))
    left = without_rest(shapes, flag, draft)
    rough: Counter[int] = Counter()
    for shape in shapes:
        own, tokens = call_of(flag, shape), expected_tokens(draft.acceptance, shape.s_qo)
        if shape.phase != "prefill" and own is not None and own.status == "ok" and tokens is not None:
            step = step_us(draft, own.us, shape.s_qo, shape.layer)
            if step is not None:
                rates[shape.batch_size][(shape.s_kv, *shape.others)][shape.s_qo] = tokens / step
                rough[shape.batch_size] += own.rough
    found = (_of_batch(size, by_shape) for size, by_shape in sorted(rates.items()))
    batches = [replace(b, without_rest=left.get(b.size, ()), rough=rough[b.size]) for b in found if b is not None]
    return [batch for batch in batches if not (batch.without_rest and batch.drafts == batch.measured[-1])]


def without_rest(shapes: Sequence[Shape], flag: Flag, draft: Draft) -> dict[int, tuple[int, ...]]:
    """By batch size, the numbers of drafted tokens that were measured and for whose step draft.rest has no cost."""
    found: dict[int, set[int]] = defaultdict(set)
    for shape in shapes if draft.rest is not None else ():
        own = call_of(flag, shape)
        if shape.phase != "prefill" and own is not None and own.status == "ok" and shape.layer[0] is None:
            found[shape.batch_size].add(shape.s_qo - 1)
    return {size: tuple(sorted(drafts)) for size, drafts in sorted(found.items())}


def _of_batch(size: int, by_shape: dict[tuple[Any, ...], Rates]) -> BatchDrafts | None:
    """None if no context has both one query token and more."""
    whole = [(shape[0], rates) for shape, rates in sorted(by_shape.items()) if 1 in rates and len(rates) > 1]
    if not whole:
        return None
    lengths = sorted(set.intersection(*(set(rates) for _, rates in whole)))
    score = {q: fmean(log(rates[q]) for _, rates in whole) for q in lengths}
    best = _longest_first(score)
    alone = tuple(_longest_first({q: rates[q] for q in lengths}) - 1 for _, rates in whole)
    contexts = tuple(context for context, _ in whole)
    return BatchDrafts(size, best - 1, exp(score[best] - score[1]), contexts, alone, tuple(q - 1 for q in lengths))


def _longest_first(score: dict[int, float]) -> int:
    """The s_qo with the highest score, of equal ones the shortest."""
    return max(score, key=lambda q: (score[q], -q))


def ranges(batches: Sequence[BatchDrafts]) -> list[list[int]]:
    """vLLM's entries. Between two measured batch sizes the change lies at their geometric mean."""
    entries: list[list[int]] = []
    first = 1
    for i, batch in enumerate(batches):
        following = batches[i + 1].size if i + 1 < len(batches) else None
        last = batch.size if following is None else max(batch.size, isqrt(batch.size * following))
        if entries and entries[-1][2] == batch.drafts:
            entries[-1][1] = last
        else:
            entries.append([first, last, batch.drafts])
        first = last + 1
    return entries
