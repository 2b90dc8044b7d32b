"""What the check promises at the points of a sweep, clause by clause, and whether wrong and right kernels there bear it out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernels.problem import Problem
from kernels.problem.routine import found
from orchestrator.reporting.quality import CAUGHT, RIGHT, drawn_faults, upper_bound
from orchestrator.tables import Grid

if TYPE_CHECKING:
    import pandas as pd

FALSE_ALARMS = 1e-4  # right kernels that are called wrong, at most
DRAW = "mode=check_power check.draws=20"
ONE_REQUEST = f"{DRAW} sweep.batch_size=[1]"  # of which a drawn pair, wrong in one request, is wrong in all
COLUMNS = ("check_min_tokens", "check_pairs_covered", "check_stale_covered", "check_max_error")
RARELY = "a right kernel is called wrong less than once in 10,000"
TITLE = "what the check promises here, with probability 0.99: a wrong kernel of these kinds is called wrong"


@dataclass(frozen=True)
class Clause:
    """One part of the statement: in words, with this sweep's numbers, and how many kernels that test it bear it out."""

    words: str
    here: str
    tested_by: str
    against: int  # of these kernels, those that speak against it
    count: int
    rate: float = 1 - CAUGHT  # of those that speak against it, at most
    to_test: str = DRAW

    @property
    def holds(self) -> bool:
        """Whether so many against it are no surprise: at most 5 of 100 counts at this rate would have more."""
        return 1 - upper_bound(self.count - self.against, self.count) <= self.rate if self.against else True

    @property
    def cells(self) -> tuple[str, ...]:
        shown = (
            f"{self.count - self.against:,} of {self.count:,} {self.tested_by}"
            if self.count
            else f"not tested; type {self.to_test}"
        )
        return self.words, self.here, shown, "–" if not self.count else "yes" if self.holds else "NO"


def clauses(current: pd.DataFrame) -> list[Clause]:
    """The clauses for the newest rows of mode=check_power; none if no mutant ran."""
    missing = [column for column in (*COLUMNS, "routine") if column not in current]  # in rows of before
    current = current.reindex(columns=[*current, *missing])
    named, ran = current["resolved_backend"].fillna(""), current["status"].isin(["ok", "mismatch"])
    wrong, right = current[ran & named.str.startswith("mutant of ")], current[ran & named.str.match(RIGHT)]
    if wrong.empty:
        return []
    from kernels.mutants.drawn import HEAD_OFF, KEPT, OF_LOGITS  # half a second, which every report would take

    alarms, known = int((right["status"] == "mismatch").sum()), right if len(right) else wrong
    rate = f"at most {upper_bound(alarms, len(right)):.2%} (95%)" if len(right) else "no number"
    alarm = Clause(RARELY, rate, "right outputs passed", alarms, len(right), FALSE_ALARMS)
    of_folders = [name for name, routine in found().items() if not routine.attends and (wrong["routine"] == name).any()]
    own = [clause for name in of_folders for clause in _of_folder(name, drawn_faults(current[current["routine"] == name]))]
    wrong, right = (rows[~rows["routine"].isin(of_folders)] for rows in (wrong, right))
    if wrong.empty:
        return [*own, alarm]
    known, rest = (rows[~rows["routine"].isin(of_folders)] for rows in (known, current))
    faults, listed = _promised(drawn_faults(rest), right), wrong["backend"].str.partition("@")[0]
    lost = faults[faults["kind"].isin(["lost", "doubled", "stale"]) & (faults["size"] >= faults["n"])]
    is_alone = (faults["batch_size"] == 1) & ~faults["routine"].isin(found())  # as in `quality`
    pairs = faults[(faults["kind"] == "pair") & faults["covered"].notna() & is_alone]
    shown = float(pairs["covered"].mean()) if len(pairs) else 1.0  # of pairs that nothing looks at none is promised
    of_logits, kept = wrong[listed.isin(OF_LOGITS)], wrong[(listed == KEPT) & (wrong["check_stale_covered"] == 1)]
    heads = wrong[listed == HEAD_OFF]
    of_pairs = _said(known["check_pairs_covered"], "{mean:.2%} of the pairs, at least {least:.2%}")
    of_errors = _said(known["check_max_error"], "{least:.2g} to {most:.2g}")
    of_stale = _said(wrong["check_stale_covered"], "could be found in {mean:.1%} of the requests")
    return [
        *own,
        _of("loses, doubles or replaces N neighbouring keys of a KV head", _of_keys(known), "drawn faults", lost),
        _of(
            "gets one pair of any query token wrong in all heads", of_pairs, "drawn pairs", pairs, to_test=ONE_REQUEST, shown=shown
        ),
        _of("whatever the sign and size of logits", "up to ±128", "kernels wrong in their softmax", of_logits),
        _of("no query head is off by more than check_max_error in root mean square", of_errors, "heads that are", heads),
        _of("if a stored answer could not have been found, the row says so", of_stale, "stored answers", kept),
        alarm,
    ]


