"""The standard output while a command runs: if it can no longer be written, the command goes on, and is told at its end."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

STDOUT = 1  # its file descriptor


class Output(io.TextIOWrapper):
    """A stream that drops what a full disk or closed output refuses, and keeps why; a reader's end is a BrokenPipeError as ever."""

    unwritten: str | None = None  # why something was not written

    def write(self, text: str) -> int:
        with self._dropping():
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with self._dropping():
            super().flush()

    @contextmanager
    def _dropping(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            raise
        except OSError as error:
            self.unwritten = self.unwritten or error.strerror or str(error)
            discard(self)


class Closed(Output):
    """In place of an output that was closed before the command began, as `>&-` does."""

    def write(self, text: str) -> int:
        self.unwritten = "it is closed"
        return len(text)


def discard(stream: IO[str]) -> None:
    """Sends what is still to be written to nowhere, so that the last flush does not complain."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


@contextmanager
def guarded() -> Iterator[Output | None]:
    """Puts such a stream in the place of sys.stdout; None, and no change, in a notebook. A closed stderr becomes a silent one."""
    before = sys.stdout
    if before is not None and not isinstance(before, io.TextIOWrapper):
        yield None
        return
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w")  # for the rest of the process
    with _stream(before) as stream:
        sys.stdout = stream
        try:
            yield stream
        finally:
            sys.stdout = before


@contextmanager
def _stream(before: io.TextIOWrapper | None) -> Iterator[Output]:
    """Over the bytes of another stream, which stay open. A terminal of few letters gets ? for the others."""
    if before is None:
        _occupy(STDOUT)
        with Path(os.devnull).open("wb") as nowhere, Closed(nowhere) as closed:
            yield closed
        return
    before.flush()
    as_before = {name: getattr(before, name) for name in ("encoding", "line_buffering", "write_through")}
    stream = Output(before.buffer, errors="replace", **as_before)
    try:
        yield stream
    finally:
        stream.detach()


def _occupy(fd: int) -> None:
    """Opens /dev/null there if it is free: else the next file that is opened gets what a library or a process prints."""
    try:
        os.fstat(fd)
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        if nowhere != fd:
            os.dup2(nowhere, fd)
            os.close(nowhere)
