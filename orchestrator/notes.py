"""Lines on stderr, each once, of what a person should know: behind the answer of a command, at once in a notebook."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from orchestrator.untrusted.text import for_terminal

_printed: dict[str, bool] = {}  # each note of this command, and whether it was printed
_subjects: set[str] = set()  # those that a note of this command was about
_buffering: list[bool] = []


def note_once(text: str, subject: str = "") -> None:
    """Prints a note, or keeps it for `release`: each once, and of one `subject` only the first."""
    if _buffering and subject:
        if subject in _subjects:
            return
        _subjects.add(subject)
    _printed.setdefault(text, False)
    if not _buffering:
        release()


def release() -> None:
    """Prints the notes that were kept."""
    for text, printed in _printed.items():
        if not printed:
            sys.stderr.write(for_terminal(f"note: {text}\n"))
            _printed[text] = True


@contextmanager
def buffered() -> Iterator[None]:
    """Begins a command with no notes, and keeps its notes until `release`. Those that are not released are dropped."""
    _printed.clear()
    _subjects.clear()
    _buffering.append(True)
    try:
        yield
    finally:
        _buffering.pop()
        _printed.clear()
        _subjects.clear()
