"""Drafts and trees on an H100 with the kernels of engines: three builds of FlashAttention-3, FlashAttention-4, Triton kernels."""

from __future__ import annotations

import pandas as pd

from benchmarks.findings.frames import FA3, SAME, rows, span, table_of, tally
from benchmarks.findings.page import checked

DRAFTS, TREES = "h100_target_verify_all_candidates", "h100_xqa_specdec_all_candidates"
SHAPE = ["batch_size", "s_kv", "s_qo"]
FA4, VLLM_TRITON, SGLANG_TRITON = "decode flash_attn_4", "decode vllm_triton", "prefill sglang_triton"
SHORT, MANY = 1024, 8  # tokens of context; requests
LINEAR = ("causal", "full")


def times() -> pd.DataFrame:
    """µs of drafts by shape and kernel (routine and backend), over a bf16 cache."""
    return rows(DRAFTS).pivot_table(index=SHAPE, columns="kernel", values="own_us")


def tree_times() -> pd.DataFrame:
    """The same by mask too, for linear drafts, full masks and trees."""
    return rows(TREES).pivot_table(index=["mask", *SHAPE], columns="kernel", values="own_us")


def of_fa3(us: pd.DataFrame) -> pd.Series:
    """The fastest of the builds of FlashAttention-3."""
    return us.filter(like=FA3).min(axis=1)


def over_rest(us: pd.DataFrame) -> pd.DataFrame:
    """By shape: the time of the fastest build of FlashAttention-3 over that of the fastest other kernel, whose name is `best`."""
    rest = us.loc[:, ~us.columns.str.contains(FA3)]
    return pd.DataFrame({"ratio": of_fa3(us) / rest.min(axis=1), "best": rest.idxmin(axis=1)})


def of_drafts() -> str:
    """FlashAttention-3 beside all other kernels, and FlashAttention-4 and the Triton kernels beside it."""
    us = times()
    found, fa4 = over_rest(us), us[FA4] / of_fa3(us)
    behind = found[found["ratio"] > 1 + SAME]
    batch, s_kv = (fa4.index.get_level_values(name) for name in ("batch_size", "s_kv"))
    short = fa4[(batch >= MANY) & (s_kv == SHORT)]
    return "\n".join(
        (
            f"On an H100 the kernels of engines were timed too, over a bf16 cache.\nFlashAttention-3 is the fastest, or within {SAME:.0%} of it,"
            f" at {len(us) - len(behind)} of {len(us)} shapes; the fastest at the others is {tally(behind['best'])}.",
            checked(
                f"FlashAttention-4 takes {span(short)} times the time of FlashAttention-3's fastest build over {SHORT:,} tokens with {MANY} requests or more,"
                f" {span(fa4[(batch >= MANY) & (s_kv > SHORT)])} over longer contexts, and {span(fa4[batch < MANY])} with one request.",
                short.max() < 1,
            ),
            checked(
                "The reason was not measured.\nFlashAttention-3's plan allows several splits there, and FlashAttention-4 takes one (`kernel_config`)."
                "\nBut that is also so with one request, where FlashAttention-3 is faster.",
                fa4[batch < MANY].min() > 1,
            ),
            checked(
                f"vLLM's Triton kernel takes {span(us[VLLM_TRITON] / of_fa3(us))} times that time, and SGLang's for drafts {span(us[SGLANG_TRITON] / of_fa3(us))}.",
                bool((us[[VLLM_TRITON, SGLANG_TRITON]].min(axis=1) > of_fa3(us)).all()),
            ),
        )
    )


def of_trees(trees: tuple[str, ...]) -> str:
    """FlashAttention-3 beside the other kernels over trees, and over masks that they all serve."""
    us = tree_times()
    masks = us.index.get_level_values("mask")
    over_tree = us[masks.isin(trees)]
    linear = over_rest(us[masks.isin(LINEAR)])["ratio"]
    slow = over_tree[SGLANG_TRITON] / over_tree.min(axis=1)
    return "\n".join(
        (
            f"On an H100 SGLang's Triton kernel was timed over {len(over_tree)} trees too, with bf16 queries: it takes {span(slow)} times as long as the fastest kernel.",
            checked(
                f"Over linear drafts and full masks FlashAttention-3 takes {span(linear)} times as long as the fastest kernel that is no build of it.",
                linear.max() < 1.05,
            ),
        )
    )


def advice() -> str:
    ahead = over_rest(times()).query("batch_size >= @MANY and s_kv == @SHORT")
    return checked(
        f"For drafts over a bf16 cache, {SHORT:,} tokens and {MANY} requests or more, try FlashAttention-4 too.",
        bool((ahead["best"] == FA4).all()),
        ahead["ratio"].min() > 1 + SAME,
    )


def draft_tables() -> str:
    us = times()
    ahead = over_rest(us)
    behind = ahead[ahead["ratio"] > 1 + SAME]
    return "\n\n".join(
        (
            table_of("µs of drafts on an H100 with the kernels of engines, bf16", us),
            table_of(
                f"the fastest build of FlashAttention-3 over the fastest other kernel, where that is faster by more than {SAME:.0%}",
                behind[["ratio"]].rename_axis(columns=""),
                "{:.2f}",
            ),
        )
    )


def tree_table() -> str:
    return table_of("µs of linear drafts, full masks and trees on an H100 with the kernels of engines, bf16", tree_times())
