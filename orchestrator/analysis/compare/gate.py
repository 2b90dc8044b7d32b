"""The gate: whether a whole comparison of one kind of GPU is red, which is its exit code.

There is one error rate for the run, not one for each point. Nothing here reads files or prints.

The log ratios r of the comparable pairs are taken as

    r = offset + effects + own

`offset` is what is known of the GPUs: how far their memory differs, where a time follows it, and what launches take on their hosts.
`effects` are random and shared: by all pairs of two GPUs or two runs, and by all pairs of a group. `own` belongs to one pair. So r
has the covariance diag(own) + E E', with a column of E for each effect.

A group is tested by generalised least squares: the change that all of its pairs share, less what the other pairs say of GPUs and
runs. A point is tested alone, less what the fit says of GPUs and runs. docs/timing.md has the numbers and the error rates.

`evidence` takes all of this from a judged frame. Sizes of effects are standard deviations of log ratios, or microseconds: what the
same points differed by in runs on 17 H200s and 13 H100s, rounded up; `benchmarks/gate.py` holds them to the error rates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import pandas as pd

from orchestrator.analysis.cards import Cards
from orchestrator.analysis.compare.pairs import MEMORY, PER_CEILING, Flags, Floats, follows_memory, is_interleaved, is_long_code
from orchestrator.analysis.compare.verdicts import clock_uncertainty, own_variance
from orchestrator.analysis.noise import NoiseFloor, NoiseFloors

BROKEN = ("failing", "lost")  # verdicts of points that are red whatever the others say
MAX_RED = 0.01  # share of unchanged runs that may be red
# What each family may spend of it. The rest is for what the model does not know; the simulation holds the whole to `MAX_RED`.
SPENT_ON_POINTS, SPENT_ON_GROUPS = 0.002, 0.002
TAIL = 8  # degrees of freedom of Student's t for one point: points have heavier tails than normal ones
CLEAR = 0.065  # as a log ratio; a point beyond it needs no heavy tail: no undisturbed point moved so far by itself
MIN_POINTS = 5  # of a group: a median of fewer does not keep out a pair that is off by itself
MIN_GROUP, MIN_POINT = 0.0075, 0.03  # the least change without the offset; of a group also without what the fit explains
CLIP_IN_GROUP, CLIP_OTHERS = 2.5, 2.0  # standard errors: a pair about its group's median, and all other pairs
NORMAL = NormalDist()

# One pair by itself, if its sides are two runs on one GPU, or two GPUs; of code that fills the instruction cache, which may find
# more or less of it there, in either case.
SAME_CARD, OTHER_CARD, LONG_CODE = NoiseFloor(0.3, 0.003), NoiseFloor(0.3, 0.005), NoiseFloor(0.9, 0.005)
# All pairs of two runs on one GPU; on two GPUs. `us` is what each launch costs more or less, on hosts of one class.
SAME_RUN, OTHER_RUN = NoiseFloor(0.15, 0.002), NoiseFloor(0.4, 0.002)
SAME_GROUP, OTHER_GROUP, INTERLEAVED_GROUP = 0.002, 0.004, 0.0005  # all pairs of a group
# Two GPUs of a kind: where their memory decides if nothing is known of it, all pairs that compute binds, and the share of a
# difference of clocks that all pairs may show.
UNKNOWN_CARD, COMPUTE_CARD, OF_CLOCK = 0.02, 0.01, 0.7
# What the ceilings leave open of how far times differ that follow the memory: so much, and this share.
OF_CEILINGS, OF_CEILINGS_SHARE = 0.004, 0.3
DISTURBED = ("max_samples", "max_seconds")  # such a median did not settle: other work may have lengthened half of its samples


def red_points(points: pd.DataFrame, decided: GateDecision, missing: str) -> pd.Series:
    """Which points are red: slower by the gate (of one kind of GPU), broken, or without a row unless `missing` is "allow"."""
    red = points["verdict"].isin(BROKEN) | (is_absent(points) & (missing != "allow"))
    if not is_of_two_kinds(points):
        red[points["counted"]] = decided.points
    return red


def is_of_two_kinds(points: pd.DataFrame) -> bool:
    """Whether some pair is of two kinds of GPU. A GPU that is slower than one of another kind is no regression."""
    both = points["device_name_a"].notna() & points["device_name_b"].notna()
    return bool((both & (points["device_name_a"] != points["device_name_b"])).any())


def is_absent(points: pd.DataFrame) -> pd.Series:
    """Points whose time the candidate lacks without a reason; one that was skipped on another kind of GPU has a reason."""
    has_reason = points["status_b"].isin(["unsupported", "skipped"] if is_of_two_kinds(points) else ["unsupported"])
    return (points["verdict"] == "missing") & ~has_reason


class GateEvidence(NamedTuple):
    """n comparable pairs, as arrays.

    log_ratio   (n,) log of the candidate's time over the baseline's
    offset      (n,) what of it the GPUs explain, known from elsewhere
    own         (n,) variance of each pair by itself
    devices     (n, d) columns of E for GPUs and runs: one standard deviation of each effect on each pair
    groups      (n, g) columns of E for groups
    members     (m, n) which pairs each tested group has; whole numbers 0 and 1
    settled     (n,) whether both medians may be trusted alone: of a throttled row, or one that set aside more samples than it kept,
                the median is of what was left
    """

    log_ratio: Floats
    offset: Floats
    own: Floats
    devices: Floats
    groups: Floats
    members: Floats
    settled: Flags


class GateDecision(NamedTuple):
    """`points` (n,) and `by_group` (m,) are red or not. `changes` (n,) are the log ratios less what GPUs and runs explain, and
    `limits` (n,) what a point's change must reach to be red alone."""

    points: Flags
    by_group: Flags
    changes: Floats
    limits: Floats


