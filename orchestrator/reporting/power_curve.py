"""Which drawn faults the check caught: by kind and size, with the uncertainty of the rate, and from which size on it is 99%.

Beside it: how many right outputs were called wrong.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from orchestrator.analysis.rates import count_needed, upper_bound
from orchestrator.tables import Grid

if TYPE_CHECKING:
    import pandas as pd

# In `resolved_backend` of a drawn mutant.
FAULT = r"mutant of (?P<kernel>[^:]+): (?P<kind>[a-z]+)(?: (?P<size>\d+))?(?P<rows> in some rows)?: "
RIGHT = r"^right output of (?P<kernel>.+)$"  # in `resolved_backend` of a backend without a fault that stands beside mutants
Z95 = 1.96
CAUGHT = 0.99  # share of faults that the statement of docs/correctness.md is about


def drawn_faults(current: pd.DataFrame) -> pd.DataFrame:
    """The rows of drawn mutants that ran, with columns `kind`, `size` (keys), `caught`, and `judged_as`.

    The last is the kernel at whose tolerance a fault was judged: `check.tolerance=each` names it, otherwise it is the widest.
    """
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
    header = ("tolerance of", "fault", "cache", "keys", "caught", "rate", "95% interval")
    for device, rows in drawn_faults(current).groupby("device_name", sort=True):
        ranges = rows["size"].map(lambda size: 4 ** math.ceil(math.log(size, 4)))
        groups = rows.groupby(["judged_as", "kind", "kv_dtype", ranges], sort=True)
        cells = tuple((*map(str, names[:3]), _up_to(int(names[3])), *_rate(part)) for names, part in groups)
        missed = int((~rows["caught"] & _promised(rows)).sum())
        title = f"{int(rows['caught'].sum())} of {len(rows)} drawn faults caught, {missed} missed that their rows promise to catch"
        found.append(Grid(f"{title} · {device}", header, cells))
    return found


def size_grids(current: pd.DataFrame) -> list[Grid]:
    """For each device: the smallest size from which on 99% of the faults were caught, by kernel, kind and dtype of the cache."""
    header = (
        "tolerance of",
        "fault",
        "cache",
        "99% are caught from",
        "faults caught",
        "rate at least (95%)",
        "faults needed to tell",
    )
    title = "smallest size from which on the check catches 99% of the faults of that size and larger"
    found = []
    for device, rows in drawn_faults(current).groupby("device_name", sort=True):
        groups = rows.groupby(["judged_as", "kind", "kv_dtype"], sort=True)
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
    """That size, the faults from there on that were caught, the lower end of the one-sided 95% interval, and the faults needed.

    Faults of the size itself must reach 99% too, so that many large faults do not hide small ones that are missed.
    """
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
    request, so it counts if there is no other.
    """
    is_lost_or_doubled = rows["kind"].isin(["lost", "doubled"]) & (rows["size"] >= rows["check_min_tokens"].fillna(math.inf))
    return is_lost_or_doubled | ((rows["kind"] == "pair") & (rows["check_pairs_covered"] == 1) & (rows["batch_size"] == 1))


def _up_to(size: int) -> str:
    return "1" if size == 1 else f"{size // 4 + 1} to {size}"


def _rate(rows: pd.DataFrame) -> tuple[str, str, str]:
    """Count, rate, and the 95% interval of the rate (Wilson 1927)."""
    n, k = len(rows), int(rows["caught"].sum())
    middle, width = (k + Z95**2 / 2) / (n + Z95**2), Z95 / (n + Z95**2) * math.sqrt(k * (n - k) / n + Z95**2 / 4)
    return f"{k} of {n}", f"{k / n:.1%}", f"{max(0.0, middle - width):.1%} to {min(1.0, middle + width):.1%}"
