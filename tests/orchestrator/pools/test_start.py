"""How Ray starts for a run: beside other work, and with words for what is awaited."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest

from orchestrator import __main__ as first_line
from orchestrator.config.parts import Cluster
from orchestrator.errors import UserError
from orchestrator.pools import starting
from orchestrator.pools.ray import connection

LOCAL = Cluster(name="local", kind="local")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("argv", "speaks"),
    [
        (["+sweep=smoke"], True),
        (["+sweep=smoke", "mode=noise"], True),
        (["+sweep=smoke", "mode=report"], False),
        (["--help"], False),
        ([], False),
    ],
    ids=str,
)
def test_a_command_that_measures_says_at_once_that_it_has_begun(monkeypatch: pytest.MonkeyPatch, argv: list[str], speaks: bool):
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    first_line.say(argv)
    monkeypatch.setattr(sys, "stderr", piped := io.StringIO())
    first_line.say(argv)

    assert (screen.getvalue() != "", piped.getvalue()) == (speaks, "")


@pytest.mark.parametrize(
    ("imported", "slow"),
    [
        ("orchestrator.__main__", {"hydra", "pydantic", "ray", "torch", "numpy"}),  # has said its first line
        ("orchestrator.cli", {"orchestrator.analysis", "orchestrator.storage", "ray", "torch", "numpy"}),  # answers --help
        ("orchestrator.run, orchestrator.pools.ray.connection", {"torch", "flashinfer"}),  # the driver, and a worker to be killed
    ],
)
def test_what_has_to_answer_soon_imports_nothing_that_takes_long(imported: str, slow: set[str]):
    code = f"import sys, {imported}; print({slow} & set(sys.modules))"

    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "set()"


def test_ray_begins_while_the_caller_does_other_things_and_its_error_comes_where_the_pool_is_wanted(
    monkeypatch: pytest.MonkeyPatch,
):
    def begin(cluster: Cluster) -> None:
        raise UserError("no Ray here")

    monkeypatch.setattr(connection, "begin", begin)
    said: list[str] = []
    with starting(LOCAL) as reach:
        done = "other things"
        with pytest.raises(UserError, match="no Ray here"), reach(said.append):
            pass

    assert (done, said) == ("other things", ["Ray starts on this machine"])


@pytest.mark.parametrize("how", ["leaves", "fails"])
def test_what_has_begun_is_ended_once_also_if_the_pool_is_never_entered(monkeypatch: pytest.MonkeyPatch, how: str):
    calls: list[str] = []
    monkeypatch.setattr(connection, "begin", lambda cluster: calls.append("begin"))
    monkeypatch.setattr(connection, "end", lambda: calls.append("end"))
    try:
        with starting(LOCAL):
            if how == "fails":
                raise UserError("the dataset is somebody else's")
    except UserError:
        pass

    assert calls == ["begin", "end"]
