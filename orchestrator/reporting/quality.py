"""How far measurements and checks can be trusted: the noise between A/A pairs, the mutants that the check caught,
and how often it called a right output wrong. A rate comes with its uncertainty.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Hashable

import pandas as pd

from kernels.problem.routine import found
from orchestrator.analysis.dataset import Dataset
from orchestrator.analysis.names import shown
from orchestrator.analysis.noise import RANGES_US, aa_pairs
from orchestrator.tables import Grid

MAX_WORST_PAIRS = 8
MUTANT = "mutant of "  # how `resolved_backend` of a mutant begins


def grids(current: pd.DataFrame) -> list[Grid]:
    """The tables of noise and of mutants, from the newest row of each point; none of either if there are no such rows."""
    return [*noise_grids(current), *curve_grids(current), *size_grids(current), *alarm_grids(current), *power_grids(current)]


def is_about_quality(data: Dataset) -> bool:
    """Whether a dataset has A/A pairs or mutants, which are no candidates for the fastest backend."""
    return bool(data.scalar(f"SELECT bool_or(twin > 0 OR starts_with(resolved_backend, '{MUTANT}')) FROM rows"))


def is_caught(table: pd.DataFrame) -> pd.Series:
    """For each row, whether it is a mutant that the check caught."""
    return _is_mutant(table) & (table["status"] == "mismatch")


def _is_mutant(table: pd.DataFrame) -> pd.Series:
    """For each row, whether it is a mutant: by `resolved_backend`, or by name if it failed before that was known."""
    ran = ~table["status"].isin(["unsupported", "skipped"])
    known = table["resolved_backend"].fillna("").str.startswith(MUTANT)
    if not (nameless := ran & table["resolved_backend"].isna()).any():  # the list of mutants takes a while to import
        return known
    from kernels.mutants import ADAPTERS

    return known | (nameless & table["backend"].isin({mutant.name for mutant in ADAPTERS}))


def noise_grids(current: pd.DataFrame) -> list[Grid]:
    """Quantiles of the noise by the kernels' median time, and the points with the most noise."""
    found = []
    for device, pairs in aa_pairs(current).groupby("device_name_a", sort=True):
        ranges = pd.cut(pairs["median_us_a"], list(RANGES_US))
        parts = {f"{part.left:g} to {part.right:g} µs": rows for part, rows in pairs.groupby(ranges, observed=True)}
        every = (*parts.items(), ("all", pairs))
        shares = [rows["rel_diff"].quantile([0.5, 0.95, 0.99, 1.0]).map("{:.2%}".format) for _, rows in every]
        cells = [(name, str(len(rows)), *of) for (name, rows), of in zip(every, shares, strict=True)]
        header = ("median time", "points", "median", "95th percentile", "99th percentile", "worst")
        found.append(Grid(f"noise: |A'/A - 1| of the same points measured twice, interleaved · {device}", header, tuple(cells)))
        worst = pairs.sort_values("rel_diff", ascending=False, kind="stable").head(MAX_WORST_PAIRS)
        found.append(Grid(f"where it is worst · {device}", _WORST_HEADER, tuple(map(_worst_row, worst.to_dict("records")))))
    return found


_WORST_HEADER = ("difference", "backend", "batch", "s_kv", "s_qo", "kv", "A µs", "A' µs", "throttled by", "point_id")


def _worst_row(pair: dict[Hashable, object]) -> tuple[str, ...]:
    times = (f"{pair[f'median_us_{side}']:.2f}" for side in "ab")
    at = (shown(str(pair[f"{key}_a"])) for key in ("backend", "batch_size", "s_kv", "s_qo", "kv_dtype"))
    throttled_by = f"{pair['throttle_reasons_a']} / {pair['throttle_reasons_b']}"
    return (f"{pair['rel_diff']:.2%}", *at, *times, throttled_by, str(pair["point_id_a"]))


def power_grids(current: pd.DataFrame) -> list[Grid]:
    """For each mutant, context and cache dtype: the smallest error in tolerances, and how many points missed it."""
    from kernels.mutants import ADAPTERS

    listed = {mutant.name for mutant in ADAPTERS}
    ran = current[_is_mutant(current) & (current["backend"].str.partition("@")[0].isin(listed))]
    found = []
    for (device, model), part in ran.groupby(["device_name", "model"], sort=True):
        columns = sorted(set(zip(part["kv_dtype"], part["s_kv"], strict=True)))
        cells = []
        for mutant, rows in part.groupby("backend", sort=False):
            by_column = dict(list(rows.groupby(["kv_dtype", "s_kv"])))
            cells.append((str(mutant), *(_caught(by_column.get(column)) for column in columns)))
        header = ("mutant", *(f"{kv} {s_kv:,}" for kv, s_kv in columns))
        caught, count = int((part["status"] == "mismatch").sum()), len(part)
        title = f"{caught} of {count} wrong kernels caught; the least error in tolerances · {model} · {device}"
        found.append(Grid(title, header, tuple(cells)))
    return found


