"""Starts Ray on this machine, or joins a cluster that runs, and gives its pool of workers."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import ray

from orchestrator import IMPORTED_FROM, PACKAGED, ROOT, machines
from orchestrator.config.parts import Cluster, VersionRule
from orchestrator.errors import UserError
from orchestrator.pools.ray.head_watch import watched
from orchestrator.pools.ray.pool import RayPool

REACH_SECONDS = 10.0
START_SECONDS = 120  # for Ray's first process: its own 30 s are too few on a cold and busy machine
CLIENT_PORT = 10001  # Ray's own default
OBJECT_STORE_BYTES = 128 * 2**20  # rows are all that travels


def begin(cluster: Cluster) -> None:
    """Starts Ray on this machine, or joins the cluster. Any thread may call it. Raises UserError if no Ray can be reached."""
    # Hugging Face publishes a package `kernels` too: ours must come first on the path of every worker.
    path = [str(IMPORTED_FROM), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(path))
    logging.getLogger("ray").setLevel(logging.ERROR)
    try:
        _init_ray(cluster)
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
        _require_reachable(str(cluster.address))
        packages = [str(ROOT)] if PACKAGED else [str(ROOT / name) for name in ("conf", "kernels", "orchestrator")]
        ray.init(address=cluster.address, runtime_env={"py_modules": packages}, **quiet)


def _head(cluster: Cluster) -> str:
    """HOST:PORT of the head's store, or of its server for clients."""
    scheme, _, client = str(cluster.address).rpartition("://")
    if scheme == "ray":
        return client if ":" in client else f"{client}:{CLIENT_PORT}"
    return str(ray.get_runtime_context().gcs_address)


def _require_reachable(address: str) -> None:
    """Raises OSError at once if nobody listens at HOST:PORT, for which Ray would wait minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=REACH_SECONDS).close()
