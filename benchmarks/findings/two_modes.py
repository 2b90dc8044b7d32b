"""A call of `fa2` that has two speeds with either release of torch: a part of the finding on torch 2.13."""

from __future__ import annotations

from itertools import combinations

import pandas as pd

from benchmarks.findings.frames import every_row, span
from benchmarks.findings.page import checked
from orchestrator.tables import Grid, markdown

DATASET = "h100_releases/fa2_two_modes"
BACKEND = "fa2"
MODES = {False: "fast", True: "slow"}


def measured() -> pd.DataFrame:
    """Every row of `fa2`, in the order of time, with `slow`, its mode, and `nth`, its place in its process.

    Raises ValueError if the times do not fall into two groups that are further apart than each is wide.
    """
    rows = every_row(DATASET)
    found = rows[rows["backend"] == BACKEND].sort_values("started_at")
    slow = found["own_us"] > (found["own_us"].min() + found["own_us"].max()) / 2
    widths = found.groupby(slow)["own_us"].agg(lambda us: us.max() - us.min())
    if found[slow]["own_us"].min() - found[~slow]["own_us"].max() <= widths.max():
        raise ValueError(f"results/{DATASET}: the times of {BACKEND} have no two modes")
    return found.assign(slow=slow, nth=found.groupby("run_id").cumcount())


def answer(old_us: float, new_us: float) -> str:
    """What the rows say of a point that took `old_us` with one release and `new_us` with the other."""
    found = measured()
    fast, slow = (found[found["slow"] == mode]["own_us"] for mode in (False, True))
    counts = found.groupby("torch_version")["slow"].agg(["sum", "count"])
    by_release = ", ".join(f"{row['sum']} of {row['count']} with {version}" for version, row in counts.iterrows())
    return "\n".join(
        (
            checked(
                f"Most likely it was not torch: on another H100, in {len(found)} measurements in {found['run_id'].nunique()} processes, this call has two modes with both releases, {fast.median():.1f} and {slow.median():.1f} µs."
                f" Slow were {by_release}.",
                fast.min() < old_us < 1.01 * fast.max(),
                slow.min() < new_us < slow.max(),
                bool((counts["sum"] > 0).all()),
            ),
            of_seeds(found),
            of_rows(found),
            of_columns(found),
            "What makes the mode is not known. The rows do not say where in the memory the inputs lay.",
        )
    )


def by_seed(found: pd.DataFrame) -> pd.DataFrame:
    """Whether a seed was slow, by seed and process, of the processes that measured all seeds."""
    each = found.pivot(index="seed", columns="run_id", values="slow")
    return each.dropna(axis="columns").astype(bool)


def of_seeds(found: pd.DataFrame) -> str:
    """Whether the draw of inputs decides."""
    seeds = by_seed(found)
    both = int((seeds.any(axis=1) & ~seeds.all(axis=1)).sum())
    pairs = [(seeds[a], seeds[b]) for a, b in combinations(seeds, 2)]
    same = sum(int((a == b).sum()) for a, b in pairs)
    chance = sum((a.mean() * b.mean() + (1 - a.mean()) * (1 - b.mean())) * len(seeds) for a, b in pairs)
    equal = found.groupby("seed")[["rel_err", "max_abs_err"]].nunique().max().max() == 1
    return checked(
        f"A seed does not keep its mode: {both} of {len(seeds)} seeds had both in {seeds.shape[1]} processes, though their errors are equal to the last bit."
        f" Of {len(pairs) * len(seeds)} pairs of processes and a seed {same} had one mode in both, and {chance:.0f} would by chance."
        f" A process does not decide either: each of the {seeds.shape[1]} had both modes ({span(seeds.sum(), '{:.0f}')} slow seeds).",
        bool(equal),
        bool((seeds.any() & ~seeds.all()).all()),
    )


def of_rows(found: pd.DataFrame) -> str:
    """Whether a row changes its mode."""
    least = found[found["slow"]]["min_us"].min()
    fast = found[~found["slow"]]
    return checked(
        f"No slow row has a fast sample: its fastest takes {least:.1f} µs with the launch, and {(fast['p95_us'] < least).sum()} of {len(fast)} fast rows have 95% of their samples below that."
        " So a row's mode is there before its first sample.",
        least > fast["median_us"].max(),
    )


def of_columns(found: pd.DataFrame) -> str:
    """What the rows have beside the times."""
    clock, power, hot = (found.groupby("slow")[name].median() for name in ("sm_clock_mhz", "power_w", "temperature_c"))
    half = found["nth"].max() // 2
    seeds = found[found["run_id"].isin(by_seed(found).columns)]
    early, late = (int(seeds[part]["slow"].sum()) for part in (seeds["nth"] <= half, seeds["nth"] > half))
    alone = seeds[seeds["other_processes"].isna()]
    return checked(
        f"Nothing else in the rows tells the modes apart: neither the clock ({clock[False]:,.0f} and {clock[True]:,.0f} MHz at the median), nor power, temperature, the split of keys or the memory taken."
        f" Nor does the order ({early} slow among the first half of a process's seeds, {late} among the second), nor do other processes on the GPU ({alone['slow'].sum()} of {len(alone)} slow without any)."
        f" Seed 0, which begins each process, was slow in {found[found['seed'] == 0]['slow'].sum()} of {(found['seed'] == 0).sum()} rows, too few to say whether it differs.",
        abs(clock[True] / clock[False] - 1) < 0.001,
        abs(power[True] / power[False] - 1) < 0.05,
        abs(hot[True] - hot[False]) <= 1,
        found["kernel_config"].nunique() == 1,
        bool((found.groupby("torch_version")["peak_mem_bytes"].nunique() == 1).all()),
        bool((found[found["seed"] == 0]["nth"] == 0).all()),
    )


def tables() -> str:
    found = measured()
    modes = [
        (str(version), MODES[bool(slow)], str(len(part)), f"{part['own_us'].median():.1f}", span(part["own_us"], "{:.1f}"))
        for (version, slow), part in found.groupby(["torch_version", "slow"])
    ]
    seeds = by_seed(found)
    versions = found.groupby("run_id")["torch_version"].first()
    header = ("seed", *(f"`{run}`, torch {versions[run]}" for run in seeds))
    cells = tuple(
        (str(seed), *(MODES[bool(slow)] for slow in line)) for seed, line in zip(seeds.index, seeds.to_numpy(), strict=True)
    )
    return markdown(
        [
            Grid(f"modes of `{BACKEND}`, 1 request of 8,192 tokens, 1 query token, bf16", ("torch", "mode", "rows", "µs", "from, to"), tuple(modes)),
            Grid("the mode by seed and process", header, cells),
        ]
    )  # fmt: skip
