"""What the defaults of vLLM and SGLang cost, in decode, in drafts and in prompts, on an H200 and on an H100."""

from __future__ import annotations

import pandas as pd

from benchmarks import fa3
from benchmarks.findings import builds, draft_candidates, sustained_load
from benchmarks.findings.frames import FA3, SAME, folder_of, rows, span
from benchmarks.findings.page import Finding, checked
from orchestrator.analysis.names import shown
from orchestrator.analysis.questions import ask, engine_default, views_of
from orchestrator.config.engine import selected
from orchestrator.tables import Grid, markdown

VLLM, SGLANG = (selected(name)[0].title for name in ("vllm", "sglang"))

ONE_KERNEL = ("target_verify_fp8_queries", "h100_drafts/target_verify")  # with FP8 queries
DECODE = ("specdec_long_ctx", "target_verify", ONE_KERNEL[0], "h100_main/specdec_long_ctx", ONE_KERNEL[1])  # one token, and drafts
PAGED = ("h100_prefill/engine_prefill", "h200_prefill/engine_prefill")  # prompts of ordinary heads in pages
LATENTS = ("h100_prefill/ragged_prefill", "h200_prefill/ragged_prefill")  # those of MLA without pages
NO_ROOM = (PAGED[1], LATENTS[1])  # in the short table
DATASETS = (*DECODE, *PAGED, *LATENTS)
ENGINES = (VLLM, SGLANG)
WHAT = ("within 2%", "median", "worst (best there)")


def finding() -> Finding:
    found = answers()
    alone = found["sweep"].isin(ONE_KERNEL) & (found["q_dtype"] == "fp8_e4m3")
    decode = found[found["sweep"].isin(DECODE) & ~alone]
    of_vllm = found[found["engine"] == VLLM]
    latent = of_vllm[of_vllm["sweep"].isin(LATENTS)]
    paged = of_vllm[of_vllm["sweep"].isin(PAGED) & (of_vllm["routine"] == "paged_prefill")]
    header = ("results", "cache", "shapes", *(f"{engine.split()[0]}: {what}" for engine in ENGINES for what in WHAT))
    return Finding(
        name="engine_defaults",
        question="What do the defaults of vLLM and SGLang cost on Hopper?",
        answer="\n".join((*(of_engine(engine, decode) for engine in ENGINES), of_own_builds(), of_prompts(paged, latent))),
        table=Grid("time of an engine's default, divided by the best backend's", header, tuple(cells(found[~found["sweep"].isin(NO_ROOM)]))),
        advice=f"keep FlashAttention-3 for decode and drafts. {but_one_token()} {sglang_plans(decode)} {prompts_take(paged, latent)}",
        limits=f"the defaults were read from {VLLM} and {SGLANG}. A default that cannot serve a shape (FlashAttention-3 with bf16 queries over an"
        " FP8 cache) is not counted there. Over an FP8 cache the other backends have FP8 queries too;"
        " [The decode finding](#which-decode-backend-is-fastest-for-drafts-over-long-contexts) has the comparison with bf16 queries."
        " Prompts in pages were 512 or 2,048 new tokens of 8,192 or 32,768. SGLang's call for them, which makes its plan in each layer, is in [another section](#does-it-matter-whose-build-of-flashattention-3-an-engine-takes)."
        f" {sustained_load.pointer()}"
        f" {only_one_kernel(found[alone])} Outside of `h200_prefill/engine_prefill` and of the drafts with engines' own builds, {builds.of_other_builds()}"
        " MLA has"
        " [a section of its own](#which-mla-kernel-should-an-engine-take-on-hopper-and-does-fp8-pay-there).",
        command="python -m orchestrator mode=report question=engine_default results.path=results/h200_main/specdec_long_ctx",
        datasets=(*DATASETS, builds.ON_H200, *draft_candidates.DRAFTS.values()),
        in_readme=in_readme(decode, paged, latent),
        evidence=tuple(f"## {folder_of(s)}\n\n{markdown(engine_default.grids(views_of(rows(s))))}" for s in (*DATASETS, *draft_candidates.DRAFTS.values())),
    )  # fmt: skip


