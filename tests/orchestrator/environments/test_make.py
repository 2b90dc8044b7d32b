"""Environments are made once, whole or not at all, and errors say what to change."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from filelock import FileLock

from orchestrator import ROOT
from orchestrator.config.environment import Environment, find
from orchestrator.config.settings import Settings
from orchestrator.environments import make as making
from orchestrator.environments import shared
from orchestrator.environments.make import make
from orchestrator.errors import UserError
from orchestrator.planning.expand import expand
from tests.helpers.wheels import LIBRARY


@pytest.fixture
def environment(cache: Path, wheels: Path) -> Callable[..., Environment]:
    return lambda name, *requirements: Environment(name=name, requirements=requirements, wheels=str(wheels))


def folders(cache: Path, name: str) -> list[Path]:
    """What there is of an environment, whole or not."""
    return [place for place in (cache / making.FOLDER).glob(f"*{name}-*") if place.is_dir()]


def test_an_environment_is_made_once_and_shares_torch(environment: Callable[..., Environment], cache: Path):
    said: list[str] = []
    first, second = (make(environment("once", f"{LIBRARY}==1.0"), said.append) for _ in range(2))

    assert first == second and sum("making environment" in words for words in said) == 1
    assert first.packages[LIBRARY] == "1.0" and first.packages["torch"] == str(torch.__version__)
    found = "import ao_fakekernel, importlib.util as u; print(u.find_spec('torch').origin); print(u.find_spec('pandas'))"
    here = subprocess.run([first.python, "-I", "-c", found], capture_output=True, text=True, check=True).stdout
    assert here.split() == [torch.__file__, "None"]  # torch is that of the tests; what was not asked for is not there
    assert not list(Path(first.python).parents[1].rglob("torch"))


def test_an_environment_that_shares_all_has_what_is_here_but_what_it_names(environment: Callable[..., Environment]):
    everything = environment("all_but_one", f"{LIBRARY}==1.0", "pandas").model_copy(update={"shares": "all"})
    packages = shared.packages_for(everything)

    assert {"torch", "pyarrow", "numpy"} <= set(packages) and not {"pandas", LIBRARY, "attention-orchestrator"} & set(packages)
    assert "'pyarrow'" in shared.source(packages) and "'pandas'" not in shared.source(packages)


def test_another_wheel_of_the_same_name_is_another_environment(environment: Callable[..., Environment], wheels: Path):
    one = environment("patched", f"{LIBRARY}==1.0")
    before = making._place(one)
    extra = wheels / "extra-1-py3-none-any.whl"
    extra.write_bytes(b"something else")
    after = making._place(one)
    extra.unlink()

    assert before != after and making._place(one) == before


@pytest.mark.parametrize(
    ("requirement", "words"),
    [
        (f"{LIBRARY}==9.9", "its folder of wheels does not hold what ['ao-fakekernel==9.9'] need"),
        ("nobody-has-this==1", "its folder of wheels does not hold what ['nobody-has-this==1'] need"),
    ],
)
def test_a_folder_that_lacks_a_wheel_is_named(environment: Callable[..., Environment], cache: Path, requirement: str, words: str):
    with pytest.raises(UserError) as error:
        make(environment("lacking", requirement))

    assert words in str(error.value) and "\n" not in str(error.value)
    assert folders(cache, "lacking") == []


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            "error: Failed to fetch: `https://x/simple/a/`\n  Caused by: error sending request\n  Caused by: dns error",
            "cannot be reached",
        ),
        ("  × No solution found when resolving dependencies:\n  ╰─▶ Because a needs b, they are unsatisfiable.", "cannot be met"),
    ],
)
def test_uvs_errors_become_words(said: str, words: str):
    explained = making._explain(Environment(name="mine", requirements=("a==1",)), said)

    assert explained.startswith("env.mine: ") and words in explained and "╰" not in explained


def test_an_interrupted_making_leaves_nothing(environment: Callable[..., Environment], cache: Path):
    def interrupt(words: str) -> None:
        if "making" not in words:  # uv is at work
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(environment("cut", f"{LIBRARY}==1.0"), interrupt)
    assert folders(cache, "cut") == []

    place = making._place(environment("cut", f"{LIBRARY}==1.0"))
    left = place.with_name(f".{place.name}-of-a-killed-run")
    left.mkdir()
    make(environment("cut", f"{LIBRARY}==1.0"))
    assert folders(cache, "cut") == [place]


def test_two_runs_make_it_one_after_the_other(environment: Callable[..., Environment]):
    one, said = environment("shared", f"{LIBRARY}==2.0"), list[str]()
    place = making._place(one)
    place.parent.mkdir(parents=True, exist_ok=True)
    waits = threading.Event()

    def note(words: str) -> None:
        said.append(words)
        waits.set()

    with FileLock(place.with_name(f"{place.name}.lock")):
        thread = threading.Thread(target=make, args=(one, note))
        thread.start()
        assert waits.wait(20)
        assert said == ["environment shared is being made by another run; waiting for it"]
        place.mkdir()
        (place / making.MADE).write_text(json.dumps({"packages": {}, "cuda": None}))  # the other run has made it
    thread.join(20)
    assert not thread.is_alive()
    assert not any("making" in words for words in said[1:])


def test_what_ray_puts_on_the_path_of_its_workers_is_not_shared(environment: Callable[..., Environment]):
    """So a worker of Ray and a run with cluster=inline find one environment."""
    everything = environment("all", LIBRARY).model_copy(update={"shares": "all"})
    asks = f"from orchestrator.environments import shared as s; e = s.Environment(**{everything.model_dump()!r}); "
    asks += "print(sorted((name, str(one.locate_file(''))) for name, one in s.packages_for(e).items()))"
    copies = str(Path(str(find_spec("ray").origin)).parent / "thirdparty_files")  # type: ignore[union-attr]
    of_command, of_worker = (
        subprocess.run(
            [sys.executable, "-c", asks],
            env={**os.environ, "PYTHONPATH": path},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for path in ("", copies)
    )

    assert Path(copies).is_dir()
    assert of_command == of_worker


def test_of_a_package_that_is_there_twice_the_one_that_is_imported_is_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for version in ("2.0", "1.0"):
        info = tmp_path / version / f"twice-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: twice\nVersion: {version}\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "2.0"), str(tmp_path / "1.0"), *sys.path])

    assert shared._installed_here.__wrapped__()["twice"].version == "2.0"


def test_a_library_that_wants_another_torch_shares_none(
    environment: Callable[..., Environment], cache: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("UV_NATIVE_TLS", "1")  # uv warns of it
    said: list[str] = []
    with pytest.raises(UserError, match="does not hold what") as error:  # no torch is among the wheels
        make(environment("own_torch", f"{LIBRARY}==3.0"), said.append)

    assert str(error.value).startswith("env.own_torch: ao-fakekernel needs torch<1, and here is torch ")
    assert not re.search(rf"warning:|Using Python|{cache}", f"{error.value} {said}")
    assert any("gets a torch of its own: ao-fakekernel needs torch<1" in words for words in said)


def test_an_interpreter_that_is_none_is_named():
    with pytest.raises(UserError, match=r"env.engine: /nowhere/python is not a Python that runs"):
        make(Environment(name="engine", python="/nowhere/python"))


@pytest.mark.parametrize(
    ("name", "requirements"),
    [("flashinfer-0.6.13", ("flashinfer-python==0.6.13",)), ("flashinfer-python:0.5.3", ("flashinfer-python==0.5.3",))],
)
def test_a_library_with_its_version_names_an_environment(name: str, requirements: tuple[str, ...]):
    assert find(name, {}).requirements == requirements


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["sweep.env=[mine]"], "sweep.env='mine': unknown environment; conf/env has flashinfer_0_6; type a library"),
        (["sweep.env=[mine]", "+env.mine={wheels: /tmp}"], "it has neither requirements nor a python"),
        (["sweep.env=[mine]", "+env.mine={requirement: [a]}"], "env.mine.requirement: unknown key"),
    ],
)
def test_wrong_names_and_keys_are_errors_of_the_plan(settings: Callable[..., Settings], overrides: list[str], words: str):
    with pytest.raises(UserError) as error:
        expand(settings("+sweep=smoke", *overrides))

    assert words in str(error.value)


def test_points_of_the_command_s_own_environment_keep_their_ids(settings: Callable[..., Settings]):
    plain, both = expand(settings("+sweep=smoke")), expand(settings("+sweep=smoke", "sweep.env=[null,flashinfer_0_6]"))

    assert [point for point in both if point.env is None] == plain
    assert len({point.point_id for point in both}) == len(both) == 2 * len(plain)
    assert len({point.group_id for point in both}) == len({point.group_id for point in plain})
