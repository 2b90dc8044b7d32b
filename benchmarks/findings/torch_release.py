"""torch 2.13, which requirements.txt pins, beside torch 2.11, which the other datasets were measured with, on one H100."""

from __future__ import annotations

import pandas as pd

from benchmarks.findings import two_modes
from benchmarks.findings.frames import RESULTS, SAME, every_row, rows, span, table_of
from benchmarks.findings.page import Finding, checked
from orchestrator.analysis.compare.comparison import Comparison, compare
from orchestrator.tables import Grid, markdown

BOTH = "h100_releases/torch_2_13"
AGAIN = ("h100_main/specdec_long_ctx", "h100_main/specdec_one_gpu")  # two runs with torch 2.11; some points ran on one card in both
OLD, NEW = "2.11.0", "2.13.0"
TRITON = "vllm_triton"
SHAPE = ["q_dtype", "kv_dtype", "batch_size", "s_kv", "s_qo"]
KEY = ["backend", *SHAPE]
ERRORS = ["rel_err", "max_abs_err"]
SHORT_US = 20  # a short call


def finding() -> Finding:
    old, new = sides()
    ratio, noise = new["own_us"] / old["own_us"], of_one_release()
    most = float((noise - 1).abs().max())
    built, triton = ratio.drop(TRITON), ratio.loc[TRITON]
    judged = verdicts()
    (odd,) = judged.points[judged.points["red"]][KEY].itertuples(index=False, name=None)
    return Finding(
        name="torch_release",
        question="Does torch 2.13, which is pinned, give the errors and times of torch 2.11, which was measured?",
        answer="\n".join(
            (
                of_errors(old, new),
                of_built(built, most, judged, odd) + of_same(built, old, new),
                of_odd(odd, old, new, most),
                of_triton(triton, most),
                of_two_modes(judged, old, new),
            )
        ),
        table=table(ratio, noise, old, new, most),
        advice="read the times of FlashInfer's kernels and FlashAttention-3's in decode as those of torch 2.13 too."
        " Before you believe one point of a short call, measure it with other seeds in other processes (`sweep.seed`)."
        " Measure kernels in Triton again with each release of torch, because torch brings its own Triton.",
        limits=f"but for the point with two modes, which another H100 measured, one run of each release, one after the other, on one H100 that other processes held too, while other programs used the CPU."
        f" The launch, which is taken off, was {launch(new)} µs with {NEW} and {launch(old)} µs with {OLD}; the table has the medians with it too."
        f" Noise is from {len(noise)} points of these shapes and kernels on another H100, none of `{TRITON}`."
        " Torch and Triton were not changed one at a time."
        " torch 2.13's wheel had only its kernels for SM90, and cuDNN 9.19 in place of 9.20."
        " PyTorch's own kernels, MLA, prefill and what the host pays were not compared.",
        command=f"python -m orchestrator mode=compare results.path=results/{BOTH} baseline=torch:{OLD} candidate=torch:{NEW}",
        datasets=(BOTH, *AGAIN, two_modes.DATASET),
        evidence=(
            markdown([of_verdicts(judged)]),
            table_of(f"`{TRITON}`: time with {NEW} over that with {OLD}", triton.unstack("s_qo"), "{:.3f}"),
            markdown([beyond(ratio, old, new, most)]),
            two_modes.tables(),
        ),
    )  # fmt: skip


def sides() -> tuple[pd.DataFrame, pd.DataFrame]:
    """The rows of both releases by point, in one order. Raises ValueError if one of them lacks a point of the other."""
    ok = every_row(BOTH)
    old, new = (ok[ok["torch_version"] == version].set_index(KEY).sort_index() for version in (OLD, NEW))
    if not (old.index.is_unique and old.index.equals(new.index)):
        raise ValueError(f"results/{BOTH}: the points of torch {OLD} and {NEW} are not the same")
    return old, new


def of_one_release() -> pd.Series:
    """Times of one run over those of another, both with torch 2.11 on one card, at the points that `BOTH` has too."""
    first, second = (rows(name).set_index([*KEY, "device_uuid"]) for name in AGAIN)
    ratio = (second["own_us"] / first["own_us"]).dropna().droplevel("device_uuid")
    return ratio[ratio.index.isin(sides()[0].index)]


