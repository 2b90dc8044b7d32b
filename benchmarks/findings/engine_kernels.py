"""What the engines' kernels beside FlashAttention-3 take: Triton, FlexAttention and FlashAttention-4.

The first dataset, with FlexAttention, is of an H100. The main sweep and prompts ran on an H100 and on an H200.
"""

from __future__ import annotations

import pandas as pd

from benchmarks.findings import build_pages, candidates
from benchmarks.findings.build_pages import CARDS, CHUNKS, of_cards
from benchmarks.findings.frames import FA3, RESULTS, SAME, keeping, rows, span, steady, table_of, tally
from benchmarks.findings.page import Finding, checked
from orchestrator.analysis.names import shown
from orchestrator.storage import parquet
from orchestrator.tables import Grid

DATASET = "h100_engines/engine_kernels"
PREFILL = {card: f"{card.lower()}_prefill/engine_prefill" for card in CARDS}
KEY = ["kv_dtype", "s_qo", "batch_size", "s_kv"]
PROMPT = ["routine", "batch_size", "s_qo", "s_kv"]
FA4, FLEX, SGLANG, VLLM = "flash_attn_4", "flex_attention", "sglang_triton", "vllm_triton"
BF16, FP8 = "bf16", "fp8_e4m3"
LARGE = 64  # requests: enough programs without a split


def finding() -> Finding:
    decode = rows(DATASET)
    ratios = over_fa3(decode, KEY)
    of_prompts = {card: over_fa3(prompts(card), PROMPT) for card in CARDS}
    return Finding(
        name="engine_kernels",
        question="What do Triton, FlexAttention and FlashAttention-4 cost beside FlashAttention-3 on Hopper?",
        answer="\n".join(
            (
                of_fa4(ratios, of_prompts),
                *of_triton(ratios, of_prompts),
                f"For chunks of prompts its other kernel takes {of_cards(chunks_over_fa3())} times.",
                of_flex(ratios),
                *of_leads(),
                candidates.answer(),
            )
        ),
        table=Grid("times FlashAttention-3's time over a bf16 cache, of 8,192 and 32,768 tokens", HEADER, tuple(cells(ratios))),
        advice="on Hopper give no draft and no prompt to vLLM's Triton kernel or to FlexAttention if FlashAttention-3 serves it.\n"
        + checked(
            "FlashAttention-4 is made for SM100: over the shapes of these datasets it is no faster, except at one prompt of 512 tokens.",
            *is_no_faster(ratios, of_prompts),
        )
        + f"\n[Drafts over 1,024 tokens]({VERIFY}) are another exception.\n{candidates.advice()}",
        limits=limits(decode),
        command=f"python -m orchestrator mode=report results.path=results/{DATASET}",
        datasets=(DATASET, *PREFILL.values(), *candidates.DATASETS.values(), CHUNKS["H100"]),
        evidence=(
            table_of("µs of decode and drafts", times(decode, KEY)),
            *(table_of(f"µs of prompts, {card}", times(rows(PREFILL[card]), PROMPT)) for card in CARDS),
            *(table_of(f"prompts: times FlashAttention-3's time, {card}", found, "{:.2f}") for card, found in of_prompts.items()),
            candidates.short_table(),
            *(candidates.table(card) for card in candidates.DATASETS),
        ),
    )


VERIFY = "#verify-a-draft-with-the-decode-kernel-or-with-the-prefill-kernel"
HEADER = ("backend", "query tokens", "1 request", "8 requests", f"{LARGE} requests")


def prompts(card: str) -> pd.DataFrame:
    """Prompts and chunks of them whose clocks the power cap did not hold down."""
    return steady(rows(PREFILL[card]), PROMPT)


def held_down() -> str:
    """How many prompts and chunks `prompts` leaves out, by card."""
    left = {card: len(times(rows(PREFILL[card]), PROMPT)) - len(times(prompts(card), PROMPT)) for card in CARDS}
    return " and ".join(f"{count} on an {card}" for card, count in left.items())


def chunks_over_fa3() -> dict[str, pd.Series]:
    """SGLang's Triton kernel for chunks of prompts, over FlashAttention-3."""
    return {card: build_pages.over_first(build_pages.chunk_times(card))[SGLANG] for card in CARDS}


def times(ok: pd.DataFrame, key: list[str]) -> pd.DataFrame:
    return ok.pivot_table(index=key, columns="backend", values="own_us")


def over_fa3(ok: pd.DataFrame, key: list[str]) -> pd.DataFrame:
    """Each backend's time over FlashAttention-3's. Over an FP8 cache FlashAttention-3 has FP8 queries, and the others bf16."""
    us = times(ok, key)
    return us.div(us[FA3], axis=0).drop(columns=FA3)


def cells(ratios: pd.DataFrame) -> list[tuple[str, ...]]:
    """A line for each backend and number of query tokens, over a bf16 cache."""
    bf16, lines = ratios.loc[BF16], []
    for backend in (name for name in bf16 if name != "fa2_tc"):
        for s_qo, part in bf16[backend].dropna().groupby(level="s_qo"):
            lines.append((shown(str(backend)), str(s_qo), *(span(part.xs(batch, level="batch_size")) for batch in (1, 8, LARGE))))
    return lines


