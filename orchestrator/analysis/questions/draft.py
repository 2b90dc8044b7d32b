"""Question 5 on a terminal: the best draft length, given the acceptance rate and the cost of a draft."""

from __future__ import annotations

from orchestrator.analysis.dataset import Dataset, Record
from orchestrator.analysis.questions.tables import fetch, split_by_title
from orchestrator.config.draft_cost import Draft
from orchestrator.tables import Grid


def grids(data: Dataset, draft: Draft) -> list[Grid]:
    """A line for each batch, a column for each context: the s_qo with the most tokens/s, that rate, and its gain over s_qo = 1."""
    found = []
    says = "tokens for its time over those of s_qo 1" if draft.layers is None else "tokens/s of the batch (over s_qo 1)"
    for name, part in split_by_title(fetch(data, "draft", axes=("batch_size", "s_kv")), ("batch_size", "s_kv")):
        contexts = sorted({r["s_kv"] for r in part})
        cells = []
        for batch in sorted({r["batch_size"] for r in part}):
            by_context = {r["s_kv"]: _cell(r, draft) for r in part if r["batch_size"] == batch}
            cells.append((str(batch), *(by_context.get(c, "–") for c in contexts)))
        title = f"best draft length: s_qo, {says} at {describe_draft(draft)}"
        found.append(Grid(f"{title} · {name}", ("batch", *(f"s_kv {c:,}" for c in contexts)), tuple(cells)))
    return found


def describe_draft(draft: Draft) -> str:
    """The assumptions of the answer, in words."""
    chances = draft.acceptance if isinstance(draft.acceptance, tuple) else (draft.acceptance,)
    accepted = f"acceptance {', '.join(f'{a:g}' for a in chances)}"
    if draft.layers is None:
        return f"{accepted}, by attention alone: draft.layers, draft.rest_us and draft.cost_us make it whole steps"
    rest = f", {draft.rest_us:g} µs a step for the rest" if draft.rest_us else ""
    start = f", {draft.start_us:g} µs a draft" if draft.start_us else ""
    layers = f"{draft.layers} layer{'s' if draft.layers > 1 else ''} of attention"
    return f"{accepted}, {layers}{rest}{start}, {draft.cost_us:g} µs a drafted token"


def _cell(record: Record, draft: Draft) -> str:
    """Without layers only the ratio is shown: nobody will see the tokens/s of one attention layer."""
    if draft.layers is None:
        return f"{record['best_s_qo']}" + ("" if record["gain"] is None else f": {record['gain']:.2f}×")
    gain = "" if record["gain"] is None else f" ({record['gain']:.2f}×)"
    return f"{record['best_s_qo']}: {record['tokens_per_s']:,.0f}/s{gain}"


def summary(data: Dataset, draft: Draft) -> str | None:
    """How many shapes each draft length is best for."""
    counts = data.execute("SELECT best_s_qo, count(*) FROM draft GROUP BY ALL ORDER BY ALL")
    if not counts:
        return None
    return "best s_qo: " + ", ".join(f"{s_qo} at {count:,}" for s_qo, count in counts) + f" shapes, at {describe_draft(draft)}"
