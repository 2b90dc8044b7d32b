"""Starts Ray on this machine, or joins a cluster that runs, and gives its pool of workers."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import Any

import ray
from rich.console import Console

from orchestrator import IMPORTED_FROM, PACKAGED, ROOT, machines
from orchestrator.config.parts import Cluster, VersionRule
from orchestrator.errors import UserError
from orchestrator.pools.ray.pool import RayPool

REACH_SECONDS = 10.0
START_SECONDS = 120  # for Ray's first process: its own 30 s are too few on a cold and busy machine
CLIENT_PORT = 10001  # Ray's own default
LOOK_SECONDS = 1.0  # how often a driver looks whether its cluster's head is there
LISTEN_SECONDS = 2.0
STOPPED = 1  # the exit code of a run that stopped before its end
OBJECT_STORE_BYTES = 128 * 2**20  # rows are all that travels


def begin(cluster: Cluster) -> None:
    """Starts Ray on this machine, or joins the cluster. Any thread may call it. Raises UserError if no Ray can be reached."""
    # Hugging Face publishes a package `kernels` too: ours must come first on the path of every worker.
    path = [str(IMPORTED_FROM), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(path))
    logging.getLogger("ray").setLevel(logging.ERROR)
    try:
        _init_ray(cluster)
        _make_token_private()
    except Exception as error:  # if its processes die at their start, Ray raises no class of its own
        message = " ".join(str(error).split())[:400]
        where = (
            "cluster=local: Ray does not start here"
            if cluster.kind == "local"
            else f"cluster.address={cluster.address!r}: no Ray answers"
        )
        hint = "to run without Ray, type cluster=inline; for a cluster's address and token, see docs/clusters.md"
        raise UserError(f"{where} ({message}); {hint}") from None


@contextmanager
def pool(cluster: Cluster, versions: VersionRule, names: tuple[str, ...], early: bool) -> Iterator[RayPool]:
    """The devices of a cluster that `begin` has reached, while the block runs."""
    # A thread of Ray prints every worker's death to sys.stdout; rows and Ray's own logs have it anyway.
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), watched(_head(cluster), cluster.head_seconds):
        found = RayPool(cluster, versions, names, early)
        try:
            yield found
        finally:
            found.end_lent()
        found.keep_warm()


def end() -> None:
    """Ends the Ray that `begin` has started, or leaves the cluster."""
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
        ray.shutdown()


def _make_token_private() -> None:
    """Ray makes its token readable for all that the umask allows, and who reads it may run code as its owner."""
    token = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    with suppress(OSError):  # there is none, or it is not ours
        if token.is_file() and not token.is_symlink():
            token.chmod(0o600)


def _init_ray(cluster: Cluster) -> None:
    quiet: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
    if cluster.kind == "local":
        devices = machines.describe().devices
        gpus = sum(device.kind == "cuda" for device in devices)
        os.environ.setdefault("RAY_gcs_server_port_wait_time_s", str(START_SECONDS))
        # address="local": never somebody else's cluster that happens to run here
        # num_cpus: Ray starts so many processes at once, which become the workers. Nothing else asks it for cores.
        given = {"num_cpus": len(devices), "num_gpus": gpus, "object_store_memory": OBJECT_STORE_BYTES}
        ray.init(address="local", include_dashboard=False, **given, **quiet)
    else:
        host, _, port = str(cluster.address).removeprefix("ray://").rpartition(":")
        if host and port.isdigit():  # raises OSError at once if nobody listens there, for which Ray would wait minutes
            socket.create_connection((host, int(port)), timeout=REACH_SECONDS).close()
        packages = [str(ROOT)] if PACKAGED else [str(ROOT / name) for name in ("conf", "kernels", "orchestrator")]
        ray.init(address=cluster.address, runtime_env={"py_modules": packages}, **quiet)


def _head(cluster: Cluster) -> str:
    """HOST:PORT of the head's store, or of its server for clients."""
    scheme, _, client = str(cluster.address).rpartition("://")
    if scheme == "ray":
        return client if ":" in client else f"{client}:{CLIENT_PORT}"
    return str(ray.get_runtime_context().gcs_address)


def listens(address: str) -> bool:
    """Whether somebody accepts a connection at HOST:PORT."""
    host, _, port = address.rpartition(":")
    with suppress(OSError):
        socket.create_connection((host.strip("[]"), int(port)), timeout=LISTEN_SECONDS).close()
        return True
    return False


def end_process(address: str, seconds: float) -> None:
    """Ends this process at once, without the clean-up that would have to ask Ray."""
    screen = Console(stderr=True)
    screen.show_cursor()  # a progress bar has hidden it
    screen.print(
        f"stopped: Ray's head at {address} has not answered for {seconds:g} s; every row that was reported is stored. "
        f"To go on once Ray has a head again, type the same command",
        highlight=False,
        soft_wrap=True,
    )
    os._exit(STOPPED)


@contextmanager
def watched(address: str, seconds: float, gone: Callable[[str, float], None] = end_process) -> Iterator[None]:
    """Calls `gone` with its arguments once nobody has listened at HOST:PORT for so many seconds.

    Without a head no call to Ray returns, and after a minute Ray ends the process with an error of its own. So a thread connects to
    the head's port every second, and makes no call to Ray.
    They count from the first look that found nobody, because a driver that was stopped meanwhile has seen nothing.
    """
    over = threading.Event()

    def look() -> None:
        missed: float | None = None
        while not over.wait(LOOK_SECONDS):
            if listens(address):
                missed = None
            elif missed is None:
                missed = time.monotonic()
            elif time.monotonic() - missed >= seconds:
                gone(address, seconds)
                return

    threading.Thread(target=look, name="head", daemon=True).start()
    try:
        yield
    finally:
        over.set()
