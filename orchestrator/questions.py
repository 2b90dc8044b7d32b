"""The questions of speculative decoding, answered from the Parquet dataset alone: decode or prefill, auto or not, one call or many.

A question that a dataset holds no rows for has no table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.grid import Grid
from orchestrator.report import SHAPE, kernels_once, label, latest, varying

if TYPE_CHECKING:
    import pandas as pd

VERIFIERS = ("paged_decode", "paged_prefill")
WORST = 10  # points of regret that are listed
SAME = 0.02  # two kernels closer than this are one
# What names a table of one question; whatever else varies joins it.
NAMES = ("device_name", "model", "q_dtype", "kv_dtype")


def grids(table: pd.DataFrame) -> list[Grid]:
    """Every question that this dataset can answer."""
    ok = latest(table)
    ok = ok[ok["status"] == "ok"]
    return [*crossover_grids(ok), *regret_grids(ok), *draft_grids(ok)]


def crossover_grids(ok: pd.DataFrame) -> list[Grid]:
    """Verify a draft with the decode kernel or with the prefill kernel: the faster by context, and from where prefill wins."""
    both = kernels_once(ok[ok["routine"].isin(VERIFIERS)])
    same = [key for key in SHAPE if key != "routine"]
    best = both.sort_values("median_us", kind="stable").groupby([*same, "routine"], dropna=False).nth(0)
    decode, prefill = (best[best["routine"] == routine][[*same, "median_us", "backend"]] for routine in VERIFIERS)
    paired = decode.merge(prefill, on=same, suffixes=("_decode", "_prefill"))
    down, across = ["s_qo", "batch_size"], "s_kv"
    extra = varying(paired, (*NAMES, *down, across))
    found = []
    for keys, part in paired.groupby([*NAMES, *extra], dropna=False, sort=True):
        contexts = sorted(part[across].unique())
        cells = [_crossover_row(drafts, rows.set_index(across), contexts) for drafts, rows in part.groupby(down)]
        title = f"verify by decode or by prefill, µs of the faster (ahead by) · {_name(keys, extra)}"
        header = ("s_qo", "batch", *(f"s_kv {c:,}" for c in contexts), "prefill ahead from")
        found.append(Grid(title, header, tuple(cells)))
    return found


def _name(keys: tuple[object, ...], extra: list[str]) -> str:
    device, model, q, kv, *others = keys
    return f"{model} · q {q}, kv {kv}{label(extra, others)} · {device}"


def _crossover_row(drafts: tuple[object, ...], rows: pd.DataFrame, contexts: list[int]) -> tuple[str, ...]:
    cells, ahead = [], []
    for context in contexts:
        if context not in rows.index:
            cells.append("–")
            continue
        row = rows.loc[context]
        prefill = row["median_us_prefill"] < row["median_us_decode"]
        faster, slower = ("prefill", "decode") if prefill else ("decode", "prefill")
        time, by = row[f"median_us_{faster}"], row[f"median_us_{slower}"] / row[f"median_us_{faster}"] - 1
        cells.append(f"{'either' if by <= SAME else faster} {row[f'backend_{faster}']} {time:,.1f} (+{by:.0%})")
        ahead.append((context, prefill and by > SAME))
    return (*map(str, drafts), *cells, _from_where(ahead))


def _from_where(ahead: list[tuple[int, bool]]) -> str:
    """The context from which prefill is ahead by more than `SAME` to the end: `always`, `never`, or the first of them."""
    last_decode = max((i for i, (_, prefill) in enumerate(ahead) if not prefill), default=-1)
    if last_decode == -1:
        return "always"
    return "never" if last_decode == len(ahead) - 1 else f"{ahead[last_decode + 1][0]:,}"


def regret_grids(ok: pd.DataFrame) -> list[Grid]:
    """What `auto` costs: its time over that of the best backend, by routine and dtypes, and the worst points."""
    choices = ok[ok["backend"] != "torch_sdpa"]
    best = choices.sort_values("median_us").groupby(list(SHAPE), dropna=False).nth(0)
    auto = choices[choices["backend"] == "auto"]
    if auto.empty:
        return []
    by = best[[*SHAPE, "median_us", "backend"]].rename(columns={"median_us": "best_us", "backend": "best"})
    joined = auto.merge(by, on=list(SHAPE))
    joined = joined.assign(regret=joined["median_us"] / joined["best_us"])
    cells = [
        (
            *map(str, keys),
            str(len(rows)),
            ", ".join(sorted(rows["resolved_backend"].unique())),
            f"{(rows['regret'] <= 1 + SAME).mean():.0%}",
            f"{rows['regret'].median():.2f}",
            f"{rows['regret'].max():.2f}",
        )
        for keys, rows in joined.groupby(["routine", "q_dtype", "kv_dtype", "device_name"], sort=True)
    ]
    header = ("routine", "q", "kv", "device", "points", "auto resolved to", f"within {SAME:.0%} of the best", "median", "worst")
    worst = joined.sort_values("regret", ascending=False).head(WORST)
    listed = [
        (f"{r.regret:.2f}", r.resolved_backend, f"{r.median_us:,.1f}", r.best, f"{r.best_us:,.1f}", r.command)
        for r in worst[worst["regret"] > 1 + SAME].itertuples()
    ]
    return [
        Grid("regret of auto: its time over the best backend's", header, tuple(cells)),
        Grid("where auto costs most", ("regret", "auto ran", "µs", "best", "µs of it", "again"), tuple(listed)),
    ]


def draft_gains(ok: pd.DataFrame) -> pd.DataFrame:
    """Drafts of several tokens with `gain`: the best time of their tokens taken apart over the best time of the one call."""
    same = [key for key in SHAPE if key not in ("s_qo", "batch_size")]
    decode = ok[ok["routine"].isin(["paged_decode", "mla"]) & ok["min_s_qo"].isna() & (ok["backend"] != "torch_sdpa")]
    best = decode.sort_values("median_us").groupby([*same, "s_qo", "batch_size"], dropna=False).nth(0)
    drafts = best[best["s_qo"] > 1].assign(apart=lambda t: t["batch_size"] * t["s_qo"])
    singles = best[best["s_qo"] == 1].rename(columns={"batch_size": "apart", "median_us": "apart_us"})
    merged = drafts.merge(singles[[*same, "apart", "apart_us"]], on=[*same, "apart"])
    return merged.assign(gain=merged["apart_us"] / merged["median_us"])


def draft_grids(ok: pd.DataFrame) -> list[Grid]:
    """One call over a draft of q tokens, or q requests of one token: time of the second over the first, each at its best.

    A draft of q tokens at batch b, taken apart, is one token a request at batch b * q.
    """
    import pandas as pd

    gains = draft_gains(ok)
    if gains.empty:
        return []
    down = ["num_qo_heads", "s_kv", "s_qo"]
    extra = varying(gains, (*NAMES, *down, "batch_size"))
    found = []
    for keys, part in gains.groupby([*NAMES, *extra], dropna=False, sort=True):
        table = part.pivot_table(index=down, columns="batch_size", values="gain")
        cells = [
            (*map(str, at), *(f"{gain:.2f}" if pd.notna(gain) else "–" for gain in row))
            for at, row in zip(table.index, table.to_numpy(), strict=True)
        ]
        title = f"a draft as one call: how many times faster than taken apart into single tokens · {_name(keys, extra)}"
        found.append(Grid(title, ("heads", "s_kv", "s_qo", *(f"batch {b}" for b in table.columns)), tuple(cells)))
    return found
