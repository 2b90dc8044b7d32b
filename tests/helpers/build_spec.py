"""A module's build specification that fails with a given error, or does not fail."""

from __future__ import annotations


class Spec:
    """A build specification that does what it is told."""

    def __init__(self, error: str = "") -> None:
        self.error = error

    def build(self) -> None:
        if self.error:
            raise RuntimeError(self.error)


def spec(error: str) -> Spec:
    return Spec(error)
