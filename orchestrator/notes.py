"""What a person should know although nothing is wrong: one line on stderr, once.

The command line holds notes back until the answer is on the screen; in a notebook they come at once.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from orchestrator.untrusted.text import for_terminal

_told: dict[str, bool] = {}  # each note of this command, and whether it was printed
_subjects: set[str] = set()  # those that a note of this command was about
_holds: list[bool] = []


def tell_once(text: str, subject: str = "") -> None:
    """Prints a note, or keeps it for `release`, unless it was told before. A command tells one note of a subject alone."""
    if _holds and subject:
        if subject in _subjects:
            return
        _subjects.add(subject)
    _told.setdefault(text, False)
    if not _holds:
        release()


def release() -> None:
    """Prints the notes that were held back."""
    for text, printed in _told.items():
        if not printed:
            sys.stderr.write(for_terminal(f"note: {text}\n"))
            _told[text] = True


@contextmanager
def held() -> Iterator[None]:
    """Begins a command, which tells anew, and holds its notes back. Those that are not released are dropped with it."""
    _told.clear()
    _subjects.clear()
    _holds.append(True)
    try:
        yield
    finally:
        _holds.pop()
        _told.clear()
        _subjects.clear()
