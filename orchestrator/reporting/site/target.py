"""The folder of a site. Only files of our own are replaced or removed, each in one step, and nothing outside of it is touched.

The manifest says of what each page was made, as a key: a digest of datasets and code. A page of the same key is not made again.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import stat
from pathlib import Path
from typing import Any

from orchestrator.errors import UserError
from orchestrator.untrusted.door import from_json
from orchestrator.untrusted.files import open_to_read, write_whole

MANIFEST = "site.json"  # that the folder is ours, and the files that we wrote
MADE_BY = "attention-orchestrator mode=site"
MAX_MANIFEST = 10**7
MAX_BYTES = 10**9  # of a site: what GitHub's pages host takes
OWN_NAME = re.compile(r"(?:[a-z]+/)?(?!\.)[\w.-]{1,120}", re.ASCII)  # of a file of ours: at most one folder deep, never hidden
PART = re.compile(r"\.[0-9a-f]{16}\.part", re.ASCII)  # a file that is still being written


class Target:
    """A folder that holds a site, or nothing yet. `claim` makes it ours."""

    def __init__(self, path: str) -> None:
        self.root = Path(path)
        self.is_new = False
        self._before: set[str] = set()
        self._made_before: dict[str, Any] = {}
        self._made: dict[str, Any] = {}  # by file: its key, the digest and the number of its bytes, and what `write` was told of it

    def claim(self, path: str) -> None:
        """Makes the folder if there is none. Raises UserError if it holds anything that is not a site, or cannot be written."""
        refused = f"export={path!r}: "
        hint = "; type export=DIR with a new folder, or with one that mode=site has made"
        try:
            if self.root.is_symlink():
                raise UserError(f"{refused}it is a symbolic link{hint}")
            self.is_new = not self.root.exists()
            self.root.mkdir(exist_ok=True)
            if any(self.root.iterdir()):
                self._before = self._own_files(refused, hint)
            else:
                self._save_manifest(set())
        except FileExistsError:
            raise UserError(f"{refused}it is a file{hint}") from None
        except OSError as error:
            raise UserError(f"{refused}it cannot be written ({error.strerror}){hint}") from None

    def _own_files(self, refused: str, hint: str) -> set[str]:
        """The files that an earlier run wrote. Raises UserError if the folder is not a site."""
        other = UserError(f"{refused}it holds files that are not a site's ({MANIFEST} does not say so){hint}")
        try:
            with open_to_read(self.root / MANIFEST, follow=False) as file:
                found = from_json(file.read(MAX_MANIFEST))
        except (OSError, ValueError):
            raise other from None
        if found.get("made_by") != MADE_BY or not isinstance(found.get("files"), list):
            raise other
        if isinstance(of := found.get("made"), dict):
            self._made_before = {name: one for name, one in of.items() if isinstance(one, dict)}
        return {name for name in found["files"] if isinstance(name, str) and OWN_NAME.fullmatch(name)}

    def kept(self, name: str, key: str) -> dict[str, Any] | None:
        """What `write` was told of a file that an earlier run made of the same key and nobody changed; else None."""
        before = self._made_before.get(name, {})
        if not key or before.get("key") != key or not self._is_as_before(name):
            return None
        self._made[name] = before
        return dict(before["facts"])

    def all_kept(self, name: str, key: str) -> dict[str, Any] | None:
        """As `kept`, of a file that stands for the whole site, if no file of the site has been changed since."""
        if not all(map(self._is_as_before, self._before)) or (facts := self.kept(name, key)) is None:
            return None
        self._made = self._made_before
        return facts

    def _is_as_before(self, name: str) -> bool:
        try:
            with open_to_read(self._folder_of(name) / Path(name).name, follow=False) as file:
                found = hashlib.sha256(file.read()).hexdigest()
        except OSError:
            return False
        return name in self._before and found == self._made_before.get(name, {}).get("sha256")

    def write(self, name: str, content: str | bytes, key: str = "", facts: dict[str, Any] | None = None) -> None:
        """Writes a file, unless it is there already; `kept` gives its `facts` (JSON) to a later `key`. Raises UserError."""
        assert OWN_NAME.fullmatch(name), name
        whole = content.encode() if isinstance(content, str) else content
        digest = hashlib.sha256(whole).hexdigest()
        self._made[name] = {"key": key, "sha256": digest, "bytes": len(whole), "facts": facts or {}}
        if self.size > MAX_BYTES:
            raise UserError(
                f"export={str(self.root)!r}: the site has more than {MAX_BYTES / 1e9:g} GB; name fewer datasets by results.path, "
                "or choose rows by where="
            )
        try:
            _put(self._folder_of(name) / Path(name).name, whole)
        except OSError as error:
            raise UserError(f"export={str(self.root)!r}: {name} cannot be written ({error.strerror})") from None

    def _folder_of(self, name: str) -> Path:
        """The folder of a file, made if there is none. Raises OSError if it is no folder, such as a link to one."""
        folder = (self.root / name).parent
        if folder != self.root:
            folder.mkdir(exist_ok=True)
            if not stat.S_ISDIR(folder.lstat().st_mode):
                raise OSError(0, "its folder is a link; remove it")
        return folder

    @property
    def size(self) -> int:
        """Bytes of the files that belong to the site so far."""
        return sum(one["bytes"] for one in self._made.values())

    def abandon(self) -> None:
        """Removes a folder that `claim` has made."""
        if self.is_new:
            shutil.rmtree(self.root, ignore_errors=True)

    def finish(self) -> int:
        """Removes what only an earlier run wrote. Returns the bytes of the site. Raises UserError if it cannot."""
        try:
            self._save_manifest(self._before | self._made.keys())
            for name in self._before - self._made.keys() - {MANIFEST}:
                _remove(self.root / name)
            for left in [*self.root.glob(".*"), *self.root.glob("*/.*")]:
                if PART.fullmatch(left.name):  # of a run that was killed
                    _remove(left)
            self._save_manifest({*self._made})
        except OSError as error:
            raise UserError(f"export={str(self.root)!r}: {error.filename} cannot be removed ({error.strerror})") from None
        return self.size

    def _save_manifest(self, names: set[str]) -> None:
        manifest = {"made_by": MADE_BY, "files": sorted(names), "made": dict(sorted(self._made.items()))}
        _put(self.root / MANIFEST, (json.dumps(manifest, indent=1) + "\n").encode())


def _remove(file: Path) -> None:
    """Removes a plain file that no link leads to. Raises OSError if it cannot be removed."""
    if not file.parent.is_symlink() and not file.is_symlink() and file.is_file():
        file.unlink()


def _put(file: Path, content: bytes) -> None:
    """Writes a file, or takes the place of a link, in one step: a reader sees the old one or the new."""
    if not file.is_symlink() and file.is_file() and file.stat().st_size == len(content) and file.read_bytes() == content:
        return
    if file.is_symlink():
        file.unlink()
    write_whole(file, content)
