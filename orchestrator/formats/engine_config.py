"""`export=vllm` and `export=sglang`: the answers of question=one_backend as lines to type, with their evidence as comments.

vLLM's table of draft lengths is `num_speculative_tokens_per_batch_size`: entries `[first batch, last batch, drafted tokens]`,
the first one from 1 (vLLM's docs/features/speculative_decoding/dynamic_speculative_decoding.md; `v1/spec_decode/dynamic/utils.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import exp, isqrt, log
from statistics import fmean
from typing import Any

from orchestrator.analysis.connection import Record
from orchestrator.analysis.dataset import Dataset
from orchestrator.analysis.finder import measuring
from orchestrator.analysis.keys import PROBLEM_KEYS
from orchestrator.analysis.names import libraries_of
from orchestrator.analysis.questions import query_text
from orchestrator.analysis.questions.cache_size import left_out
from orchestrator.analysis.questions.deployments import PLACE, Choice, Part, parts
from orchestrator.analysis.questions.draft import FREE_DRAFTS, describe_draft, of_one_rest
from orchestrator.analysis.questions.one_backend import but_at_worst, of_default, stands_on
from orchestrator.analysis.questions.tables import group_by, span, times
from orchestrator.analysis.rough import ROUGH, mark
from orchestrator.analysis.sql import literal, query, quoted
from orchestrator.analysis.step_rest import PRESET, PRESETS, ModelPlace
from orchestrator.config.draft_cost import Draft
from orchestrator.config.engine import Engine
from orchestrator.config.model import layers_of
from orchestrator.errors import UserError
from orchestrator.grouped import grouped
from orchestrator.untrusted.text import for_line

OF_ONE_STEP = ("batch_size", "s_qo")  # what steps of one table differ in


def config_text(data: Dataset, engine: Engine, draft: Draft, path: str) -> str:
    """The whole text, with a section for each deployment. Raises UserError if no row is of a workload that a flag is chosen for."""
    found = [part for part in parts(data) if part.who == engine.title]
    if not found:
        too_big = "; ".join(left_out(data, ["device_name"]).values())
        why = too_big or "no row is of a GPU and a workload that a flag of it serves"
        raise UserError(f"export={engine.engine}: results.path={path!r}: {why}; type another results.path=..., or leave where= out")
    sections = grouped((part.place, part) for part in found)
    typed = _typed_caches(sections)
    lines = {place: _section(data, engine, section, draft, path) for place, section in sections.items()}
    shown = ((one if place in typed or one.startswith("#") else f"# {one}" for one in of) for place, of in lines.items())
    texts = ["\n".join(map(for_line, of)) for of in shown]
    return "\n\n".join(filter(None, (_nothing_to_type(found, texts), *texts))) + "\n"


def _typed_caches(places: Iterable[tuple[Any, ...]]) -> set[tuple[Any, ...]]:
    """Of places that differ in the cache alone the one whose lines are typed: with 16 bits, which engines take, if there is one."""
    at = PLACE.index("kv_dtype")
    alike = grouped(((*place[:at], *place[at + 1 :]), place) for place in places)
    return {min(of, key=lambda place: (place[at] != "bf16", str(place[at]))) for of in alike.values()}


def _nothing_to_type(found: Sequence[Part], texts: Iterable[str]) -> str:
    """The first line of a text that changes nothing."""
    choices = [choice for part in found if (choice := part.answer.choice) and not choice.typed]
    if len(choices) < len(found) or not all(line.startswith("#") for text in texts for line in text.splitlines()):
        return ""
    names = dict.fromkeys(choice.label for choice in choices)
    was = ", and was wrong at some workloads" * any(one.record[key] for one in choices for key in ("wrong", "wrong_if_larger"))
    return f"# nothing to type: {', '.join(names)} {'is' if len(names) == 1 else 'are'} the default{was}"


def _section(data: Dataset, engine: Engine, section: Sequence[Part], draft: Draft, path: str) -> Iterator[str]:
    cache = section[0].choices[0].record["kv_dtype"]
    flag = engine.cache_flag(cache)
    yield f"# if your cache is {cache} ({flag or 'the default of engines'}):"
    yield f"# {engine.title}: {section[0].title}"
    yield f"# measured: {path}, {_libraries(data, section[0])}"
    if section[0].left_out:
        yield f"# {section[0].left_out}"
    table = [*draft_lines(data, section, draft)] if engine.has_draft_table else []
    typed = "drafts" if any(not one.startswith("#") for one in table) else section[0].phase  # a server with a table drafts
    lines = [*(line for part in section for line in _part(part, typed, flag)), *table]
    yield from (line for line in lines if line.startswith("#"))
    yield from _continued(dict.fromkeys(line for line in lines if not line.startswith("#")))


def _continued(flags: Iterable[str]) -> list[str]:
    """Flags as lines of one command: without the backslash a shell takes the second line for a command of its own."""
    return " \\\n".join(flags).splitlines()


def _libraries(data: Dataset, part: Part) -> str:
    """The packages that were measured on the GPU of a part."""
    where = f"device_name = {literal(part.place[0])} AND libraries IS NOT NULL"
    found = data.execute(f"SELECT DISTINCT libraries FROM current WHERE {where}")
    return ", ".join(libraries_of(several for (several,) in found)) or "unknown libraries"


def _part(part: Part, typed: str, of_cache: str) -> Iterator[str]:
    """The answer of a part, its lines to type, comments unless its phase is `typed`, and what stands behind both."""
    choice = part.answer.choice
    changed = None if part.answer.keeps else choice
    yield f"# {part.what}: " + (f"{changed.label}, {part.answer.why}" if changed else part.answer.words)
    comment, typed_here = part.phase != typed, [*choice.typed, *filter(None, [of_cache])] if choice else []
    if comment and choice:
        yield f"#   a server that runs {part.what} takes, in place of the other flags, {'these:' if typed_here else 'none'}"
    yield from (f"# {one}" for one in _continued(typed_here)) if comment else typed_here
    shown = changed or part.next_best
    if shown is not None and part.default is not None:
        yield f"#   {shown.label}: {_evidence(shown, part.default)}"
        if shown is not choice:
            yield f"#   {shown.label} {part.holds_for(shown)}"
    if choice is not None:
        at_worst = choice.no_comparison or f"at worst {choice.worst_words} times the fastest"
        yield f"#   {but_at_worst(choice) if choice.record['much_slower'] else at_worst}"
        yield f"#   {stands_on(choice)}{of_default(part)}; {part.holds}"
    yield from (f"#   {other.label}: {other.not_right}" for other in part.choices if other.not_right and other is not choice)


def _evidence(choice: Choice, default: Choice) -> str:
    """A flag beside the default at the workloads where that was right."""
    own, base = choice.record, default.record
    change = mark(own["rough_ratio"]) + times(1 - own["saving"], than=default.label)
    noise = f"by more than noise faster at {own['ahead']}, slower at {own['behind']}, too close to tell at {own['close']}"
    unchecked = None in (own["rel_err"], base["rel_err"])
    error = "" if unchecked else f"; largest error {choice.error} against {default.error}"
    rough = own["rough"] + base["rough"]
    known = f"; {rough} ratios are rough, only known within {ROUGH:.0%}" if rough else ""
    sources = [(one.label, source) for one in (choice, default) for source in one.record["measured_as"] or ()]
    known += "".join(f"; {label} measured as {source}, which makes the same call" for label, source in sources)
    mean = f"geometric mean of {own['pairs']} workloads: {noise}; {own['worst_ratio']:.2f} times its time at the worst one"
    medians = " against ".join(f"{record['least_us']:,.1f} to {record['most_us']:,.1f}" for record in (own, base))
    return f"{change} ({mean}; medians {medians} µs{error}{known})"


@dataclass(frozen=True)
class BatchDrafts:
    """The best number of drafted tokens of one batch size, for vLLM's table.

    `gain`: its tokens/s over those without drafts, the geometric mean over `contexts`. `by_context`: the best at each alone.
    `measured`: all numbers that were compared; `without_rest`: those that draft.rest has no step with as many query tokens for.
    """

    size: int
    drafts: int
    gain: float
    contexts: tuple[int, ...]
    by_context: tuple[int, ...]
    measured: tuple[int, ...]
    without_rest: tuple[int, ...] = ()
    rough: int = 0  # of the times behind it


def draft_lines(data: Dataset, section: Sequence[Part], draft: Draft) -> Iterator[str]:
    """The table for the flag that vLLM will run with drafts, or why there is none."""
    for drafting in (part for part in section if part.phase == "drafts"):
        if (runs := drafting.answer.choice) is None:
            yield "# no draft table: there is no advice for drafts"
            continue
        steps = steps_of(data, drafting, runs)
        has_decode = any(step["s_qo"] == 1 for step in steps)
        if why := _why_none(steps, runs, draft) if has_decode else _no_decode(data, drafting):
            yield f"# no draft table: {why}"
            continue
        batches = best_drafts(steps)
        yield from _table_comments(runs, batches, draft)
        yield from _rest_comments(steps, batches, draft)
        most = max(1, *(b.drafts for b in batches))
        table = {"num_speculative_tokens": most, "num_speculative_tokens_per_batch_size": ranges(batches)}
        yield f"--speculative-config '{json.dumps(table)}'"


def steps_of(data: Dataset, part: Part, runs: Choice) -> list[Record]:
    """The steps (`steps.sql`) of a flag in the deployment of `part`; `alike` is equal but for batch size and query tokens."""
    here = " AND ".join(f"{key} IS NOT DISTINCT FROM {literal(value)}" for key, value in zip(PLACE, part.place, strict=True))
    others = [quoted(key) for key in PROBLEM_KEYS if key not in (*PLACE, *OF_ONE_STEP, "routine", "q_dtype", "out_dtype")]
    layers = "" if part.layers == "all" else f" AND layers = {literal(part.layers)}"
    chosen = {"who": literal(part.who), "choice": literal(runs.record["choice"]), "here": here + layers}
    rows = query("rows_of_choice", others=", ".join(others), **chosen)
    return data.records(f"FROM ({query_text('steps').format(source=f'({rows})')}) ORDER BY batch_size, s_kv, alike, s_qo")


def best_drafts(steps: Sequence[Record]) -> list[BatchDrafts]:
    """The best draft of each batch with one query token and more; none if it is the longest with a rest: a longer may be better."""
    found = (_of_batch(size, of_batch) for (size,), of_batch in group_by(steps, ("batch_size",)).items())
    return [b for b in found if b is not None and not (b.without_rest and b.drafts == b.measured[-1])]


def _of_batch(size: int, steps: Sequence[Record]) -> BatchDrafts | None:
    """None if no context has both one query token and more."""
    known, left = [step for step in steps if step["rate"] is not None], _without_rest(steps)
    rates = [(key[0], {r["s_qo"]: r["rate"] for r in of}) for key, of in group_by(known, ("s_kv", "alike")).items()]
    whole = [(context, of) for context, of in rates if 1 in of and len(of) > 1]
    if not whole:
        return None
    lengths = sorted(set.intersection(*(set(of) for _, of in whole)))
    score = {q: fmean(log(of[q]) for _, of in whole) for q in lengths}
    best = _best_length(score)
    alone = tuple(_best_length({q: of[q] for q in lengths}) - 1 for _, of in whole)
    contexts, measured = tuple(context for context, _ in whole), tuple(q - 1 for q in lengths)
    rough = sum(step["rough"] for step in known)
    return BatchDrafts(size, best - 1, exp(score[best] - score[1]), contexts, alone, measured, left, rough)


def _without_rest(steps: Iterable[Record]) -> tuple[int, ...]:
    """The drafted tokens of those steps that draft.rest has no rest for."""
    return tuple(sorted({step["s_qo"] - 1 for step in steps if step["rate"] is None}))


def _best_length(score: dict[int, float]) -> int:
    """The s_qo with the highest score, of equal ones the shortest."""
    return max(score, key=lambda q: (score[q], -q))


def ranges(batches: Sequence[BatchDrafts]) -> list[list[int]]:
    """vLLM's entries. Between two measured batch sizes the change lies at their geometric mean."""
    entries: list[list[int]] = []
    first = 1
    for batch, following in zip(batches, [*batches[1:], *batches[-1:]], strict=True):
        last = max(batch.size, isqrt(batch.size * following.size))
        if entries and entries[-1][2] == batch.drafts:
            entries[-1][1] = last
        else:
            entries.append([first, last, batch.drafts])
        first = last + 1
    return entries


