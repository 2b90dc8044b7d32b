"""`export=FORMAT:PATH`: the dataset in another form, written to a path. Text is printed if there is no path."""

from __future__ import annotations

from typing import NamedTuple

ENGINES = ("vllm", "sglang")
PRINTED = ("flashinfer_csv", *ENGINES)  # text: printed, or written to a path
FOLDERS = ("aiconfigurator", "flashinfer_trace", "site")  # several files in a folder, which must be named
CSV, PAGE, SITE = "flashinfer_csv", "html", "site"
SUFFIXES = {".csv": CSV, ".html": PAGE}  # of a path without a format
OF_MODES = {"dashboard": PAGE, "site": SITE}  # modes whose export has one format


class Export(NamedTuple):
    """A format, and where it goes: None prints it."""

    format: str
    path: str | None

    def __str__(self) -> str:
        """As it is typed."""
        return self.format if self.path is None else f"{self.format}:{self.path}"


def parse(given: str, mode: str = "export") -> Export:
    """What is written and where, for a mode of `OF_MODES` in its format. Raises ValueError for an unknown format, or no place."""
    name, colon, path = given.partition(":")
    if name in (*PRINTED, *FOLDERS, PAGE) and (colon or mode not in OF_MODES):
        if (colon and not path) or (name not in PRINTED and not path):
            where = "DIR, the folder to write to" if name in FOLDERS else "PATH, the file to write"
            raise ValueError(
                f"export={given!r}: a path is needed; type export={name}:{where}{', or nothing to print' * (name in PRINTED)}"
            )
        found = Export(name, path or None)
    elif mode == SITE:
        found = Export(SITE, given)
    elif suffix := next((suffix for suffix in SUFFIXES if given.endswith(suffix)), None):
        found = Export(SUFFIXES[suffix], given)
    elif mode == "dashboard":
        found = Export("", given)
    else:
        raise ValueError(
            f"export={given!r}: allowed: {', '.join(PRINTED)}, which print, or with :PATH write a file; "
            f"{', '.join(f'{name}:DIR' for name in FOLDERS)}, which write a folder; or a path that ends in {' or '.join(SUFFIXES)}"
        )
    if found.format != OF_MODES.get(mode, found.format):
        what = "a folder; type export=DIR" if mode == SITE else "a page; type export=NAME.html"
        raise ValueError(f"export={given!r}: mode={mode} writes {what}")
    return found
