"""Which of an engine's backends a dataset supports, against the engine's default; or why none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import fmean
from typing import NamedTuple

from orchestrator.analysis.margin import Margin
from orchestrator.formats.engine_config.flags import Flag, Phase
from orchestrator.formats.engine_config.shapes import NOT_OK, Measured, Shape

NAMED_ANYWAY = ("auto", "flash_attn_3")  # what a library chooses by itself, and other ways to plan FlashAttention-3


class Pair(NamedTuple):
    """A shape, what was measured of the default there, and what of the candidate."""

    shape: Shape
    default: Measured
    own: Measured


@dataclass(frozen=True)
class FlagEvidence:
    """A candidate beside the default at the shapes of one phase."""

    phase: Phase
    pairs: tuple[Pair, ...]

    @property
    def saving(self) -> float:
        """The part of the default's time that the candidate saves, by the geometric mean over the shapes."""
        return 1 - exp(mean_log(self.pairs))

    @property
    def ahead(self) -> int:
        """The shapes at which the candidate is faster by more than noise."""
        return sum(default.median_us / own.median_us - 1 > default.noise_floor for _, default, own in self.pairs)

    @property
    def behind(self) -> int:
        """The shapes at which the candidate is slower by more than noise."""
        return sum(own.median_us / default.median_us - 1 > default.noise_floor for _, default, own in self.pairs)

    @property
    def margin(self) -> Margin:
        """What decides between the two."""
        floor = fmean(default.noise_floor for _, default, _ in self.pairs)
        return Margin(self.saving, floor, self.ahead, self.ahead / len(self.pairs), len(self.pairs))


@dataclass(frozen=True)
class FlagChoice:
    """What to set. `flag` is None if the engine's default stays; `why` then says why, and `refused` why others do not count."""

    flag: Flag | None
    default: Flag | None
    why: str
    evidence: tuple[FlagEvidence, ...] = ()
    refused: tuple[str, ...] = ()
    unnamed: str = ""
    next_best: str = ""  # what `evidence` sets beside a default that stays

    @property
    def runs(self) -> Flag | None:
        """What the engine runs with this choice."""
        return self.flag or self.default


def mean_log(pairs: Sequence[Pair]) -> float:
    """The mean log of a candidate's time over the default's."""
    return fmean(log(own.us / default.us) for _, default, own in pairs)


def choose(shapes: Sequence[Shape], flags: Sequence[Flag], major: int) -> FlagChoice:
    """The flag with the least geometric mean of its times over the default's, at the shapes where the default was measured.

    A flag counts only if it was `ok` at each of these shapes. It is chosen only if it is faster by more than noise, by the mean
    and at more than half of the shapes.
    """
    default = next((flag for flag in flags if major in flag.default_on), None)
    if default is None:
        return FlagChoice(
            None,
            None,
            "this project does not have the backend that the engine uses there by default, so the saving of a flag is unknown",
        )
    base = [(shape, call) for shape in shapes if (call := call_of(default, shape)) and call.status == "ok"]
    if not base:
        return FlagChoice(None, default, _default_not_measured(default, shapes))
    found: dict[str, tuple[Flag, list[Pair]]] = {}
    refused = []
    for flag in flags:
        if flag is not default:
            pairs, reason = _pairs(flag, base)
            if reason:
                refused.append(f"{flag}: {reason}")
            else:
                found[str(flag)] = (flag, pairs)
    return _best(default, base, [*found.values()], refused, flags)


