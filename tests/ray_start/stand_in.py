"""Runs in the place of one of Ray's Python programs, in a bare Python that starts in 20 ms.

It is `python -I -S stand_in.py KIND SOCKET PROGRAM ...`, and imports little: pathlib alone would double its time.
KIND `worker`: asks the template that listens on SOCKET for a process that becomes a worker, and ends.
KIND `agent`: asks for a process that becomes the agent of runtime environments, and stays for as long as it, since the raylet waits
for the process that it has started. If there is no template, PROGRAM itself runs.
KIND `no_dashboard`: does what the dashboard's agent does where Ray is installed without its dashboard.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

HERE = os.path.realpath(__file__)
OF_SETUP = ("--language", "--serialized-runtime-env-context")
PORTS = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port")


def command(kind: str, socket: str, words: Sequence[str]) -> list[str]:
    """The command line that runs in the place of `words`, which begin with Python and the program."""
    return [words[0], "-I", "-S", HERE, kind, socket, *words[1:]]


def main(kind: str, socket: str, words: list[str]) -> None:
    if kind == "no_dashboard":
        no_dashboard(words)
        return
    program = words[1:] if words[0] == "-u" else words  # nobody waits for what it prints
    wanted = as_worker(program) if kind == "worker" else (program, dict(os.environ))
    if wanted is None or not asked(socket, *wanted, stay=kind == "agent"):
        os.execv(sys.executable, [sys.executable, *words])


def as_worker(words: Sequence[str]) -> tuple[list[str], dict[str, str]] | None:
    """What setup_worker.py makes of its words: those of the worker, and its variables. None if it does more than that."""
    import json

    given = dict(word[2:].split("=", 1) for word in words if word.startswith(tuple(f"{key}=" for key in OF_SETUP)))
    context = json.loads(given.get("serialized-runtime-env-context", "{}"))
    more = {key for key, value in context.items() if value} - {"env_vars", "py_executable"}
    if given.get("language") != "PYTHON" or more or context.get("py_executable", sys.executable) != sys.executable:
        return None
    variables = dict(os.environ)
    for key, value in context.get("env_vars", {}).items():
        variables[key] = value.replace(f"${{{key}}}", variables.get(key, ""))
    return [word for word in words[1:] if word.split("=", 1)[0] not in OF_SETUP], variables


def asked(socket: str, words: Sequence[str], variables: dict[str, str], stay: bool) -> bool:
    """Whether a template has made the process. With `stay`, returns once that process has ended."""
    import _socket
    import json

    streams = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1, 2))
    message = json.dumps({"words": list(words), "variables": variables, "folder": os.getcwd()}).encode()  # noqa: PTH109
    template = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    try:
        template.connect(socket)
        template.sendmsg([message], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
        made = template.recv(1) == b"y"
    except OSError:
        return False
    if made and stay:
        template.recv(1)
    return made


def no_dashboard(words: Sequence[str]) -> None:
    """Says that there are no ports of a dashboard, and ends with the raylet."""
    import select

    raylet = os.pidfd_open(os.getppid())
    given = dict(word[2:].split("=", 1) for word in words if word.startswith("--") and "=" in word)
    for name in PORTS:
        file = f"{given['session-dir']}/{name}_{given['node-id']}"
        with open(f"{file}.new", "w", encoding="ascii") as new:  # noqa: PTH123
            new.write("-1")
        os.replace(f"{file}.new", file)  # noqa: PTH105
    select.select([raylet], [], [])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
