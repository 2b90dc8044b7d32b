"""The command line: as a process, or composed to settings without one."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_module
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from orchestrator import ROOT
from tests.helpers.forked import Forked

COMPOSED = "TESTS_COMPOSED"  # the variable that names the folder of what one process of the tests composed for all
RAY_START = ROOT / "tests" / "ray_start"  # has a sitecustomize.py
Invoke = Callable[..., subprocess.CompletedProcess[str]]  # the fixture `invoke`: the command line in this process


def composed(*overrides: str) -> dict[str, Any]:
    """The configuration that Hydra composes from overrides, as plain values that the caller may change."""
    return _plain(_composed(overrides))


def in_parts(by_hydra: Callable[[Sequence[str]], dict[str, Any]]) -> Callable[[Sequence[str]], dict[str, Any]]:
    """`by_hydra` in a third of the time, by files that are composed once. Left to itself: words that it refuses, and folders."""

    def by_parts(words: Sequence[str]) -> dict[str, Any]:
        if any(word.startswith("hydra.") for word in words):
            return by_hydra(words)
        try:
            return _plain(_of_values(tuple(words)))
        except Exception:  # Hydra says it in its own words
            return by_hydra(words)

    return by_parts


def _plain(whole: DictConfig) -> dict[str, Any]:
    plain = OmegaConf.to_container(whole, resolve=True)  # with the environment variables of now
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


@cache
def _composed(overrides: tuple[str, ...]) -> DictConfig:
    return _of_values(overrides)


def _of_values(overrides: tuple[str, ...]) -> DictConfig:
    """As Hydra composes it: first the files that overrides choose, then the values that they set."""
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    values = [override for override in parsed if not _chooses_a_file(override)]
    whole = pickle.loads(_of_files(tuple(override.input_line for override in parsed if override not in values)))
    assert isinstance(whole, DictConfig)
    ConfigLoaderImpl._apply_overrides_to_config(values, whole)
    return whole


@cache
def _of_files(overrides: tuple[str, ...]) -> bytes:
    """The pickled choice of files: it takes a third of a second, and many tests of all processes set other values in the same."""
    folder = os.environ.get(COMPOSED)
    file = Path(folder or "") / sha256(repr(overrides).encode()).hexdigest()
    if folder and file.exists():
        return file.read_bytes()
    with initialize_config_module("conf", version_base="1.3"):
        made = pickle.dumps(compose("config", overrides=list(overrides)))
    if folder:
        own = file.with_suffix(f".{os.getpid()}")
        own.write_bytes(made)
        own.replace(file)  # whole, or not there
    return made


def _chooses_a_file(override: Override) -> bool:
    """Hydra's rule; see `Overrides` in its defaults_list.py."""
    return (ROOT / "conf" / override.key_or_group).is_dir() and not isinstance(override.value(), dict)


def command(*args: str) -> list[str]:
    """The words of a command line of this project."""
    return [sys.executable, "-m", "orchestrator", *args]


def run(*args: str, timeout: float = 400, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Runs the command line in a process of its own that has its libraries already, until it ends."""
    return _ended(Forked(args, cwd, environment()), timeout)


def start_code(code: str, *args: str) -> Forked:
    """Starts a program in Python, in a process of its own that has the project's libraries already."""
    return Forked(args, ROOT, environment(), code)


def run_code(code: str, *args: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """Runs such a program until it ends."""
    return _ended(start_code(code, *args), timeout)


def _ended(forked: Forked, timeout: float) -> subprocess.CompletedProcess[str]:
    try:
        said = forked.communicate(timeout)
    finally:
        forked.kill()
    assert forked.returncode is not None
    return subprocess.CompletedProcess(forked.args, forked.returncode, *said)


def run_from_scratch(*args: str, timeout: float = 400, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Runs the command line as its user starts it: Python begins anew and imports what it needs. One test of each kind does."""
    return subprocess.run(command(*args), cwd=cwd, capture_output=True, text=True, timeout=timeout, check=False, env=environment())


def environment() -> dict[str, str]:
    """This process's environment with this checkout first on the Python path, and Ray's cheap start last."""
    path = os.pathsep.join(part for part in (str(ROOT), os.environ.get("PYTHONPATH", ""), str(RAY_START)) if part)
    return {**os.environ, "PYTHONPATH": path}
