"""Backends whose call is told how many parts to make of the keys: `flash_attn_3` with 8 of them is `flash_attn_3_8_splits`.

The axis `num_splits` of a sweep gives backends these names. They compete as backends do, and no two rows of one name differ in it.
"""

from __future__ import annotations

import re

NAME = re.compile(r"(?P<backend>[^+@]+)_(?P<splits>[1-9][0-9]{0,2})_splits")
MAX_SPLITS = 256  # of any library here


def named(backend: str, splits: int) -> str:
    """The name of a backend that is told to make so many parts."""
    return f"{backend}_{splits}_splits"


def parsed(name: str) -> tuple[str, int] | None:
    """A backend and its number of parts, if a name says one."""
    found = NAME.fullmatch(name)
    return (found["backend"], int(found["splits"])) if found and int(found["splits"]) <= MAX_SPLITS else None


def splits_in(name: str) -> int | None:
    """The number of parts that a name says; None if the library chooses."""
    found = parsed(name)
    return found[1] if found else None