def decide_gate(given: GateEvidence) -> GateDecision:
    """Which points and groups are red: certainly slower, with at most `MAX_RED` of unchanged runs having any of either."""
    return Gate(given).decide(given.log_ratio)


class Gate:
    """The tests of one comparison. All that does not depend on its log ratios is worked out once, for simulated runs."""

    def __init__(self, given: GateEvidence) -> None:
        self.given = given
        of_devices, of_groups = (given.devices**2).sum(axis=1), (given.groups**2).sum(axis=1)
        self.spread = np.sqrt(given.own + of_devices + of_groups)
        self.inverse = _Inverse(given.own, np.hstack([given.devices, given.groups]))
        left = np.maximum(0.0, of_devices - self.inverse.explained(given.devices))
        self.limits = point_limits(np.sqrt(given.own + of_groups + left))
        self.tested = np.flatnonzero(given.members.sum(axis=1) >= MIN_POINTS)
        self.of_group = [np.flatnonzero(given.members[group]) for group in self.tested]
        self.weights = self.inverse.times(given.members[self.tested].T)  # (n, tested groups)
        self.information = np.einsum("gn,ng->g", given.members[self.tested], self.weights)
        self.reach = CLIP_IN_GROUP * np.sqrt(given.own)

    def decide(self, log_ratio: Floats) -> GateDecision:
        """The decision, if the pairs have these log ratios."""
        devices, plain = self.given.devices, log_ratio - self.given.offset
        clipped = np.clip(plain, -CLIP_OTHERS * self.spread, CLIP_OTHERS * self.spread)
        changes = plain - devices @ (devices.T @ self.inverse.times(clipped))
        points = (changes >= self.limits) & (plain >= MIN_POINT) & self.given.settled
        return GateDecision(points, self._red_groups(plain, clipped, changes), changes, self.limits)

    def _red_groups(self, plain: Floats, clipped: Floats, changes: Floats) -> Flags:
        """Within a group, pairs are clipped about its own median, so that a pair that is off by itself does not make it red."""
        red = np.zeros(len(self.given.members), dtype=bool)
        least, of_clipped = -NORMAL.inv_cdf(SPENT_ON_GROUPS / max(1, len(self.tested))), self.weights.T @ clipped
        for i, (group, rows) in enumerate(zip(self.tested, self.of_group, strict=True)):
            middle = np.median(plain[rows])
            if middle >= MIN_GROUP and np.median(changes[rows]) >= MIN_GROUP:
                values = np.clip(plain[rows], middle - self.reach[rows], middle + self.reach[rows])
                total = of_clipped[i] + self.weights[rows, i] @ (values - clipped[rows])
                red[group] = total / math.sqrt(self.information[i]) >= least
        return red


