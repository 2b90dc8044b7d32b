"""The values of `export=` outside mode=dashboard: the name of a format, or with a path `NAME:PATH`, or `PATH.csv`."""

from __future__ import annotations

from typing import NamedTuple

PRINTED = ("flashinfer_csv", "vllm", "sglang")  # text: printed, or written to a path
FOLDERS = ("aiconfigurator", "flashinfer_trace")  # several files in a folder, which must be named
CSV, CSV_FILE = "flashinfer_csv", ".csv"


class Export(NamedTuple):
    """A format, and where it goes: None prints it."""

    format: str
    path: str | None


def parse(given: str) -> Export:
    """What is to be written and where. Raises ValueError for an unknown format, and for a folder that is not named."""
    name, colon, path = given.partition(":")
    if name in (*PRINTED, *FOLDERS):
        if (colon and not path) or (name in FOLDERS and not path):
            where = "DIR, the folder to write to" if name in FOLDERS else "PATH, the file to write, or nothing to print"
            raise ValueError(f"export={given!r}: a path is needed; type export={name}:{where}")
        return Export(name, path or None)
    if given.endswith(CSV_FILE):
        return Export(CSV, given)
    raise ValueError(
        f"export={given!r}: allowed: {', '.join(PRINTED)}, which print, or with :PATH write a file; "
        f"{' and '.join(f'{name}:DIR' for name in FOLDERS)}, which write a folder; or a path that ends in {CSV_FILE}"
    )
