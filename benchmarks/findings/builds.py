"""Whose build of FlashAttention-3 an engine takes: in the main sweep, by page size, for chunks of prompts and in MLA.

The main sweep and MLA ran on an H100 and on an H200, the others on H100s.
"""

from __future__ import annotations

import pandas as pd

from benchmarks.findings.frames import FA3, SAME, rows, span, table_of
from benchmarks.findings.page import Finding, checked
from orchestrator.tables import Grid

SWEEP, ON_H200, BUILDS = "h100_specdec_all_candidates", "h200_specdec_all_candidates", "h100_engine_builds"
LATENT_SWEEPS = {"H100": "h100_mla_mtp_all_candidates", "H200": "h200_mla_mtp_all_candidates"}
SPLITS = "h100_flash_attn_3_vllm_splits"
VLLM, SGLANG, UNPLANNED, CAPPED = f"{FA3}_vllm", f"{FA3}_sglang", f"{FA3}_unplanned", f"{FA3}_vllm_32_splits"
OF_ALL = (FA3, VLLM, SGLANG)
SHAPE = ["kv_dtype", "s_qo", "batch_size", "s_kv"]
PAGE = ["kv_dtype", "batch_size", "s_kv", "page_order"]
CHUNK = ["batch_size", "s_qo", "s_kv"]
LATENT = ["num_qo_heads", "s_kv", "s_qo", "batch_size"]
BF16, FP8 = "bf16", "fp8_e4m3"
MANY, HEADS = 8, 128  # requests; query heads of DeepSeek's models on one GPU


def finding() -> Finding:
    sweep, on_h200 = of_sweep(SWEEP), of_sweep(ON_H200)
    chunks, latent = over_first(chunk_times()), {card: over_first(latent_times(card)) for card in CARDS}
    return Finding(
        name="builds",
        question=QUESTION,
        answer="\n".join(
            (
                of_decode(sweep),
                of_h200(on_h200),
                of_splits(split_costs()),
                of_pages(page_costs()),
                of_chunks(chunks),
                *(of_latent(card) for card in CARDS),
            )
        ),
        table=Grid(
            "time over that of `tokenspeed-fa3`'s build: median (least to most) of 16 shapes", HEADER, tuple(cells(sweep, on_h200))
        ),
        advice="keep the build that your engine ships, and over an FP8 cache measure with that one: on an H100 if single requests matter, on an H200 always."
        "\nOver an FP8 cache give pages more than one token: on an H100 that matters more than the build, and on an H200 it was not measured.",
        limits="several H100s, and an H200 for the main sweep and MLA alone; one release of each build, 64 query heads and 8 KV heads of 128 outside of MLA, and lengths that are all the same."
        "\nPages of another size than 1 and 64 were not compared."
        f"\nMLA has {len(latent['H100'])} shapes on each GPU, with 16 and {HEADS} heads."
        f"\n{throttled()} points of MLA and of chunks met the power cap.",
        command=f"python -m orchestrator mode=report results.path=results/{BUILDS}",
        datasets=(SWEEP, ON_H200, BUILDS, SPLITS, *LATENT_SWEEPS.values()),
        evidence=(
            table_of("µs by page size, one query token", page_times()),
            table_of("time with pages of one token over that with pages of 64", page_costs(), "{:.2f}"),
            table_of("µs of chunks of prompts, bf16, pages of 64", chunk_times()),
            *(table_of(f"µs of MLA, bf16, {card}", latent_times(card)) for card in CARDS),
            *(table_of(f"MLA: times {FA3}'s time, {card}", latent[card], "{:.3f}") for card in CARDS),
        ),
    )


QUESTION = "Does it matter whose build of FlashAttention-3 an engine takes?"
LINK = "does-it-matter-whose-build-of-flashattention-3-an-engine-takes"  # `pages.anchor` of it
CARDS = ("H100", "H200")
HEADER = ("cache and queries", "requests", *(f"{card}, {build}" for card in CARDS for build in ("vLLM's build", "SGLang's build")))


