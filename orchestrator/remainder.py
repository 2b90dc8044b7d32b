"""The one rule for files of others: what is known is taken, what is not is counted and named, and only an empty rest is refused."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from kernels.problem import Problem
from orchestrator.errors import NotTaken, UserError, explain
from orchestrator.notes import note_once
from orchestrator.untrusted.door import fault

MAX_SHOWN, MAX_NAMES = 20, 12

S = TypeVar("S")
T = TypeVar("T")


class Remainder:
    """What of one file has no counterpart here, by line. `unit` is what its lines are called."""

    def __init__(self, path: str, unit: str = "line") -> None:
        self.path, self.unit = path, unit
        self.found: dict[str, dict[int, str]] = defaultdict(dict)  # what was wrong: the line, and the word there

    def add(self, line: int, message: str, name: str = "") -> None:
        """Leaves out a line, or a word of it. With a `name` the message is of many lines, and the names are counted."""
        names = self.found[message]
        names[line] = f"{names[line]}, {name}" if name and name not in names.get(line, name).split(", ") else name or message

    def collect(self, line: int, attempt: Callable[[], T]) -> T | None:
        """The result of an attempt. Whatever it raises leaves the line out (for each wrong key); then this is None."""
        try:
            return attempt()
        except NotTaken as error:
            self.add(line, *error.args)
        except ValidationError as error:
            for message in explain(error).splitlines():
                self.add(line, message)
        except Exception as error:  # what is wrong with a file's data may raise anything
            self.add(line, fault(error))
        return None

    def each(self, lines: Iterable[tuple[int, S]], attempt: Callable[[S], T | None]) -> Iterator[tuple[int, T]]:
        """The results of an attempt at each line, with its number; without those that are None or left out."""
        for line, given in lines:
            if (found := self.collect(line, partial(attempt, given))) is not None:
                yield line, found

    def problem(self, line: int, keys: dict[str, object]) -> Problem | None:
        """The problem that these keys describe, or None and what is wrong with them."""
        return self.collect(line, lambda: Problem.model_validate(keys))

    def close(self, taken: int, advice: str) -> str:
        """Notes each reason, and returns how much was not taken, in words. Raises UserError with all of them if nothing was."""
        if not self.found:
            return ""
        if not taken:
            raise UserError("\n".join([*self._reasons(self.path), f"nothing of {self.path} was taken; {advice}"]))
        for reason in self._reasons(Path(self.path).name):
            note_once(f"left out: {reason}")
        lines = {line for found in self.found.values() for line in found}
        return f"; left out, whole or in part: {self._count(len(lines))}"

    def _reasons(self, path: str) -> list[str]:
        found = sorted(self.found.items(), key=lambda reason: min(reason[1]))
        lines = [f"{path}:{min(places)}: {self._reason(message, places)}" for message, places in found]
        return [*lines[:MAX_SHOWN], *([f"and {len(lines) - MAX_SHOWN} more"] if len(lines) > MAX_SHOWN else [])]

    def _reason(self, message: str, places: dict[int, str]) -> str:
        if set(places.values()) == {message}:
            return message if len(places) == 1 else f"{message} (so in {self._count(len(places))})"
        counts = Counter(name for names in places.values() for name in names.split(", "))
        names = [f"{name} ({times})" if times > 1 else name for name, times in counts.most_common(MAX_NAMES)]
        more = f" and {len(counts) - MAX_NAMES} others" if len(counts) > MAX_NAMES else ""
        return f"{self._count(len(places))} {message}: {', '.join(names)}{more}"

    def _count(self, number: int) -> str:
        return f"{number:,} {self.unit}{'s' if number != 1 else ''}"
