"""Two S3 servers by different authors, for tests of datasets in an object store: moto's (Python) and s3rver (Node)."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Protocol

from moto.server import ThreadedMotoServer
from pyarrow import fs

BUCKET = "lab"


class Server(Protocol):
    """A server that runs, with the bucket `lab`, and what a process must know to use it."""

    environment: dict[str, str]

    def another_door(self) -> Server:
        """Another server for the same objects."""

    def stop(self) -> None: ...


class Moto:
    def __init__(self) -> None:
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self._server.start()
        host, port = self._server.get_host_and_port()
        self.environment = _environment(f"http://{host}:{port}", "somebody")
        fs.S3FileSystem(
            endpoint_override=self.environment["AWS_ENDPOINT_URL"],
            access_key="somebody",
            secret_key="somebody",
            allow_bucket_creation=True,
        ).create_dir(BUCKET)

    def another_door(self) -> Moto:
        return Moto()  # the objects belong to the process

    def stop(self) -> None:
        self._server.stop()


class S3rver:
    """It keeps the checksums that follow an object's bytes as a part of the object, so clients are told to send none."""

    def __init__(self, program: str, folder: Path | None = None) -> None:
        self._program, self._folder = program, folder or Path(tempfile.mkdtemp(prefix="s3rver-"))
        command = [program, "--address", "127.0.0.1", "--port", "0", "--directory", str(self._folder), "--silent"]
        self._process = subprocess.Popen([*command, "--configure-bucket", BUCKET], stdout=subprocess.PIPE, text=True)
        assert self._process.stdout
        lines = (re.search(r"listening on (\S+)", line) for line in self._process.stdout)
        listening = next(filter(None, lines), None)
        assert listening, f"{program} did not start"
        self.environment = _environment(f"http://{listening[1]}", "S3RVER") | {"AWS_REQUEST_CHECKSUM_CALCULATION": "when_required"}

    def another_door(self) -> S3rver:
        return S3rver(self._program, self._folder)

    def stop(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.communicate()


def start() -> Server:
    """s3rver if S3RVER is the path of its program, as in `make test-s3`; else moto's server."""
    return S3rver(os.environ["S3RVER"]) if os.environ.get("S3RVER") else Moto()


def _environment(address: str, key: str) -> dict[str, str]:
    return {"AWS_ENDPOINT_URL": address, "AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": key}
