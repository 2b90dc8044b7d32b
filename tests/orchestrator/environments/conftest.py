"""Two environments of a library that exists in tests alone, made once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kernels.environment import process
from tests.helpers.forked_environment import ForkedPopen, instead_of
from tests.helpers.wheels import LIBRARY, write_wheel


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    write_wheel(folder, "1.0")
    write_wheel(folder, "2.0")
    write_wheel(folder, "3.0", requires="torch<1")
    return folder


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The user's cache, for as long as the tests run."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder


@pytest.fixture(scope="session")
def typed(wheels: Path) -> list[str]:
    """Overrides that name environments v1 and v2."""
    return [f"+env.v{n}={{requirements: ['{LIBRARY}=={n}.0'], wheels: '{wheels}'}}" for n in (1, 2)]


@pytest.fixture(scope="module")
def forked() -> Iterator[list[ForkedPopen]]:
    """Every process of an environment that the tests of a file have started."""
    ForkedPopen.started.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process.subprocess, "Popen", instead_of(process.subprocess.Popen))
        yield ForkedPopen.started
