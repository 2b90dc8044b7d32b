"""MLA over a bf16 latent on an H100 and an H200: FlashInfer's kernels, builds of FlashAttention-3 in vLLM and SGLang, and FlashMLA."""

from __future__ import annotations

import pandas as pd

from benchmarks.findings import nearness
from benchmarks.findings.builds import LATENT_SWEEPS as DATASETS
from benchmarks.findings.builds import MANY, SGLANG, UNPLANNED, latent_times
from benchmarks.findings.candidates import ties
from benchmarks.findings.draft_candidates import of_kept
from benchmarks.findings.frames import FA3, SAME, keeping, span, tally
from benchmarks.findings.page import checked
from orchestrator.tables import Grid, markdown

FA2, FLASHINFER, FLASH_MLA = "fa2", "fa3", "flash_mla_vllm"
EARLIER = "h200_mla/mla_mtp"  # FlashInfer's kernels on another H200
SHORT = 200  # µs of the fastest kernel: calls below that are short
FEW_HEADS, ALL_HEADS = 16, 128  # query heads of DeepSeek's models on one of eight GPUs, and on one


def times(card: str) -> pd.DataFrame:
    """µs by shape and backend, without FlashAttention-3's plan in each call, which the finding on builds has."""
    return latent_times(card).drop(columns=UNPLANNED)


def answer() -> str:
    """Both GPUs, and what differs."""
    return "\n".join((*(of_card(card) for card in DATASETS), differences()))


def of_card(card: str) -> str:
    us = times(card)
    ratios = us.div(us.min(axis=1), axis=0)
    return "\n".join(
        (
            checked(
                f"With the builds of vLLM 0.32.0 and SGLang the fastest of five on an {card} is {tally(us.idxmin(axis=1))} of {len(us)} shapes;"
                f" at {ties(us)} the two best are within {SAME:.0%}.",
                us.shape[1] == 5,
            ),
            f"In times of the fastest, at the median, vLLM's default takes {regret(ratios[FA3])}, and SGLang's {regret(ratios[SGLANG])}."
            f"\nFlashInfer's `fa3` takes {regret(ratios[FLASHINFER])}, vLLM's FlashMLA {regret(ratios[FLASH_MLA].dropna())}, and `fa2` {span(ratios[FA2])}.",
            of_short(us),
        )
    )


def regret(ratios: pd.Series) -> str:
    """How far a backend is from the fastest: the median, the worst, and at how many shapes it is as fast."""
    near = int((ratios <= 1 + SAME).sum())
    return f"{ratios.median():.2f} ({ratios.max():.2f} at worst, within {SAME:.0%} at {near})"


def of_short(us: pd.DataFrame) -> str:
    """FlashInfer's `fa3` leads in short calls, and FlashAttention-3 in long ones."""
    best, ratio = us.min(axis=1), us[FLASHINFER] / us[[FA3, SGLANG]].min(axis=1)
    short, rest = ratio[best < SHORT], ratio[best >= SHORT]
    return checked(
        f"`fa3` is ahead of both builds of FlashAttention-3 in {int((short < 1).sum())} of {len(short)} calls below {SHORT} µs ({short.median():.2f} times their time at the median, {span(short)}),"
        f" and in {int((rest < 1).sum())} of {len(rest)} longer ones ({rest.median():.2f} times, {span(rest)}).",
        short.median() < 1 < rest.median(),
    )


def differences() -> str:
    """What an H200 gains by backend and heads, and what the choice of the other GPU costs."""
    gain = times("H100") / times("H200")
    gain = gain[gain.index.get_level_values("batch_size") >= MANY]
    few, many = (gain.xs(heads, level="num_qo_heads").drop(columns=FA2).median() for heads in (FEW_HEADS, ALL_HEADS))
    here, there = keeping(times("H100"), times("H200")), keeping(times("H200"), times("H100"))
    return "\n".join(
        (
            checked(
                f"From {MANY} requests on an H200 is with {FEW_HEADS} heads {few[FA3]:.2f} times as fast as an H100 with vLLM's default (median), {few[SGLANG]:.2f} with SGLang's,"
                f" {few[FLASHINFER]:.2f} with `fa3` and {few[FLASH_MLA]:.2f} with FlashMLA.\nWith {ALL_HEADS} heads these are {span(many)}.\n`fa2` is {gain[FA2].median():.2f} times as fast."
                f"\nSo {ALL_HEADS} heads, and `fa2`, probably wait for the multiprocessors and not for memory.",
                few.min() > 1.3,
                many.max() < 1.1,
                abs(gain[FA2].median() - 1) < SAME,
            ),
            of_kept(here, "H100", "H200"),
            of_kept(there, "H200", "H100"),
        )
    )


def limits() -> str:
    return (
        "The comparison of five backends is of one H100 and one H200, and compilers used the CPU of the latter."
        f"\n{nearness.sentence(DATASETS['H200'], EARLIER)}\n{of_clocks()}"
    )


def of_clocks() -> str:
    """Why `fa3` takes longer than on the other H200: its clock."""
    both = nearness.shared(DATASETS["H200"], EARLIER).query("backend == @FLASHINFER and own_us >= @SHORT")
    longer, slower = (
        (both["own_us"] / both["own_us_before"]).median() - 1,
        (both["sm_clock_mhz_before"] / both["sm_clock_mhz"]).median() - 1,
    )
    return checked(
        f"`fa3` took {longer:.1%} longer in calls of {SHORT} µs or more, where the SM clock of the earlier run's card was {slower:.1%} higher.",
        abs(longer - slower) < 0.005,
    )


HEADER = (
    "GPU",
    "query heads",
    "tokens",
    "shapes",
    "fastest",
    "vLLM's default",
    "SGLang's default",
    "`fa3` (FlashInfer)",
    "FlashMLA",
)


def table() -> str:
    """By GPU, heads and length: the fastest, and the others beside it."""
    cells = []
    for card in DATASETS:
        us = times(card)
        ratios = us.div(us.min(axis=1), axis=0)
        for (heads, tokens), part in ratios.groupby(level=["num_qo_heads", "s_kv"]):
            figures = (f"{part[name].median():.2f} ({part[name].max():.2f})" for name in (FA3, SGLANG, FLASHINFER, FLASH_MLA))
            cells.append((card, str(heads), f"{tokens:,}", str(len(part)), tally(part.idxmin(axis=1)), *figures))
    return markdown([Grid("vLLM 0.32.0's and SGLang's builds: time over the fastest's, median (worst)", HEADER, tuple(cells))])