def _caught(rows: pd.DataFrame | None) -> str:
    if rows is None:
        return "–"
    missed = int((rows["status"] != "mismatch").sum())
    # A mutant may be wrong in its log-sum-exp or its states alone: the further one off of its two outputs counts.
    second = {of: (rows[f"{of}_err"] / rows[f"{of}_tolerance"]).astype(float) for of in ("lse", "state") if f"{of}_err" in rows}
    over = rows[["err_over_tolerance"]].assign(**second).max(axis=1).min()
    least = "no answer" if math.isnan(over) else "no number" if math.isinf(over) else f"{over:.3g}×"
    return f"{least} ({missed} of {len(rows)} missed)" if missed else least


# In `resolved_backend` of a drawn mutant.
FAULT = r"mutant of (?P<kernel>[^:]+): (?P<kind>[a-z]+)(?: (?P<size>\d+))?(?P<rows> in some rows)?: "
RIGHT = r"^right output of (?P<kernel>.+)$"  # in `resolved_backend` of a backend without a fault that stands beside mutants
Z95 = 1.96
OF_FAULT = ("tolerance of", "fault", "cache")  # the first columns of its tables
CAUGHT = 0.99  # share of faults that the statement of docs/correctness.md is about


def drawn_faults(current: pd.DataFrame) -> pd.DataFrame:
    """Rows of drawn mutants that ran, with `kind`, `size` (keys), `caught`, and `judged_as`: whose tolerance, or "the widest"."""
    named = current["resolved_backend"].fillna("").str.extract(FAULT)
    own = current["backend"].str.contains("@", regex=False)
    faults = current.assign(
        kind=named["kind"] + named["rows"].fillna(""),
        size=named["size"].fillna("1").astype(int),
        caught=current["status"] == "mismatch",
        judged_as=named["kernel"].where(own, "the widest"),
    )
    return faults[faults["kind"].notna() & current["status"].isin(["ok", "mismatch"])]


def curve_grids(current: pd.DataFrame) -> list[Grid]:
    """For each device: the share of faults that was caught, by kernel, kind, size and the dtype of the cache."""
    found = []
    header = (*OF_FAULT, "keys", "caught", "rate", "95% interval")
    for device, rows in drawn_faults(current).groupby("device_name", sort=True):
        ranges = rows["size"].map(lambda size: 4 ** math.ceil(math.log(size, 4)))
        groups = rows.groupby(["judged_as", "kind", "kv_dtype", ranges], sort=True)
        sizes = {size: "1" if size == 1 else f"{size // 4 + 1} to {size}" for size in ranges.unique()}
        cells = tuple((*map(str, names[:3]), sizes[names[3]], *_rate(part)) for names, part in groups)
        missed = int((~rows["caught"] & _promised(rows)).sum())
        title = f"{int(rows['caught'].sum())} of {len(rows)} drawn faults caught, {missed} missed that their rows promise to catch"
        found.append(Grid(f"{title} · {device}", header, cells))
    return found


def size_grids(current: pd.DataFrame) -> list[Grid]:
    """For each device: the smallest size from which on 99% of the faults were caught, by kernel, kind and dtype of the cache."""
    header = (*OF_FAULT, "99% are caught from", "faults caught", "rate at least (95%)", "faults needed to tell")
    title = "smallest size from which the check catches 99% of all faults as large or larger"
    found = []
    for device, rows in drawn_faults(current).groupby("device_name", sort=True):
        groups = rows[["judged_as", "kind", "kv_dtype", "size", "caught"]].groupby(["judged_as", "kind", "kv_dtype"], sort=True)
        cells = tuple(
            (*map(str, names), *_from_size(part, "pair" if str(names[1]).startswith("pair") else "key")) for names, part in groups
        )
        found.append(Grid(f"{title} · {device}", header, cells))
    return found


def alarm_grids(current: pd.DataFrame) -> list[Grid]:
    """For each device: how many right outputs were called wrong, by the kernel at whose tolerance they were judged."""
    named = current["resolved_backend"].fillna("").str.extract(RIGHT)["kernel"]
    is_right = named.notna() & current["status"].isin(["ok", "mismatch"])
    own = current["backend"].str.contains("@", regex=False)
    rights = current.assign(judged_as=named.where(own, "the widest"))[is_right]
    found = []
    header = ("tolerance of", "cache", "right outputs", "called wrong", "false alarms at most (95%)")
    for device, rows in rights.groupby("device_name", sort=True):
        groups = rows.groupby(["judged_as", "kv_dtype"], sort=True)
        cells = tuple((*map(str, names), *_alarms(part)) for names, part in groups)
        count, wrong, most = _alarms(rows)
        title = f"{wrong} of {count} right outputs called wrong, over {rows['seed'].nunique()} seeds of inputs"
        found.append(Grid(f"{title}; with 95% confidence at most {most} · {device}", header, cells))
    return found


