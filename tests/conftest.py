"""Fixtures of all tests."""

from __future__ import annotations

import atexit
import gc
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernels.problem import Problem
from orchestrator import ROOT
from orchestrator.cli import main
from orchestrator.composing import compose
from orchestrator.config.settings import Settings, load
from tests.helpers.command_line import COMPOSED, Invoke, composed, in_parts
from tests.helpers.parsed_once import parse_once
from tests.helpers.problems import SMALL

# These kill machines and processes, wait for what follows, and would disturb one another: those of one place run one after another.
# They take the longest, so they come first.
DISTURBING = ("tests/faults/machines/", "tests/faults/processes/")
TOKEN_PATH = "RAY_AUTH_TOKEN_PATH"
MARKED = ("browser", "gpu", "slurm")  # folders, and the marker of every test in them
collect_ignore: list[str] = []
# One fixture, which takes seconds, for all tests of a place: environments are made once, and not once in each process.
SHARING = (
    "tests/kernels/check/test_prompts.py",
    "tests/kernels/conformance/test_suite.py",
    "tests/orchestrator/environments/",
    *(f"tests/orchestrator/pools/test_{name}.py" for name in ("network", "ray")),
    *(f"tests/orchestrator/reporting/test_{name}.py" for name in ("dashboard", "site")),
    "tests/test_adding_a_backend.py",
    "tests/test_first_commands.py",
    *(f"tests/test_{name}.py" for name in ("answers", "findings")),  # which keep what they have opened
    "tests/test_installed.py",
)


def pytest_configure(config: pytest.Config) -> None:
    """Restores Ctrl-C, which a shell ignores in background jobs, and so would every command that a test starts.

    Ray starts a worker when it is asked for one, and not one for each core beforehand. Its workers get as much of the machine as
    the other tests, which they would let go first by default: then deadlines pass while they wait.
    Ray reads whether it shows a token when it is imported, so it is told before any test file imports it. The token is one of
    these tests, so that nothing depends on the user's own.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.pop("COLUMNS", None)  # pytest-xdist sets it for its processes
    os.environ.setdefault("RAY_prestart_worker_first_driver", "false")
    os.environ.setdefault("RAY_worker_niceness", "0")
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    if TOKEN_PATH not in os.environ:  # the processes of pytest-xdist inherit it
        folder = Path(tempfile.mkdtemp(prefix="tests-of-attention-orchestrator-"))
        (token := folder / "token").write_text(secrets.token_hex(32))
        os.environ |= {TOKEN_PATH: str(token), COMPOSED: str(folder)}
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    parse_once()
    # What `-m` leaves out is not even imported.
    collect_ignore.extend(name for name in MARKED if f"not {name}" in config.option.markexpr)
    gc.disable()  # until all is imported


def pytest_itemcollected(item: pytest.Item) -> None:
    for folder in MARKED:
        if item.nodeid.startswith(f"tests/{folder}/"):
            item.add_marker(folder)


def pytest_collection_finish() -> None:
    """Python's collector looks at what tests make, and not again and again at what was imported."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Of the processes of `make test`, two begin with a place of DISTURBING each, and then help the others with all else."""
    from xdist.scheduler import LoadScopeScheduling

    class OneForEachPlace(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return next((place for place in (*DISTURBING, *SHARING) if nodeid.startswith(place)), nodeid)

    return OneForEachPlace(config, log)


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
    monkeypatch.setattr(compose, "_by_hydra", in_parts(compose._by_hydra))

    def invoked(*args: str) -> subprocess.CompletedProcess[str]:
        capfd.readouterr()
        code = main(args)
        return subprocess.CompletedProcess(args, code, *capfd.readouterr())

    return invoked
