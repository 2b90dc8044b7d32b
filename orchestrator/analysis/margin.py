"""Decides whether a flag beats the engine's default by enough. One rule for question=one_backend and export=vllm."""

from __future__ import annotations

from dataclasses import dataclass

MUCH_SLOWER = 1.2  # a choice that takes more than this many times another one's time at some shape: an answer says so


SAME_SHARE = 0.005  # shares of the shapes and of the weight that read alike


@dataclass(frozen=True)
class Margin:
    """How much less time a choice takes than the engine's default, over the same shapes.

    `saving` is 1 minus the geometric mean of its time over the default's, and `floor` the mean noise floor of the shapes.
    `ahead` is the number of shapes at which it is faster by more than noise, `share_ahead` their share of the weight.
    """

    saving: float
    floor: float
    ahead: int
    share_ahead: float
    shapes: int

    @property
    def is_clear(self) -> bool:
        """Whether to choose it: it is faster by more than noise, by the mean and at more than half of the shapes."""
        return self.saving > self.floor and self.share_ahead > 0.5

    @property
    def is_tie(self) -> bool:
        """Whether its mean is the default's, but for noise."""
        return abs(self.saving) <= self.floor

    def why_not(self, name: str) -> str:
        """Why the default stays although `name` is the best of the others, if it is not clear."""
        if self.saving <= 0:
            return f"the next best, {name}, takes {-self.saving:.1%} more time"
        if self.is_tie:
            return f"{name} takes {self.saving:.1%} less time, which is within noise ({self.floor:.1%})"
        few = f"ahead by more than noise at only {self.ahead} of {self.shapes} shapes"
        weigh = abs(self.share_ahead - self.ahead / self.shapes) > SAME_SHARE
        weight = f", with {self.share_ahead:.0%} of the weight" if weigh else ""
        return f"{name} takes {self.saving:.1%} less time by the mean, and is {few}{weight}"
