"""Energy of a call, and times of calls that follow one another for a second."""

from __future__ import annotations

import pandas as pd

from benchmarks.findings.frames import FA3, folder_of, rows, span, table_of
from benchmarks.findings.page import Finding, checked
from orchestrator.analysis.names import shown
from orchestrator.tables import Grid

SWEEP = "energy"
KEY = ["kv_dtype", "batch_size", "s_kv", "s_qo"]
MANY = 64  # requests
XQA = "trtllm-native"


def finding() -> Finding:
    ok = rows(SWEEP)
    timed = ok[ok["batch_size"] > 1]  # beside its flush the call of one request is small
    several = timed[timed["energy_j"].notna()]
    told = least_of(several, timed)
    fp8, bf16 = told.xs("fp8_e4m3"), told.xs("bf16")
    capped = several["energy_note"].fillna("").str.contains("throttled")
    calm = (several["energy_us"] / several["median_us"])[~capped]
    pair = several[(several["kv_dtype"] == "fp8_e4m3") & (several["s_qo"] == 1)].pivot_table(
        index="batch_size", columns="backend", values=["energy_j", "own_us"]
    )
    same = of(several, "bf16", 1)
    slow, drafts = (same["energy_us"] / same["median_us"] - 1), of(several, "bf16", 4)
    short, lasting = (drafts.loc[XQA, name] / drafts.loc[FA3, name] - 1 for name in ("median_us", "energy_us"))
    return Finding(
        name="joules",
        question="Does the fastest kernel use the least energy?",
        answer=checked(
            f"Over an FP8 cache yes, at {len(fp8)} of {len(fp8)} shapes.\n", bool(fp8["clear"].all() and fp8["is_fastest"].all())
        )
        + checked(
            f"Over a bf16 cache the two best are too close to tell, at {len(bf16)} of {len(bf16)} shapes.\n",
            not bf16["clear"].any(),
        )
        + f"Over an FP8 cache, with one query token, FlashAttention-3 uses {span(pair['energy_j', FA3] / pair['energy_j', XQA])} times the energy of XQA (`{XQA}`),"
        f" and takes {span(pair['own_us', FA3] / pair['own_us', XQA])} times its time.\n"
        + checked(
            f"With {MANY} requests, one query token and a bf16 cache, four kernels are within 2% in short blocks.\n",
            len(same) == 4,
            same["own_us"].max() / same["own_us"].min() < 1.02,
        )
        + checked(
            f"In calls that follow one another for a second, FlashAttention-3 takes {slow[FA3]:.0%} longer than that, and the others {span(slow.drop(FA3), '{:.0%}')}.",
            slow[FA3] > 2 * slow.drop(FA3).max(),
        ),
        table=short_table(several),
        advice="over an FP8 cache choose by time.\n"
        + checked(
            "Over a bf16 cache with many requests, compare times of calls that last (`energy_us`) before you choose FlashAttention-3."
            f" With {MANY} requests of 4 query tokens it is {short:.0%} ahead of XQA in short blocks, and {-lasting / (1 + lasting):.0%} behind it in a second of calls.",
            short > 0 > lasting,
        ),
        limits=f"one GPU, {' and '.join(map(str, sorted(timed['batch_size'].unique())))} requests of {ok['s_kv'].max():,} tokens;"
        f" {kernels_of(timed, 'bf16')} kernels over a bf16 cache, {kernels_of(timed, 'fp8_e4m3')} over an FP8 one, where FlashAttention-3 has FP8 queries."
        f" No figure for {len(timed) - len(several)} of {len(timed)} points. Whether a whole server meets the power cap was not measured: other layers draw other power."
        f" At the end of their second, {int(capped.sum())} of {len(several)} points met the cap, "
        + checked(
            f"FlashAttention-3 with {MANY} requests among them.",
            bool(capped[(several["backend"] == FA3) & (several["batch_size"] == MANY)].all()),
        )
        + f" Points that did not meet it take up to {calm.max() - 1:.0%} longer than in short blocks, too."
        " Points of one request are on the page of evidence alone: a call's share is small beside that of the flush before it.",
        command=f"python -m orchestrator +sweep=specdec_long_ctx mode=report question=energy results.path=results/{folder_of(SWEEP)}",
        datasets=(SWEEP,),
        evidence=(
            by_kernel("mJ of a call", ok.assign(value=1e3 * ok["energy_j"])),
            by_kernel("half-width of its 95% interval in %", ok.assign(value=100 * ok["energy_rel"])),
            by_kernel("watts while it runs", several.assign(value=several["energy_j"] / several["energy_us"] * 1e6), "{:,.0f}"),
            by_kernel(
                "µs of a call among calls that follow one another for a second (`energy_us`)",
                several.assign(value=several["energy_us"]),
            ),
            by_kernel("µs of a call in short blocks (`median_us`)", several.assign(value=several["median_us"])),
        ),
    )


def of(several: pd.DataFrame, kv_dtype: str, s_qo: int) -> pd.DataFrame:
    """The rows of many requests over a cache, by backend."""
    return several[(several["batch_size"] == MANY) & (several["kv_dtype"] == kv_dtype) & (several["s_qo"] == s_qo)].set_index(
        "backend"
    )


def kernels_of(timed: pd.DataFrame, kv_dtype: str) -> int:
    return timed.loc[timed["kv_dtype"] == kv_dtype, "backend"].nunique()


def least_of(several: pd.DataFrame, timed: pd.DataFrame) -> pd.DataFrame:
    """By shape: whether the least energy is less than the next by more than both are uncertain, and whether it is the fastest's.

    The fastest is that of all points, also those without an energy.
    """
    ranked = several.sort_values("energy_j").groupby(KEY)
    first, second = (ranked.nth(n).set_index(KEY).sort_index() for n in (0, 1))
    fast = timed.loc[timed.groupby(KEY)["own_us"].idxmin()].set_index(KEY).sort_index()
    clear = second["energy_j"] / first["energy_j"] - 1 > first["energy_rel"] + second["energy_rel"]
    return pd.DataFrame({"clear": clear, "is_fastest": fast["backend"] == first["backend"]})


def by_kernel(title: str, values: pd.DataFrame, form: str = "{:,.1f}") -> str:
    return table_of(title, values.pivot_table(index=KEY, columns="kernel", values="value"), form)


def short_table(several: pd.DataFrame) -> Grid:
    cells = []
    for (kv, batch, _, s_qo), part in several.groupby(KEY):
        by = part.set_index("backend")
        least, fastest, lasting = (by[name].idxmin() for name in ("energy_j", "own_us", "energy_us"))
        cells.append(
            (
                str(kv),
                str(batch),
                str(s_qo),
                f"{shown(least)}, {1e3 * by.loc[least, 'energy_j']:,.0f} mJ ± {by.loc[least, 'energy_rel']:.0%}",
                f"{shown(fastest)}, {by.loc[fastest, 'median_us']:,.0f} µs",
                f"{shown(lasting)}, {by.loc[lasting, 'energy_us']:,.0f} µs",
            )
        )
    header = ("cache", "requests", "s_qo", "least energy", "fastest in short blocks", "fastest in a second of calls")
    return Grid("the kernel of least energy and of least time", header, tuple(cells))
