"""Searches for the release that changed something, in log2 steps. Pure: the function that measures a release is passed in.

Each step measures one release beside the good one, in turns. A release that cannot be measured is named, and a release near it is
measured instead. A release that stays undecided after all rounds is set aside in the same way.

The search keeps a release that was found good and a later one that was found bad, and ends when no release that can be judged is
left between them. So the result is a change in any history. If the history has several changes, it is one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from orchestrator.bisection.evidence import Round
from orchestrator.bisection.predicate import Judgement, Predicate
from orchestrator.errors import CannotMeasure

Measure = Callable[[str, str], Round]  # of the good release and another one; raises CannotMeasure
Outcome = Literal["found", "no change", "undecided", "cannot measure"]


@dataclass(frozen=True)
class ReleaseStep:
    """What was found of one release. Without a judgement it could not be measured, and `words` say why."""

    release: str
    rounds: tuple[Round, ...] = ()
    judgement: Judgement | None = None
    words: str = ""

    @property
    def verdict(self) -> str:
        return self.judgement.verdict if self.judgement else "broken"

    @property
    def said(self) -> str:
        return self.judgement.words if self.judgement else self.words


@dataclass(frozen=True)
class Found:
    """The result: `last_good` and `first_bad` if it changed, and between them releases that could not be judged."""

    outcome: Outcome
    releases: tuple[str, ...]
    steps: tuple[ReleaseStep, ...] = ()
    last_good: str | None = None
    first_bad: str | None = None
    points: frozenset[str] = frozenset()  # those that the search followed

    @property
    def between(self) -> tuple[ReleaseStep, ...]:
        """ReleaseRuns of the releases between `last_good` and `first_bad`: broken or undecided ones."""
        if self.last_good is None or self.first_bad is None:
            return ()
        inside = self.releases[self.releases.index(self.last_good) + 1 : self.releases.index(self.first_bad)]
        return tuple(step for step in self.steps if step.release in inside)

    def step_of(self, release: str | None) -> ReleaseStep | None:
        return next((step for step in self.steps if step.release == release), None)


def most_looks(releases: int, rounds: int) -> int:
    """One verdict after each round of each release but the good one: what it saw decides which it asks for, so all count."""
    return rounds * (releases - 1)


@dataclass
class Search:
    """One search. `measure` is asked at most `rounds` times for each release; `say` gets each step as it ends."""

    measure: Measure
    predicate: Predicate
    rounds: int = 4
    say: Callable[[ReleaseStep], None] = lambda _step: None
    _steps: dict[str, ReleaseStep] = field(default_factory=dict, init=False)
    _points: frozenset[str] | None = field(default=None, init=False)

    def find(self, releases: Sequence[str]) -> Found:
        """Searches releases in their order, of which the first is good and the last may be bad."""
        releases = tuple(releases)
        good, last = releases[0], releases[-1]
        end = self._end(good, last)
        if end.verdict != "bad":
            outcomes: dict[str, Outcome] = {"good": "no change", "undecided": "undecided", "broken": "cannot measure"}
            return self._found(outcomes[end.verdict], releases)
        low, high = 0, len(releases) - 1
        while (middle := self._next(releases, low, high)) is not None:
            verdict = self._judged(good, releases[middle]).verdict
            low, high = (middle, high) if verdict == "good" else (low, middle) if verdict == "bad" else (low, high)
        return replace(self._found("found", releases), last_good=releases[low], first_bad=releases[high])

    def _found(self, outcome: Outcome, releases: tuple[str, ...]) -> Found:
        return Found(outcome, releases, tuple(self._steps.values()), points=self._points or frozenset())

    def _next(self, releases: Sequence[str], low: int, high: int) -> int | None:
        """The release nearest to the middle that nobody has measured; None if there is none left."""
        left = [index for index in range(low + 1, high) if releases[index] not in self._steps]
        return min(left, key=lambda index: (abs(index - (low + high) / 2), index), default=None)

    def _end(self, good: str, last: str) -> ReleaseStep:
        """The bad release. Its first round says which points to follow; later ones decide, as those were chosen for being slow."""
        if self.predicate.is_seen_at_once:
            return self._judged(good, last, follow=True)
        try:
            first = self.measure(good, last)
            self._points = self.predicate.affected(first)
        except CannotMeasure as error:
            return self._keep(ReleaseStep(last, words=str(error)))
        step = self._judged(good, last)
        return self._keep(replace(step, rounds=(first, *step.rounds)), say=False)

    def _judged(self, good: str, release: str, *, follow: bool = False) -> ReleaseStep:
        rounds: list[Round] = []
        judgement: Judgement | None = None
        try:
            while len(rounds) < self.rounds and (judgement is None or judgement.verdict == "undecided"):
                rounds.append(self.measure(good, release))
                if follow:
                    self._points = self.predicate.affected(rounds[0])
                judgement = self.predicate.judge(rounds, self._points)
                if self.predicate.is_seen_at_once:
                    break
        except CannotMeasure as error:
            return self._keep(ReleaseStep(release, tuple(rounds), words=str(error)))
        return self._keep(ReleaseStep(release, tuple(rounds), judgement))

    def _keep(self, step: ReleaseStep, *, say: bool = True) -> ReleaseStep:
        self._steps[step.release] = step
        if say:
            self.say(step)
        return step
