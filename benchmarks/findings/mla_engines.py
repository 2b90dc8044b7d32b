"""Which kernel for DeepSeek's latent attention an engine should take on Hopper, and what FP8 gains there."""

from __future__ import annotations

import statistics

import pandas as pd

from benchmarks import small_probabilities
from benchmarks.findings import flash_mla_builds, mla_candidates
from benchmarks.findings.frames import RESULTS, SAME, rows, span, tally
from benchmarks.findings.page import Finding, checked
from orchestrator.analysis.names import shown
from orchestrator.analysis.questions import ask, views_of
from orchestrator.config.engine import selected
from orchestrator.storage import parquet
from orchestrator.tables import Grid, markdown

VLLM = selected("vllm")[0].title

DATASET, ON_H200 = "h100_mla/mla_engines", "h200_mla/mla_mtp_fp8"
SHAPE = ["num_qo_heads", "s_kv", "s_qo", "batch_size"]
DEFAULT, FLASH_MLA = "flash_attn_3", "flash_mla_vllm"  # of vLLM over a bf16 latent, and its only one over FP8
DOUBTED = 1.02  # of the samples that were set aside as slow: a median above that is of slower ones
BF16, FP8 = "bf16", "fp8_e4m3"


def finding() -> Finding:
    ok = rows(DATASET)
    sure = ok[~doubted(ok)]
    times = sure[sure["kv_dtype"] == BF16].pivot(index=SHAPE, columns="backend", values="own_us").dropna()
    ratios = times.div(times.min(axis=1), axis=0)
    fp8 = sure[sure["kv_dtype"] == FP8].set_index(SHAPE)["own_us"]
    gains = (
        pd.DataFrame({"best": times.min(axis=1), DEFAULT: times[DEFAULT], FLASH_MLA: times[FLASH_MLA]}).div(fp8, axis=0).dropna()
    )
    return Finding(
        name="mla_engines",
        question="Which MLA kernel should an engine take on Hopper, and does FP8 pay there?",
        answer=f"{of_bf16(times, ratios)}\n{mla_candidates.answer()}\n{flash_mla_builds.answer()}\n{of_fp8(gains)}\n{of_bf16_queries()}\n{of_mismatches()}",
        table=Grid("by query heads on the GPU and KV length", HEADER, tuple(cells(ratios, gains))),
        advice="over a bf16 latent keep vLLM's FLASH_ATTN_MLA, or take FlashInfer's fa3, which leads in short calls.\nvLLM's FlashMLA over bf16 gains little."
        "\nWith 128 heads and drafts measure SGLang's build of FlashMLA too."
        "\nOver an FP8 latent check your model's answers at long contexts and large batches before you trust FLASHMLA of vLLM.",
        limits=limits(ok, times),
        command=f"python -m orchestrator mode=report question=engine_default results.path=results/{DATASET}",
        datasets=(DATASET, ON_H200, *flash_mla_builds.DATASETS, mla_candidates.DATASETS["H200"]),
        evidence=(
            markdown([spread(ratios)]),
            mla_candidates.table(),
            markdown([flash_mla_builds.table()]),
            f"## Emulated\n\n{EMULATED}\n\n{small_probabilities.table()}",
        ),
    )


HEADER = (
    "query heads",
    "tokens",
    "shapes",
    "fastest in bf16, by shapes",
    "default over the fastest, median (worst)",
    "FP8: times as fast as the fastest bf16",
)
EMULATED = """FlashMLA's kernel for FP8, emulated on a CPU by `python -m benchmarks.small_probabilities --write`.
Errors are relative to a row's length, and a "worst row" is given in tolerances.
Of a large batch, 16 requests are emulated (4 with 128 heads), so there are fewer rows that could be the worst.
"and sums cut off" has the accumulators of tensor cores that multiply in 8 bits.
"times 256" scales probabilities before they are rounded, as FlashAttention-3 does.
"random keys alone" has the kernel's rounding, and no sentinel keys."""


def doubted(ok: pd.DataFrame) -> pd.Series:
    """Rows whose samples at a slow clock were faster than the others, so that it was not the clock that slowed anything."""
    aside = ok["set_aside_us"].map(lambda us: statistics.median(us) if us is not None and len(us) else float("nan"))
    return ok["median_us"] > DOUBTED * aside


def asked(ok: pd.DataFrame) -> str:
    """How near vLLM's default is to the best in bf16, as the question of the command counts."""
    every = ask(views_of(ok), "engine_default").df()
    found = every[(every["engine"] == VLLM) & (every["kv_dtype"] == BF16)]
    return f"{(found['regret'] <= 1 + SAME).mean():.0%} of {len(found)} shapes"


