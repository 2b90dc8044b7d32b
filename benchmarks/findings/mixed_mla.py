"""One request of another query length in a batch of MLA drafts, and drafts of unequal lengths."""

from __future__ import annotations

from benchmarks.findings.frames import folder_of, rows, table_of
from benchmarks.findings.mixed import best, words, worst
from benchmarks.findings.page import Finding
from orchestrator.tables import Grid

SWEEP = "mixed_q_len_mla"
KEY = ["num_qo_heads", "kv_dtype", "batch"]


def finding() -> Finding:
    ok = rows(SWEEP)
    ok = ok.assign(batch=[words(row) for row in ok.to_dict("records")])
    wide = ok.pivot_table(index=KEY, columns="backend", values="own_us")
    cells = []
    for (heads, kv, batch), times in wide.iterrows():
        if kv == "bf16" and "one of 2 " not in batch:  # that says the same as one of 1
            single, split = (times[[name for name in times.dropna().index if ("+" in name) == two]] for two in (False, True))
            cells.append((str(heads), batch, best(single), best(split), worst(single)))
    many, few = (wide.loc[(heads, "bf16", "15 of 4 and one of 512 over 8k")] for heads in (128, 16))
    odd, even, ragged = (
        wide.loc[(128, "bf16", f"{which} over 8k")] for which in ("15 of 4 and one of 1", "16 of 4", "16 of 1 to 4")
    )
    more = (wide["fa3"].loc[16, "bf16", "15 of 4 and one of 1 over 8k"] / wide["fa3"].loc[16, "bf16", "16 of 4 over 8k"] - 1) * 100
    return Finding(
        name="mixed_q_len_mla",
        question="And in MLA, one request of another query length?",
        answer=f"It costs {odd['fa3'] / even['fa3'] - 1:.0%} on a GPU with 128 heads: fa3 takes {odd['fa3']:.0f} µs with one request of"
        f" 1 query token among 15 of 4, and {even['fa3']:.0f} µs with 16 of 4; with 16 heads the difference is {more:.1f}%.\n"
        f"Two calls pay for a long prompt on 16 heads ({few['fa3+fa3@4']:.0f} against {few['fa3']:.0f} µs with one request of 512"
        f" tokens), and not on 128 ({many['fa3+fa3@4']:,.0f} against {many['fa3']:,.0f}).",
        table=Grid(
            "µs at 8,192 tokens, a bf16 cache",
            ("heads", "requests", "best single call", "best split", "slowest single call"),
            tuple(cells),
        ),
        advice="keep drafts of one length on a GPU that has all heads: 16 drafts of 1 to 4 query tokens take fa3"
        f" {ragged['fa3']:.0f} µs, and 16 of 4 take {even['fa3']:.0f}. Split off long prompts on a GPU that has few.",
        limits="why fa3 takes longer for fewer tokens was not examined. FlashInfer's kernels alone: no other library's MLA was measured here. Every call reads the latent;"
        " engines run long prompts without absorption instead.",
        command=f"python -m orchestrator +sweep={SWEEP} mode=report results.path=results/{folder_of(SWEEP)}",
        datasets=(SWEEP,),
        evidence=(table_of("µs", wide),),
    )
