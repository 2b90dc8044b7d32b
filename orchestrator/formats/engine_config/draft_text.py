"""vLLM's table of draft lengths as text, with a comment for what each line gains and on which rest of a step it stands."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from orchestrator.analysis.questions.draft import FREE_DRAFTS, describe_draft
from orchestrator.analysis.rough import ROUGH
from orchestrator.analysis.step_rest import PRESET
from orchestrator.config.draft_cost import Draft
from orchestrator.formats.engine_config.choice import choose
from orchestrator.formats.engine_config.drafts import BatchDrafts, best_drafts, ranges, without_rest
from orchestrator.formats.engine_config.flags import Flag, flags_of
from orchestrator.formats.engine_config.shapes import Section, Shape, extent, phases_of


def draft_lines(section: Section, draft: Draft) -> Iterator[str]:
    """The table for the backend that vLLM will run, or why there is none."""
    for kind in ("full_attention", "mla_attention"):
        shapes = section.shapes_of(kind)
        runs = choose(shapes, flags_of("vllm", section.major, kind), section.major).runs
        batches = best_drafts(shapes, runs, draft) if runs and draft.whole_steps else []
        if why := _why_none(shapes, runs, batches, draft):
            yield f"# no draft table: {why}"
        elif batches and runs:
            yield from _comments(runs, batches, draft)
            yield from _rest_comments(shapes, runs, batches, draft)
            table = {
                "num_speculative_tokens": max(1, *(b.drafts for b in batches)),
                "num_speculative_tokens_per_batch_size": ranges(batches),
            }
            yield f"--speculative-config '{json.dumps(table)}'"


def _why_none(shapes: Sequence[Shape], runs: Flag | None, batches: Sequence[BatchDrafts], draft: Draft) -> str:
    """Why the data do not support a table; empty if they do, or if there is nothing to decode."""
    phases = list(phases_of(list(shapes)))
    if "decode" not in phases and "verify" not in phases:
        return ""
    if "decode" not in phases or "verify" not in phases:
        missing = "verify (s_qo above 1)" if "decode" in phases else "decode (s_qo 1)"
        return f"these rows have no {missing} shapes; leave s_qo out of where, or measure them"
    if not draft.whole_steps:
        costs = "draft.layers=80 draft.rest_us=... draft.cost_us=..."
        return f"it needs the time of a whole step; type draft.rest={PRESET} draft.cost_us=..., or {costs}"
    if runs is not None and not batches and without_rest(shapes, runs, draft):
        return (
            f"draft.rest={draft.rest} has no step with as many query tokens as these batches have with a draft and without one; "
            "question=draft says what is left out, and what to measure"
        )
    if runs is None or not batches:
        return "what vLLM runs here was not measured with one query token and with more at the same shapes"
    return ""


def _comments(runs: Flag, batches: Sequence[BatchDrafts], draft: Draft) -> Iterator[str]:
    yield f"# drafts: most tokens/s with {runs}, at {describe_draft(draft)}; add your method and model to this JSON"
    if not (draft.cost_us or draft.start_us):
        yield f"#   {FREE_DRAFTS}: type draft.cost_us=... or draft.start_us=..."
    for batch in batches:
        contexts = f"{len(batch.contexts)} contexts, s_kv {extent(batch.contexts)}"
        gain = f"{batch.gain:.2f} times the tokens/s without drafts (geometric mean of {contexts})"
        line = f"#   batch {batch.size}: {batch.drafts} drafted, {gain}"
        if batch.rough:
            line += f"; {batch.rough} of its times are rough, only known within {ROUGH:.0%}"
        if batch.drafts == batch.measured[-1]:
            line += "; the longest draft measured, so a longer one may be better"
        if len({*batch.by_context}) > 1:
            line += "; by context " + ", ".join(f"{k} at {c:,}" for c, k in zip(batch.contexts, batch.by_context, strict=True))
        yield line
    sizes = [batch.size for batch in batches]
    yield f"#   measured at batch {', '.join(map(str, sizes))}; between two of them the change is put at their geometric mean"
    yield f"#   nothing is known of batches above {max(sizes)}: measure them, or allow no more requests at once (--max-num-seqs)"


def _rest_comments(shapes: Sequence[Shape], runs: Flag, batches: Sequence[BatchDrafts], draft: Draft) -> Iterator[str]:
    """On which rest of a step the table stands, and what it leaves out for lack of one."""
    if draft.rest is None:
        yield f"#   the rest of a step: {draft.rest_us:g} µs for all layers together (draft.rest_us), at every batch and draft"
        return
    sizes = {batch.size for batch in batches}
    found = [(shape, rest) for shape in shapes if shape.batch_size in sizes and (rest := shape.layer[0]) is not None]
    layers, rests = draft.layers or found[0][0].layer[1], [rest for _, rest in found]
    tokens = extent([shape.batch_size * shape.s_qo for shape, _ in found])
    yield (
        f"#   the rest of a step: {layers} layers of {min(rests):,.1f} to {max(rests):,.1f} µs each, for {tokens} query tokens "
        f"in a batch, as measured in steps (draft.rest={draft.rest}); no all-reduce, output projection or sampling"
    )
    for size, drafts in without_rest(shapes, runs, draft).items():
        whole = "" if size in sizes else ", and so the whole batch"
        yield (
            f"#   left out: batch {size} with {', '.join(map(str, drafts))} drafted{whole}, since draft.rest={draft.rest} has no "
            "step with as many query tokens; question=draft prints the command that measures it"
        )