def verdicts() -> Comparison:
    """What `mode=compare` makes of the two releases."""
    return compare([f"torch:{OLD}"], [f"torch:{NEW}"], str(RESULTS / BOTH))


def launch(side: pd.DataFrame) -> str:
    return span(side["launch_us"], "{:.2f}")


def equal_errors(old: pd.DataFrame, new: pd.DataFrame) -> pd.Series:
    """Which points have the same errors, to the last bit."""
    return (old[ERRORS] == new[ERRORS]).all(axis="columns")


def of_errors(old: pd.DataFrame, new: pd.DataFrame) -> str:
    return checked(
        f"The errors are the same: `rel_err` and `max_abs_err` of all {len(old)} points are equal to the last bit, those of `{TRITON}` too.",
        bool(equal_errors(old, new).all()),
    )


def of_built(built: pd.Series, most: float, judged: Comparison, odd: tuple[object, ...]) -> str:
    """The kernels that come compiled, or that FlashInfer compiles without torch."""
    medians, far = built.groupby("backend").median(), (built - 1).abs() > most
    few = built[far].drop(odd)
    verdict = judged.points.set_index(KEY)["verdict"]
    return checked(
        f"FlashInfer's kernels and FlashAttention-3's take as long: {span(medians, '{:.3f}')} times, the medians of {len(medians)} backends.",
        bool((medians - 1).abs().max() < 0.005),
    ) + checked(
        f" Of their {len(built)} points {far.sum()} changed by more than {most:.1%}, the most that two runs with torch 2.11 differed by on one H100:"
        f" {len(few)} by {span((few - 1).abs(), '{:.1%}')}, which `mode=compare` calls undecided, and one by {abs(built[odd] - 1):.0%}.",
        bool(far[odd]),
        bool((verdict[few.index] == "undecided").all()),
    )


def of_same(built: pd.Series, old: pd.DataFrame, new: pd.DataFrame) -> str:
    """The points beyond `SAME`, which lie on one side."""
    far = built[(built - 1).abs() > SAME]
    slower = int((far > 1).sum())
    less = old["launch_us"].median() - new["launch_us"].median()
    return checked(
        f"\n{len(far)} points changed by more than {SAME:.0%}: all have one request, and {slower} are slower with {NEW}."
        " `auto` is counted beside the kernels it runs."
        f" With {NEW} a smaller launch is taken off, which makes a call of {SHORT_US} µs look {less / SHORT_US:.1%} slower.",
        set(far.index.get_level_values("batch_size")) == {1},
        less > 0,
    )


def of_odd(odd: tuple[object, ...], old: pd.DataFrame, new: pd.DataFrame, most: float) -> str:
    """The one point that makes `mode=compare` end with a regression."""
    a, b = old.loc[odd], new.loc[odd]
    backend, _, kv, batch, s_kv, s_qo = odd
    beside = pd.concat([side[(side["group_id"] == b["group_id"])]["own_us"] for side in (old, new)], axis="columns").drop(odd)
    change = beside.iloc[:, 1] / beside.iloc[:, 0] - 1
    return checked(
        f"The largest change is `{backend}` with {batch} request of {s_kv:,} tokens, {s_qo} query token and a {kv} cache: {b['own_us']:.1f} µs, and {a['own_us']:.1f} before."
        f" Its fastest sample is slower than the slowest with {OLD}, at the same clock and with the same split.",
        b["samples_us"].min() > a["samples_us"].max(),
        abs(b["sm_clock_mhz"] / a["sm_clock_mhz"] - 1) < 0.01,
        b["kernel_config"] == a["kernel_config"],
    ) + checked(
        f" The {len(beside)} other backends that took turns with it changed by {span(change, '{:+.1%}')}, and its other points by less than {most:.1%}."
        " So this one makes `mode=compare` red.\n" + two_modes.answer(a["own_us"], b["own_us"]),
        backend == two_modes.BACKEND,
        change.abs().max() < most,
        bool(((new["own_us"] / old["own_us"]).loc[[backend]].drop(odd) - 1).abs().max() < most),
    )


