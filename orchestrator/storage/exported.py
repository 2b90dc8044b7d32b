"""Writes the files of an export. A file that was there is replaced as a whole, and named; another kind of file stays as it is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from orchestrator.errors import UserError
from orchestrator.notes import note_once
from orchestrator.storage.parquet import DATA, JOURNAL
from orchestrator.untrusted.files import open_to_read, require_plain, write_whole

SHOWN = 3  # names of files, in a note
HEAD = 4096  # bytes of a file that tell its kind
SIGN = 4  # bytes that tell kinds of files apart: PAR1, `{"de`, `<!do`
OWN = b"attention-orchestrator"  # in the title of our pages, and in each trace
FLAGS = re.compile(rb"# (nothing to type: |if your cache is |vLLM |SGLang )")  # how flags to type begin


def save_file(path: str, content: bytes, key: str = "export") -> None:
    """As `save_files`, of one file, which a person named by `key`."""
    save_files("", str(Path(path).parent), {Path(path).name: content}, key)


def save_files(name: str, folder: str, contents: Mapping[str, bytes], key: str = "export") -> None:
    """Writes files by their paths below a folder. `name` is that of the format; empty for a single file, whose folder is there.

    Raises UserError, before anything is written, for the folder of a dataset, for a link below the folder, and for anything else
    that is no plain file of the same kind and has a name of these; also if a file cannot be written.
    """
    root, replaced = Path(folder), []
    typed = f"export={name}:{folder}" if name else f"{key}={str(root / next(iter(contents)))!r}"
    try:
        if (root / DATA).exists() or (root / JOURNAL).exists() or DATA in contents:
            raise UserError(f"{typed}: this is the folder of a dataset, or the name of its file; give another one")
        for part in sorted({parent for path in contents for parent in Path(path).parents} - {Path()}):
            if (root / part).is_symlink():
                raise UserError(f"{typed}: {root / part} is a symbolic link; remove it, or give another folder")
        for path, content in contents.items():
            if require_plain(root / path):
                _require_same_kind(typed, root / path, content)
                replaced.append(path)
        for path, content in contents.items():
            if name:
                (root / path).parent.mkdir(parents=True, exist_ok=True)
            write_whole(root / path, content)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise UserError(f"{typed}: {where}cannot be written ({error.strerror}); give another place, which is yours") from None
    if replaced and name:
        more = f" and {len(replaced) - SHOWN} more" if len(replaced) > SHOWN else ""
        note_once(f"files that were in {folder} before are replaced: {', '.join(replaced[:SHOWN])}{more}")


def _require_same_kind(typed: str, file: Path, content: bytes) -> None:
    with open_to_read(file, follow=False) as opened:
        there = opened.read(HEAD)
    if there and _kind(there) != _kind(content[:HEAD]):
        raise UserError(f"{typed}: {file} is there, and is no such file; remove it, or give another name")


def _kind(head: bytes) -> object:
    """What two files of one kind have in common: of a CSV all of its columns, of a page and of traces that they are ours."""
    if FLAGS.match(head):
        return FLAGS
    if head.startswith(b"routine,"):
        return head.partition(b"\n")[0]
    return head[:SIGN], head[:1] in b"<{" and OWN in head
