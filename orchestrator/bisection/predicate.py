"""Decides whether a release is good or bad, from its measurements beside the good one. Pure.

`slower`: the mean of the log ratios of the points, each with its standard error, against log(1 + the share that was asked for). The
release is bad if the interval lies above, good if it lies below, and undecided if it contains the threshold. The variance is that
of the pairs, whose errors include the noise floor. If the rounds' means differ by more than that, it is their own. The interval
allows for all looks together, at several releases and after each of several rounds (Bonferroni).
`resolved_backend`: another kernel than in the good release. `status`: a point that is ok in the good release and bad in the other.
Both are seen at once and need one round.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev
from typing import Literal

from orchestrator.bisection.evidence import PointPair, Round
from orchestrator.errors import CannotMeasure
from orchestrator.storage.row import BAD

PredicateKind = Literal["slower", "resolved_backend", "status"]
ReleaseVerdict = Literal["good", "bad", "undecided"]

MAX_WRONG = 0.05  # the probability that any verdict of a whole search is wrong, as far as the errors are normal


@dataclass(frozen=True)
class Judgement:
    """A verdict with its words."""

    verdict: ReleaseVerdict
    words: str


@dataclass(frozen=True)
class Predicate:
    """What makes a release bad. `looks` is how many verdicts a whole search may ask for, at most."""

    kind: PredicateKind = "slower"
    slower: float = 0.05
    looks: int = 1

    @property
    def is_seen_at_once(self) -> bool:
        """Whether more rounds of the same release would show the same."""
        return self.kind != "slower"

    @property
    def words(self) -> tuple[str, str, str]:
        """What a bad release does, what a good one does not, and what follows that before the name of the good release."""
        slower = f"slower by {self.slower:.1%} or more than"
        return {
            "slower": (f"is {slower}", "is not", slower),
            "resolved_backend": ("runs other kernels than", "does not", "run other kernels than"),
            "status": ("breaks points that are ok in", "does not", "break points that are ok in"),
        }[self.kind]

    def judge(self, rounds: Sequence[Round], points: frozenset[str] | None = None) -> Judgement:
        """The verdict on a release by some points, or all. Raises CannotMeasure if none ran, unless that makes it bad."""
        chosen = [[pair for pair in pairs if points is None or pair.point in points] for pairs in rounds]
        if self.kind == "status":
            return _by_status(chosen[-1])
        ran = [[pair for pair in pairs if pair.good.status == pair.other.status == "ok"] for pairs in chosen]
        if not any(ran):
            raise CannotMeasure(why_nothing_ran(chosen[-1]))
        return _by_kernel(ran[-1]) if self.kind == "resolved_backend" else self._by_time(ran)

    def affected(self, pairs: Round) -> frozenset[str]:
        """The points of one round that are bad by themselves: those that a search then follows. All if none is."""
        found = {pair.point for pair in pairs if self._is_bad_alone(pair, len(pairs))}
        return frozenset(found or {pair.point for pair in pairs})

    def _is_bad_alone(self, pair: PointPair, count: int) -> bool:
        if self.kind == "status":
            return _is_broken(pair)
        if self.kind == "resolved_backend":
            return _ran_another_kernel(pair)
        z = NormalDist().inv_cdf(1 - MAX_WRONG / 2 / count)
        return pair.log_ratio is not None and pair.log_ratio - z * pair.se > math.log1p(self.slower)

    def _by_time(self, rounds: Sequence[Sequence[PointPair]]) -> Judgement:
        timed = [[pair for pair in pairs if pair.log_ratio is not None] for pairs in rounds]
        timed = [pairs for pairs in timed if pairs]
        if not timed:
            raise CannotMeasure("no point has a time in both releases that can be compared")
        means = [fmean(pair.log_ratio for pair in pairs if pair.log_ratio is not None) for pairs in timed]
        by_pairs = math.sqrt(sum(sum(pair.se**2 for pair in pairs) / len(pairs) ** 2 for pairs in timed)) / len(timed)
        by_rounds = stdev(means) / math.sqrt(len(means)) if len(means) > 1 else 0.0
        mean, se = fmean(means), max(by_pairs, by_rounds)
        half = NormalDist().inv_cdf(1 - MAX_WRONG / 2 / self.looks) * se
        low, high, threshold = mean - half, mean + half, math.log1p(self.slower)
        verdict: ReleaseVerdict = "bad" if low > threshold else "good" if high < threshold else "undecided"
        changes = [in_words(math.expm1(log)) for log in (mean, low, high)]
        return Judgement(verdict, "{} ({} to {})".format(*changes))


def in_words(change: float) -> str:
    """A change as a share of the time, or as a factor from twice the time on."""
    return f"{change:+.1%}" if change < 1 else f"×{1 + change:.3g}"


def _by_kernel(pairs: Sequence[PointPair]) -> Judgement:
    found = [pair for pair in pairs if _ran_another_kernel(pair)]
    changed = Counter(f"{pair.good.resolved_backend} became {pair.other.resolved_backend}" for pair in found)
    if not changed:
        same = ", ".join(sorted({str(pair.other.resolved_backend) for pair in pairs}))
        return Judgement("good", f"the same kernels: {same}")
    return Judgement("bad", ", ".join(f"{words} at {count} of {len(pairs)}" for words, count in changed.most_common()))


def _by_status(pairs: Sequence[PointPair]) -> Judgement:
    broken = Counter(pair.other.status for pair in pairs if _is_broken(pair))
    if not any(pair.good.status == "ok" for pair in pairs):
        raise CannotMeasure("no point is ok in the good release")
    if not broken:
        if not any(pair.other.status == "ok" for pair in pairs):
            raise CannotMeasure(why_nothing_ran(pairs))
        return Judgement("good", f"{sum(pair.other.status == 'ok' for pair in pairs)} of {len(pairs)} ok")
    return Judgement("bad", ", ".join(f"{count} of {len(pairs)} {status}" for status, count in broken.most_common()))


def _ran_another_kernel(pair: PointPair) -> bool:
    both_ran = pair.good.status == pair.other.status == "ok"
    return both_ran and pair.good.resolved_backend != pair.other.resolved_backend


def _is_broken(pair: PointPair) -> bool:
    return pair.good.status == "ok" and pair.other.status in BAD


def why_nothing_ran(pairs: Sequence[PointPair]) -> str:
    """The most common status and reason of the points that did not run, on whichever side it was."""
    sides = [pair.good if pair.good.status != "ok" else pair.other for pair in pairs]
    reasons = Counter(f"{side.status}: {side.reason}" if side.reason else side.status for side in sides)
    return f"no point ran in both releases: {reasons.most_common(1)[0][0]}" if reasons else "it has no rows"