def of_bf16(times: pd.DataFrame, ratios: pd.DataFrame) -> str:
    regret = ratios[DEFAULT]
    return (
        f"Over a bf16 latent with vLLM 0.25.1 on an H100 the fastest is, at {len(times)} shapes, {tally(times.idxmin(axis=1))}; at {(others(times) < 1 + SAME).mean():.0%} the two best are within 2%."
        f"\nvLLM's default, FlashAttention-3, is within 2% of the best at {(regret <= 1 + SAME).mean():.0%}, and takes {regret.median():.3f} times its time at the median,"
        f" {regret.max():.2f} at worst."
        f"\nvLLM's build of FlashMLA takes {ratios[FLASH_MLA].median():.2f} times, {ratios[FLASH_MLA].max():.2f} at worst, and FlashInfer's `fa2` {span(ratios['fa2'])} times."
    )


def others(times: pd.DataFrame) -> pd.Series:
    """How much longer the second takes than the first: their ratio."""
    return times.apply(lambda row: row.nsmallest(2).iloc[1] / row.min(), axis=1)


def of_fp8(gains: pd.DataFrame) -> str:
    few, many = (gains.xs(heads, level="num_qo_heads") for heads in (16, 128))
    return (
        f"Over an FP8 latent vLLM takes FlashMLA with FP8 queries, because its default serves none."
        f" With 16 heads it is {few['best'].median():.2f} times as fast as the fastest bf16 kernel"
        f" ({span(few['best'])}), with 128 heads {many['best'].median():.2f} times ({span(many['best'])})."
        f" Beside vLLM's bf16 default it is {gains[DEFAULT].median():.2f} times as fast ({span(gains[DEFAULT])}), beside FlashMLA in bf16 {gains[FLASH_MLA].median():.2f} times."
        f" These are the {len(gains)} shapes at which both are right."
    )


