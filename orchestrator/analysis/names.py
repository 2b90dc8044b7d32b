"""Names of backends for people, so that nobody takes FlashInfer's `fa3` for FlashAttention-3. Rows keep the plain ones."""

from __future__ import annotations

import re
from collections.abc import Iterable

# Backends that read a copy of the cache, which no engine has: their adapters declare `copies_cache`. It stands here as data, so
# that rows are read without an adapter; tests/orchestrator/analysis/test_no_adapter.py compares both.
REFERENCES = ("torch_sdpa",)
LIBRARIES = {"fa3": "FlashInfer"}  # names that are also those of another library
# Such a name alone, or as a part of another: of `fa2_tc+fa3@4`, `fa3_chunks`, `two_calls_fa3` and `multi_level: fa3`.
PART = re.compile(rf"(?:^|[_+@ ])({'|'.join(map(re.escape, LIBRARIES))})(?=$|[_+@ ])")


def shown(name: str, kernel: str | None = None) -> str:
    """The name of a backend or kernel, with its library if the name could mean another: `fa3 (FlashInfer)`.

    Of two calls it says which one is meant: `fa2_tc+fa3@4 (fa3: FlashInfer)`. Given the kernel that `auto` chose, `auto(fa2_tc)`.
    """
    if name == "auto" and kernel not in (None, "auto"):
        return f"auto({kernel})"
    return name + mark(name)


def mark(name: str) -> str:
    """What `shown` adds to a name; empty if it adds nothing, as to a name that has it already."""
    part = PART.search(name)
    if part is None or name.endswith(")"):
        return ""
    library = LIBRARIES[part[1]]
    return f" ({part[1]}: {library})" if "+" in name else f" ({library})"


def all_shown(names: str) -> str:
    """As `shown`, of names that stand one after another: `fa2, fa3`."""
    return ", ".join(map(shown, names.split(", ")))


def libraries_of(values: Iterable[object]) -> list[str]:
    """The libraries in some values of the column `libraries`, each with its version, sorted."""
    return sorted({part for of in values if isinstance(of, str) for part in of.split(", ") if part})


def of_references() -> str:
    """A pattern, alike in Python, DuckDB and JavaScript, of backends that are references: alone, or one of two calls."""
    return f"(?:^|[+])(?:{'|'.join(map(re.escape, REFERENCES))})(?:$|[+@ ])"
