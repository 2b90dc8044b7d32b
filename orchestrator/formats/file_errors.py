"""Collects everything in a file that cannot be mapped, so that one message lists all there is to fix."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pydantic import ValidationError

from kernels.problem import Problem
from orchestrator.errors import UserError, explain
from orchestrator.untrusted.door import fault

MAX_SHOWN = 20

T = TypeVar("T")


class FileErrors:
    """The errors of one file: for each the line, what is wrong, and what is allowed."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.found: list[tuple[int, str]] = []

    def add(self, line: int, message: str) -> None:
        """Adds an error unless it is there already."""
        if (line, message) not in self.found:
            self.found.append((line, message))

    def collect(self, line: int, attempt: Callable[[], T]) -> T | None:
        """The result of an attempt. Whatever it raises is an error of the line (one for each wrong key); then returns None."""
        try:
            return attempt()
        except ValidationError as error:
            for message in explain(error).splitlines():
                self.add(line, message)
        except Exception as error:  # what is wrong with a file's data may raise anything
            self.add(line, fault(error))
        return None

    def problem(self, line: int, keys: dict[str, object]) -> Problem | None:
        """The problem that these keys describe, or None and the errors of its keys."""
        return self.collect(line, lambda: Problem.model_validate(keys))

    def raise_if_any(self, advice: str) -> None:
        """Raises UserError with the first errors in the order of their lines, and the advice."""
        if not self.found:
            return
        lines = [f"{self.path}:{line}: {message}" for line, message in sorted(self.found, key=lambda error: error[0])]
        more = [f"and {len(lines) - MAX_SHOWN} more"] if len(lines) > MAX_SHOWN else []
        raise UserError("\n".join([*lines[:MAX_SHOWN], *more, f"nothing of {self.path} was taken; {advice}"]))
