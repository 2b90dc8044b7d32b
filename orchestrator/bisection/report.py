"""The result of a search as Markdown, to be pasted into an issue of the library. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby

from orchestrator.bisection.evidence import PointPair
from orchestrator.bisection.predicate import Predicate, in_words
from orchestrator.bisection.releases import Range
from orchestrator.bisection.search import Found, ReleaseStep
from orchestrator.tables import Grid, markdown

MAX_POINTS = 40  # rows of the table of shapes


@dataclass(frozen=True)
class Context:
    """What the search was about, in words: where it ran, and the commands to type."""

    place: Mapping[str, str]  # such as {"device": "NVIDIA H200", "timer": "graph"}
    command: str
    commands: tuple[str, ...] = ()  # what to type for the two releases of the change alone


def headline(found: Found, distribution: str, predicate: Predicate) -> str:
    """The result in one or two sentences."""
    good, bad = found.releases[0], found.releases[-1]
    end = found.step_of(bad)
    if found.outcome == "no change":
        return f"{distribution} {bad} is no different from {good}: it is not {predicate.sentence} ({_words(end)})."
    if found.outcome == "undecided":
        return f"Undecided: whether {distribution} {bad} is {predicate.sentence} than {good} cannot be told ({_words(end)})."
    if found.outcome == "cannot measure":
        return f"{distribution} {bad} could not be measured: {_words(end)}."
    first = found.step_of(found.first_bad)
    words = f"{distribution} changed between {found.last_good} and {found.first_bad}: {predicate.sentence} ({_words(first)})."
    undecided = [step.release for step in found.between if step.judgement]
    if undecided:
        words += f" Noise forbids a verdict on {', '.join(undecided)} in between."
    if broken := [step.release for step in found.between if not step.judgement]:
        words += f" {', '.join(broken)} in between could not be measured."
    return words


def _words(step: ReleaseStep | None) -> str:
    return "" if step is None else step.judgement.words if step.judgement else step.words


def report(found: Found, of: Range, predicate: Predicate, context: Context) -> str:
    """The whole report: the result, the steps, the shapes on both sides of the change, releases left out, and commands."""
    first = found.step_of(found.first_bad) or found.step_of(found.releases[-1])
    parts = [
        f"### {headline(found, of.distribution, predicate)}",
        "\n".join(f"- {name}: {value}" for name, value in context.place.items()),
        f"Every release was measured in turns with {of.distribution} {found.releases[0]}, on the same GPU and inputs.",
        markdown([_steps(found, of)]),
    ]
    if first and first.rounds:
        parts.append(markdown([_shapes(first, found)]))
    if broken := [step for step in found.steps if not step.judgement]:
        parts.append("Not measured:\n\n" + "\n".join(f"- {step.release}: {step.words}" for step in broken))
    if of.left_out:
        by_reason = groupby(sorted(of.left_out, key=lambda pair: pair[1]), key=lambda pair: pair[1])
        parts.append("Left out:\n\n" + "\n".join(f"- {why}: {', '.join(one for one, _ in some)}" for why, some in by_reason))
    commands = [context.command, *(context.commands if found.outcome == "found" else ())]
    parts.append("```\n" + "\n".join(commands) + "\n```")
    return "\n\n".join(filter(None, parts)) + "\n"


def _steps(found: Found, of: Range) -> Grid:
    order = {release: index for index, release in enumerate(of.versions)}
    measured = sorted(found.steps, key=lambda step: order[step.release])
    cells = tuple(
        (step.release, step.verdict, _words(step) if step.judgement else "–", _kernels(step, found), str(len(step.rounds)))
        for step in measured
    )
    return Grid("releases", ("release", "verdict", "beside the good one", "kernels", "rounds"), cells)


def _kernels(step: ReleaseStep, found: Found) -> str:
    """What the points of a release resolved to."""
    pairs = [pair for pair in (step.rounds[-1] if step.rounds else ()) if not found.points or pair.point in found.points]
    return ", ".join(sorted({pair.other.resolved_backend for pair in pairs if pair.other.resolved_backend})) or "–"


def _shapes(step: ReleaseStep, found: Found) -> Grid:
    """The points of the first bad release beside the good one, in its last round."""
    pairs = [pair for pair in step.rounds[-1] if not found.points or pair.point in found.points]
    pairs.sort(key=lambda pair: -(pair.log_ratio or 0.0))
    cells = [(pair.point, _side(pair, good=True), _side(pair, good=False), _change(pair)) for pair in pairs[:MAX_POINTS]]
    more = f", the first {MAX_POINTS} of {len(pairs)}" if len(pairs) > MAX_POINTS else ""
    return Grid(
        f"shapes in {step.release}, by the change{more}", ("point", found.releases[0], step.release, "change (95%)"), tuple(cells)
    )


def _side(pair: PointPair, *, good: bool) -> str:
    side = pair.good if good else pair.other
    if side.median_us is None:
        return f"{side.status}: {side.reason}" if side.reason else side.status
    return f"{side.median_us:.4g} µs, {side.resolved_backend}"


def _change(pair: PointPair) -> str:
    """The change of one point by itself with its 95% interval, beside the others' not corrected for their number."""
    if pair.log_ratio is None:
        return "–"
    low, mean, high = (in_words(math.expm1(pair.log_ratio + z * pair.se)) for z in (-1.96, 0.0, 1.96))
    return f"{mean} ({low} to {high})"
