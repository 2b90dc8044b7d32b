"""Lets one process at a time write to an archive of modules."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from filelock import FileLock

from orchestrator.untrusted.files import open_to_write

CANNOT_LOCK = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)  # of a file system without locks


@contextmanager
def locked(path: str) -> Iterator[None]:
    """Waits for other writers of an archive, on this machine and on others that share its disk.

    The lock is a hidden file beside the archive, removed at the end. A disk that locks no files has one writer at a time only if
    all are on one machine.
    """
    with FileLock(_local_lock_of(path)):
        lock = Path(path).with_name(f".{Path(path).name}.lock")
        while True:
            file = open_to_write(lock)
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError as error:
                if error.errno not in CANNOT_LOCK:
                    raise
            if _is_still(lock, file):
                break
            file.close()  # its owner removed it while we waited
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)
            file.close()


def _is_still(path: Path, file: IO[bytes]) -> bool:
    """Whether an open file is still the one of this name."""
    try:
        return os.path.samestat(path.stat(follow_symlinks=False), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _local_lock_of(path: str) -> Path:
    """A lock file in the temporary folder of this machine."""
    named = hashlib.sha256(str(Path(path).resolve()).encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"attention-orchestrator-{os.getuid()}-{named}"
