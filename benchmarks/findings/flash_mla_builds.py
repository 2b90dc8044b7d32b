"""FlashMLA over a bf16 latent in SGLang's build and in vLLM's, beside FlashAttention-3: a part of the finding on MLA of engines."""

from __future__ import annotations

import pandas as pd

from benchmarks.findings.frames import rows, span
from benchmarks.findings.page import checked
from orchestrator.tables import Grid

BUILDS, EARLIER = DATASETS = ("h100_mla/flash_mla_builds", "h100_mla/mla_mtp_all_candidates")
SHAPE = ["num_qo_heads", "s_kv", "s_qo", "batch_size"]
SGLANG, VLLM, DEFAULT = "flash_mla", "flash_mla_vllm", "flash_attn_3"


def times(dataset: str) -> pd.DataFrame:
    """µs by shape and backend, of requests with equal query lengths over a bf16 latent."""
    ok = rows(dataset)
    equal = ok[ok["min_s_qo"].isna() & (ok["kv_dtype"] == "bf16") & ok["backend"].isin([SGLANG, VLLM, DEFAULT])]
    return equal.pivot(index=SHAPE, columns="backend", values="own_us")


def answer() -> str:
    found = times(BUILDS).dropna()
    of_vllm, of_default = found[SGLANG] / found[VLLM], found[SGLANG] / found[DEFAULT]
    index = found.index
    drafts = (index.get_level_values("num_qo_heads") == 128) & (index.get_level_values("s_qo") > 1)
    errors = rows(BUILDS).groupby("backend")["rel_err"].max()
    return "\n".join(
        (
            f"SGLang's build of FlashMLA takes {of_vllm.median():.2f} times as long as vLLM's over a bf16 latent, at the median of {len(found)} shapes ({span(of_vllm)})."
            " Why was not examined.",
            f"Beside FlashAttention-3 it takes {of_default.median():.2f} times ({span(of_default)}): {of_default[drafts].median():.2f} times with 128 heads and drafts,"
            f" where it is the faster one at {(of_default[drafts] < 1).sum()} of {drafts.sum()} shapes, and {of_default[~drafts].median():.2f} times elsewhere"
            f" ({(of_default[~drafts] < 1).sum()} of {(~drafts).sum()}).",
            checked(
                f"All three have errors of up to {errors.max():.2%}.",
                errors.max() < 1.1 * errors.min(),
                bool((of_vllm < 1).all()),
            ),
        )
    )


def limits() -> str:
    """How near the same kernels were in an earlier run."""
    now, before = times(BUILDS), times(EARLIER)
    both = now[[VLLM, DEFAULT]] / before[[VLLM, DEFAULT]]
    return (
        "the builds of FlashMLA are vLLM 0.32.0's and tokenspeed-flashmla 1.0.0.post20260615, in one run on one H100 with torch 2.11.\n"
        f"vLLM's and FlashAttention-3 took {span(both.median())} times as long there as in `{EARLIER}` at the median ({span(both.stack())})."
    )


def table() -> Grid:
    found = times(BUILDS).dropna()
    ratios = pd.DataFrame({name: found[SGLANG] / found[name] for name in (VLLM, DEFAULT)})
    cells = [
        (str(heads), str(s_qo), str(len(part)), *(f"{part[name].median():.2f} ({span(part[name])})" for name in ratios))
        for (heads, s_qo), part in ratios.groupby(level=["num_qo_heads", "s_qo"])
    ]
    header = ("query heads", "s_qo", "shapes", "over vLLM's build of FlashMLA", "over FlashAttention-3")
    return Grid("time of SGLang's build of FlashMLA over a bf16 latent, median (least to most)", header, tuple(cells))
