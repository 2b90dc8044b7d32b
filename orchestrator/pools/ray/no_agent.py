"""Runs in the place of the two Python programs that a raylet waits for before it takes a driver.

It runs in a bare Python, which starts in 20 ms:
`python -I -S no_agent.py PYTHON PROGRAM ...`, with the words of the program that it stands for.
The agent of the dashboard is what nobody looks at: it gets no ports, as where Ray is installed without its dashboard.
The agent of runtime environments is asked only if a worker has one, which the workers of a run's own Ray have not.
If it is asked all the same, this process becomes the agent.
It imports little: pathlib alone would double its time.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

DASHBOARD = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port")
ENVIRONMENTS = ("runtime_env_agent_port",)
NONE = "-1"  # Ray's word for a service that is not there


def main(words: Sequence[str]) -> None:
    given = dict(word[2:].split("=", 1) for word in words if word.startswith("--") and "=" in word)
    raylet = os.pidfd_open(os.getppid())
    if "runtime-env-agent-port" not in given:
        write_ports(given, DASHBOARD, NONE)
        waits_for(raylet)
        return
    import _socket

    asked = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    asked.bind((given["node-ip-address"], int(given["runtime-env-agent-port"])))
    asked.listen(8)
    port = asked.getsockname()[1]
    write_ports(given, ENVIRONMENTS, str(port))
    if waits_for(raylet, asked.fileno()):
        asked.close()
        key = "--runtime-env-agent-port="
        os.execv(words[0], [f"{key}{port}" if word.startswith(key) else word for word in words])


def write_ports(given: dict[str, str], names: Sequence[str], port: str) -> None:
    """Writes ports where the raylet looks for them."""
    for name in names:
        file = f"{given['session-dir']}/{name}_{given['node-id']}"
        with open(f"{file}.new", "w", encoding="ascii") as new:  # noqa: PTH123
            new.write(port)
        os.replace(f"{file}.new", file)  # noqa: PTH105


def waits_for(raylet: int, *others: int) -> bool:
    """Whether one of the others has something, before the raylet ends."""
    import select

    return raylet not in select.select([raylet, *others], [], [])[0]


if __name__ == "__main__":
    main(sys.argv[1:])
