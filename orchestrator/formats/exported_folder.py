"""Writes the files of an export to a folder. A file that was there is replaced as a whole, and named."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from orchestrator.errors import UserError
from orchestrator.notes import note_once
from orchestrator.storage.parquet import DATA
from orchestrator.untrusted.files import require_plain, write_whole

SHOWN = 3  # names of files, in a note


def save_files(name: str, folder: str, contents: Mapping[str, bytes]) -> None:
    """Writes files by their paths below a folder. `name` is that of the format.

    Raises UserError, before anything is written, for the folder of a dataset, for a link below the folder, and for anything else
    that is no plain file and has a name of these; also if a file cannot be written.
    """
    root, typed = Path(folder), f"export={name}:{folder}"
    try:
        if (root / DATA).exists():
            raise UserError(f"{typed}: this is the folder of a dataset; give another folder")
        for part in sorted({parent for path in contents for parent in Path(path).parents} - {Path()}):
            if (root / part).is_symlink():
                raise UserError(f"{typed}: {root / part} is a symbolic link; remove it, or give another folder")
        replaced = [path for path in contents if require_plain(root / path)]
        for path, content in contents.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            write_whole(root / path, content)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise UserError(f"{typed}: {where}cannot be written ({error.strerror}); give another folder") from None
    if replaced:
        more = f" and {len(replaced) - SHOWN} more" if len(replaced) > SHOWN else ""
        note_once(f"files that were in {folder} before are replaced: {', '.join(replaced[:SHOWN])}{more}")
