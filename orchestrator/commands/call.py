"""What a mode is given, and how it speaks."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.settings import Settings

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

    from orchestrator.grid import Grid

OK, BAD_POINTS, INTERRUPTED = 0, 1, 130


@dataclass(frozen=True)
class Call:
    """Settings, what was typed for them, and where to print."""

    settings: Settings
    overrides: tuple[str, ...]
    console: Console

    def say(self, words: str) -> None:
        """Words as they are: a command may hold [lists], which rich would take for its own markup."""
        self.console.print(words, soft_wrap=True, highlight=False, markup=False)

    def show(self, grids: Sequence[Grid], title: str) -> None:
        """Tables in the format that was asked for; `title` is that of a picture."""
        from orchestrator import grid

        match self.settings.format:
            case "markdown":
                print(grid.markdown(grids))
            case "svg":
                print(grid.svg(grids, title=title))
            case "terminal":
                grid.draw(self.console, grids)

    def again(self, *more: str) -> str:
        """What to type for the same again with other keys in place of its own; `key=` alone leaves the key out."""
        return typed(self.overrides, *more)

    def rows(self) -> pd.DataFrame:
        """The rows under `results.path`, of several datasets where it is a pattern. Raises UserError where there are none."""
        from orchestrator import dataset

        return dataset.open_dataset(self.settings.results.path, where=self.settings.where).every_row()


def typed(overrides: Sequence[str], *more: str) -> str:
    """A command of these keys, and of `more` in place of those of the same name; `key=` alone leaves the key out."""
    other = tuple(f"{key.partition('=')[0]}=" for key in more)
    kept = [override for override in overrides if not override.startswith(other)]
    return shlex.join(["python", "-m", "orchestrator", *kept, *(key for key in more if not key.endswith("="))])
