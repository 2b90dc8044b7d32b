"""The input of a command, how it prints, and how it names the command to type next."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from orchestrator import PROGRAM
from orchestrator.config.read_keys import only_read
from orchestrator.config.settings import Settings
from orchestrator.untrusted.text import for_terminal, without_credentials

if TYPE_CHECKING:
    from rich.console import Console

    from orchestrator.tables import Grid

OK, BAD_POINTS, INTERRUPTED = 0, 1, 130
S_co = TypeVar("S_co", bound=Settings, covariant=True)


@dataclass(frozen=True)
class Invocation(Generic[S_co]):
    """One command as it was typed: its settings, its overrides, and the console it prints on."""

    settings: S_co
    overrides: tuple[str, ...]
    console: Console

    @property
    def format(self) -> str:
        """How tables are printed: on a terminal, unless the mode has a choice."""
        return getattr(self.settings, "format", "terminal")

    def say(self, text: str) -> None:
        """Prints text as it is. A command may hold [lists], which rich would take for its own markup."""
        self.console.print(for_terminal(text), soft_wrap=True, highlight=False, markup=False)

    def remark(self, text: str) -> None:
        """Prints text beside tables: on stderr if a program reads the tables."""
        if self.format in ("csv", "json"):
            print(for_terminal(text), file=sys.stderr)
        else:
            self.say(text)

    def show(self, grids: Sequence[Grid], title: str) -> None:
        """Prints tables in the format that was asked for. `title` is only used for a picture."""
        from orchestrator import tables

        match self.format:
            case "markdown":
                print(tables.markdown(grids))
            case "svg":
                print(tables.svg(grids, title=title))
            case "csv":
                print(tables.csv_text(grids), end="")
            case "json":
                print(tables.json_text(grids))
            case "terminal":
                tables.draw(self.console, grids)

    def command_with(self, *overrides: str) -> str:
        """The same command with these overrides instead of its own for the same keys; `key=` alone removes the key."""
        return command_line(self.overrides, *overrides)


def command_line(overrides: Sequence[str], *changes: str) -> str:
    """A command to type: overrides that its mode reads, with changes; the last one for a key counts, `key=` alone removes it."""
    changed = tuple(f"{change.partition('=')[0]}=" for change in changes)
    kept = [override for override in overrides if not override.startswith(changed)]
    typed = [word.removeprefix("mode=") for word in (*kept, *changes) if word.startswith("mode=")]
    kept = only_read(kept, (typed or ["run"])[-1] or "run")
    words = ["python", "-m", PROGRAM, *kept, *(change for change in changes if not change.endswith("="))]
    return without_credentials(shlex.join(words))