def _why_none(steps: Sequence[Record], runs: Choice, draft: Draft) -> str:
    """Why the rows do not support a table; empty if they do."""
    if not draft.whole_steps:
        place = tuple(runs.record[key] for key in ModelPlace._fields)
        preset = f"draft.rest={PRESET} draft.cost_us=..., or " if place in PRESETS else ""
        layers = layers_of(place[0]) or "N"
        return f"it needs the time of a whole step; type {preset}draft.layers={layers} draft.rest_us=... draft.cost_us=..."
    if not best_drafts(steps):
        if _without_rest(steps):
            tokens = "as many query tokens as these batches have with and without a draft"
            return f"draft.rest={draft.rest} has no step with {tokens}; question=draft says what to measure"
        return "what vLLM runs here was not measured with one query token and with more at the same workloads"
    return ""


def _no_decode(data: Dataset, part: Part) -> str:
    """Why a deployment has no step without drafts: its rows have none that is right, or `drafts` leaves them out."""
    model, tp, device = (part.place[PLACE.index(key)] for key in ("model", "tp", "device_name"))
    here = f"model IS NOT DISTINCT FROM {literal(model)} AND tp IS NOT DISTINCT FROM {literal(tp)}"
    if data.scalar(f"SELECT count(*) FROM current WHERE status = 'ok' AND s_qo = 1 AND {here}"):
        return "no decode (s_qo 1) among the workloads that were asked for; leave drafts out"
    sweeps = data.execute(f"SELECT sweep FROM current WHERE {here} GROUP BY sweep ORDER BY count(*) DESC, sweep")
    axes = {"tp": [tp or 1], "s_qo": [1, *part.lengths]}
    return f"no decode (s_qo 1) in this dataset; to measure: {measuring(model, {of: {} for (of,) in sweeps}, axes, gpus=[device])}"


