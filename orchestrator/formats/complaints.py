"""What a file holds that cannot be mapped, collected, so that one message shows all there is to mend."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pydantic import ValidationError

from kernels.problem import Problem
from orchestrator.errors import UserError, explain

SHOWN = 20

T = TypeVar("T")


class Complaints:
    """The complaints about one file, a line each: where, the word, and what is allowed."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.said: list[tuple[int, str]] = []

    def add(self, line: int, words: str) -> None:
        """A complaint once, however often it is made."""
        if (line, words) not in self.said:
            self.said.append((line, words))

    def hear(self, line: int, attempt: Callable[[], T]) -> T | None:
        """What an attempt returns, or None where it raised ValueError: that is a complaint, and so is each key of a problem."""
        try:
            return attempt()
        except ValidationError as error:
            for words in explain(error).splitlines():
                self.add(line, words)
        except ValueError as error:
            self.add(line, str(error))
        return None

    def problem(self, line: int, keys: dict[str, object]) -> Problem | None:
        return self.hear(line, lambda: Problem.model_validate(keys))

    def settle(self, advice: str) -> None:
        """Raises UserError where there was any complaint."""
        if not self.said:
            return
        said = [f"{self.path}:{line}: {words}" for line, words in sorted(self.said, key=lambda complaint: complaint[0])]
        more = [f"and {len(said) - SHOWN} more"] if len(said) > SHOWN else []
        raise UserError("\n".join([*said[:SHOWN], *more, f"nothing of {self.path} was taken; {advice}"]))
