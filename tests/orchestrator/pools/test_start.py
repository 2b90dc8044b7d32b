"""How Ray starts for a run: beside other work, without what nobody looks at, and with words for what is awaited."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from orchestrator import first_line
from orchestrator.config.parts import Cluster
from orchestrator.errors import UserError
from orchestrator.pools import starting
from orchestrator.pools.ray import connection
from orchestrator.pools.ray.quick_start import NO_AGENT, quick_start, without_agent

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


def test_the_first_line_needs_no_import_that_takes_long():
    code = (
        "import sys; from orchestrator import first_line; print({'hydra', 'pydantic', 'ray', 'torch', 'numpy'} & set(sys.modules))"
    )

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


NO_PORTS = ["metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port"]
AGENT = [sys.executable, "-u", "agent.py", "--node-ip-address=127.0.0.1", "--node-id=n1"]


def stands_in(folder: Path, *more: str) -> subprocess.Popen[str]:
    """The process that a raylet, here this test, starts in the place of an agent."""
    words = without_agent(f"--dashboard_agent_command={subprocess.list2cmdline([*AGENT, f'--session-dir={folder}', *more])}")
    return subprocess.Popen(words.partition("=")[2].split(), stdout=subprocess.PIPE, text=True)


def ports_in(folder: Path, names: Sequence[str]) -> dict[str, int]:
    deadline = time.monotonic() + 30
    while not all((folder / f"{name}_n1").exists() for name in names):
        assert time.monotonic() < deadline, "no ports were told"
        time.sleep(0.01)
    return {name: int((folder / f"{name}_n1").read_text()) for name in names}


def test_a_raylet_hears_at_once_that_there_is_no_dashboard(tmp_path: Path):
    agent = stands_in(tmp_path, "--listen-port=0")
    try:
        assert set(ports_in(tmp_path, ["metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port"]).values()) == {
            -1
        }
        assert agent.poll() is None  # the raylet would end with it
    finally:
        agent.send_signal(signal.SIGKILL)
        agent.wait()


def test_the_agent_of_environments_starts_if_anybody_asks_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import socket

    (tmp_path / "agent.py").write_text("import sys; print(*sys.argv[1:])")
    monkeypatch.chdir(tmp_path)
    agent = stands_in(tmp_path, "--runtime-env-agent-port=0")
    (port,) = ports_in(tmp_path, ["runtime_env_agent_port"]).values()
    socket.create_connection(("127.0.0.1", port)).close()
    said, _ = agent.communicate(timeout=30)

    assert f"--runtime-env-agent-port={port}" in said and "--node-id=n1" in said


def test_only_words_of_agents_change():
    worker = "--python_worker_command=python worker.py"

    assert without_agent(worker) == worker
    assert NO_AGENT.name in without_agent("--runtime_env_agent_command=python -u main.py --node-id=1")


def test_ray_is_as_it_was_once_it_has_started():
    from ray._private import parameter, services

    before = (parameter.RayParams.__init__, services.start_api_server, services.start_ray_process)
    with quick_start():
        during, no_server = parameter.RayParams(), services.start_api_server(False)

    assert (during.include_log_monitor, during.no_monitor, no_server) == (False, True, (None, None))
    assert (parameter.RayParams.__init__, services.start_api_server, services.start_ray_process) == before
