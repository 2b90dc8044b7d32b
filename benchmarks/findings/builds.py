"""Whose build of FlashAttention-3 an engine takes: in the main sweep, by page size, for chunks of prompts and in MLA.

The limit of 32 splits ran on an H100 alone. `build_pages` has page sizes and chunks of prompts. All else is of both cards.
"""

from __future__ import annotations

import pandas as pd

from benchmarks.findings import build_pages
from benchmarks.findings.build_pages import BF16, BUILDS, CARDS, CHUNKS, FP8, MANY, OF_ALL, SGLANG, VLLM, many_of, over_first
from benchmarks.findings.frames import FA3, SAME, rows, span, table_of
from benchmarks.findings.page import Finding, checked
from orchestrator.tables import Grid

SWEEP, ON_H200 = "h100_main/specdec_all_candidates", "h200_main/specdec_all_candidates"
LATENT_SWEEPS = {"H100": "h100_mla/mla_mtp_all_candidates", "H200": "h200_mla/mla_mtp_all_candidates"}
SPLITS = "h100_engines/flash_attn_3_vllm_splits"
UNPLANNED, CAPPED = f"{FA3}_unplanned", f"{FA3}_vllm_32_splits"
SHAPE = ["kv_dtype", "s_qo", "batch_size", "s_kv"]
LATENT = ["num_qo_heads", "s_kv", "s_qo", "batch_size"]
HEADS = 128  # query heads of DeepSeek's models on one GPU


def finding() -> Finding:
    sweep, on_h200 = of_sweep(SWEEP), of_sweep(ON_H200)
    latent = {card: over_first(latent_times(card)) for card in CARDS}
    return Finding(
        name="builds",
        question=QUESTION,
        answer="\n".join(
            (
                of_decode(sweep),
                of_h200(on_h200),
                of_splits(split_costs()),
                build_pages.of_pages(),
                build_pages.of_chunks(),
                *(of_latent(card) for card in CARDS),
            )
        ),
        table=Grid(
            "time over that of `tokenspeed-fa3`'s build: median (least to most) of 16 shapes", HEADER, tuple(cells(sweep, on_h200))
        ),
        advice="keep the build that your engine ships, and over an FP8 cache measure with that one: on an H100 if single requests matter, on an H200 always."
        f"\n{build_pages.advice()}",
        limits="several H100s and H200s, each comparison on one; the limit of 32 splits on an H100 alone.\nThere is one release of each build, with 64 query heads and 8 KV heads of 128 outside of MLA, and lengths that are all the same."
        f"\n{of_two_h200s()}"
        "\nPages of another size than 1 and 64 were not compared."
        f"\nMLA has {len(latent['H100'])} shapes on each GPU, with 16 and {HEADS} heads."
        f"\n{throttled()} points of MLA and of chunks met the power cap.",
        command=f"python -m orchestrator mode=report results.path=results/{BUILDS['H200']}",
        datasets=(SWEEP, ON_H200, *BUILDS.values(), CHUNKS["H200"], SPLITS, *LATENT_SWEEPS.values()),
        evidence=(
            *build_pages.evidence(),
            *(table_of(f"µs of MLA, bf16, {card}", latent_times(card)) for card in CARDS),
            *(table_of(f"MLA: times {FA3}'s time, {card}", latent[card], "{:.3f}") for card in CARDS),
        ),
    )


QUESTION = "Does it matter whose build of FlashAttention-3 an engine takes?"
LINK = "does-it-matter-whose-build-of-flashattention-3-an-engine-takes"  # `pages.anchor` of it
HEADER = ("cache and queries", "requests", *(f"{card}, {build}" for card in CARDS for build in ("vLLM's build", "SGLang's build")))


def of_sweep(dataset: str) -> pd.DataFrame:
    """The main sweep, each build's time over `tokenspeed-fa3`'s. Queries have the dtype of the cache."""
    return over_first(rows(dataset).pivot_table(index=SHAPE, columns="backend", values="own_us")[list(OF_ALL)].dropna())


def plans_in_calls() -> bool:
    """Whether SGLang's call makes its own plan exactly for more than one query token, in the main sweep, by page size and for chunks."""
    ok = pd.concat([rows(name) for name in (SWEEP, ON_H200, *BUILDS.values(), CHUNKS["H200"])])
    mine = ok[(ok["backend"] == SGLANG) & (ok["routine"] != "mla")]
    return bool((mine["kernel_config"].str.contains("made in the call") == (mine["s_qo"] > 1)).all())


