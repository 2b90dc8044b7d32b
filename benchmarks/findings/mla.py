"""DeepSeek's MLA with drafts."""

from __future__ import annotations

from benchmarks.findings.frames import choices, folder_of, of_best, ratio_grid, rows, span, tally, winners
from benchmarks.findings.page import Finding
from orchestrator.analysis.questions import ask, q_len, views_of
from orchestrator.tables import Grid, markdown

SWEEP = "mla_mtp"
KEY = ["num_qo_heads", "kv_dtype", "batch_size", "s_kv", "s_qo"]


def finding() -> Finding:
    ok = rows(SWEEP)
    data = views_of(ok)
    gains = ask(data, "q_len").df().dropna(subset="gain")
    first = winners(ok, KEY, "backend").reset_index()
    times = ok[ok["backend"] != "auto"].groupby([*KEY])["own_us"].min().unstack("kv_dtype")
    fp8 = (times["fp8_e4m3"] / times["bf16"]).dropna()
    cells = []
    for (heads, kv), part in gains.groupby(["num_qo_heads", "kv_dtype"]):
        best = first[(first["num_qo_heads"] == heads) & (first["kv_dtype"] == kv)]
        cells.append(
            (
                str(heads),
                kv,
                tally(best["backend"]),
                f"{best['ahead'].median():.0%}",
                f"{part['gain'].median():.2f} ({span(part['gain'])})",
            )
        )
    header = ("query heads", "latent", "fastest, by shapes", "ahead by, median", "one call over single tokens: times faster")
    few = gains[gains["num_qo_heads"] == 16]["gain"]
    return Finding(
        name="mla",
        question="DeepSeek MLA with MTP: one call over the draft, or one call for each token?",
        answer=f"One call, above all if a GPU holds few heads: with 16 heads (TP 8) it is {few.median():.2f} times as fast as one call for each token.\n"
        f"An FP8 latent takes {span(fp8)} times as long as a bf16 one, because these kernels convert it to 16 bits before they multiply.",
        table=Grid("by query heads on the GPU and dtype of the latent", header, tuple(cells)),
        advice="keep the latent in bf16 with FlashInfer's kernels on Hopper, and give the whole draft to one call.",
        limits="only FlashInfer's kernels, on an H200."
        "\nFlashMLA and FlashAttention-3's MLA are in [the next question](#which-mla-kernel-should-an-engine-take-on-hopper-and-does-fp8-pay-there), on both GPUs.",
        command=f"python -m orchestrator +sweep={SWEEP} mode=report question=q_len results.path=results/{folder_of(SWEEP)}",
        datasets=(SWEEP,),
        evidence=(
            markdown([ratio_grid("time over the fastest kernel's", of_best(choices(ok), KEY), ["kv_dtype", "s_kv", "backend"])]),
            markdown(q_len.measure_grids(data, "gain")),
        ),
    )