def of_triton(triton: pd.Series, most: float) -> str:
    """vLLM's kernel, which Triton compiles: one for drafts, and one for one query token."""
    one = triton.index.get_level_values("s_qo") == 1
    drafts, decode = triton[~one], triton[one]
    return checked(
        f"`{TRITON}` is compiled by Triton, 3.7.1 with torch {NEW} and 3.6.0 with {OLD}."
        f" Its kernel for drafts takes {1 - drafts.median():.1%} less at the median of {len(drafts)} points ({span(1 - drafts, '{:.1%}')}).",
        drafts.max() < 1,
        drafts.median() < 1 - most,
    ) + checked(
        f" Its kernel for one query token changes by {decode.median() - 1:+.1%} ({span(decode - 1, '{:+.1%}')}, {len(decode)} points).",
        abs(decode.median() - 1) < SAME,
    )  # fmt: skip


def of_two_modes(judged: Comparison, old: pd.DataFrame, new: pd.DataFrame) -> str:
    """The point of Triton's that looks slower."""
    (at,) = judged.suspects[~judged.suspects["red"]][KEY].itertuples(index=False, name=None)
    a, b = old.loc[at], new.loc[at]
    samples = pd.Series(a["samples_us"])
    middle = (samples.min() + samples.max()) / 2
    slow = samples > middle
    return checked(
        f"The point that is {b['own_us'] / a['own_us'] - 1:.1%} slower has two speeds: with {OLD} {(~slow).sum()} samples are near {samples[~slow].median():.0f} µs"
        f" and {slow.sum()} near {samples[slow].median():.0f}, and with {NEW} {(b['samples_us'] > middle).sum()} of {b['num_samples']:.0f} are near the latter.",
        at[0] == TRITON,
        bool(a["bimodal"]),
    )


def table(ratio: pd.Series, noise: pd.Series, old: pd.DataFrame, new: pd.DataFrame, most: float) -> Grid:
    equal, launched = equal_errors(old, new), new["median_us"] / old["median_us"]
    cells = [
        (*line(str(name), part, most), f"{launched.loc[name].median():.3f}", f"{equal.loc[name].sum()}")
        for name, part in ratio.groupby("backend")
    ]
    twice = (*line("torch 2.11 in two runs", noise, most), "–", "–")
    header = (
        "backend",
        "points",
        "median",
        "least to most",
        "beyond 2%",
        f"beyond {most:.1%}",
        "median with the launch",
        "equal errors",
    )
    return Grid(f"time with torch {NEW} over that with {OLD}", header, (*cells, twice))


def line(name: str, part: pd.Series, most: float) -> tuple[str, ...]:
    far = (part - 1).abs()
    return name, str(len(part)), f"{part.median():.3f}", span(part, "{:.3f}"), str((far > SAME).sum()), str((far > most).sum())


def of_verdicts(judged: Comparison) -> Grid:
    """How many points of each backend got each verdict."""
    order = [name for name in ("slower", "faster", "same", "undecided") if name in set(judged.points["verdict"])]
    counts = pd.crosstab(judged.points["backend"], judged.points["verdict"])[order]
    cells = tuple((str(name), *map(str, values)) for name, values in zip(counts.index, counts.to_numpy(), strict=True))
    return Grid("verdicts of `mode=compare`, of times with the launch", ("backend", *order), cells)


def beyond(ratio: pd.Series, old: pd.DataFrame, new: pd.DataFrame, most: float) -> Grid:
    """The points that changed by more than one release did between two runs, without Triton's."""
    far = ratio[(ratio - 1).abs() > most].drop(TRITON).sort_values()
    cells = tuple(
        (*map(str, at), f"{old['own_us'][at]:.1f}", f"{new['own_us'][at]:.1f}", f"{value:.3f}") for at, value in far.items()
    )
    return Grid(f"changes beyond {most:.1%}, without `{TRITON}`", (*KEY, f"µs, {OLD}", f"µs, {NEW}", "ratio"), cells)
