"""An H100 beside an H200: the same sweeps, best kernel against best kernel."""

from __future__ import annotations

import math
from collections.abc import Callable

import pandas as pd

from benchmarks.findings import build_pages, builds, candidates, draft_candidates, mla_candidates, sinks
from benchmarks.findings.frames import FA3, RESULTS, SAME, folder_of, keeping, named, rows, span, winners
from benchmarks.findings.page import Finding, checked
from orchestrator.analysis.compare.best_of import best_of, by_batch
from orchestrator.analysis.compare.selection import Selection
from orchestrator.storage import parquet
from orchestrator.tables import Grid, markdown

QUESTION = "Does an H100 want another kernel than an H200?"
SWEEPS = ("specdec_long_ctx", "target_verify", "xqa_specdec", "mla_mtp")
ALL_CANDIDATES = "what-do-triton-flexattention-and-flashattention-4-cost-beside-flashattention-3-on-hopper"  # a section
WITH_CANDIDATES = (candidates.DATASETS, draft_candidates.DRAFTS, draft_candidates.TREES, mla_candidates.DATASETS)  # of engines
SMALL = 1.06  # a choice that takes no longer than this, in times of the best, is nearly as good
LARGE = 8  # requests
WORST = 25  # shapes that the page of evidence lists
MORE_BANDWIDTH = 4.8 / 3.35  # TB/s, as NVIDIA's data sheets say


def finding() -> Finding:
    shapes = best_shapes()
    main = shapes[shapes["sweep"] == SWEEPS[0]]
    other = shapes[differs(shapes)]
    kept = other["keeping"].dropna()
    large = main[main["batch_size"] >= LARGE]
    slower = 1 / large["speed_up"]
    plain = (large["s_qo"] == 1) & (large["q_dtype"] == "bf16")
    over_fp8 = large["kv_dtype"] == "fp8_e4m3"
    h100, h200 = (share_of_memory(card) for card in ("h100", "h200"))
    return Finding(
        name="cards",
        question=QUESTION,
        answer=checked("Hardly: ", len(other) < 0.05 * len(shapes), kept.max() < SMALL)
        + f"at {len(other)} of {len(shapes):,} shapes the fastest kernel is another one."
        f" To keep the H200's kernel costs at most {kept.max() - 1:.0%} there, and {kept.median() - 1:.0%} at the median.\n{other_way_round()}\n"
        f"{with_all_candidates()}\n"
        f"Prompts are compared there too, and layers with sinks and windows in [a section of their own](#{sinks.ON_H100}).\n"
        f"In the main sweep, with {LARGE} requests or more, an H200 is {geometric(slower[~over_fp8]):.2f} times as fast as an H100 over a bf16 cache,"
        f" about as its memory ({MORE_BANDWIDTH:.2f} times by the data sheets).\n"
        f"Over an FP8 cache it is {span(slower[over_fp8 & plain])} times as fast with bf16 queries and one query token,"
        + checked(" and hardly faster with drafts or FP8 queries", slower[over_fp8 & ~plain].max() < 1.1)
        + f" ({span(slower[over_fp8 & ~plain])} times).\n"
        f"In the latter cases the fastest kernels reach {h200:.0%} of the H200's measured memory rate at the median, and {h100:.0%} of the H100's.",
        table=short_table(shapes),
        advice="take the advice of these sweeps for an H100 too. Over FP8 caches, with drafts or FP8 queries, an H200 gives more room and hardly any speed"
        f" with these kernels.\n{with_engines_builds()}",
        limits=f"{cards('h200')}, and {cards('h100')}; the runs are of different days, and their clocks were not fixed."
        + checked(" All backends of a shape ran on one card.", one_card_a_shape())
        + " Calls below 30 µs may look faster or slower on a card, because the least launch of a dataset's cards is taken off all its times"
        f" ({launches('h100')} µs on the H100s, {launches('h200')} µs on the H200s). `torch_sdpa` is left out, and a kernel under two names counts once.",
        command="python -m orchestrator mode=compare baseline=results/h200_main/specdec_long_ctx candidate=results/h100_main/specdec_long_ctx",
        datasets=tuple(f"{card}_{sweep}" for sweep in SWEEPS for card in ("h100", "h200"))
        + tuple(name for of_cards in WITH_CANDIDATES for name in of_cards.values()),
        evidence=(markdown([ratios(main)]), markdown([changed(other)])),
        in_readme=f"Hardly: at {len(other)} of {len(shapes):,} shapes, and to keep the H200's kernel costs at most {kept.max() - 1:.0%} there.",
    )