def answers() -> pd.DataFrame:
    """The answers of question=engine_default to all datasets, with `sweep`."""
    return pd.concat([ask(views_of(rows(sweep)), "engine_default").df().assign(sweep=sweep) for sweep in DATASETS])


def cells(found: pd.DataFrame) -> list[tuple[str, ...]]:
    """A line for each dataset and dtype of the cache, with three figures for each engine."""
    lines = []
    for (sweep, kv), part in found.groupby(["sweep", "kv_dtype"], sort=False):
        counts = {len(of) for _, of in by_engine(part) if len(of)}
        figures = [figure for _, of in by_engine(part) for figure in (figures_of(of) if len(of) else ("–",) * len(WHAT))]
        lines.append((folder_of(sweep), kv, "/".join(map(str, counts)), *figures))
    return lines


def figures_of(found: pd.DataFrame) -> tuple[str, ...]:
    return near(found), f"{found['regret'].median():.2f}", worst(found)


def by_engine(found: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    return [(engine, found[found["engine"] == engine]) for engine in ENGINES]


def near(found: pd.DataFrame) -> str:
    """The share of shapes at which the default is as fast as the best."""
    return f"{(found['regret'] <= 1 + SAME).mean():.0%}"


def worst(found: pd.DataFrame) -> str:
    row = found.loc[found["regret"] == found["regret"].max()].iloc[0]
    return f"{row['regret']:.2f} ({shown(row['best'])})"


def of_engine(engine: str, decode: pd.DataFrame) -> str:
    """How close its default is in decode and drafts, on each GPU."""
    parts = []
    of = decode[decode["engine"] == engine]
    for gpu, part in of.assign(gpu=of["device_name"].str.split().str[1]).groupby("gpu", sort=False):
        parts.append(f"{near(part)} of {len(part):,} shapes on an {gpu} (worst {part['regret'].max():.2f})")
    return f"In decode and drafts {engine}'s default is within 2% of the best backend at {' and '.join(parts)}."


def of_own_builds() -> str:
    """Drafts over a bf16 cache with each engine's own build of FlashAttention-3, beside the other builds and FlashAttention-4."""
    parts: dict[str, list[str]] = {engine: [] for engine in ENGINES}
    ahead = []
    for card, name in reversed(draft_candidates.DRAFTS.items()):
        for engine, part in by_engine(ask(views_of(rows(name)), "engine_default").df()):
            slow = part[part["regret"] > 1 + SAME]
            ahead.append(slow["best"].str.startswith(FA3).mean())
            one = part["batch_size"] == 1
            medians = " and ".join(
                f"{part.loc[of, 'regret'].median():.2f} {what}" for of, what in ((one, "with one request"), (~one, "with more"))
            )
            parts[engine].append(
                f"{near(part)} of {len(part)} shapes on an {card} (worst {part['regret'].max():.2f}), with a median of {medians}"
            )
    words = (f"{engine}'s default is within 2% at " + ".\nIt is at ".join(parts[engine]) + "." for engine in ENGINES)
    return checked(
        "Those figures take `tokenspeed-fa3`'s build for the engines' own, beside FlashInfer's kernels.\nIn drafts over a bf16 cache the engines' own builds were compared with one another too, and with FlashAttention-4."
        f"\n{' '.join(words)}\nWhere one is more than {SAME:.0%} behind, another build of FlashAttention-3 is the fastest at {min(ahead):.0%} to {max(ahead):.0%} of the shapes.",
        min(ahead) > 0.5,
    )


def in_readme(decode: pd.DataFrame, paged: pd.DataFrame, latent: pd.DataFrame) -> str:
    """The answer in one line, over both GPUs."""
    of = " and ".join(f"{engine}'s is within 2% of the best at {near(part)}" for engine, part in by_engine(decode))
    return (
        f"In decode and drafts, beside FlashInfer's kernels, {of} of {len(decode) // len(ENGINES)} shapes. In drafts, with each engine's own build beside the others, that is {own_builds_near()}. For chunks of prompts in pages vLLM's is at {near(paged)} of {len(paged)},"
        f" for DeepSeek's prompts both are at {near(latent)} of {len(latent)}."
    )


def own_builds_near() -> str:
    """How often each engine's own build is within 2% of the best in drafts, over both GPUs."""
    found = pd.concat([ask(views_of(rows(name)), "engine_default").df() for name in draft_candidates.DRAFTS.values()])
    return " and ".join(f"{near(part)} for {engine.split()[0]}" for engine, part in by_engine(found))


def of_prompts(paged: pd.DataFrame, latent: pd.DataFrame) -> str:
    """How close FlashAttention-3 is for prompts: of ordinary heads in pages on both cards, and of MLA without pages."""
    parts = [paged[paged["sweep"] == name] for name in PAGED]
    shown_parts = " and ".join(
        f"{near(of)} of {len(of)} chunks on an {card} (worst {of['regret'].max():.2f})"
        for of, card in zip(parts, ("H100", "H200"), strict=True)
    )
    of_latent = " and ".join(
        f"{near(of)} of {len(of)} shapes on {cards} (median {of['regret'].median():.2f}, worst {of['regret'].max():.2f})"
        for of, cards in zip((latent[latent["sweep"] == name] for name in LATENTS), ("an H100", "H200s"), strict=True)
    )
    return checked(
        f"For prompts both take FlashAttention-3. In pages vLLM's call is within 2% at {shown_parts}, in bf16.\nOn the H200 it is vLLM's own build, beside SGLang's and `tokenspeed-fa3`'s."
        f" For DeepSeek's prompts, which have no pages, it is within 2% at {of_latent}.",
        [set(of["taken"]) for of in parts] == [{FA3}, {f"{FA3}_vllm"}],
        set(latent["taken"]) == {FA3},
        set(latent["head_dim_qk"]) == {192},
    )


def sglang_plans(decode: pd.DataFrame) -> str:
    """SGLang's regret in drafts is that of the plan: for one token, which it plans ahead, it takes what vLLM takes."""
    one = decode[decode["s_qo"] == 1]
    same = [of.sort_values("problem")["regret"].tolist() for _, of in by_engine(one)]
    return checked(
        "With drafts SGLang makes its plan in every layer, and that is most of its regret here.",
        same[0] == same[1],
        decode.groupby("engine")["regret"].median()[VLLM] <= 1 + SAME / 2,
    )


def only_one_kernel(alone: pd.DataFrame) -> str:
    """Where a default is compared with other calls of its own kernel alone."""
    fp8 = pd.concat([rows(name).query("q_dtype == 'fp8_e4m3'") for name in ONE_KERNEL])
    names = " and ".join(f"`{folder_of(name)}`" for name in ONE_KERNEL)
    of = " and ".join(f"{engine}'s is within 2% at {near(part)}" for engine, part in by_engine(alone))
    return checked(
        f"In {names} only FlashAttention-3 has FP8 queries, so its calls are compared with one another there.\n"
        f"These {len(alone) // len(ENGINES)} shapes are not counted above: {of}.",
        set(fp8["family"]) == {FA3},
    )


def but_one_token() -> str:
    """Over an FP8 cache another kernel with bf16 queries is faster than a default with FP8 queries."""
    over = fa3.over_others("fp8_e4m3").xs(1, level="s_qo")
    return checked(
        "But over an FP8 cache with one query token, XQA or fa2 on tensor cores with bf16 queries are faster:"
        f" on an H200 FlashAttention-3 with FP8 queries takes {over.median():.2f} times their time ({span(over)}).",
        over.median() > 1 + SAME,
    )


def prompts_take(paged: pd.DataFrame, latent: pd.DataFrame) -> str:
    """What to take for prompts: the finding about them says it by heads and lengths."""
    return checked(
        "For prompts in pages keep it too.\n"
        "For DeepSeek's prompts take FlashInfer's `fa3` ([by heads and lengths](#which-kernel-is-fastest-for-the-prompt-itself)).",
        paged["regret"].max() <= 1 + SAME,
        latent["regret"].min() > 1 + SAME,
        set(latent["best_kernel"]) == {"fa3"},
    )
