"""A kernel library with its version, as people type it: one spelling is shown, `flashinfer:0.6.13`, and others are understood.

`flashinfer-0.6.13` and `flashinfer==0.6.13` mean the same, with the library's short name or the one on PyPI.
"""

from __future__ import annotations

import re
from typing import NamedTuple

# Names under which people know a library, by its name on PyPI.
SHORT = {"flashinfer": "flashinfer-python", "fa3": "tokenspeed-fa3", "flash-attn-3": "tokenspeed-fa3", "fa4": "flash-attn-4"}
TYPED = re.compile(r"(?P<library>[A-Za-z][\w.-]*?)\s*(?:===?|:|-|@|\s)\s*(?P<version>\d[\w.+!]*)")


class LibraryVersion(NamedTuple):
    """A library as it was typed, and its version."""

    library: str
    version: str

    @property
    def distribution(self) -> str:
        """The library's name on PyPI."""
        return SHORT.get(self.library, self.library)

    def __str__(self) -> str:
        """As messages and documents show it, and as the name of an environment."""
        return f"{self.library}:{self.version}"


def parsed(typed: str) -> LibraryVersion | None:
    """What `LIBRARY:VERSION` means, or another spelling of it; None for anything else, such as a library alone."""
    found = TYPED.fullmatch(typed.strip())
    return LibraryVersion(found["library"], found["version"]) if found else None


def shown(typed: str) -> str:
    """The spelling that is shown, of a library with its version; any other text as it is."""
    found = parsed(typed)
    return typed if found is None else str(found)
