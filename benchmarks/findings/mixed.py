"""One request of another query length in a batch of drafts."""

from __future__ import annotations

import pandas as pd

from benchmarks.findings.frames import folder_of, rows, table_of
from benchmarks.findings.page import Finding
from orchestrator.analysis.names import shown
from orchestrator.tables import Grid

SWEEP = "mixed_q_len"


def finding() -> Finding:
    ok = rows(SWEEP)
    ok = ok[ok["backend"] != "torch_sdpa+torch_sdpa@4"]
    ok = ok.assign(batch=[words(row) for row in ok.to_dict("records")])
    wide = ok.pivot_table(index=["kv_dtype", "batch"], columns="kernel", values="own_us")
    cells = []
    for (kv, batch), times in wide.iterrows():
        if "32k" in batch or "one of 2 " in batch:  # they say the same
            continue
        single, split = (times[[name for name in times.dropna().index if ("+" in name) == two]] for two in (False, True))
        cells.append((kv, batch, *(best(part) for part in (single, split)), worst(single)))
    one, long = (wide.loc[("bf16", f"15 of 4 and one of {n} over 8k")] for n in (1, 512))
    even = wide.loc[("bf16", "16 of 4 over 8k")]
    return Finding(
        name="mixed_q_len",
        question="What does one request of another query length cost?",
        answer=f"Nothing, if one kernel takes the whole batch: FlashAttention-3 takes {one['decode flash_attn_3']:.0f} µs with one request of 1 query token"
        f" among 15 of 4, and {even['decode flash_attn_3']:.0f} µs with 16 of 4.\n"
        f"Split into a decode and a prefill call, the same batch takes {one['decode fa2_tc+fa2@4']:.0f} µs with fa2, which takes"
        f" {even['decode fa2_tc']:.0f} µs for 16 of 4.",
        table=Grid(
            "µs at 8,192 tokens", ("cache", "requests", "best single call", "best split", "slowest single call"), tuple(cells)
        ),
        advice="give a mixed batch to FlashAttention-3 in one call. Do not give a prompt to a kernel for drafts:"
        f" with one request of 512 query tokens, XQA takes {long['decode trtllm-native'] / long.min():.0f} times as long as the best.",
        limits="the two answers above are for 16 requests. Both calls of a split are in one CUDA graph, one after the other.",
        command=f"python -m orchestrator +sweep={SWEEP} mode=report results.path=results/{folder_of(SWEEP)}",
        datasets=(SWEEP,),
        evidence=(table_of("µs", wide),),
    )


def words(row: dict[str, object]) -> str:
    """`15 of 4 and one of 512 over 8k`."""
    over = f"over {int(row['s_kv']) // 1024}k"
    if pd.notna(row["batch_spec"]):
        odd = str(row["batch_spec"]).rpartition("_q")[2].partition("s")[0]
        return f"15 of 4 and one of {odd} {over}"
    return f"{row['batch_size']} of {'1 to ' if pd.notna(row['min_s_qo']) else ''}{row['s_qo']} {over}"


def best(times: pd.Series) -> str:
    return f"{shown(times.idxmin().removeprefix('decode '))} {times.min():,.1f}" if len(times) else "–"


def worst(times: pd.Series) -> str:
    return f"{shown(times.idxmax().removeprefix('decode '))} {times.max():,.1f}" if len(times) else "–"