def throttled() -> int:
    latent = pd.concat([rows(name)["throttle_reasons"] for name in LATENT_SWEEPS.values()])
    return build_pages.capped() + int(latent.fillna("none").str.contains("SwPowerCap").sum())


def of_two_h200s() -> str:
    """How far two H200s agree at the points that the main sweep and the comparison of page sizes share."""
    found = build_pages.two_h200s(ON_H200)
    off = (found["ratio"] - 1).abs()
    return checked(
        f"{len(off)} points ran on two H200s: the times differ by {off.median():.1%} at the median and {off.max():.1%} at most, and by {off[found['sharp']].max():.1%} at most where neither was stopped early.",
        bool((rows(BUILDS["H200"])["stop_reason"] != "decided").all()),
        set(rows(BUILDS["H200"])["device_uuid"]).isdisjoint(rows(ON_H200)["device_uuid"]),
    )


def cells(*sweeps: pd.DataFrame) -> list[tuple[str, ...]]:
    """A line for each cache and number of requests, with both builds in each sweep."""
    by = [sweep.groupby(["kv_dtype", "batch_size"]) for sweep in sweeps]
    return [
        (str(kv), str(batch), *(cell(part.get_group((kv, batch))[build]) for part in by for build in (VLLM, SGLANG)))
        for kv, batch in by[0].groups
    ]


def cell(ratios: pd.Series) -> str:
    return f"{ratios.median():.2f} ({span(ratios)})"


def latent_times(card: str) -> pd.DataFrame:
    """µs of MLA. A draft that has the same length in each request, and one that has not, are two shapes."""
    ok = rows(LATENT_SWEEPS[card])
    drafts = ok["s_qo"].astype(str) + ok["min_s_qo"].notna().map({True: " at most", False: ""})
    return ok.assign(s_qo=drafts).pivot_table(index=LATENT, columns="backend", values="own_us")


def split_costs() -> pd.Series:
    """The main sweep in vLLM's build: time with at most 32 splits, its limit in CUDA graphs, over that of the library's choice."""
    us = rows(SPLITS).pivot_table(index=SHAPE, columns="backend", values="own_us")
    return us[CAPPED] / us[VLLM]


def most_splits() -> int:
    """The most splits that `tokenspeed-fa3`'s plans allow in the main sweep."""
    ok = pd.concat([rows(SWEEP), rows(ON_H200)]).query("backend == @FA3")
    return int(ok["kernel_config"].str.extract(r"num_splits=(\d+)")[0].astype(int).max())


def of_splits(costs: pd.Series) -> str:
    return checked(
        f"On an H100 vLLM's limit of 32 splits in CUDA graphs costs nothing there: {span(costs)} times the time without it, {costs.median():.3f} at the median of {len(costs)} shapes."
        "\nIt probably limits nothing there: with 8 KV heads `tokenspeed-fa3` allows 15 splits at most (`kernel_config`). One KV head a GPU was not measured with vLLM's build.",
        most_splits() == 15,
        (costs - 1).abs().max() < 0.025,
    )


def of_decode(sweep: pd.DataFrame) -> str:
    """The builds in the main sweep, over both caches."""
    bf16, fp8 = sweep.loc[BF16], sweep.loc[FP8]
    one, many = (part[part.index.get_level_values("batch_size") >= MANY] for part in (bf16, fp8))
    alone = fp8.xs(1, level="batch_size")
    return "\n".join(
        (
            checked(
                f"In decode and drafts over a bf16 cache hardly: on an H100 from {MANY} requests on vLLM's build takes {span(one[VLLM])} and SGLang's {span(one[SGLANG])}"
                f" times the time of `tokenspeed-fa3`'s.",
                bool((one - 1).abs().max().max() <= 1.5 * SAME),
            ),
            f"With one request they take {span(bf16.xs(1, level='batch_size')[VLLM])} and {span(bf16.xs(1, level='batch_size')[SGLANG])} times.",
            checked(
                f"Over an FP8 cache SGLang's build is a little faster: {fp8[SGLANG].median():.2f} times at the median of {len(fp8)} shapes,"
                f" {alone[SGLANG].median():.2f} with one request ({span(alone[SGLANG])}), and {span(many[SGLANG])} from {MANY} on.",
                fp8[SGLANG].median() < 1 < 1 + SAME > fp8[SGLANG].max(),
            ),
            f"vLLM's takes {fp8[VLLM].median():.2f} times there ({span(fp8[VLLM])}).",
            checked(
                "SGLang's call has a plan of the step for one query token, and makes one in each call for drafts and prompts, which is in its times.",
                plans_in_calls(),
            ),
        )
    )


