"""Ctrl-C during a query ends the command as it does anywhere else."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from orchestrator import cli
from orchestrator.analysis.connection import Connection
from orchestrator.commands import INTERRUPTED
from tests.helpers.command_line import Invoke

LONG = "SELECT count(*) FROM range(100000000) a, range(100000) b WHERE (a.range * b.range) % 7 = 3"


def test_an_interrupted_query_is_an_interrupt():
    with pytest.raises(KeyboardInterrupt):
        interrupted(Connection([], threads=1).execute)


def test_a_command_that_is_interrupted_in_a_query_ends_with_130(invoke: Invoke, monkeypatch: pytest.MonkeyPatch):
    def execute(config: Mapping[str, Any], overrides: Sequence[str]) -> int:
        interrupted(Connection([], threads=1).con.execute)  # as `sources` does, past the methods of Connection
        return 0

    monkeypatch.setattr(cli, "execute", execute)
    done = invoke("+sweep=smoke")

    assert (done.returncode, done.stderr) == (INTERRUPTED, "interrupted\n")


def interrupted(query: Any) -> None:
    """Runs a query that takes hours, and is interrupted after a moment."""
    begun = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    begun.start()
    query(LONG)