def _alarms(rows: pd.DataFrame) -> tuple[str, str, str]:
    """Right outputs, how many of them were called wrong, and the upper end of that rate (Clopper and Pearson, one-sided)."""
    wrong = int((rows["status"] == "mismatch").sum())
    return str(len(rows)), str(wrong), f"{upper_bound(wrong, len(rows)):.2%}"


def _from_size(rows: pd.DataFrame, unit: str) -> tuple[str, str, str, str]:
    """That size, the faults caught from there on, the rate at least (95%), the faults needed. Those of the size reach 99% too."""
    tails = _tails(rows)
    reached = [tail for tail in tails if tail[3] >= CAUGHT]
    shown = [tail for tail in reached if upper_bound(*tail[1:3]) <= 1 - CAUGHT]
    size, missed, count, _ = (shown or reached or tails[-1:])[0]
    least = f"{size:,} {unit}" + "s" * (size > 1)
    caught = f"{count - missed} of {count} from {least} on", f"{1 - upper_bound(missed, count):.1%}"
    if shown:
        return least, *caught, ""
    if not reached and upper_bound(count - missed, count) < CAUGHT:
        return "no size that was drawn", *caught, ""
    return "not enough draws to tell", *caught, f"{count_needed(missed, 1 - CAUGHT):,}, if no other is missed"


def _tails(rows: pd.DataFrame) -> list[tuple[int, int, int, float]]:
    """Of each size: it, how many faults of it and larger ones were missed and drawn, and the smaller of both rates caught."""
    found = []
    for size, of_size in sorted(dict(list(rows.groupby("size"))).items()):
        onwards = rows[rows["size"] >= size]
        rate = min(float(of_size["caught"].mean()), float(onwards["caught"].mean()))
        found.append((int(size), int((~onwards["caught"]).sum()), len(onwards), rate))
    return found


def _promised(rows: pd.DataFrame) -> pd.Series:
    """Whether the row itself says that the check catches a fault like this one. Rows that failed say nothing.

    It says so of faults in all rows of a KV head, and of pairs that are wrong in all requests. A drawn one is wrong in one
    request, so it counts if there is no other; a routine in a folder may judge query tokens as requests.
    """
    is_lost_or_doubled = rows["kind"].isin(["lost", "doubled"]) & (rows["size"] >= rows["check_min_tokens"].fillna(math.inf))
    is_alone = (rows["batch_size"] == 1) & ~rows["routine"].isin(found())
    return is_lost_or_doubled | ((rows["kind"] == "pair") & (rows["check_pairs_covered"] == 1) & is_alone)


def _rate(rows: pd.DataFrame) -> tuple[str, str, str]:
    """Count, rate, and the 95% interval of the rate (Wilson 1927)."""
    n, k = len(rows), int(rows["caught"].sum())
    middle, width = (k + Z95**2 / 2) / (n + Z95**2), Z95 / (n + Z95**2) * math.sqrt(k * (n - k) / n + Z95**2 / 4)
    return f"{k} of {n}", f"{k / n:.1%}", f"{max(0.0, middle - width):.1%} to {min(1.0, middle + width):.1%}"


CONFIDENCE = 0.95


def upper_bound(cases: int, count: int) -> float:
    """The rate of which so few cases, or fewer, would come in 5 of 100 counts: Clopper and Pearson's one-sided bound."""
    if cases >= count:
        return 1.0
    low, high = cases / count, 1.0
    for _ in range(60):
        rate = (low + high) / 2
        low, high = (rate, high) if _at_most(cases, count, rate) > 1 - CONFIDENCE else (low, rate)
    return high


def count_needed(cases: int, rate: float) -> int:
    """The smallest count in which so many cases show that their rate is at most `rate`."""
    enough = range(cases, math.ceil(4 * (cases + 1) / rate))  # of no cases 3 / rate are, and of many more little above cases / rate
    return enough[bisect_left(enough, True, key=lambda count: upper_bound(cases, count) <= rate)]


def _at_most(cases: int, count: int, rate: float) -> float:
    """The probability of so many cases or fewer."""

    def log_of(k: int) -> float:
        choices = math.lgamma(count + 1) - math.lgamma(k + 1) - math.lgamma(count - k + 1)
        return choices + k * math.log(rate) + (count - k) * math.log1p(-rate)

    return math.fsum(math.exp(log_of(k)) for k in range(cases + 1))
