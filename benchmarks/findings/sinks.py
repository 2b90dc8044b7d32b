"""A model with attention sinks, half of whose layers see a window: gpt-oss."""

from __future__ import annotations

import pandas as pd

from benchmarks.findings.frames import FA3, choices, of_best, ratio_grid, rows, table_of, tally, winners
from benchmarks.findings.page import Finding, checked
from orchestrator.analysis.names import shown
from orchestrator.tables import Grid, markdown

SWEEP, FP8, BY_PAGE = "target_verify_gpt_oss", "target_verify_gpt_oss_fp8", "specdec_paged_decode_gpt_oss"
SHAPE = ["batch_size", "s_kv", "s_qo"]
LAYER = ["layer", *SHAPE]
NAMES = ("fa2_tc", FA3, "trtllm-native")  # the table's


def finding() -> Finding:
    ok, fp8 = with_layer(rows(SWEEP)), with_layer(rows(FP8))
    usual = choices(ok[(ok["page_order"] == "random") & (ok["kv_dtype"] == "bf16")])
    decode = usual[usual["routine"] == "paged_decode"]
    cost = of_both_layers(decode)
    over = cost.div(cost.min(axis=1), axis=0)
    in_fp8 = of_both_layers(choices(fp8[fp8["routine"] == "paged_decode"]))
    return Finding(
        name="sinks",
        question="Which kernel verifies drafts of a model with sinks and windows?",
        answer="gpt-oss-120b has attention sinks, and in half of its layers a token sees only the last 128 tokens.\n"
        "Over one layer of each kind, the number of query tokens decides.\n"
        f"{fastest('Over a bf16 cache, with', cost)}\n{fastest('Over an FP8 cache, with', in_fp8)}\n"
        "FlashAttention-3 is missing there: it takes an FP8 cache with FP8 queries alone, and these have 16 bits.",
        table=short_table(over, cost),
        advice="choose by the draft length of your server.\n"
        f"One kernel for all of these shapes costs up to {over['fa2_tc'].max():.2f} times the best (`fa2_tc`), {over[FA3].max():.2f} times"
        f" (FlashAttention-3) or {over['trtllm-native'].max():.2f} times (XQA, `trtllm-native`).",
        limits=f"decode kernels; the advice and the table are about a bf16 cache. {of_prefill(usual)}"
        + checked(
            " FP8 caches were measured in another run, on another H200.", not set(ok["device_uuid"]) & set(fp8["device_uuid"])
        )
        + " [The next section](#and-on-an-h100-which-kernel-verifies-drafts-of-a-model-with-sinks-and-windows) has all contexts of the sweep, on an H100."
        + f" Sinks are drawn in bf16, and the largest error is {max(ok['rel_err'].max(), fp8['rel_err'].max()):.2%} of a row's size.",
        command="python -m orchestrator +sweep=target_verify model=gpt_oss_120b 'sweep.window=[null,128]' mode=report"
        f" results.path=results/h200_{SWEEP}",
        datasets=(SWEEP, FP8, BY_PAGE),
        evidence=(
            markdown(
                [
                    ratio_grid(
                        "time divided by the best decode kernel's, by kind of layer", of_best(decode, LAYER), ["layer", "kernel"]
                    )
                ]
            ),
            by_page(with_layer(rows(BY_PAGE))),
        ),
    )


def with_layer(ok: pd.DataFrame) -> pd.DataFrame:
    """With `layer`, the kind of layer in words."""
    return ok.assign(layer=ok["window"].map(lambda window: "full attention" if pd.isna(window) else f"a window of {int(window)}"))


def fastest(begins: str, cost: pd.DataFrame) -> str:
    """A sentence on the fastest kernel for each number of query tokens, one a line."""
    return "\n".join(
        f"{begins} {s_qo} query tokens the fastest is {tally(part.idxmin(axis=1))} of {len(part)} shapes."
        for s_qo, part in cost.groupby(level="s_qo")
    )


def by_page(ok: pd.DataFrame) -> str:
    """µs of decode kernels in 16 requests of 8,192 tokens, by cache, kind of layer and page size."""
    fixed = choices(ok[(ok["seq_lens"] == "fixed") & (ok["mask"] == "causal") & (ok["q_dtype"] == "bf16")])
    times = fixed.pivot_table(index=["kv_dtype", "layer", "page_size", "s_qo"], columns="family", values="own_us")
    return table_of("µs without the launch, 16 requests of 8,192 tokens, bf16 queries, by page size", times)


def of_both_layers(decode: pd.DataFrame) -> pd.DataFrame:
    """By shape and kernel: µs of one layer of each kind together. FlashAttention-3 is called in the same way in both."""
    layers = decode.pivot_table(index=[*SHAPE, "family", "backend"], columns="layer", values="own_us")
    return layers.dropna().sum(axis=1).groupby(level=[*SHAPE, "family"]).min().unstack("family")


def of_prefill(usual: pd.DataFrame) -> str:
    """What is known of prefill kernels, which did not run at all shapes."""
    same = usual[~((usual["routine"] == "paged_prefill") & (usual["backend"] == "fa2"))]
    both = same[same.groupby(LAYER)["routine"].transform("nunique") == 2]
    first = winners(both, LAYER)
    won = first[first["routine"] == "paged_prefill"]["backend"]
    return (
        "`fa2` of prefill is the same kernel as `fa2_tc`. Other prefill kernels ran at"
        f" {len(first)} problems of one kind of layer, and were the fastest at {len(won)} of them."
    )


def short_table(over: pd.DataFrame, cost: pd.DataFrame) -> Grid:
    cells = [
        (
            str(s_qo),
            str(len(part)),
            tally(cost.loc[part.index].idxmin(axis=1)),
            *(f"{part[name].median():.2f} ({part[name].max():.2f})" for name in NAMES),
        )
        for s_qo, part in over.groupby(level="s_qo")
    ]
    title = "one layer of each kind together: time over the best decode kernel's, median (most) over shapes"
    return Grid(title, ("s_qo", "shapes", "fastest", *map(shown, NAMES)), tuple(cells))