def of_mismatches() -> str:
    table = parquet.read(RESULTS / DATASET).to_pandas()
    fp8 = table[(table["backend"] == FLASH_MLA) & (table["q_dtype"] == FP8)]
    wrong, right = fp8[fp8["status"] == "mismatch"], fp8[fp8["status"] == "ok"]
    tiles = fp8["batch_size"] * -(-fp8["num_qo_heads"] * fp8["s_qo"] // small_probabilities.TILE)
    found = checked(
        f"But with FP8 FlashMLA loses part of its answer: {len(wrong)} of {len(fp8)} points are a `mismatch`, all at 65,536 tokens and from {MANY} requests times tiles of 64 rows on.",
        bool((((tiles >= MANY) & (fp8["s_kv"] == 65536)) == (fp8["status"] == "mismatch")).all()),
    )
    why = "The kernel rounds probabilities to e4m3 without a scale: those below 1/1,024 of the largest one so far become 0, and stay in the sum."
    return "\n".join((found, *of_errors(wrong, right), *of_h200(fp8), why, *of_emulated()))


def of_h200(first: pd.DataFrame) -> tuple[str, ...]:
    """The same points on another GPU with another release of vLLM. `first` has those of the H100."""
    table = parquet.read(RESULTS / ON_H200).to_pandas()
    again = table[(table["backend"] == FLASH_MLA) & table["status"].isin(["ok", "mismatch"])].set_index(SHAPE)
    before = first.set_index(SHAPE).reindex(again.index)
    same = (again["status"] == "mismatch") & (before["status"] == "mismatch")
    more = again[(again["status"] == "mismatch") & ~same]
    return (
        checked(
            f"An H200 with vLLM 0.32.0 says the same: {same.sum()} of these points are a `mismatch` again, and {len(more)} more,"
            " whose rows are within the tolerance and where some keys count too little.",
            same.sum() == (first["status"] == "mismatch").sum() and bool((more["err_over_tolerance"] < 1).all()),
            bool(more["reason"].str.contains("count").all()),
        ),
        f"Its errors are {(again['rel_err'] / before['rel_err']).median():.2f} times those of the H100 at the median, and {(again['rel_err'] / before['rel_err']).max():.2f} at most.",
    )


def of_bf16_queries() -> str:
    """What FlashInfer's kernels, which take bf16 queries alone, cost over the same FP8 latent."""
    ok = rows(ON_H200)
    us = ok.pivot_table(index=SHAPE, columns="backend", values="own_us").dropna()
    slower = us.drop(columns=FLASH_MLA).min(axis=1) / us[FLASH_MLA]
    return (
        f"FlashInfer's kernels take bf16 queries over such a latent. On an H200 the faster of them takes {slower.median():.1f} times the time of FlashMLA with FP8 queries"
        f" ({span(slower)}), at {len(us)} shapes where both are right."
    )


MANY = 64


def of_errors(wrong: pd.DataFrame, right: pd.DataFrame) -> tuple[str, ...]:
    within = wrong[wrong["err_over_tolerance"] < 1]
    return (
        f"The worst row is off by {wrong['rel_err'].max():.0%} of its length, with a tolerance of {wrong['tolerance'].max():.0%}.",
        f"At points that pass it is {right['rel_err'].min():.1%} to {right['rel_err'].max():.1%}.",
        checked(
            "One of the mismatches is within the tolerance of each row, and failed because 2,048 neighbouring keys count 0.57 times.",
            list(within["reason"]) == ["keys 22528 to 24575 of KV head 0 of request 1 count 0.57 times instead of once"],
        ),
    )


def of_emulated() -> tuple[str, ...]:
    lines = small_probabilities.read()
    near = [float(line["worst"]) / float(line["measured"]) for line in lines if line["kernel"] == "as it is"]
    long = {
        line["kernel"]: line
        for line in lines
        if (line["heads"], line["tokens"], line["s_qo"], line["batch"]) == ("16", "65536", "4", "128")
    }
    as_it_is, scaled, plain = (float(long[name]["rel_err"]) for name in ("as it is", "times 256", small_probabilities.PLAIN))
    short = 1 - float(long["as it is"]["length"])
    return (
        f"The same arithmetic on a CPU is off by {span(near)} times the measured error, over {len(near)} shapes."
        f" It also has as many rows over the tolerance: {float(long['as it is']['over_tolerance']):.1%} of them with 16 heads, 4 query tokens and batch 128, where"
        f" {float(long['as it is']['measured_over']):.1%} were measured.",
        f"With probabilities times 256, as in FlashAttention-3, its worst row is off by {scaled:.1%} instead of {as_it_is:.1%}; without keys of much weight by {plain:.1%}.",
        f"That worst row keeps its direction (cosine {float(long['as it is']['cosine']):.3f}), and is {short:.0%} too short.",
        checked(
            "So `mismatch` is the right word: the loss comes from the missing scale, and not from 8 bits.",
            scaled < as_it_is / 4,
            near[0] > 0,
        ),
    )


def cells(ratios: pd.DataFrame, gains: pd.DataFrame) -> list[tuple[str, ...]]:
    found = []
    for (heads, tokens), part in ratios.groupby(["num_qo_heads", "s_kv"]):
        gain = gains.xs((heads, tokens), level=("num_qo_heads", "s_kv"))["best"]
        regret = part[DEFAULT]
        of_default, of_gain = f"{regret.median():.2f} ({regret.max():.2f})", f"{gain.median():.2f} ({span(gain)}) at {len(gain)}"
        found.append((str(heads), f"{tokens:,}", str(len(part)), tally(part.idxmin(axis=1)), of_default, of_gain))
    return found


def spread(ratios: pd.DataFrame) -> Grid:
    grid = [
        (shown(name), f"{ratios[name].median():.2f}", span(ratios[name]), f"{(ratios[name] <= 1 + SAME).mean():.0%}")
        for name in ratios
    ]
    return Grid("time over the fastest bf16 kernel's", ("backend", "median", "from, to", "within 2% of the best"), tuple(grid))


def limits(ok: pd.DataFrame, times: pd.DataFrame) -> str:
    """One GPU, what is left out, and the copy of FlashMLA's output."""
    mine = ok[ok["backend"] == FLASH_MLA].set_index(SHAPE)
    moved = 2 * 2 * mine["head_dim_ckv"] / (mine["peak_tb_per_sec"] * 1e6)  # us of a row: bf16, read and written
    for name in ("batch_size", "s_qo", "num_qo_heads"):
        moved = moved * mine.index.get_level_values(name)
    least = rows("merge_states")["own_us"].min()
    copied = (moved + least)[mine["kv_dtype"] == BF16].reindex(times.index)
    would_win = (times[FLASH_MLA] - copied < times.drop(columns=FLASH_MLA).min(axis=1)).sum()
    return "\n".join(
        (
            flash_mla_builds.limits(),
            mla_candidates.limits(),
            "What is said of an H200 is of vLLM 0.32.0.\nAll else is of one H100, vLLM 0.25.1 if it names no other release, 128 and 16 query heads, and lengths that are all the same. The host compiled kernels meanwhile. SGLang's call, without a plan, is in [another section](#does-it-matter-whose-build-of-flashattention-3-an-engine-takes).",
            f"{doubted(ok).sum()} points are left out, and so {len(times)} of 96 shapes are compared in bf16: most likely the host launched some of their samples late."
            " The idle GPU raised its clock, so the samples at the usual clock, which were faster, were set aside as throttled.",
            f"FlashMLA's output is copied here, and in an engine it is not. At the measured bandwidth the bytes of a copy take {moved.max():.0f} µs at most,"
            f" or {(moved / mine['own_us']).max():.1%} of a time, and the smallest kernel measured on an H200 takes {least:.1f} µs."
            f" Less both, FlashMLA would be the fastest in bf16 at {would_win} of {len(times)} shapes.",
            f"`question=engine_default` counts fewer shapes: it leaves out those whose latent is larger than the GPU's memory, and keeps the late points. So it says that vLLM's default is within 2% at {asked(ok)}.",
            "The mismatches are of the check's inputs, where a few keys weigh as much as thousands. Attention of real models has such keys too, but how often it loses"
            " what was lost here was not measured.",
        )
    )
