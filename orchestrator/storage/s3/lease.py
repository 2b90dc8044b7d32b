"""The lease of a dataset in an object store: which process may write to it. Knows nothing of rows.

pyarrow has no conditional PUT. So a driver writes an object with its own name, and then lists the others: the later of two drivers
sees the earlier one and withdraws. The owner renews its object every few seconds. An owner counts as dead if its object was not
renewed for `STALE_SECONDS`, by the store's clock, or if its process is known to have ended. An owner that could not renew for
`LOST_SECONDS`, because it was stopped or disconnected, stops writing, before others take it for dead.
"""

from __future__ import annotations

import json
import os
import platform
import random
import secrets
import time
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

from orchestrator.errors import DamagedDataset, UserError
from orchestrator.process import start_time
from orchestrator.storage.s3.bucket import Bucket

OWNERS = "_owner"
RENEW_SECONDS, LOST_SECONDS, STALE_SECONDS = 10.0, 40.0, 60.0
TRIES = 3  # of two drivers that start at the same time both may withdraw


class Lease:
    """The lease of this process. Raises UserError, with the owner named, if another process has it. Methods raise OSError."""

    def __init__(self, bucket: Bucket, path: str) -> None:
        self.bucket = bucket
        self.name = f"{OWNERS}/{secrets.token_hex(8)}.json"
        for tries_left in reversed(range(TRIES)):
            self._renew()
            try:
                owner = self._another()
            except UserError:
                bucket.delete(self.name)
                raise
            if owner is None:
                break
            bucket.delete(self.name)
            if not tries_left:
                raise UserError(
                    f"results.path={path!r}: {owner} writes to it; wait for it, or type another results.path=... "
                    f"(a driver that died is forgotten after {STALE_SECONDS:g} s)"
                )
            time.sleep(random.uniform(0.3, 1.5))
        self._released = Event()
        self._thread = Thread(target=self._keep, daemon=True, name="lease")
        self._thread.start()

    @property
    def is_lost(self) -> bool:
        """Whether another process may own the dataset by now."""
        return time.monotonic() - self._renewed_at > LOST_SECONDS

    def release(self) -> None:
        """Gives the lease up. Raises OSError if the store is not reached."""
        self._released.set()
        self._thread.join()
        self.bucket.delete(self.name)

    def _renew(self) -> None:
        began = time.monotonic()
        self.bucket.put(self.name, json.dumps(_this_process()).encode())
        self._renewed_at = began

    def _keep(self) -> None:
        while not self._released.wait(RENEW_SECONDS) and not self.is_lost:
            with suppress(OSError):  # tried again until the lease counts as lost
                self._renew()

    def _another(self) -> str | None:
        """Who else has the lease, in words; None if nobody has. Deletes what dead owners left."""
        put_at = self.bucket.objects(OWNERS)
        now = put_at.pop(self.name)
        for name, renewed in put_at.items():
            owner = _owner_of(self.bucket.get(name) or b"{}", f"s3://{self.bucket.root}/{name}")
            silent_s = (now - renewed).total_seconds()
            if silent_s > STALE_SECONDS or _is_gone(owner):
                self.bucket.delete(name)
            elif owner:
                return f"process {owner['pid']} on {owner['host']}, heard of {max(silent_s, 0):.0f} s ago,"
        return None


def _this_process() -> dict[str, Any]:
    return {"pid": os.getpid(), "host": platform.node(), "place": _pid_namespace(), "started": start_time(os.getpid())}


def _owner_of(content: bytes, name: str) -> dict[str, Any]:
    """An owner's description of itself; empty if it was deleted meanwhile. Raises DamagedDataset for any other content."""
    try:
        owner = json.loads(content)
    except ValueError:
        owner = None
    if not isinstance(owner, dict) or (owner and owner.keys() != _this_process().keys()):
        raise DamagedDataset(f"{name} is no part of a dataset; move it away, or type another results.path=...")
    return owner


def _pid_namespace() -> str:
    """Where a process number is unique: this boot of this machine, and the container. Empty if unknown."""
    with suppress(OSError):
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {Path('/proc/self/ns/pid').readlink()}"
    return ""


def _is_gone(owner: dict[str, Any]) -> bool:
    """Whether a process is known to have ended. Only those on this machine and in this container can be looked up."""
    here = bool(owner) and owner["place"] == _pid_namespace() != ""
    return here and start_time(owner["pid"]) != owner["started"]