def of_sweep(dataset: str) -> pd.DataFrame:
    """The main sweep, each build's time over `tokenspeed-fa3`'s. Queries have the dtype of the cache."""
    return over_first(rows(dataset).pivot_table(index=SHAPE, columns="backend", values="own_us")[list(OF_ALL)].dropna())


def plans_in_calls() -> bool:
    """Whether SGLang's call makes its own plan exactly for more than one query token, in the main sweep and in `BUILDS`."""
    ok = pd.concat([rows(name) for name in (SWEEP, ON_H200, BUILDS)])
    mine = ok[(ok["backend"] == SGLANG) & (ok["routine"] != "mla")]
    return bool((mine["kernel_config"].str.contains("made in the call") == (mine["s_qo"] > 1)).all())


def throttled() -> int:
    ok = pd.concat([rows(BUILDS).query("routine == 'paged_prefill'"), *map(rows, LATENT_SWEEPS.values())])
    return int(ok["throttle_reasons"].fillna("none").str.contains("SwPowerCap").sum())


def over_first(us: pd.DataFrame) -> pd.DataFrame:
    return us.div(us[FA3], axis=0).drop(columns=FA3)


def cells(*sweeps: pd.DataFrame) -> list[tuple[str, ...]]:
    """A line for each cache and number of requests, with both builds in each sweep."""
    by = [sweep.groupby(["kv_dtype", "batch_size"]) for sweep in sweeps]
    return [
        (str(kv), str(batch), *(cell(part.get_group((kv, batch))[build]) for part in by for build in (VLLM, SGLANG)))
        for kv, batch in by[0].groups
    ]


def cell(ratios: pd.Series) -> str:
    return f"{ratios.median():.2f} ({span(ratios)})"


def page_times() -> pd.DataFrame:
    """µs of one query token by build, over pages of 1 and of 64 tokens."""
    ok = rows(BUILDS)
    paged = ok[(ok["routine"] == "paged_decode") & ok["backend"].isin(OF_ALL) & (ok["s_qo"] == 1)]
    return paged.pivot_table(index=[*PAGE, "page_size"], columns="backend", values="own_us")


def page_costs() -> pd.DataFrame:
    """Time with pages of one token over that with pages of 64, in the same order."""
    us = page_times()
    return us.xs(1, level="page_size") / us.xs(64, level="page_size")


def chunk_times() -> pd.DataFrame:
    ok = rows(BUILDS)
    return ok[ok["routine"] == "paged_prefill"].pivot_table(index=CHUNK, columns="backend", values="own_us")


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


def many_of(part: pd.DataFrame) -> pd.DataFrame:
    return part[part.index.get_level_values("batch_size") >= MANY]


def of_h200(sweep: pd.DataFrame) -> str:
    """The same on an H200, whose memory is faster: over an FP8 cache it is not the memory that all builds wait for."""
    bf16, fp8, alone = many_of(sweep.loc[BF16]), many_of(sweep.loc[FP8]), sweep.loc[FP8].xs(1, level="batch_size")
    here, there = reached(ON_H200), reached(SWEEP)
    return "\n".join(
        (
            checked(
                f"On an H200 they differ over an FP8 cache at any number of requests: from {MANY} on vLLM's build takes {span(fp8[VLLM])} and SGLang's {span(fp8[SGLANG])} times,"
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


def of_pages(costs: pd.DataFrame) -> str:
    """What pages of one token cost beside pages of 64."""
    large = costs[costs.index.get_level_values("batch_size") >= MANY]
    bf16, fp8 = large.loc[BF16].stack(), large.loc[FP8].stack()
    return checked(
        f"Pages of one token, as SGLang has them, take {span(bf16)} times as long as pages of 64 in bf16 and {span(fp8)} times in FP8, from {MANY} requests on, in all three builds.",
        bf16.max() < 1.05,
        fp8.min() > 1.15,
    )


def of_chunks(chunks: pd.DataFrame) -> str:
    return checked(
        f"For chunks of prompts vLLM's build is the fastest, {span(chunks[VLLM])} times, and SGLang's takes {span(chunks[SGLANG])} times.",
        bool((chunks[VLLM] < chunks[SGLANG]).all()),
        chunks[VLLM].max() < 1,
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