def with_all_candidates() -> str:
    """What it costs to keep the other GPU's kernel if kernels of engines are candidates too, in each sweep."""
    main = candidates.kept("H200", "H100").max() - 1
    times = {
        "in drafts": draft_candidates.times,
        "with trees and full masks": draft_candidates.tree_times,
        "and in MLA": mla_candidates.times,
    }
    there, here = (
        ", ".join(f"{what} {keeping(of(one), of(other)).max() - 1:.0%}" for what, of in times.items())
        for one, other in (("H200", "H100"), ("H100", "H200"))
    )
    return (
        f"With engines' builds and FlashAttention-4 as candidates it is {main:.0%} at most in the main sweep ([there](#{ALL_CANDIDATES})).\nIn the other sweeps it is {there}."
        f"\nThe H100's choice costs on the H200 with these candidates {here} at most."
        f"\nMost of that tells ties apart: {one_for_both(list(times.values()))}"
    )


def one_for_both(sweeps: list[Callable[[str], pd.DataFrame]]) -> str:
    """At how many shapes one kernel is nearly the fastest on both GPUs."""
    near = [
        pd.concat([us.div(us.min(axis=1), axis=0) for us in (of("H100"), of("H200"))], keys=("H100", "H200"), names=["card"])
        for of in sweeps
    ]
    found = pd.concat(
        [(us <= 1 + SAME).groupby([name for name in us.index.names if name != "card"]).all().any(axis=1) for us in near]
    )
    return checked(
        f"at {int(found.sum())} of these {len(found)} shapes one kernel is within {SAME:.0%} of the fastest on both.",
        found.mean() > 0.99,
    )


def with_engines_builds() -> str:
    """What an H200 gains over an FP8 cache with the builds of FlashAttention-3 that these sweeps do not have."""
    gain = candidates.speed_ups().loc["fp8_e4m3"].median()
    return checked(
        f"Engines' builds of FlashAttention-3 gain more over an FP8 cache ([their finding](#{builds.LINK}))."
        f"\nWith {candidates.MANY} requests or more an H200 is there {gain[build_pages.SGLANG]:.2f} times as fast with SGLang's and {gain[build_pages.VLLM]:.2f} times with vLLM's (median),"
        f" and {gain[FA3]:.2f} times with `tokenspeed-fa3`'s.",
        gain[build_pages.SGLANG] > gain[build_pages.VLLM] > gain[FA3],
    )


def launches(card: str) -> str:
    """The launches that are taken off in the datasets of a card."""
    return span((rows(f"{card}_{sweep}")["launch_us"].min() for sweep in SWEEPS), "{:.1f}")


def share_of_memory(card: str) -> float:
    """What the fastest kernels over FP8 caches reach of the card's measured memory rate, with drafts or FP8 queries: the median."""
    ok = rows(f"{card}_{SWEEPS[0]}")
    drafts = (ok["s_qo"] > 1) | (ok["q_dtype"] != "bf16")
    best = winners(
        ok[(ok["kv_dtype"] == "fp8_e4m3") & (ok["batch_size"] >= LARGE) & drafts], ["q_dtype", "batch_size", "s_kv", "s_qo"]
    )
    return float((best["bytes"] / best["own_us"] / 1e6 / best["peak_tb_per_sec"]).median())


def cards(card: str) -> str:
    """How many cards of a kind there were."""
    names = [f"{card}_{sweep}" for sweep in SWEEPS] + [of_cards[card.upper()] for of_cards in WITH_CANDIDATES]
    found = {uuid for name in names for uuid in rows(name)["device_uuid"]}
    return f"{len(found)} {card.upper()}{'s' if len(found) > 1 else ''}"


