"""Question 5 on a terminal: how long a draft should be, given how often it is accepted and what it costs."""

from __future__ import annotations

from orchestrator.dataset import Dataset, Record
from orchestrator.draft import Draft
from orchestrator.grid import Grid
from orchestrator.questions.tables import fetch, named


def grids(data: Dataset, draft: Draft) -> list[Grid]:
    """Batch down, context across: the s_qo with the most tokens a second, these, and its gain over s_qo = 1."""
    found = []
    says = "tokens for its time over those of s_qo 1" if draft.layers is None else "tokens/s of the batch (over s_qo 1)"
    for name, part in named(fetch(data, "draft", axes=("batch_size", "s_kv")), ("batch_size", "s_kv")):
        contexts = sorted({r["s_kv"] for r in part})
        cells = []
        for batch in sorted({r["batch_size"] for r in part}):
            by_context = {r["s_kv"]: _cell(r, draft) for r in part if r["batch_size"] == batch}
            cells.append((str(batch), *(by_context.get(c, "–") for c in contexts)))
        title = f"best draft length: s_qo, {says} at {assumed(draft)}"
        found.append(Grid(f"{title} · {name}", ("batch", *(f"s_kv {c:,}" for c in contexts)), tuple(cells)))
    return found


def assumed(draft: Draft) -> str:
    """What the answer was given, in words."""
    chances = draft.acceptance if isinstance(draft.acceptance, tuple) else (draft.acceptance,)
    accepted = f"acceptance {', '.join(f'{a:g}' for a in chances)}"
    if draft.layers is None:
        return f"{accepted}, by attention alone: draft.layers, draft.rest_us and draft.cost_us make it whole steps"
    rest = f", {draft.rest_us:g} µs a step for the rest" if draft.rest_us else ""
    start = f", {draft.start_us:g} µs a draft" if draft.start_us else ""
    layers = f"{draft.layers} layer{'s' if draft.layers > 1 else ''} of attention"
    return f"{accepted}, {layers}{rest}{start}, {draft.cost_us:g} µs a drafted token"


def _cell(record: Record, draft: Draft) -> str:
    """Tokens a second of attention alone are none that anyone will see, so only their ratio is shown."""
    if draft.layers is None:
        return f"{record['best_s_qo']}" + ("" if record["gain"] is None else f": {record['gain']:.2f}×")
    gain = "" if record["gain"] is None else f" ({record['gain']:.2f}×)"
    return f"{record['best_s_qo']}: {record['tokens_per_s']:,.0f}/s{gain}"


def short(data: Dataset, draft: Draft) -> str | None:
    """Which lengths win how often."""
    counts = data.con.execute("SELECT best_s_qo, count(*) FROM draft GROUP BY ALL ORDER BY ALL").fetchall()
    if not counts:
        return None
    return "best s_qo: " + ", ".join(f"{s_qo} at {count:,}" for s_qo, count in counts) + f" shapes, at {assumed(draft)}"
