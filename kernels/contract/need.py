"""The conditions of a support rule."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Need:
    """One condition of a support rule: a sentence for the row, such as "page_size 16, 32 or 64", and whether it is met."""

    sentence: str
    met: bool


def as_needs(found: tuple[Need, ...] | dict[str, bool]) -> tuple[Need, ...]:
    """A rule as conditions. A plugin from before `Need` existed returns a dict of sentence and truth."""
    return tuple(Need(*pair) for pair in found.items()) if isinstance(found, dict) else tuple(found)
