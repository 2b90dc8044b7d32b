"""Fixtures of all tests."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from kernels.problem import Problem
from orchestrator import ROOT
from orchestrator.cli import main
from orchestrator.config.settings import Settings, load
from tests.helpers.command_line import Invoke, composed
from tests.helpers.problems import SMALL

# These kill processes and machines, and mostly wait: one process of `make test` takes each group, so that two wait at once.
DISTURBING = {
    "tests/faults/test_compiling.py": "machines",
    "tests/faults/test_nodes.py": "machines",
    "tests/faults/test_versions.py": "machines",
    "tests/faults/": "commands",
}


def pytest_configure() -> None:
    """Restores Ctrl-C, which a shell ignores in background jobs, and so would every command that a test starts."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Keeps each group of DISTURBING in one process. All other tests go one by one to whoever is free."""
    from xdist.scheduler import LoadScopeScheduling

    class GroupsOfTheDisturbing(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return next((group for path, group in DISTURBING.items() if nodeid.startswith(path)), nodeid)

    return GroupsOfTheDisturbing(config, log)


@pytest.fixture
def problem() -> Callable[..., Problem]:
    """A small problem, changed by keywords."""
    return lambda **keys: Problem.model_validate({**SMALL, "page_size": 16, **keys})


@pytest.fixture
def settings() -> Callable[..., Settings]:
    """Validated settings from overrides."""
    return lambda *overrides: load(composed(*overrides))


@pytest.fixture
def invoke(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """The command line in this process, which saves the start of another: for commands that only read or are refused."""
    monkeypatch.chdir(ROOT)

    def invoked(*args: str) -> subprocess.CompletedProcess[str]:
        capfd.readouterr()
        code = main(args)
        return subprocess.CompletedProcess(args, code, *capfd.readouterr())

    return invoked
