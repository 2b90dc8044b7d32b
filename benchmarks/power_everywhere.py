"""What the check can find at every committed point of every sweep, and how it answers to the faults that once passed."""

from __future__ import annotations

import pandas as pd

from orchestrator import ROOT
from orchestrator.analysis.names import of_references
from orchestrator.storage import parquet
from orchestrator.tables import Grid

RESULTS = ROOT / "results"
# In the names of datasets beside a sweep.
BESIDE = ("_check_power", "_noise", "rule_edges", "_study_", "bisect", "_dirty", "_cold_code")
READ = ("status", "backend", "sweep", "tolerance", "check_min_tokens", "check_pairs_covered", "launches_checked")
EIGHT_BITS = 0.05  # tolerances of kernels that multiply in 8 bits are above it
PAGE, ENOUGH = 64, 72  # keys; launches in which one wrong of 16 is found with a probability of 0.99
FAULTS = {  # that earlier checks passed: mutants of `mode=check_power`
    "full_draft": "draft tokens see the drafts after them",
    "draft_alone": "draft tokens see the context and themselves alone",
    "previous_draft_missed": "each draft token misses the one before it",
    "first_draft_missed": "each draft token misses the first one",
    "64_tokens_lost_in_one_head": "one page lost in one KV head",
    "16_tokens_lost_in_one_head": "16 tokens lost in one KV head",
}
WHERE = ((32768, 2), (131072, 2), (131072, 4))  # s_kv, s_qo


def of_sweeps() -> Grid:
    """Points of right kernels by sweep and width of the products: how much of the statement holds at each."""
    folders = [path for path in sorted(RESULTS.glob("h[12]00_*")) if not any(part in path.name for part in BESIDE)]
    tables = (parquet.read(folder).to_pandas() for folder in folders)
    parts = [table[list(READ)] for table in tables if set(READ) <= set(table)]
    rows = pd.concat(parts).query("status == 'ok' and backend != 'auto'")
    rows = rows[~rows["backend"].str.contains(of_references())]
    bits = rows["tolerance"].gt(EIGHT_BITS).map({True: "8 bits", False: "16 or 32 bits"})
    cells = [(*map(str, names), *_reached(part)) for names, part in rows.groupby(["sweep", bits], sort=True)]
    header = ("sweep", "products in", "points", f"N up to {PAGE}", "largest N", "without N")
    return Grid("", (*header, "all pairs covered", "least of a mask covered", f"{ENOUGH} launches compared"), tuple(cells))


def _reached(rows: pd.DataFrame) -> tuple[str, ...]:
    tokens, pairs = rows["check_min_tokens"], rows["check_pairs_covered"].fillna(1.0)
    return (
        f"{len(rows):,}",
        f"{(tokens <= PAGE).mean():.1%}",
        f"{tokens.max():,.0f}" if tokens.notna().any() else "–",
        f"{tokens.isna().sum()}",
        f"{(pairs == 1).mean():.1%}",
        f"{pairs.min():.0%}",
        f"{(rows['launches_checked'] >= ENOUGH).mean():.0%}",
    )


def faults(card: str = "h200") -> Grid:
    """Faults that earlier checks passed, in bf16 at batch 1: by how much each is beyond its limit.

    The figure is the error of the worst row over its tolerance, or the clearest estimate over its limit, whichever is larger.
    """
    table = parquet.read(RESULTS / f"{card}_specdec_long_ctx_check_power").to_pandas()
    table = table.query("batch_size == 1 and q_dtype == 'bf16' and kv_dtype == 'bf16'")
    beyond = table[["err_over_tolerance", "weight_over_limit"]].max(axis=1).where(table["status"] == "mismatch", 0.0)
    found = beyond.groupby([table["backend"], table["s_kv"], table["s_qo"]]).max()
    cells = [(words, *(f"{found[(name, *at)]:.1f}" for at in WHERE)) for name, words in FAULTS.items()]
    return Grid("", ("wrong in this way", *(f"1 × {s_kv:,}, {s_qo} query tokens" for s_kv, s_qo in WHERE)), tuple(cells))
