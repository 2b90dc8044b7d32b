"""The manifest of an archive of compiled modules. An older layout is read as if it were today's.

Layout 2: `libraries` has the version of every kernel library by its name on PyPI, `isa` the instruction set, and `modules` an entry
each: `arch`, `name`, `generator`, `args`, `sha256`, `cuda` (the major version that it needs, or null) and `library` ("" for none).
Layout 1 had one version, under `flashinfer`: all its modules were that library's.
"""

from __future__ import annotations

import json
import re
from typing import Any

from kernels.compile.module_cache import NAME

LAYOUT = 2
MAX_BYTES = 16 * 10**6  # of a manifest
GENERATOR = re.compile(r"[\w.]+:\w+")
SHA256 = re.compile(r"[0-9a-f]{64}")


class BadManifest(ValueError):
    """A manifest that no version of this project has written; the message says what is wrong with it."""


def parsed(content: bytes) -> dict[str, Any]:
    """A manifest in today's layout, from its bytes. Raises BadManifest."""
    try:
        manifest = json.loads(content)
    except (ValueError, RecursionError):
        raise BadManifest("its manifest is no JSON") from None
    if not isinstance(manifest, dict) or type(manifest.get("layout")) is not int:
        raise BadManifest("its manifest does not say which layout it has")
    try:
        return upgraded(manifest)
    except (KeyError, TypeError):
        raise BadManifest("its manifest lacks what its layout has") from None


def require_valid(manifest: dict[str, Any]) -> None:
    """Raises BadManifest unless every value has its type, and every name can be the name of a folder and leads nowhere else."""
    libraries, modules = manifest.get("libraries"), manifest.get("modules")
    if not isinstance(manifest.get("isa"), str):
        raise BadManifest("its manifest names no instruction set")
    if not isinstance(libraries, dict) or not all(version is None or isinstance(version, str) for version in libraries.values()):
        raise BadManifest("the libraries in its manifest are no mapping of names to versions")
    if not isinstance(modules, list):
        raise BadManifest("the modules in its manifest are no list")
    for number, entry in enumerate(modules, 1):
        if wrong := _wrong_key(entry, libraries):
            raise BadManifest(f"module {number} in its manifest has a {wrong} that this project does not write")
    places = {(entry["arch"], entry["name"]) for entry in modules}
    if len(places) < len(modules):
        raise BadManifest("its manifest names a module twice")


def _wrong_key(entry: object, libraries: dict[str, str | None]) -> str:
    """The key of an entry whose value is wrong; empty if all are right."""
    if not isinstance(entry, dict):
        return "form"
    patterns = {"arch": NAME, "name": NAME, "generator": GENERATOR, "sha256": SHA256}
    for key, pattern in patterns.items():
        if not isinstance(entry.get(key), str) or not pattern.fullmatch(entry[key]):
            return key
    args = entry.get("args")
    if not isinstance(args, list) or not all(isinstance(arg, str | int | bool) for arg in args):
        return "args"
    if not isinstance(entry.get("cuda"), str | None):
        return "cuda"
    library = entry.get("library")
    return "" if library == "" or (isinstance(library, str) and library in libraries) else "library"


ONE_LIBRARY = {"flashinfer": "flashinfer-python"}  # the key of layout 1 for the version, and the library that it was of


def upgraded(manifest: dict[str, Any]) -> dict[str, Any]:
    """A manifest in today's layout; one of an unknown layout as it is. Raises KeyError for one that lacks what its layout has."""
    if manifest["layout"] != 1:
        return manifest
    ((key, library),) = ONE_LIBRARY.items()
    modules = [{**entry, "library": library} for entry in manifest["modules"]]
    return {"layout": LAYOUT, "libraries": {library: manifest[key]}, "isa": manifest["isa"], "modules": modules}
