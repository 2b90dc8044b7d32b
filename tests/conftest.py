"""What tests share: small problems, settings as Hydra composes them, the command line as a person uses it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from kernels.problem import Problem
from orchestrator.settings import Settings, load

ROOT = Path(__file__).resolve().parent.parent
SMALL = {"batch_size": 2, "s_qo": 3, "s_kv": 100, "num_qo_heads": 8, "num_kv_heads": 2, "head_dim_qk": 16, "head_dim_vo": 16}


def pytest_configure() -> None:
    """A shell starts what it runs in the background with Ctrl-C ignored, and so would be every command that a test starts."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def problem() -> Callable[..., Problem]:
    """A small problem, changed by keywords."""
    return lambda **keys: Problem.model_validate({**SMALL, "page_size": 16, **keys})


@pytest.fixture
def settings() -> Callable[..., Settings]:
    """Settings from overrides, through the same door as the command's."""
    return lambda *overrides: load(composed(*overrides))


def composed(*overrides: str) -> dict[str, Any]:
    with initialize_config_module("conf", version_base="1.3"):
        plain = OmegaConf.to_container(compose("config", overrides=list(overrides)), resolve=True)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", "orchestrator", *args]


def run(*args: str, timeout: float = 200) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own, as a person types it."""
    return subprocess.run(command(*args), cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False, env=environment())


def environment() -> dict[str, str]:
    """This checkout first on the path, before whatever else is there."""
    path = os.pathsep.join(part for part in (str(ROOT), os.environ.get("PYTHONPATH", "")) if part)
    return {**os.environ, "PYTHONPATH": path}