def _table_comments(runs: Choice, batches: Sequence[BatchDrafts], draft: Draft) -> Iterator[str]:
    yield f"# drafts: most tokens/s with {runs.label}, at {describe_draft(draft)}; add your method and model to this JSON"
    if not (draft.cost_us or draft.start_us):
        yield f"#   {FREE_DRAFTS}: type draft.cost_us=... or draft.start_us=..."
    for batch in batches:
        contexts = f"{len(batch.contexts)} contexts, s_kv {span(batch.contexts, '{:,}'.format)}"
        gain = f"{batch.gain:.2f} times the tokens/s without drafts (geometric mean of {contexts})"
        line = f"#   batch {batch.size}: {batch.drafts} drafted, {gain}"
        line += f"; {batch.rough} of its times are rough, only known within {ROUGH:.0%}" * (batch.rough > 0)
        line += "; the longest measured here: question=draft looks for longer ones" * (batch.drafts == batch.measured[-1])
        if len({*batch.by_context}) > 1:
            line += "; by context " + ", ".join(f"{k} at {c:,}" for c, k in zip(batch.contexts, batch.by_context, strict=True))
        yield line
    sizes = [batch.size for batch in batches]
    yield f"#   measured at batch {', '.join(map(str, sizes))}; between two of them the change is put at their geometric mean"
    yield f"#   nothing is known of batches above {max(sizes)}: measure them, or allow no more requests at once (--max-num-seqs)"


