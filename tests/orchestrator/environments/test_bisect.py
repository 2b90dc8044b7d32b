"""mode=bisect over real wheels and environments: a library that is slow from one release on is found at that release."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

from orchestrator import ROOT
from orchestrator.cli import main
from orchestrator.commands import bisect
from orchestrator.commands.invocation import Invocation
from orchestrator.config.settings import load
from tests.helpers import wheels as library
from tests.helpers.command_line import composed
from tests.helpers.forked_environment import ForkedPopen
from tests.helpers.runs import SMALL

RELEASES, BROKEN, SLOW_FROM = 4, 1, 2
SLOWER = 1.2  # what a call takes from then on, of what it took before
TIMES = f"\nMICROSECONDS = {1000 * SLOWER} if int(VERSION[2:]) >= {SLOW_FROM} else 1000.0\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Wheels of releases 1.0 to 1.3, slow from 1.2 on. 1.1 requires another torch, so it cannot be installed."""
    monkeypatch.setattr(library, "SOURCE", library.SOURCE + TIMES)
    for number in range(RELEASES):
        library.write_wheel(tmp_path, f"1.{number}", requires="torch<1" if number == BROKEN else "")
    return tmp_path


def test_an_injected_regression_is_found_at_its_release(
    folder: Path, cache: Path, forked: list[ForkedPopen], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """Each step runs in this process, which has imported the libraries already. Calls take what `tests.backends.clocked` says."""
    real = subprocess.run

    def run(command: list[str], **keys: object) -> Any:
        if command[2:3] != ["orchestrator"]:
            return real(command, **keys)  # type: ignore[call-overload]
        return SimpleNamespace(returncode=main(command[3:]), stdout="", stderr=capsys.readouterr().err)

    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(subprocess, "run", run)
    path = folder / "rows"
    typed = [*SMALL, "cluster=inline", "adapters=[tests.backends.clocked]", "sweep.batch_size=[1]", "sweep.s_qo=[1]"]
    typed += ["sweep.backend=[clocked]", "mode=bisect", f"good={library.LIBRARY}:1.0", f"bad={library.LIBRARY}:1.3"]
    typed += [f"bisect.wheels={folder}", f"results.path={path}"]
    code = bisect.execute(Invocation(load(composed(*typed)), tuple(typed), Console(quiet=True)))

    text = (Path(f"{path}_bisect") / "_bisect.md").read_text(encoding="utf-8")
    assert code == 0, text
    assert text.startswith(f"### {library.LIBRARY} 1.2 is slower by 5.0% or more than 1.0\n\n1.2: +20")
    assert "The change came in 1.1 or 1.2. 1.1 could not be measured.\n" in text
    assert "needs torch<1, and here is torch" in text
    assert "- device: cpu\n" in text and "num_qo_heads=8 num_kv_heads=1 head_dim_qk=128" in text
    assert "| 1.0 | good: the others are compared with it |  | kernel_of_1.0 |  |" in text
    assert " µs, kernel_of_1.0 | " in text and " µs, kernel_of_1.2 | +20" in text
    rows = pd.read_parquet(f"{path}_bisect")
    assert set(rows["env"]) == {f"ao_fakekernel_1_{number}" for number in (0, 2, 3)}
