"""Modules of several environments in one archive: each environment loads its own, and compiles only what is not there."""

from __future__ import annotations

import json
import shutil
import tarfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from kernels.compile.module_cache import FOLDER
from orchestrator import ROOT
from orchestrator.cli import main
from tests.backends.faulty import MARKS
from tests.helpers.forked_environment import ForkedPopen
from tests.helpers.runs import SMALL

ONE = [*SMALL, "cluster=inline", "adapters=[tests.backends.modular]", "sweep.batch_size=[1]", "sweep.s_qo=[1]"]


@pytest.fixture
def words(
    cache: Path, typed: list[str], forked: list[ForkedPopen], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., list[str]]:
    """A command over both environments, on a machine that has compiled nothing yet."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv(MARKS, str(tmp_path))
    forget(cache)
    usual = [*ONE, *typed, "sweep.env=[v1,v2]", "sweep.backend=[modular]", f"modules={tmp_path}/m.tar"]

    def with_changes(*more: str) -> list[str]:
        changed = {word.partition("=")[0] for word in more}
        return [*(word for word in usual if word.partition("=")[0] not in changed), *more]

    return with_changes


def forget(cache: Path) -> None:
    shutil.rmtree(cache / FOLDER, ignore_errors=True)


def built(marks: Path) -> Counter[str]:
    return Counter((marks / "built").read_text().splitlines())


def kernels_of(rows: Path) -> dict[str, tuple[str, str]]:
    found = pd.read_parquet(rows).set_index("env")
    return {str(env): (row["resolved_backend"], row["status"]) for env, row in found.iterrows()}


RIGHT = {"v1": ("compiled for 1.0", "ok"), "v2": ("compiled for 2.0", "ok")}


def test_each_environment_loads_its_own_modules_from_the_archive(
    words: Callable[..., list[str]], cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(words("mode=compile")) == 0
    assert "2 modules (1 for ao-fakekernel 1.0, 1 for ao-fakekernel 2.0)" in " ".join(capsys.readouterr().out.split())
    with tarfile.open(tmp_path / "m.tar") as tar:
        members = [member.name for member in tar]
        manifest = json.loads(tar.extractfile(members[0]).read())  # type: ignore[union-attr]
    assert members[1:] == [f"ao-fakekernel-{version}/cpu/modular/modular.so" for version in ("1.0", "2.0")]
    assert [entry["version"] for entry in manifest["modules"]] == ["1.0", "2.0"]
    assert built(tmp_path) == {"modular 1.0": 1, "modular 2.0": 1}

    forget(cache)  # as on another machine
    assert main(words(f"results.path={tmp_path}/rows")) == 0
    assert kernels_of(tmp_path / "rows") == RIGHT
    assert built(tmp_path) == {"modular 1.0": 1, "modular 2.0": 1}


def test_what_the_archive_has_not_is_compiled_and_can_be_added(words: Callable[..., list[str]], cache: Path, tmp_path: Path):
    assert main(words("mode=compile", "sweep.env=[v1]")) == 0
    forget(cache)
    assert main(words(f"results.path={tmp_path}/rows")) == 0
    assert kernels_of(tmp_path / "rows") == RIGHT
    assert built(tmp_path) == {"modular 1.0": 1, "modular 2.0": 1}

    forget(cache)
    assert main(words("mode=compile")) == 0  # adds the second to the first, which it does not compile again
    assert built(tmp_path) == {"modular 1.0": 1, "modular 2.0": 2}
    with tarfile.open(tmp_path / "m.tar") as tar:
        assert len(tar.getnames()) == 3


def test_a_module_that_does_not_compile_in_one_environment_is_named_with_it(
    words: Callable[..., list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(words("mode=compile", "sweep.backend=[modular,'fails_in_2.0']")) == 1

    said = " ".join(capsys.readouterr().out.split())
    assert "kernel.cu(7): error: no such thing" in said and "v2" in said
    with tarfile.open(tmp_path / "m.tar") as tar:
        assert [name.split("/")[::2] for name in tar.getnames()[1:]] == [
            ["ao-fakekernel-1.0", "fails_in_2.0"],
            ["ao-fakekernel-1.0", "modular"],
            ["ao-fakekernel-2.0", "modular"],
        ]


def test_a_damaged_archive_is_refused_before_a_point_of_an_environment_runs(
    words: Callable[..., list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(words("mode=compile")) == 0
    whole = (tmp_path / "m.tar").read_bytes()
    (tmp_path / "m.tar").write_bytes(whole.replace(b"compiled for 2.0", b"compiled for 9.9"))

    assert main(words(f"results.path={tmp_path}/rows")) == 2
    assert "ao-fakekernel-2.0/cpu/modular/modular.so is damaged" in " ".join(capsys.readouterr().err.split())
    assert pd.read_parquet(tmp_path / "rows").empty
