"""One of eight GPUs that share a model: a single KV head."""

from __future__ import annotations

import pandas as pd

from benchmarks.findings.frames import FA3, folder_of, rows, span, table_of, tally, winners
from benchmarks.findings.page import Finding, checked
from orchestrator.tables import Grid

WHOLE, SHARE = "specdec_long_ctx", "specdec_tp8"
SHAPE = ["kv_dtype", "batch_size", "s_kv", "s_qo"]
CLEAR = 1.05  # a choice that takes longer than this, in times of the best, is one to avoid


def finding() -> Finding:
    whole, share = (winners(rows(name), SHAPE) for name in (WHOLE, SHARE))
    both = share.join(whole["family"].rename("whole"), how="inner")
    both = both.assign(cost=cost_of_other_choice(rows(SHARE), both))
    days, gpus = (
        [set(rows(name)[column].map(of)) for name in (WHOLE, SHARE)]
        for column, of in (("finished_at", lambda t: t.date()), ("device_uuid", str))
    )
    alone = both.index.get_level_values("batch_size") == 1
    one, more = both[alone], both[~alone]
    by_cache = [
        f"With one request over {cache} cache the fastest is {tally(one.loc[kv]['family'])} of {len(one.loc[kv])} shapes."
        for kv, cache in (("bf16", "a bf16"), ("fp8_e4m3", "an FP8"))
    ]
    return Finding(
        name="sharded",
        question="Is another kernel fastest if eight GPUs share the model?",
        answer="With `sweep.tp=8` each GPU has 8 of the 64 query heads, and one of the 8 KV heads.\n"
        + checked("With one request yes: ", differs(one) > len(one) / 2, one["cost"].median() > CLEAR)
        + f"at {differs(one)} of {len(one)} shapes another kernel is fastest than with all heads on one GPU."
        f" To keep that one costs {one['cost'].median() - 1:.0%} at the median shape, and {one['cost'].max() - 1:.0%} at the worst.\n"
        + "\n".join(by_cache)
        + checked("\nWith 8 requests or more hardly: ", (more["cost"] > CLEAR).mean() < 0.1)
        + f"to keep the kernel that is fastest with all heads costs over {CLEAR - 1:.0%} at {(more['cost'] > CLEAR).sum()} of {len(more)} shapes.",
        table=short_table(both),
        advice="for one request, measure what one GPU of your server has. For many, the choice from all heads is nearly as fast.",
        limits="one GPU was measured, without what the eight exchange after attention, which does not depend on the kernel."
        " Over an FP8 cache FlashAttention-3 has FP8 queries, and the others bf16 ones."
        + checked(" The two datasets are of two days and two GPUs.", not days[0] & days[1], not gpus[0] & gpus[1]),
        command=f"python -m orchestrator +sweep=specdec_long_ctx 'sweep.tp=[8]' 'sweep.s_kv=[8192,32768,131072]' mode=report results.path=results/{folder_of(SHARE)}",
        datasets=(SHARE, WHOLE),
        evidence=(times(rows(SHARE)),),
        in_readme=f"With one request, at {differs(one)} of {len(one)} shapes; with 8 or more it matters little.",
    )


def differs(both: pd.DataFrame) -> int:
    return int((both["family"] != both["whole"]).sum())


def cost_of_other_choice(ok: pd.DataFrame, both: pd.DataFrame) -> pd.Series:
    """By shape: the time of the kernel that is fastest with all heads, over that of the fastest with one KV head."""
    least = ok.groupby([*SHAPE, "family"])["own_us"].min()
    chosen = both.set_index("whole", append=True).index
    found = least.reindex(chosen.set_names([*SHAPE, "family"])).droplevel("family")
    return found / both["own_us"]


def short_table(both: pd.DataFrame) -> Grid:
    cells = []
    many = both.index.get_level_values("batch_size") > 1
    for (kv, _), part in both.groupby([both.index.get_level_values("kv_dtype"), many]):
        requests = span(part.index.get_level_values("batch_size"), "{}")
        cells.append(
            (
                str(kv),
                requests,
                str(len(part)),
                tally(part["family"]),
                tally(part["whole"]),
                str(differs(part)),
                f"{part['cost'].median():.2f}",
                span(part["cost"]),
            )
        )
    header = (
        "cache",
        "requests",
        "shapes",
        "fastest, one KV head",
        "fastest, 8 KV heads",
        "another one",
        "its cost, median",
        "least to most",
    )
    title = (
        "fastest kernel with one KV head and with all eight; what the latter choice costs with one KV head, in times of the best"
    )
    return Grid(title, header, tuple(cells))


def times(ok: pd.DataFrame) -> str:
    best = ok[ok["backend"] != "auto"].groupby([*SHAPE, "family"])["own_us"].min().unstack()
    first = [name for name in (FA3, *best.columns) if name in best.columns]
    return table_of("µs without the launch, one KV head", best[list(dict.fromkeys(first))])