def of_fa4(ratios: pd.DataFrame, prompts: dict[str, pd.DataFrame]) -> str:
    one, many = (ratios.loc[BF16][FA4].xs(batch, level="batch_size") for batch in (1, LARGE))
    return "\n".join(
        (
            f"FlashAttention-4 splits no keys on SM90: with one request it takes {span(one)} times FlashAttention-3's time, with {LARGE} requests {span(many)} times.",
            f"With prompts and chunks of them it takes {of_cards({card: found[FA4] for card, found in prompts.items()})} times.",
        )
    )


def is_no_faster(ratios: pd.DataFrame, prompts: dict[str, pd.DataFrame]) -> tuple[bool, ...]:
    """Whether FlashAttention-4 is no faster, by more than 2%, than FlashAttention-3, and is at the shortest prompt alone, on both cards."""
    ahead = (list(found[found[FA4] < 1 - SAME].index) for found in prompts.values())
    return bool((ratios[FA4].dropna() > 1 - SAME).all()), *(found == [("ragged_prefill", 1, 512, 512)] for found in ahead)


def of_triton(ratios: pd.DataFrame, prompts: dict[str, pd.DataFrame]) -> tuple[str, ...]:
    vllm, sglang = ratios.loc[BF16][VLLM], ratios.loc[BF16][SGLANG].dropna()
    few, more = (sglang[sglang.index.get_level_values("batch_size") == 1], sglang[sglang.index.get_level_values("batch_size") > 1])
    return (
        f"vLLM's Triton kernel takes {span(vllm.loc[1])} times with one query token, {span(vllm.loc[4])} times with 4, and {of_cards({card: found[VLLM] for card, found in prompts.items()})} times for chunks of prompts.",
        "Its source says why.\nIt splits keys for one query token alone, so 4 query tokens of one request are 16 programs, for 132 multiprocessors."
        "\nA program has 16 rows, here two query tokens of 8 heads, and Hopper's wide tensor instructions need 64.",
        f"SGLang's Triton kernel for decode takes, with one query token, {span(few)} times with one request, whose 8 splits are 64 programs, and {span(more)} times with more.",
    )


def of_flex(ratios: pd.DataFrame) -> str:
    flex = ratios.loc[BF16][FLEX]
    return f"FlexAttention takes {span(flex.loc[1].dropna())} times with one query token and {span(flex.loc[4].dropna())} with 4."


ON_BOTH = (FA3, "fa3", FA4, "fa2")  # what both cards have for all prompts, in one run or on one card


def of_leads() -> tuple[str, ...]:
    """Which kernel is the fastest for prompts on each card, and how long an H200 takes beside an H100."""
    us = {card: times(prompts(card), PROMPT) for card in CARDS}
    both = us["H100"].index.intersection(us["H200"].index)
    shared = {card: found.loc[both, list(ON_BOTH)] for card, found in us.items()}
    first = {card: found.idxmin(axis=1) for card, found in shared.items()}
    kept = keeping(shared["H100"], shared["H200"])
    chunks = us["H200"].loc["paged_prefill"]
    slower = (shared["H200"] / shared["H100"])[[FA3, "fa3", FA4]].stack().dropna()
    return (
        checked(
            f"For chunks of prompts in pages the fastest of eight backends on an H200 is {tally(chunks.idxmin(axis=1))} of {len(chunks)} shapes; {FA4} takes {span(chunks[FA4] / chunks.min(axis=1))} times its time.",
            len(chunks.columns) == 8,
        ),
        f"Of the four that both cards have, the fastest for prompts and chunks is {tally(first['H100'])} of {len(both)} shapes on an H100.\nOn an H200 it is {tally(first['H200'])}."
        f"\nThe two agree at {int((first['H100'] == first['H200']).sum())} shapes, and to keep the H100's choice costs the H200 {kept.max() - 1:.1%} at most.",
        checked(
            f"Prompts do not wait for memory: with one kernel an H200 takes {span(slower)} times an H100's time ({slower.median():.2f} at the median).",
            slower.between(0.95, 1.06).all(),
        ),
    )


def limits(decode: pd.DataFrame) -> str:
    """What was measured on which card, and what is not there."""
    table = parquet.read(RESULTS / DATASET).to_pandas()
    large = table[(table["backend"] == FLEX) & table["reason"].fillna("").str.endswith("2^31 elements")]
    best = times(decode, KEY).loc[BF16]
    return "\n".join(
        (
            "several H100s, each comparison on one (but for two prompts of `fa2`), and two H200s, one for the main sweep and one for prompts.\nAll have 64 query heads, 8 KV heads of 128, and lengths that are all the same. The host compiled kernels during the first three datasets. On the H200 another process ran a few short points beside the main sweep.",
            f"Left out are the prompts at which the power cap held a kernel's clocks down: {held_down()}.",
            "vLLM 0.32.0 and SGLang 0.5.23 were Python files beside torch 2.11, and no installed packages.",
            f"`{SGLANG}` over an FP8 cache multiplies in FP8, and no ratio above is of that. SGLang's kernel for drafts was not measured.",
            checked("FlexAttention does not compile for a cache of more than 2^31 elements, so it has no time at 64 requests of 32,768 tokens.",
                    set(zip(large["batch_size"], large["s_kv"], strict=True)) == {(LARGE, 32768)}),
            f"FlashAttention-3 is the fastest of all, or within {SAME:.0%} of it, at {int((best[FA3] <= best.min(axis=1) * (1 + SAME)).sum())} of {len(best)} of the first dataset's shapes over a bf16 cache.",
        )
    )  # fmt: skip
