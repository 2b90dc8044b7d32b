"""Which process may write to a dataset in a folder. Knows nothing of rows."""

from __future__ import annotations

import errno
import fcntl
import os
import platform
from contextlib import suppress
from pathlib import Path
from typing import IO

from orchestrator.errors import NotPlain, UserError
from orchestrator.untrusted.files import open_to_read, open_to_write, require_plain
from orchestrator.untrusted.text import for_line

LOCK = "_lock"
NO_LOCKS_ON_FOLDERS = frozenset({errno.EBADF, errno.EINVAL, errno.EISDIR, errno.ENOLCK, errno.ENOTSUP})  # such as NFS


class FolderLock:
    """The right of one process to write to a dataset: a lock on the folder, and one on the file `_lock`, which names the owner.

    The folder's holds although somebody deletes the file. A network file system may not lock folders; there the file's alone does.
    Creates the folder if there is none. Raises UserError, with the owner named if there is one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path / LOCK
        try:
            path.mkdir(parents=True, exist_ok=True)
            require_plain(self.path)
            self._folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise UserError(_unwritable(path, error)) from None
        try:
            self._of_folder = self._take(self._folder, path)
            self._file = open_to_write(self.path)
            self._take(self._file.fileno(), path)
        except OSError as error:
            os.close(self._folder)
            raise UserError(_unwritable(path, error)) from None
        except UserError:
            os.close(self._folder)
            raise
        with suppress(OSError):  # on a full disk the lock works, but does not name its owner
            self._file.truncate(0)
            self._file.write(f"process {os.getpid()} on {platform.node()}".encode())

    def is_ours(self) -> bool:
        """Whether nobody else can have it. A deleted file matters only if the folder could not be locked."""
        folder = is_same(self._folder, self.path.parent)
        return folder and (self._of_folder or is_same(self._file, self.path))

    def close(self) -> None:
        """Gives the dataset free. Nothing happens the second time."""
        if not self._file.closed:
            self._file.close()
            os.close(self._folder)

    def _take(self, fd: int, path: Path) -> bool:
        """Locks a file or a folder; false for a folder that cannot be locked. Raises UserError if another process has it."""
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"results.path={str(path)!r}: {self._owner()} writes to it; wait for it, or type another results.path=..."
            ) from None
        except OSError as error:
            if fd == self._folder and error.errno in NO_LOCKS_ON_FOLDERS:
                return False
            raise UserError(
                f"results.path={str(path)!r}: cannot be locked there ({error.strerror}); type another results.path=..."
            ) from None
        return True

    def _owner(self) -> str:
        with suppress(OSError), open_to_read(self.path, follow=False) as file:
            return for_line(file.read(200).decode(errors="replace")).strip() or "another process"
        return "another process"


def _unwritable(path: Path, error: OSError) -> str:
    if isinstance(error, NotPlain):
        return f"results.path={str(path)!r}: {error.filename}: {error.strerror}"
    return f"results.path={str(path)!r}: cannot be written ({error.strerror}); allowed: a folder that is yours, or a new one"


def is_same(opened: IO[bytes] | int, path: Path) -> bool:
    """Whether a path still names what was opened by it. Raises OSError if it may not be looked at."""
    try:
        return os.path.samestat(os.fstat(opened if isinstance(opened, int) else opened.fileno()), os.lstat(path))
    except (FileNotFoundError, NotADirectoryError):
        return False
