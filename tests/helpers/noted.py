"""What a call says on stderr for a person although nothing is wrong."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import redirect_stderr
from io import StringIO
from typing import TypeVar

from orchestrator import notes

T = TypeVar("T")


def noted(call: Callable[[], T]) -> tuple[T, str]:
    """What a call returns, and its notes."""
    with notes.buffered(), redirect_stderr(StringIO()) as stderr:
        found = call()
        notes.release()
    return found, stderr.getvalue()
