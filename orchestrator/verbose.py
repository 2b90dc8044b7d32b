"""What a command does, as lines on stderr for `-v`: what the package's loggers say at INFO of machines, workers, modules."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import orchestrator
from orchestrator.untrusted.text import for_terminal

OPTIONS = ("-v", "--verbose")


class OnStderr(logging.Handler):
    """Writes to what stderr is now: a bar on the terminal takes its place while it is drawn."""

    def emit(self, record: logging.LogRecord) -> None:
        """Writes one line."""
        sys.stderr.write(for_terminal(f"{self.format(record)}\n"))
        sys.stderr.flush()


def split(words: Sequence[str]) -> tuple[list[str], bool]:
    """A command's words without `-v`, and whether it was there."""
    left = [word for word in words if word not in OPTIONS]
    return left, len(left) < len(words)


@contextmanager
def logging_to_stderr(wanted: bool) -> Iterator[None]:
    """Shows what is logged meanwhile, if it is wanted."""
    logger = logging.getLogger(orchestrator.__name__)
    before, handler = logger.level, OnStderr()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    if wanted:
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
