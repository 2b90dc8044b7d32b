"""The result of a search as Markdown, to be pasted into an issue of the library. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from packaging.version import Version

from orchestrator.bisection.evidence import PointPair, ReleaseResult
from orchestrator.bisection.predicate import MAX_WRONG, Predicate, in_words
from orchestrator.bisection.releases import Range
from orchestrator.bisection.search import Found, ReleaseStep
from orchestrator.tables import Grid, markdown

MAX_POINTS = 40  # rows of the table of shapes
INTERVALS = (
    "A change is that of the time compared with the good release, as the mean over the points. All verdicts together are right "
    f"with a probability of {1 - MAX_WRONG:.0%}, and the intervals in brackets are as wide as that needs."
)

# What a reader must know of the points, if it is the same for all of them. The others are in the table of shapes.
COMMON = (
    "routine", "backend", "num_qo_heads", "num_kv_heads", "head_dim_qk", "head_dim_vo", "q_dtype", "kv_dtype", "batch_size",
    "batch_spec", "s_qo", "s_kv", "mask", "window", "page_size", "kv_layout",
)  # fmt: skip


@dataclass(frozen=True)
class Context:
    """What the search was about, in words: where it ran, and the commands to type, each with what it does."""

    place: Mapping[str, str]  # such as {"device": "NVIDIA H200", "timer": "graph"}
    command: str
    commands: Mapping[str, str] = field(default_factory=dict)  # for the two releases of the change alone, by what they do


def headline(found: Found, distribution: str, predicate: Predicate) -> str:
    good, bad = found.releases[0], found.releases[-1]
    verb, not_verb, infinitive = predicate.words
    if found.outcome == "no change":
        return f"{distribution} {bad} {not_verb} {infinitive} {good}"
    if found.outcome == "undecided":
        return f"Undecided: noise hides whether {distribution} {bad} {verb} {good}"
    if found.outcome == "cannot measure":
        return f"{distribution} {bad} could not be measured"
    if found.last_good == good:
        return f"{distribution} {found.first_bad} {verb} {good}"
    return f"{distribution} {found.first_bad} {verb} {good}, and {found.last_good} {not_verb}"


def _details(found: Found, of: Range) -> str:
    """What was seen, and in which release the change is, in sentences."""
    last = found.releases[-1]
    if found.outcome != "found":
        return f"{last}: {_said_of(last, found)}."
    of_good, of_bad = str(found.last_good), str(found.first_bad)
    is_undone = Version(of_good) > Version(of_bad)
    newer = of_good if is_undone else of_bad
    low, high = sorted((Version(of_good), Version(of_bad)))
    hidden = [release for release, _ in of.left_out if low < Version(release) < high]
    maybe = sorted({newer, *hidden, *(step.release for step in found.between)}, key=Version)
    sentences = [f"{of_bad}: {_said_of(of_bad, found)}."]
    sentences.append(f"The change {'was undone' if is_undone else 'came'} in {' or '.join(maybe)}.")
    if undecided := [step.release for step in found.between if step.judgement]:
        sentences.append(f"Noise forbids a verdict on {', '.join(undecided)}.")
    if broken := [step.release for step in found.between if not step.judgement]:
        sentences.append(f"{', '.join(broken)} could not be measured.")
    if hidden:
        sentences.append(f"{', '.join(hidden)} {'was' if len(hidden) == 1 else 'were'} left out.")
    return " ".join(sentences)


def _said_of(release: str, found: Found) -> str:
    step = found.step_of(release)
    return step.said if step else ""


def report(found: Found, of: Range, predicate: Predicate, context: Context) -> str:
    """The whole report: the result, the releases, the shapes on both sides of the change, releases left out, and commands."""
    first = found.step_of(found.first_bad) or found.step_of(found.releases[-1])
    pairs = _followed(first, found) if first else []
    parts = [
        f"### {headline(found, of.distribution, predicate)}",
        _details(found, of),
        lines_of(context, pairs),
        f"Every release was measured in turns with {of.distribution} {found.releases[0]}, on the same device and inputs.",
        markdown([_steps(found, of)]),
        "" if predicate.is_seen_at_once else INTERVALS,
    ]
    if first and pairs:
        parts.append(markdown([_shapes(first, pairs, found)]))
    if broken := [step for step in found.steps if not step.judgement]:
        parts.append("Releases that could not be measured:\n\n" + "\n".join(f"- {step.release}: {step.words}" for step in broken))
    if of.left_out:
        by_reason = groupby(sorted(of.left_out, key=lambda pair: pair[1]), key=lambda pair: pair[1])
        listed = "\n".join(f"- {why}: {', '.join(one for one, _ in some)}" for why, some in by_reason)
        parts.append("Releases that were left out:\n\n" + listed)
    commands = {"the search": context.command, **(context.commands if found.outcome == "found" else {})}
    return "\n\n".join(filter(None, [*parts, typed_below(commands)])) + "\n"


def typed_below(commands: Mapping[str, str]) -> str:
    """Commands with what each does, as a block."""
    return "```\n" + "\n".join(f"# {what}\n{command}" for what, command in commands.items()) + "\n```"


def lines_of(context: Context, pairs: Sequence[PointPair]) -> str:
    """Where points were measured, and what all of them have in common, a line each."""
    return "\n".join(f"- {name}: {value}" for name, value in (*context.place.items(), *_common(pairs)))


def _common(pairs: Sequence[PointPair]) -> list[tuple[str, str]]:
    values = {name: {str(pair.keys.get(name)) for pair in pairs} for name in COMMON}
    shared = {name: next(iter(of)) for name, of in values.items() if len(of) == 1}
    known = [f"{name}={value}" for name, value in shared.items() if value.lower() not in ("none", "nan", "<na>")]
    return [("all points", f"`{' '.join(known)}`")] if known else []


def _followed(step: ReleaseStep, found: Found) -> list[PointPair]:
    """The last measurement of a release, of the points that the search followed."""
    return [pair for pair in (step.rounds[-1] if step.rounds else ()) if not found.points or pair.point in found.points]


def _steps(found: Found, of: Range) -> Grid:
    order = {release: index for index, release in enumerate(of.versions)}
    measured = sorted(found.steps, key=lambda step: order[step.release])
    good = next((pairs for step in measured if (pairs := _followed(step, found))), [])
    first = (found.releases[0], "good: the others are compared with it", "", _kernels(pair.good for pair in good), "")
    cells = tuple(
        (
            step.release,
            step.verdict if step.judgement else "not measured",
            step.said if step.judgement else "–",
            _kernels(pair.other for pair in _followed(step, found)),
            str(len(step.rounds)),
        )
        for step in measured
    )
    return Grid("releases", ("release", "verdict", "change", "kernels that ran", "measurements"), (first, *cells))


def _kernels(sides: Iterable[ReleaseResult]) -> str:
    return ", ".join(sorted({side.resolved_backend for side in sides if side.resolved_backend})) or "–"


def _shapes(step: ReleaseStep, pairs: list[PointPair], found: Found) -> Grid:
    """The points of the first bad release beside the good one, in its last measurement."""
    pairs = sorted(pairs, key=lambda pair: -(pair.log_ratio or 0.0))
    cells = [(pair.point, _side(pair, good=True), _side(pair, good=False), _change(pair)) for pair in pairs[:MAX_POINTS]]
    more = f", the first {MAX_POINTS} of {len(pairs)}" if len(pairs) > MAX_POINTS else ""
    columns = ("point", f"median, kernel in {found.releases[0]}", f"median, kernel in {step.release}", "change (95% interval)")
    return Grid(f"shapes in {step.release}, the largest change first{more}", columns, tuple(cells))


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
