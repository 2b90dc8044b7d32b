"""Whose a dataset in an object store is: a lease. Knows nothing of rows.

pyarrow has no conditional PUT, so a driver puts an object of its own name and then looks whose there are: of two, the one
that comes later sees the other and withdraws. The owner puts its object anew every few seconds; one that has not for
`STALE_SECONDS`, by the store's own clock, is dead, and so is one whose process is seen to be gone. An owner that finds that it
was silent for `LOST_SECONDS`, stopped or cut off, writes no more: by the time that it counts as dead it has given up.
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

from orchestrator.bucket import Bucket
from orchestrator.errors import UserError

OWNERS = "_owner"
RENEW_SECONDS, LOST_SECONDS, STALE_SECONDS = 10.0, 40.0, 60.0
TRIES = 3  # of two that come at the same time both may withdraw


class Claim:
    """A dataset that is this process's own. Raises UserError, with the owner named, where it is another's."""

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
        self._thread = Thread(target=self._keep, daemon=True, name="claim")
        self._thread.start()

    @property
    def lost(self) -> bool:
        """Whether another may own the dataset by now."""
        return time.monotonic() - self._renewed_at > LOST_SECONDS

    def release(self) -> None:
        """Gives the dataset back. Raises OSError where the store cannot be told."""
        self._released.set()
        self._thread.join()
        self.bucket.delete(self.name)

    def _renew(self) -> None:
        began = time.monotonic()
        self.bucket.put(self.name, json.dumps(_this_process()).encode())
        self._renewed_at = began

    def _keep(self) -> None:
        while not self._released.wait(RENEW_SECONDS) and not self.lost:
            with suppress(OSError):  # tried again until the claim counts as lost
                self._renew()

    def _another(self) -> str | None:
        """Who else owns the dataset, in words. What a dead owner left is taken away."""
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
    return {"pid": os.getpid(), "host": platform.node(), "place": _place(), "started": _started(os.getpid())}


def _owner_of(content: bytes, name: str) -> dict[str, Any]:
    """What an owner says of itself; nothing where it was taken away meanwhile. Raises UserError for somebody else's object."""
    try:
        owner = json.loads(content)
    except ValueError:
        owner = None
    if not isinstance(owner, dict) or (owner and owner.keys() != _this_process().keys()):
        raise UserError(f"{name} is no part of a dataset; move it away, or type another results.path=...")
    return owner


def _place() -> str:
    """Where a process number means one process: a machine since its last boot, and a container of it; nothing if unknown."""
    with suppress(OSError):
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {Path('/proc/self/ns/pid').readlink()}"
    return ""


def _started(pid: int) -> str | None:
    """When a process of this machine was started, since numbers come again; None where it has ended."""
    with suppress(OSError, IndexError):
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if state in "ZX" else rest[18]
    return None


def _is_gone(owner: dict[str, Any]) -> bool:
    """Whether a process is seen to have ended: only one of this very place can be looked for."""
    here = bool(owner) and owner["place"] == _place() != ""
    return here and _started(owner["pid"]) != owner["started"]
