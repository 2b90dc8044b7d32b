"""What breaks in an environment ends in words, costs its own points alone, and leaves no process and no half-made environment."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kernels.environment import describe
from kernels.environment.process import Process
from kernels.problem import Problem
from kernels.timing.config import Timing
from orchestrator.config.environment import Environment, find
from orchestrator.environments import make as making
from orchestrator.environments.make import make
from orchestrator.errors import UserError
from orchestrator.machines import cpu
from orchestrator.point import Point
from orchestrator.process import start_time
from orchestrator.worker.messages import Task, WorkerConfig
from orchestrator.worker.point_runner import PointRunner
from tests.helpers.forked import CONTEXT
from tests.helpers.forked_environment import ForkedPopen
from tests.helpers.runs import SMALL, processes, start, wait_until
from tests.helpers.wheels import LIBRARY, write_wheel

TWICE = Environment(name="twice", python=sys.executable)
CONFIG = WorkerConfig(
    Timing(min_samples=20, max_samples=20), True, ("tests.backends.faulty",), {"run_id": "r"}, environments=(TWICE,)
)
DIED = "the process of its environment died of SIGKILL"


@pytest.fixture
def worker(forked: list[ForkedPopen]) -> PointRunner:
    return PointRunner.create(CONFIG, cpu())


def kill_at(process: Process, request: str, monkeypatch: pytest.MonkeyPatch, *, at_event: bool = False) -> None:
    """Ends a process with SIGKILL when it gets a request, or while it is at it: when it tells something before the answer."""
    ask = process.ask

    def asked(do: str, seconds: float = 60.0, on_event: Callable[[Any], object] | None = None, **keys: Any) -> Any:
        def told(event: Any) -> None:
            with suppress(ProcessLookupError):  # a second event may be read after the end
                os.kill(process.pid, signal.SIGKILL)

        if do == request and not at_event:
            os.kill(process.pid, signal.SIGKILL)
        return ask(do, seconds, told if do == request and at_event else on_event, **keys)

    monkeypatch.setattr(process, "ask", asked)


def run(worker: PointRunner, problem: Problem, *envs: str | None) -> list[tuple[str | None, str, str]]:
    """The environment, status and reason of each row."""
    results = [worker.prepare(Task(Point(problem, "nothing", "how", env=env), "replay")) for env in envs]
    rows = [row for result in (*results, worker.measure()) for row in result.rows]
    return [(row["env"], row["status"], row["reason"] or "") for row in rows]


@pytest.mark.parametrize(
    ("request_", "at_event"),
    [("draw", False), ("prepare", False), ("now", False), ("block", False), ("block", True), ("most_different", False)],
)
def test_a_process_that_is_killed_costs_its_point_alone(
    request_: str, at_event: bool, worker: PointRunner, problem: Callable[..., Problem], monkeypatch: pytest.MonkeyPatch
):
    """Killed when it draws inputs, prepares, is checked, begins or is in the middle of a block, and is checked again."""
    first = worker.environments._processes["twice"]
    kill_at(first, request_, monkeypatch, at_event=at_event)
    found = run(worker, problem(), None, "twice")
    again = run(worker, problem(), "twice")
    second = worker.environments._processes["twice"]
    worker.environments.close()

    assert sorted((str(env), status) for env, status, _ in found) == [("None", "ok"), ("twice", "failed")]
    assert DIED in next(reason for env, _, reason in found if env == "twice")
    assert [(env, status) for env, status, _ in again] == [("twice", "ok")]
    assert second is not first and start_time(first.pid) is None and start_time(second.pid) is None


def test_an_interpreter_that_is_gone_costs_its_own_points_alone(
    forked: list[ForkedPopen], problem: Callable[..., Problem], monkeypatch: pytest.MonkeyPatch
):
    """It was there when the environment was made."""
    described = making.Described(packages={"torch": "2"})
    monkeypatch.setattr(making, "_described", lambda environment, python: described)

    def no_file(*_words: object, **_keys: object) -> None:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(subprocess, "Popen", no_file)
    gone = TWICE.model_copy(update={"python": "/nowhere/python"})
    worker = PointRunner.create(WorkerConfig(CONFIG.timing, True, CONFIG.adapters, {}, environments=(gone,)), cpu())
    found = run(worker, problem(), None, "twice")
    worker.environments.close()

    assert sorted((str(env), status) for env, status, _ in found) == [("None", "ok"), ("twice", "failed")]
    assert "environment twice cannot be used" in found[0][2] and "/nowhere/python cannot be started" in found[0][2]


def test_a_driver_that_is_killed_leaves_no_process_of_an_environment(tmp_path: Path):
    words = [*SMALL, "cluster=inline", "adapters=[tests.backends.faulty]", "sweep.backend=[hangs]", "sweep.env=[twice]"]
    driver = start(*words, f"+env.twice={{python: {sys.executable}}}", f"results.path={tmp_path}")
    wait_until(lambda: list(processes("kernels.environment.serve", under=driver.pid)), "its environment has a process")
    left = list(processes("kernels.environment.serve", under=driver.pid))
    driver.kill()

    wait_until(lambda: not any(map(start_time, left)), "the processes have ended with their driver")
    assert left


def _make_slowly(keys: dict[str, Any], cache: str, mark: str) -> None:
    """In a process of its own: stops in the middle, with uv at work, if `mark` is not there yet."""
    os.environ["XDG_CACHE_HOME"] = cache

    def say(words: str) -> None:
        with Path(f"{mark}.said").open("a") as said:
            said.write(f"{os.getpid()} {words}\n")
        if "making" not in words and "waiting" not in words and not Path(mark).exists():
            Path(mark).touch()
            time.sleep(1000)

    make(Environment(**keys), say)


def test_a_run_that_is_killed_while_it_makes_an_environment_leaves_it_to_the_one_that_waits(wheels: Path, tmp_path: Path):
    keys = {"name": "both", "requirements": (f"{LIBRARY}==1.0",), "wheels": str(wheels)}
    mark, said = tmp_path / "mark", tmp_path / "mark.said"
    made = tmp_path / "cache" / making.FOLDER
    first, second = (CONTEXT.Process(target=_make_slowly, args=(keys, str(tmp_path / "cache"), str(mark))) for _ in range(2))
    first.start()
    wait_until(mark.exists, "the first is in the middle of it")
    second.start()
    wait_until(lambda: f"{second.pid} environment both is being made by another run" in said.read_text(), "the second waits")
    assert [place.name[0] for place in made.iterdir() if place.is_dir()] == ["."]  # hidden: not whole
    assert first.pid
    os.kill(first.pid, signal.SIGKILL)
    second.join(60)

    assert second.exitcode == 0
    (place,) = [place for place in made.iterdir() if place.is_dir()]
    assert place.name.startswith("both-") and (place / making.MADE).is_file()


def test_a_dependency_without_a_wheel_is_named(cache: Path, tmp_path: Path):
    write_wheel(tmp_path, "1.0", requires="not-among-the-wheels>=2")
    with pytest.raises(UserError, match=r"its folder of wheels does not hold what .*not-among-the-wheels") as error:
        make(Environment(name="lonely", requirements=(f"{LIBRARY}==1.0",), wheels=str(tmp_path)))

    assert "\n" not in str(error.value)
    assert not [place for place in (cache / making.FOLDER).glob("*lonely-*") if place.is_dir()]


def test_a_cache_that_cannot_be_written_is_named(wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))

    with pytest.raises(UserError, match=r"env\.mine: it cannot be made in .* \(Not a directory\); .*XDG_CACHE_HOME"):
        make(Environment(name="mine", requirements=(f"{LIBRARY}==1.0",), wheels=str(wheels)))


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (None, "Permission denied"),
        ("", "Exec format error|Expecting value"),
        ("#!/bin/sh\necho no python here >&2; exit 3\n", "no python here"),
        ("#!/bin/sh\necho 3.9\n", "is not a Python that runs"),
    ],
)
def test_a_file_that_is_no_python_is_named(script: str | None, words: str, tmp_path: Path):
    python = tmp_path / "python"
    if script is None:
        python.mkdir()
    else:
        python.write_text(script)
        python.chmod(0o755)

    with pytest.raises(UserError, match=f"env.engine: {python} .*({words})"):
        make(Environment(name="engine", python=str(python)))


def test_a_python_without_torch_is_told_what_to_type(tmp_path: Path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path)], check=True)
    python = tmp_path / "bin" / "python"

    with pytest.raises(UserError, match=f"it has no torch and no pydantic; type: {python} -m pip install torch pydantic"):
        make(Environment(name="engine", python=str(python)))


def test_a_python_that_is_too_old_is_told_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "version_info", (3, 9, 18))

    assert describe.problem() == "its Python is 3.9; allowed: 3.10 or later"
    assert ast.parse(Path(describe.__file__).read_text(), feature_version=(3, 7))  # it must run there to say so


@pytest.mark.parametrize("name", ["a b", "../sweep/smoke", "/etc/x", "", "é", "a\nb", "a\0b", "x" * 5000, "$(id)", "*"])
def test_a_name_that_can_be_no_environment_is_refused(name: str):
    for typed in ({}, {name: {"requirements": ["a==1"]}}):
        with pytest.raises(UserError, match=r"sweep\.env=.*allowed: a name of up to 100 letters, digits") as error:
            find(name, typed)
        assert len(str(error.value)) < 300 and "\n" not in str(error.value)


@pytest.mark.parametrize("keys", [3, "flashinfer==1", ["a"], True])
def test_an_environment_that_is_no_mapping_is_refused(keys: object):
    with pytest.raises(UserError, match=r'env\.mine=.*: allowed: a mapping; type "\+env\.mine='):
        find("mine", {"mine": keys})


def test_options_are_no_requirements():
    with pytest.raises(UserError, match=r"env\.mine\.requirements: '--help' is an option of pip"):
        find("mine", {"mine": {"requirements": ["--help"]}})
    assert find("mine", {"mine": {"requirements": ["-e /a/checkout"]}}).requirements == ("-e /a/checkout",)