def _best(
    default: Flag,
    base: list[tuple[Shape, Measured]],
    found: list[tuple[Flag, list[Pair]]],
    refused: list[str],
    flags: Sequence[Flag],
) -> FlagChoice:
    if not found:
        return FlagChoice(None, default, "no other backend that the engine can name was ok at these shapes", (), tuple(refused))
    flag, pairs = min(found, key=lambda one: mean_log(one[1]))
    phases = _phases(shape for shape, _, _ in pairs)
    evidence = tuple(FlagEvidence(phase, tuple(pair for pair in pairs if pair.shape.phase == phase)) for phase in phases)
    margin = FlagEvidence("decode", tuple(pairs)).margin
    runs = [own if margin.is_clear else default_there for _, default_there, own in pairs]
    unnamed = _unnamed([shape for shape, _ in base], runs, flags)
    if margin.is_clear:
        return FlagChoice(flag, default, "", evidence, tuple(refused), unnamed)
    return FlagChoice(None, default, margin.why_not(str(flag)), evidence, tuple(refused), unnamed, str(flag))


def call_of(flag: Flag, shape: Shape) -> Measured | None:
    """What was measured of the call that the engine makes with this flag at this shape."""
    calls = flag.calls_in(shape.phase, shape.fp8_cache)
    return next((shape.calls[call] for call in calls if call in shape.calls), None)


def _pairs(flag: Flag, base: list[tuple[Shape, Measured]]) -> tuple[list[Pair], str]:
    """A flag beside the default at every shape, or why it does not count."""
    found = [(shape, default, call_of(flag, shape)) for shape, default in base]
    if not any(own for _, _, own in found):
        return [], "not measured"
    for shape, _, own in found:
        if own is not None and own.status in NOT_OK:
            return [], f"{own.status} at {shape}"
    for phase in _phases(shape for shape, _, _ in found):
        of_phase = [own for shape, _, own in found if shape.phase == phase]
        if lacking := sum(own is None for own in of_phase):
            return [], f"{phase} not measured at {lacking} of {len(of_phase)} shapes"
        not_ok = [own for own in of_phase if own is not None and own.status != "ok"]
        if not_ok:
            return [], f"{phase} {not_ok[0].status} at {len(not_ok)} of {len(of_phase)} shapes ({not_ok[0].reason})"
    if flag.pages is not None and (wrong := sorted({s.page_size or 0 for s, _ in base} - {*flag.pages})):
        return [], f"measured with pages of {wrong[0]} tokens; the engine takes {', '.join(map(str, flag.pages))}"
    return [Pair(shape, default, own) for shape, default, own in found if own is not None], ""


def _phases(shapes: Iterable[Shape]) -> list[Phase]:
    return list(dict.fromkeys(shape.phase for shape in shapes))


def _default_not_measured(default: Flag, shapes: Sequence[Shape]) -> str:
    rows = [found for shape in shapes if (found := call_of(default, shape)) is not None]
    if rows:
        what = f"is {rows[0].status} at all of these shapes ({rows[0].reason})"
    else:
        calls = sorted({call for shape in shapes for call in default.calls.get(shape.phase, ())})
        names = ", ".join(dict.fromkeys(backend for _, backend in calls))
        what = f"({names} here) was not measured at these shapes" if names else "has no counterpart here for these shapes"
    return f"the engine's default {default} {what}, so the saving of a flag is unknown"


def _unnamed(shapes: list[Shape], runs: list[Measured], flags: Sequence[Flag]) -> str:
    """Backends that no flag names and that are faster by more than noise than what will run; empty if there are none."""
    named = {call for flag in flags for calls in flag.calls.values() for call in calls}
    faster: Counter[str] = Counter()
    saved: list[float] = []
    for shape, own in zip(shapes, runs, strict=True):
        others = [
            m
            for call, m in shape.calls.items()
            if call[:2] not in named and not call[1].startswith(NAMED_ANYWAY) and m.status == "ok"
        ]
        best = min(others, key=lambda m: m.us, default=None)
        if best is not None and own.median_us / best.median_us - 1 > own.noise_floor:
            faster[best.shown] += 1
            saved.append(log(best.us / own.us))
    if not faster:
        return ""
    names = ", ".join(f"{name} at {count}" for name, count in faster.most_common(3))
    where = f"at {len(saved)} of {len(shapes)} shapes, by {1 - exp(fmean(saved)):.1%} there"
    return f"faster still {where}, but not available in the engine: {names}"