def best_shapes(baseline: str = "h200", candidate: str = "h100") -> pd.DataFrame:
    """The shapes that both cards have a time for, in all sweeps. `speed_up` is the H200's time over the H100's."""
    parts = (best_of(side(f"{baseline}_{sweep}"), side(f"{candidate}_{sweep}")).shapes.assign(sweep=sweep) for sweep in SWEEPS)
    return pd.concat(parts)


def other_way_round() -> str:
    """What the H100's choices cost on the H200."""
    shapes = best_shapes("h100", "h200")
    dear = shapes[differs(shapes) & (shapes["keeping"] > SMALL)]
    coarse = dear["kv_dtype"].str.startswith("fp8").all() and not dear["q_dtype"].str.startswith("fp8").any()
    return (
        f"The other way round, the H100's choice costs {span(dear['keeping'] - 1, '{:.0%}')} on the H200 at {len(dear)} shapes"
        + checked(", all over FP8 caches with 16-bit queries.", coarse)
    )


def side(name: str) -> Selection:
    return Selection(name, name, parquet.read(RESULTS / folder_of(name)).to_pandas())


def differs(shapes: pd.DataFrame) -> pd.Series:
    return shapes["kernel_a"] != shapes["kernel_b"]


def one_card_a_shape() -> bool:
    """Whether the rows that were timed together are of one card each, in all datasets of the H100."""
    tables = [side(f"h100_{sweep}").rows for sweep in SWEEPS]
    return all(
        (table[table["status"] == "ok"].groupby(["run_id", "group_id"])["device_uuid"].nunique() == 1).all() for table in tables
    )


def geometric(ratios: pd.Series) -> float:
    """The geometric mean."""
    return math.exp(ratios.map(math.log).mean())


def short_table(shapes: pd.DataFrame) -> Grid:
    cells = []
    bits = shapes["kv_dtype"].map(lambda name: "FP8" if name.startswith("fp8") else "16 bits")
    for sweep in SWEEPS:
        for cache in ("16 bits", "FP8"):
            part = shapes[(shapes["sweep"] == sweep) & (bits == cache)]
            kept = part.loc[differs(part), "keeping"].dropna()
            cost = (f"{kept.median():.2f}", f"{kept.max():.2f}") if len(kept) else ("–", "–")
            slower = 1 / part["speed_up"]
            cells.append((sweep, cache, str(len(part)), str(differs(part).sum()), *cost, f"{slower.median():.2f}", span(slower)))
    header = ("sweep", "cache", "shapes", "another kernel", "keeping costs, median", "most", "H100 / H200, median", "least to most")
    title = (
        "shapes whose fastest kernel is another one on the H100; what the H200's costs there, in times of the best;"
        " time of the best kernel on the H100 over that on the H200"
    )
    return Grid(title, header, tuple(cells))


def ratios(main: pd.DataFrame) -> Grid:
    """The H100's time over the H200's by batch size, for each pair of dtypes of the main sweep."""
    cells = [
        (
            str(q),
            str(kv),
            span((found.first, found.last), "{}"),
            f"{1 / found.mean:.2f}",
            span((1 / found.most, 1 / found.least)),
        )
        for (q, kv), part in main.groupby(["q_dtype", "kv_dtype"])
        for found in by_batch(part)
    ]
    title = "time of the best kernel on the H100 over that on the H200, main sweep"
    return Grid(title, ("queries", "cache", "requests", "geometric mean", "least to most"), tuple(cells))


def changed(other: pd.DataFrame) -> Grid:
    """The shapes where keeping the H200's kernel costs most."""
    worst = other.sort_values(["keeping", "sweep", "batch_size", "s_kv", "s_qo"], ascending=[False, True, True, True, True]).head(
        WORST
    )
    shape = ("sweep", "q_dtype", "kv_dtype", "mask", "batch_size", "s_kv", "s_qo")
    cells = [
        (
            *(str(row[key]) for key in shape),
            named(row["kernel_a"]),
            named(row["kernel_b"]),
            f"{row['own_us_b']:,.1f}",
            f"{row['keeping']:.2f}",
        )
        for _, row in worst.iterrows()
    ]
    title = f"the {len(cells)} shapes where it costs most on the H100 to keep the H200's fastest kernel"
    return Grid(title, (*shape, "fastest on the H200", "on the H100", "its µs", "keeping, in times of it"), tuple(cells))
