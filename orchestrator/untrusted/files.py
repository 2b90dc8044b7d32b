"""Opens files that may come from others: only plain files, and no links that this project did not make.

A symbolic link in a shared folder could make us write to a file elsewhere, and a FIFO could make us wait forever.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import time
import unicodedata
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from orchestrator.errors import NotPlain, UserError

DAY = 86_400  # seconds
MODE = 0o666  # less the umask, as for any new file
KINDS = {
    stat.S_IFLNK: "a symbolic link", stat.S_IFIFO: "a FIFO", stat.S_IFDIR: "a folder", stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
}  # fmt: skip


def require_plain(path: str | Path, *, follow: bool = False) -> bool:
    """Whether a plain file is there, or with `follow` a link to one. Raises NotPlain for anything else, and OSError."""
    try:
        found = Path(path).stat(follow_symlinks=follow)
    except FileNotFoundError:
        if Path(path).is_symlink():
            raise NotPlain(path, "a symbolic link to nothing") from None
        return False
    except ValueError:  # a null character in it
        raise NotPlain(path, "no name that a file can have") from None
    if not stat.S_ISREG(found.st_mode):
        raise NotPlain(path, KINDS.get(stat.S_IFMT(found.st_mode), "no file"))
    return True


def open_to_read(path: str | Path, *, follow: bool = True) -> IO[bytes]:
    """A plain file, opened for reading. Raises NotPlain, and OSError if it cannot be opened."""
    return os.fdopen(_open(path, os.O_RDONLY, follow=follow), "rb")


def open_to_write(path: str | Path, *, new: bool = False) -> IO[bytes]:
    """A plain file of our own, opened for reading and writing without a buffer; made if there is none. It is not truncated.

    With `new`, what a crash has left there is removed first, so that nothing else has the file open. Raises NotPlain for a link,
    also a hard one, and OSError if it cannot be opened.
    """
    if new and require_plain(path):
        Path(path).unlink()
    fd = _open(path, os.O_RDWR | os.O_CREAT | (os.O_EXCL if new else 0), follow=False)
    if os.fstat(fd).st_nlink > 1:
        os.close(fd)
        raise NotPlain(path, "a hard link, so that its bytes belong to another file too")
    return os.fdopen(fd, "r+b", buffering=0)


def write_whole(path: str | Path, data: bytes) -> None:
    """Replaces a plain file, or makes one, as a whole, also on a full disk. Raises NotPlain for a device or link, and OSError."""
    require_plain(path)
    fresh = Path(path).with_name(f".{secrets.token_hex(8)}.part")  # a name that nobody else's file has
    try:
        with open_to_write(fresh, new=True) as file:
            rest = memoryview(data)
            while rest:
                rest = rest[file.write(rest) :]
        fresh.replace(path)
    except BaseException:  # an interrupt too
        with suppress(OSError):
            fresh.unlink()
        raise


def _open(path: str | Path, flags: int, *, follow: bool) -> int:
    """Non-blocking, since opening a FIFO waits for its other end. A plain file does not know the difference."""
    require_plain(path, follow=follow)
    fd = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW), MODE)
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):  # somebody exchanged it since we looked
        os.close(fd)
        raise NotPlain(path, KINDS.get(stat.S_IFMT(mode), "no file"))
    return fd


def is_same(opened: IO[bytes] | int, path: Path) -> bool:
    """Whether a path still names what was opened by it. Raises OSError if it may not be looked at."""
    try:
        return os.path.samestat(os.fstat(opened if isinstance(opened, int) else opened.fileno()), os.lstat(path))
    except (FileNotFoundError, NotADirectoryError):
        return False


def read_bytes(path: str | Path, limit: int) -> bytes:
    """The bytes of a plain file. Raises NotPlain, and OSError if it has more than `limit` bytes or cannot be read."""
    with open_to_read(path) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"it has more than {limit / 1e6:,.0f} MB", str(path))
    return content


def written_at(path: str | Path) -> str:
    """When a file was last written, in ISO 8601. Raises UserError for a date that no row has, such as one of the year 33658."""
    seconds = Path(path).stat().st_mtime
    if not 0 <= seconds <= time.time() + DAY:
        raise UserError(f"{path}: its date is before 1970 or in the future; give it today's: type touch FILE")
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def read_text(path: str | Path, key: str, limit: int = 4 * 10**6) -> str:
    """The text of a file named by `key`. Raises UserError if it is not plain, above `limit` bytes, or no UTF-8."""
    try:
        content = read_bytes(path, limit)
    except OSError as error:
        raise UserError(f"{key}={path}: it cannot be read: {error.strerror}; give another file") from None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}:{line}: no text in UTF-8 (byte {error.start}); save it as UTF-8") from None


def expanded(path: str) -> str:
    """A path as people type it: `~` is their home folder. Raises UserError for a user that there is not, and for no path at all."""
    if any(unicodedata.category(sign) == "Cc" for sign in path):
        raise UserError(f"{path!r}: a path has no control characters; type another")
    if not path.startswith("~"):
        return path
    home, slash, rest = path.partition("/")
    try:
        return f"{Path(home).expanduser()}{slash}{rest}"
    except (KeyError, RuntimeError):
        raise UserError(f"{path}: there is no user {home[1:]!r}; type the folder's whole path") from None
