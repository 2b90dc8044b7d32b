"""What an archive of compiled modules says of them. Archives of an older layout are read as if they had today's.

Layout 2: `libraries` has the version of every kernel library by its name on PyPI, `isa` the instruction set, and `modules` an entry
each: `arch`, `name`, `generator`, `args`, `sha256`, `cuda` (the major version that it needs, or null) and `library` ("" for none).
Layout 1 had one version, under `flashinfer`: all its modules were that library's.
"""

from __future__ import annotations

from typing import Any

LAYOUT = 2
ONE_LIBRARY = {"flashinfer": "flashinfer-python"}  # the key of layout 1 for the version, and the library that it was of


def upgraded(manifest: dict[str, Any]) -> dict[str, Any]:
    """A manifest in today's layout; one of an unknown layout as it is. Raises KeyError for one that lacks what its layout has."""
    if manifest["layout"] != 1:
        return manifest
    ((key, library),) = ONE_LIBRARY.items()
    modules = [{**entry, "library": library} for entry in manifest["modules"]]
    return {"layout": LAYOUT, "libraries": {library: manifest[key]}, "isa": manifest["isa"], "modules": modules}