def of_h200(sweep: pd.DataFrame) -> str:
    """The same on an H200, whose memory is faster: over an FP8 cache it is not the memory that all builds wait for."""
    bf16, fp8, alone = many_of(sweep.loc[BF16]), many_of(sweep.loc[FP8]), sweep.loc[FP8].xs(1, level="batch_size")
    here, there = reached(ON_H200), reached(SWEEP)
    return "\n".join(
        (
            checked(
                f"On an H200 they differ over an FP8 cache at any number of requests, with pages of 64 tokens.\nFrom {MANY} requests on vLLM's build takes {span(fp8[VLLM])} and SGLang's {span(fp8[SGLANG])} times,"
                f" with one request {span(alone[VLLM])} and {span(alone[SGLANG])} times.",
                fp8.max().max() < 1 - SAME,
                fp8[SGLANG].max() < fp8[VLLM].min(),
            ),
            checked(
                f"Over a bf16 cache, from {MANY} requests on, they take {span(bf16[VLLM])} and {span(bf16[SGLANG])} times there.",
                bool((bf16 - 1).abs().max().max() < 2 * SAME),
            ),
            checked(
                f"Over an FP8 cache `tokenspeed-fa3`'s build reaches {here[FA3]:.0%} of the H200's measured memory rate at the median from {MANY} requests on, vLLM's {here[VLLM]:.0%} and SGLang's {here[SGLANG]:.0%};"
                f" on the H100 it is {there[FA3]:.0%}, {there[VLLM]:.0%} and {there[SGLANG]:.0%}.\nSo on the H100 all three builds probably wait for memory, which hides what they differ in. Which difference of the builds it is was not measured.",
                here.max() < 0.85 < there.min(),
            ),
        )
    )


def reached(dataset: str) -> pd.Series:
    """By build: the median part of the measured memory rate over an FP8 cache, from `MANY` requests on."""
    ok = rows(dataset).query("kv_dtype == @FP8 and batch_size >= @MANY")
    part = ok["bytes"] / ok["own_us"] / 1e6 / ok["peak_tb_per_sec"]
    return part.groupby(ok["backend"]).median()[list(OF_ALL)]


def of_other_builds() -> str:
    """For findings whose FlashAttention-3 is `tokenspeed-fa3`'s alone: what the engines' builds take over an FP8 cache."""
    fp8 = many_of(of_sweep(ON_H200).loc[FP8])
    return (
        f"FlashAttention-3 is `tokenspeed-fa3`'s build here. On an H200, over an FP8 cache with {MANY} requests or more, vLLM's takes {span(fp8[VLLM])}"
        f" and SGLang's {span(fp8[SGLANG])} times its time ([builds](#{LINK}))."
    )


def of_latent(card: str) -> str:
    """MLA: vLLM's build, planned in each call as SGLang does, and SGLang's build beside that."""
    us = latent_times(card)
    latent = over_first(us)
    more, cost = (us[UNPLANNED] - us[FA3]).groupby("s_kv").median(), latent[UNPLANNED].groupby("s_kv")
    alike = us[SGLANG] / us[UNPLANNED]
    drafts = (alike.index.get_level_values("num_qo_heads") == HEADS) & (alike.index.get_level_values("s_qo") != "1")
    ahead, rest = alike[drafts], alike[~drafts]
    lengths = " and ".join(
        f"{more[s_kv]:.1f} µs at the median over {s_kv:,} tokens ({cost.median()[s_kv] - 1:.1%}, {cost.max()[s_kv] - 1:.1%} at most)"
        for s_kv in more.index
    )
    return "\n".join(
        (
            checked(f"In MLA on an {card} a plan in each call, as SGLang makes it, costs {lengths}.", bool((more > 0).all())),
            checked(
                f"With a plan in each call in both, SGLang's build takes {span(ahead)} times vLLM's time for drafts with {HEADS} heads, and {span(rest)} times otherwise.",
                ahead.median() < 1 - SAME,
                abs(rest.median() - 1) < SAME,
            ),
        )
    )
