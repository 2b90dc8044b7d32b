"""A Ray of one run starts without the processes that only people look at, which take most of its start.

`ray.init` waits for the server of usage statistics, which it has switched off itself, and starts an autoscaler and a reader of
logs. Its raylet waits for two Python programs, of which a run's own Ray needs neither (`no_agent.py`). Ray has no argument to
leave them out, so functions of Ray are replaced while it starts. In a release that has others the start only takes longer.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from ray._private import parameter, services

NO_AGENT = Path(__file__).with_name("no_agent.py")
AGENTS = ("--dashboard_agent_command", "--runtime_env_agent_command")


@contextmanager
def quick_start() -> Iterator[None]:
    """For the block in which Ray starts."""
    parameters = getattr(parameter, "RayParams", None)
    start_server, start = getattr(services, "start_api_server", None), getattr(services, "start_ray_process", None)
    if parameters is None or start_server is None or start is None:
        yield
        return
    make = parameters.__init__

    def made(self: Any, *args: Any, **given: Any) -> None:
        make(self, *args, **given)
        if hasattr(self, "include_log_monitor") and hasattr(self, "no_monitor"):
            self.include_log_monitor, self.no_monitor = False, True

    def started_server(include_dashboard: bool | None, *args: Any, **given: Any) -> Any:
        return (None, None) if include_dashboard is False else start_server(include_dashboard, *args, **given)

    def started(command: list[str], *args: Any, **given: Any) -> Any:
        return start([without_agent(word) for word in command], *args, **given)

    with (
        patch.object(parameters, "__init__", made),
        patch.object(services, "start_api_server", started_server),
        patch.object(services, "start_ray_process", started),
    ):
        yield


def without_agent(word: str) -> str:
    """A word of a raylet's command line; one that starts an agent starts `no_agent.py` in its place."""
    key, _, value = word.partition("=")
    if key not in AGENTS:
        return word
    python, *rest = shlex.split(value)
    return f"{key}={subprocess.list2cmdline([python, '-I', '-S', str(NO_AGENT), python, *rest])}"