def point_limits(se: Floats) -> Floats:
    """The log ratio from which a point is red alone: by Student's t (`TAIL`), at most `CLEAR` unless normal noise reaches on."""
    share = SPENT_ON_POINTS / max(1, len(se))
    normal, heavy = -NORMAL.inv_cdf(share), t_quantile(share, TAIL)
    return np.minimum(heavy * se, np.maximum(CLEAR, normal * se))


def t_quantile(share: float, freedom: int) -> float:
    """The value that Student's t exceeds with probability `share`, by bisection (even degrees; Abramowitz and Stegun, 26.7.4)."""

    def above(t: float) -> float:
        angle = math.atan(t / math.sqrt(freedom))
        term, total = 1.0, 1.0
        for k in range(1, freedom // 2):
            term *= (2 * k - 1) / (2 * k) * math.cos(angle) ** 2
            total += term
        return (1 - math.sin(angle) * total) / 2

    low, high = 0.0, 1e6
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if above(middle) > share else (low, middle)
    return high


class _Inverse:
    """The inverse of diag(own) + E E', by Woodbury's identity: no matrix of n by n is made."""

    def __init__(self, own: Floats, effects: Floats) -> None:
        self.own = own
        self.scaled = effects / own[:, None]
        self.core = np.linalg.inv(np.eye(effects.shape[1]) + effects.T @ self.scaled)

    def times(self, values: Floats) -> Floats:
        """The inverse times a vector (n,) or columns (n, m)."""
        plain = values / (self.own if values.ndim == 1 else self.own[:, None])
        return plain - self.scaled @ (self.core @ (self.scaled.T @ values))

    def explained(self, effects: Floats) -> Floats:
        """For each pair the variance of these effects that the other pairs' times tell: the diagonal of D D' inverse D D'."""
        inner = effects.T @ self.times(effects)
        return np.asarray(np.einsum("nd,de,ne->n", effects, inner, effects))


def evidence(judged: pd.DataFrame, by: Sequence[str], floors: NoiseFloors, cards: Cards) -> GateEvidence:
    """The pairs that count of a frame that `verdicts.judge` has filled in. `by` are the columns whose values are groups."""
    pairs = judged[judged["counted"]]
    separate, other = ~is_interleaved(pairs), is_other_card(pairs)
    time = np.exp((pairs["log_us_a"] + pairs["log_us_b"]).to_numpy() / 2)
    offset, devices = _devices(pairs, cards, time, separate, other)
    of_group = np.where(separate, np.where(other, OTHER_GROUP, SAME_GROUP), INTERLEAVED_GROUP)
    members = group_members(pairs, by)
    return GateEvidence(
        log_ratio=pairs["log_ratio"].to_numpy(),
        offset=offset,
        own=_own(pairs, floors, time, separate, other),
        devices=devices,
        groups=members[1:].T * of_group[:, None],
        members=members,
        settled=~(is_doubtful(pairs, "a") | is_doubtful(pairs, "b")),
    )


def is_doubtful(pairs: pd.DataFrame, side: str) -> Flags:
    """Rows whose median is of what throttling left: all samples were throttled, or more were set aside than kept."""
    set_aside, kept = (pairs[f"{name}_{side}"].astype(float) for name in ("num_set_aside", "num_samples"))
    return np.asarray((pairs[f"stop_reason_{side}"] == "throttled") | (set_aside > kept), dtype=bool)


def group_members(pairs: pd.DataFrame, by: Sequence[str]) -> Floats:
    """Which pairs each group has: all pairs first, then those of each value of each column, in the order of `judge_groups`."""
    found = [np.ones(len(pairs))]
    for name in by:
        codes = pairs[[name]].groupby(name, dropna=False, sort=True).ngroup().to_numpy()
        found += [(codes == code).astype(float) for code in range(int(codes.max(initial=-1)) + 1)]
    return np.array(found)


def is_other_card(pairs: pd.DataFrame) -> Flags:
    """Two GPUs of one kind. Two kinds are compared as they are: there the difference is the question."""
    known = pairs["device_uuid_a"].notna() & pairs["device_uuid_b"].notna()
    other = known & (pairs["device_name_a"] == pairs["device_name_b"]) & (pairs["device_uuid_a"] != pairs["device_uuid_b"])
    return np.asarray(other, dtype=bool)


def _own(pairs: pd.DataFrame, floors: NoiseFloors, time: Floats, separate: Flags, other: Flags) -> Floats:
    """The variance of each pair by itself: samples, floors, and clocks that were throttled."""
    total = own_variance(pairs, floors, time)[0] + sum(_disturbance(pairs, side) ** 2 for side in "ab")
    kinds = LONG_CODE, OTHER_CARD, SAME_CARD
    between = np.select([is_long_code(pairs), other, ~other], [kind.variance(time) for kind in kinds])
    return np.asarray(total + np.where(separate, between + clock_uncertainty(pairs) ** 2, 0.0))


def _disturbance(pairs: pd.DataFrame, side: str) -> Floats:
    """What other work on the machine may have added to a median that did not settle: half the way down to its 5th percentile."""
    low = pairs[f"p05_us_{side}"].astype(float)
    way = (pairs[f"log_us_{side}"] - np.log(low.where(low > 0))).clip(lower=0.0).fillna(0.0)
    return np.where(pairs[f"stop_reason_{side}"].isin(DISTURBED), way / 2, 0.0)


def _devices(pairs: pd.DataFrame, cards: Cards, time: Floats, separate: Flags, other: Flags) -> tuple[Floats, Floats]:
    """What is known of the GPUs for each pair, and the columns of E for GPUs and runs."""
    offset, columns = np.zeros(len(pairs)), [np.where(separate, clock_uncertainty(pairs), 0.0)]
    codes = pairs.groupby(["device_uuid_a", "device_uuid_b"], dropna=False, sort=True).ngroup().to_numpy()
    follows, computes = follows_memory(pairs), (pairs["bound_a"] == "compute").to_numpy()
    clocks = np.nan_to_num(np.log(pairs["mhz_a"] / pairs["mhz_b"]).to_numpy())
    for of in (separate & (codes == code) for code in np.unique(codes[separate])):
        run = OTHER_RUN if other[of][0] else SAME_RUN
        columns += [of * run.rel, of * run.us / time]
        if other[of][0]:
            known, spread, _ = known_difference(pairs.iloc[int(np.flatnonzero(of)[0])], cards)
            launches = (pairs["launch_share_us_b"] - pairs["launch_share_us_a"]).to_numpy() / time
            offset = np.where(of, known * follows + launches, offset)
            columns += [of * follows * spread, of * computes * COMPUTE_CARD, of * OF_CLOCK * clocks]
    kept = [column for column in columns if np.any(column)]
    return offset, np.column_stack(kept) if kept else np.zeros((len(pairs), 0))


def known_difference(pair: pd.Series, cards: Cards) -> tuple[float, float, str]:
    """The log ratio that two GPUs explain where a time follows their memory, its standard error, and what tells it."""
    if learned := cards.difference(pair["device_uuid_a"], pair["device_uuid_b"]):
        return *learned, f"points that both measured ({cards.source})"
    a, b = (pair[f"{MEMORY}_{side}"] for side in "ab")
    if a is None or b is None or not (a > 0 and b > 0):
        return 0.0, UNKNOWN_CARD, "nothing (no ceilings, and no points that both measured)"
    ratio = PER_CEILING * math.log(a / b)
    return ratio, math.hypot(OF_CEILINGS, OF_CEILINGS_SHARE * ratio), "their measured ceilings"
