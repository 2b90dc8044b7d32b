"""The tables of question=crossover: verify a draft with the decode kernel or with the prefill kernel."""

from __future__ import annotations

from orchestrator.analysis.connection import Record
from orchestrator.analysis.dataset import Dataset
from orchestrator.analysis.questions.exactness import error, named
from orchestrator.analysis.questions.tables import across_contexts, fetch, lead, split_by_title
from orchestrator.analysis.rough import legend
from orchestrator.tables import Grid

NEEDS = "paged_decode and paged_prefill of problems that differ in nothing else, such as those of +sweep=target_verify"
EACH = "problems"


def grids(data: Dataset) -> list[Grid]:
    """The faster kernel of each problem, and the context from which prefill is ahead."""
    title = "verify by decode or by prefill, µs of the faster (ahead by), err: relative error of its worst row"
    found = fetch(data, "crossover")
    title += legend(*(record["rough"] for record in found))
    return [
        across_contexts(f"{title} · {name}", part, _cell, last=("prefill ahead from", prefill_from))
        for name, part in split_by_title(found, ("s_qo", "batch_size", "s_kv"))
    ]


def _cell(record: Record) -> str:
    side = "prefill" if record["prefill_us"] < record["decode_us"] else "decode"
    backend, us, rel_err = (record[f"{side}_{what}"] for what in ("backend", "us", "rel_err"))
    ahead = lead(record["ahead_by"], "+", record["rough"])
    return f"{record['faster']} {named(backend, record[f'{side}_kernel'])} {us:,.1f} ({ahead}) {error(rel_err)}"


def prefill_from(records: list[Record]) -> str:
    """The shortest context from which prefill stays ahead by more than `SAME`: `always`, `never`, or that context."""
    ahead = sorted((r["s_kv"], r["faster"] == "prefill") for r in records)
    last_decode = max((i for i, (_, prefill) in enumerate(ahead) if not prefill), default=-1)
    if last_decode == -1:
        return "always"
    return "never" if last_decode == len(ahead) - 1 else f"{ahead[last_decode + 1][0]:,}"


def summary(data: Dataset) -> str | None:
    """The number of problems for which each is faster."""
    counts = dict(data.execute("SELECT faster, count(*) FROM crossover GROUP BY faster"))
    if not counts:
        return None
    return ", ".join(f"{side} at {counts.get(side, 0):,}" for side in ("decode", "prefill", "either")) + " problems"