def _rest_comments(steps: Sequence[Record], batches: Sequence[BatchDrafts], draft: Draft) -> Iterator[str]:
    """On which rest of a step the table stands, and what it leaves out for lack of one."""
    if draft.rest is None:
        yield f"#   the rest of a step: {draft.rest_us:g} µs for all layers together (draft.rest_us), at every batch and draft"
        if words := of_one_rest(draft, max(batch.size * (batch.measured[-1] + 1) for batch in batches)):
            yield f"#   {words}: 'where={{batch_size: N}}' and the rest of that batch make a line of it right"
        return
    sizes = {batch.size for batch in batches}
    found = [step for step in steps if step["batch_size"] in sizes and step["rate"] is not None]
    rests, tokens = [step["rest_layer_us"] for step in found], [step["batch_size"] * step["s_qo"] for step in found]
    layers = f"{found[0]['step_layers']:.0f} layers of {min(rests):,.1f} to {max(rests):,.1f} µs each"
    yield (
        f"#   the rest of a step: {layers}, for {span(tokens, '{:,}'.format)} query tokens in a batch, as measured in steps "
        f"(draft.rest={draft.rest}; {found[0]['rest_by']}); no all-reduce between GPUs"
    )
    for (size,), of_batch in group_by(steps, ("batch_size",)).items():
        if left := _without_rest(of_batch):
            whole = "" if size in sizes else ", and so the whole batch"
            what = f"batch {size} with {', '.join(map(str, left))} drafted{whole}"
            why = f"since draft.rest={draft.rest} has no step with as many query tokens"
            yield f"#   left out: {what}, {why}; question=draft prints the command that measures it"
