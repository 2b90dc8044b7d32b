"""What a person should know although nothing is wrong: one line on stderr, once."""

from __future__ import annotations

import sys

from orchestrator.plain_text import for_terminal

_told: set[str] = set()


def tell_once(text: str) -> None:
    """Prints a note, unless this command has printed it already."""
    if text not in _told:
        _told.add(text)
        print(for_terminal(f"note: {text}"), file=sys.stderr)


def forget() -> None:
    """Begins a new command, which tells again."""
    _told.clear()