def _of_folder(name: str, faults: pd.DataFrame) -> list[Clause]:
    """The clauses of a routine in a folder: one for each kind of its drawn faults, with the share that was caught."""
    return [
        _of(f"{name}: {words}", "all", "drawn faults", faults[faults["kind"] == kind])
        for kind, words in found()[name].promises.items()
    ]


def _of(words: str, here: str, tested_by: str, wrong: pd.DataFrame, *, to_test: str = DRAW, shown: float = 1.0) -> Clause:
    """One that each wrong kernel speaks against that was not caught, where the check shows this share of them."""
    return Clause(words, here, tested_by, int((wrong["status"] == "ok").sum()), len(wrong), 1 - CAUGHT * shown, to_test)


def _promised(faults: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
    """The faults with what right outputs of the same inputs and tolerance say that the check finds: `n` keys, and pairs `covered`.

    A fault that a row gives away leaves that open, since no estimate is made then.
    """
    keys = [name for name in Problem.model_fields if name in faults]

    def points(rows: pd.DataFrame) -> pd.Series:
        if rows.empty:
            return rows["backend"]
        return rows[keys].assign(made_of=rows["backend"].str.partition("@")[2]).map(str).agg("|".join, axis=1)

    says = right.assign(point=points(right)).drop_duplicates("point").set_index("point")
    of_each = points(faults)
    n = of_each.map(says["check_min_tokens"]).astype(float).fillna(math.inf)
    return faults.assign(n=n, covered=of_each.map(says["check_pairs_covered"]).astype(float))


def grids(current: pd.DataFrame) -> list[Grid]:
    """The statement as a table; none if no mutant ran. Its last line has no number and no test."""
    found = clauses(current)
    trusted = ("an adapter's Python is trusted, its kernels are not", "docs/correctness.md", "", "–")
    header = ("the kernel", "at these points", "tested by", "holds")
    return [Grid(TITLE, header, (*(clause.cells for clause in found), trusted))] if found else []


def broken(current: pd.DataFrame) -> list[str]:
    return [clause.words for clause in clauses(current) if not clause.holds]


def _of_keys(rows: pd.DataFrame) -> str:
    known = rows[rows["weight_over_limit"].notna()]
    least = known["check_min_tokens"].dropna()
    none = f"; none at {len(known) - len(least):,} of {len(known):,}" if len(least) < len(known) else ""
    if known.empty:
        return "no number"
    return f"N = {int(least.median()):,}, at most {int(least.max()):,}{none}" if len(least) else "no N"


def _said(column: pd.Series, words: str) -> str:
    """The mean, least and most of a column in words, if any row has a value."""
    known = column.dropna()
    return words.format(mean=known.mean(), least=known.min(), most=known.max()) if len(known) else "no number"
