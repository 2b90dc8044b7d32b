"""The tables of question=draft: the best draft length, given the acceptance rate and the cost of a draft."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from statistics import fmean

from orchestrator.analysis.connection import Record
from orchestrator.analysis.dataset import Dataset
from orchestrator.analysis.finder import longer_drafts, measuring
from orchestrator.analysis.questions import expected_tokens
from orchestrator.analysis.questions.cache_size import left_out
from orchestrator.analysis.questions.deployments import create_decisions
from orchestrator.analysis.questions.exactness import error, named
from orchestrator.analysis.questions.tables import across_contexts, fetch, group_by, span, split_by_title
from orchestrator.analysis.rough import legend, mark
from orchestrator.analysis.sql import literal, query
from orchestrator.analysis.step_rest import PRESET, PRESETS
from orchestrator.config.draft_cost import CURVES, Draft
from orchestrator.config.engine import MAX_DRAFT
from orchestrator.config.model import layers_of
from orchestrator.notes import note_once
from orchestrator.tables import Grid

ON_SCREEN = ("workloads", "batch", "drafted tokens", "times no draft, mean of contexts")  # of these columns
NEEDS = "causal drafts of two lengths, such as sweep.s_qo=[1,4]; with draft.rest, in batches that it was measured for"
EACH = "workloads"

FREE_DRAFTS = "drafting itself is free, so long drafts look better than they are"
LONGEST = "the longest known"
ONE_LENGTH = "these flags have no times at one workload with two numbers of drafted tokens"
FEW_TOKENS = 256  # in 16 bits an H200's arithmetic takes as long as reading the weights from 989e12 / 4.8e12 = 206 query tokens on
PARTS = 10**9  # of 1, to which a break-even acceptance is known


def grids(data: Dataset) -> list[Grid]:
    """The best draft of each batch, what this does not count, then the best of each context."""
    found, flags = in_short(data), _flags(data)
    if not found and (why := [*left_out(data).values(), *[ONE_LENGTH] * bool(flags)]):
        return [Grid("no draft has an answer", ("why",), tuple((words,) for words in why)), *flags]
    return [*flags, *found, *warnings(data, data.draft), *_sources(data), *by_context(data)] if found else []


def _flags(data: Dataset) -> list[Grid]:
    """The flag of the engine that was asked for at each number of drafted tokens, or why there is none."""
    if (engine := data.scalar("SELECT if(getvariable('by_flag'), getvariable('engine'), NULL)")) is None:
        return []
    create_decisions(data)
    title = f"flag of {engine}, as question=one_backend drafts=N names it"
    return [Grid(title, ("deployment", "drafted tokens", "layers", "flag"), tuple(data.execute(query("flags_of_drafts"))))]


def _sources(data: Dataset) -> list[Grid]:
    """What measured the rest of a step, and where attention is that of a running engine; nothing without draft.rest."""
    cells = data.execute(query("sources_of_steps"))
    header = ("model", "the rest of a step is from", "steps with attention of a running engine")
    return [Grid("what a step is made of", header, tuple(cells))] if cells else []


def by_context(data: Dataset) -> list[Grid]:
    """A line for each batch, a column for each context: the drafted tokens with the most tokens/s, and the gain over no draft."""
    found, draft = [], data.draft
    says = "tokens for its time over those without a draft" if not draft.whole_steps else "tokens/s of the batch (over no draft)"
    for name, part in split_by_title(fetch(data, "draft", axes=("batch_size", "s_kv")), ("batch_size", "s_kv")):
        rough = legend(*(r["rough"] for r in part))
        title = f"best draft: drafted tokens, {says}; the acceptance from which it pays{rough}; at {describe_draft(draft)}"
        found.append(across_contexts(f"{title} · {name}", part, lambda r: _cell(r, draft, _edge_of(r)), ["batch_size"]))
    return found


def in_short(data: Dataset) -> list[Grid]:
    """A line for each batch: the best number of drafted tokens over all contexts, and the gain, before the tables by context."""
    cells = []
    for name, part in split_by_title(fetch(data, "draft", axes=("batch_size", "s_kv")), ("batch_size", "s_kv")):
        for (batch,), of_batch in group_by(part, ("batch_size",)).items():
            drafted, gains = [r["drafted"] for r in of_batch], [r["gain"] for r in of_batch if r["gain"] is not None]
            edge = max((_edge_of(r) for r in of_batch), key=len)
            gain = f"{span(gains, '{:.2f}'.format)} times" if gains else "–"
            cells.append((name, str(batch), span(drafted, str) + edge, gain, _gain_of_each(of_batch)))
    header = ("workloads", "batch", "drafted tokens", "tokens/s over no draft, by context", "times no draft, mean of contexts")
    longest = ", without the rest of a step" * (not data.draft.whole_steps)
    longest += f"; {LONGEST}: {_longer(data)}" if any(LONGEST in of[2] for of in cells) else ""
    return [Grid(f"in short: the best draft of each batch{longest}", header, tuple(cells))] if cells else []


def _longer(data: Dataset) -> str:
    """That a draft longer than the longest best one may be better, and what measures it, of the first server that has this."""
    model, device, tp, longest, sweep = data.single_row(query("longest_best"))
    if expected_tokens(data.draft.acceptance, longest + 1) is None:
        return "draft.acceptance ends there"
    if there := longer_drafts(model, device, tp, longest):
        return f"a longer one may be better: {there}"
    lengths = {"s_qo": [1, longest, min(2 * longest, MAX_DRAFT)], "tp": [tp or 1]}
    return f"a longer one may be better; to measure: {measuring(model, {sweep: {}}, lengths, '', [device])}"


def _gain_of_each(records: list[Record]) -> str:
    """`1: 1.66, 3: 2.31, 7: 2.91`: the tokens/s of each number of drafted tokens over no draft, geometric mean of contexts."""
    logs: dict[int, list[float]] = defaultdict(list)
    for record in records:
        for s_qo, rate in zip(record["measured"], record["rates"], strict=True):
            if s_qo > 1 and record["one_token_per_s"]:
                logs[s_qo - 1].append(math.log(rate / record["one_token_per_s"]))
    return ", ".join(f"{drafted}: {math.exp(fmean(found)):.2f}" for drafted, found in sorted(logs.items())) or "–"


def _edge_of(record: Record) -> str:
    """What to say of a best draft that is the longest one with an answer; empty if a longer one was worse."""
    if not record["at_edge"]:
        return ""
    longer = ", ".join(map(str, record["without_rest"]))
    return f" or more (no answer for {longer}: see the warning)" if longer else f" ({LONGEST})"


def warnings(data: Dataset, draft: Draft) -> list[Grid]:
    """What the answer leaves out for lack of a cost, and what to type."""
    cells = []
    if not draft.whole_steps:
        places = data.execute("SELECT DISTINCT model, device_name, tp FROM problems ORDER BY ALL")
        offer = f"draft.rest={PRESET}, or " * bool(PRESETS.keys() & {*places})
        layers = " or ".join(dict.fromkeys(str(layers_of(model) or "N") for model, *_ in places))
        count = f"draft.layers={layers} " * (draft.layers is None)
        alone = "and drafts alone decide" if draft.cost_us or draft.start_us else "alone decides"
        own = f"{offer}{count}draft.rest_us=N with your µs, or draft.rest=DIR of timing.context=step"
        cells.append((f"the rest of a step counts nothing, so attention {alone}", own))
    if not (draft.cost_us or draft.start_us):
        cells.append((FREE_DRAFTS, "draft.cost_us=N, µs of each drafted token; draft.start_us=N of each draft"))
    if draft.rest is not None:  # first: the table above refers to it
        cells += [(words, f"{again}, and then draft.rest={STEPS}") for words, again in without_rest(data, draft.rest).items()]
    if words := of_one_rest(draft, data.scalar("SELECT max(batch_size * list_max(measured)) FROM draft")):
        cells.append((words, "'where={batch_size: N}' and the rest of that batch, or draft.rest=DIR"))
    for model, full, windowed in data.execute(query("of_one_kind")):
        words = f"{model} has {windowed} layers with a window and {full} without, and one kind was measured: all count as its kind"
        cells.append((words, "'sweep.window=[null,N]' measures both"))
    for model, device, sweep, tp in data.execute(query("without_one_token")):
        command = measuring(model, {sweep: {}}, {"s_qo": [1], "tp": [tp or 1]}, "", [device])
        note_once(f"{model} on {device}: no step without a draft was measured, so no gain is known; to measure some:\n  {command}")
    cells += [(words, "draft.layers") for words in left_out(data).values()]
    return [Grid("warning: what this does not count", ("what", "type"), tuple(cells))] if cells else []


def of_one_rest(draft: Draft, tokens: int | None) -> str:
    """That a typed rest counts for steps of up to `tokens` query tokens, which take longer; empty if few, or if it was measured."""
    if draft.rest is not None or not draft.rest_us or (tokens or 0) <= FEW_TOKENS:
        return ""
    of_typed = f"draft.rest_us={draft.rest_us:g} counts for steps of up to {tokens:,} query tokens"
    return f"{of_typed}; from about {FEW_TOKENS} on they take longer"


def describe_draft(draft: Draft) -> str:
    """The assumptions of the answer, in words."""
    accepted = describe_acceptance(draft)
    if not draft.whole_steps and draft.layers is None:
        return f"{accepted}, by attention alone: draft.layers, draft.rest_us and draft.cost_us make it whole steps"
    rest = f", {draft.rest_us:g} µs a step for the rest" if draft.rest_us else ", nothing for the rest of a step"
    if draft.rest is not None:
        rest = f", the rest as measured in steps ({draft.rest})"
    start = f", {draft.start_us:g} µs a draft" if draft.start_us else ""
    count = "the model's layers" if draft.layers is None else f"{draft.layers} layer{'s' if draft.layers > 1 else ''}"
    return f"{accepted}, {count} of attention{rest}{start}, {draft.cost_us:g} µs a drafted token"


def describe_acceptance(draft: Draft) -> str:
    if isinstance(draft.acceptance, str):
        curve = CURVES[draft.acceptance]
        return f"the acceptance of {curve.what} (InferenceX {curve.source})"
    chances = draft.acceptance if isinstance(draft.acceptance, tuple) else (draft.acceptance,)
    return f"acceptance {', '.join(f'{a:g}' for a in chances)}"


def _cell(record: Record, draft: Draft, edge: str) -> str:
    """Without the rest of a step only the ratio is shown: no server has the tokens/s of its attention."""
    rate = gain = "" if record["gain"] is None else f"{mark(record['rough'])}{record['gain']:.2f}×"
    if draft.whole_steps:
        rate = f"{record['tokens_per_s']:,.0f}/s" + (f" ({gain})" if gain else "")
    verified = f"{named(record['verify_backend'], record['verify_kernel'])} {error(record['verify_rel_err'])}"
    return ", ".join(filter(None, (f"{record['drafted']} drafted{edge}", rate, _break_even(record), verified)))


def _break_even(record: Record) -> str:
    if record["break_even_tokens"] is None or not record["drafted"]:
        return ""
    chance = break_even_acceptance(record["break_even_tokens"], record["drafted"])
    return "never pays" if chance is None else f"from {chance:.2f}"


def break_even_acceptance(tokens: float, drafted: int) -> float | None:
    """The `a` at which 1 + a + ... + a^drafted is `tokens`; None if it is less even at 1."""
    found = bisect_left(range(PARTS + 1), tokens, key=lambda part: sum((part / PARTS) ** i for i in range(drafted + 1)))
    return found / PARTS if found <= PARTS else None


def summary(data: Dataset) -> str | None:
    """How many workloads each draft length is best for, and whether that is the longest one measured."""
    counts = data.execute("SELECT drafted, count(*), count_if(at_edge) FROM draft GROUP BY ALL ORDER BY ALL")
    if not counts:
        return None
    best = ", ".join(f"{drafted} at {count:,}" for drafted, count, _ in counts)
    edge = sum(at_edge for _, _, at_edge in counts)
    longer = f" ({edge:,} of them {LONGEST})" if edge else ""
    tried = data.scalar("FROM (SELECT unnest(measured) - 1 AS n FROM draft) SELECT string_agg(DISTINCT n, ', ' ORDER BY n)")
    return f"best of {tried} drafted tokens: {best} workloads{longer}, at {describe_draft(data.draft)}"


STEPS = "results/steps"  # where the command writes


def without_rest(data: Dataset, source: str) -> dict[str, str]:
    """What has no answer since `source` has no such step, by model and device, with the command that measures all steps again."""
    found = {}
    for model, device, tp, is_mla, batches, lengths, s_kv, left in data.execute(query("without_rest", source=literal(source))):
        call = {"routine": ["mla"], "backend": ["flash_attn_3"]} if is_mla else {"backend": ["fa2_tc"]}
        axes = {"include": [], **call, "batch_size": batches, "s_qo": lengths, "s_kv": [s_kv], "tp": [tp or 1]}
        command = f"{measuring(model, {}, axes, 'in_step')} timing.context=step results.path={STEPS}"
        found[f"{model} on {device}: {left}"] = command
    return found
