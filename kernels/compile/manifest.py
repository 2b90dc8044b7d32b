"""The manifest of an archive of compiled modules. An older layout is read as if it were today's.

Layout 3: `isa` is the instruction set, and `modules` has an entry each: `arch`, `name`, `generator`, `args`, `sha256`, `cuda` (the
major version that it needs, or null), `library` (its name on PyPI; "" for none) and `version` (of the library, or null).
So one archive can hold modules of several versions of a library, for several environments.
Layout 2 had one version of each library, by name under `libraries`. Layout 1 had one library, with its version under `flashinfer`.
"""

from __future__ import annotations

import json
import re
from typing import Any

from kernels.compile.module_cache import NAME

LAYOUT = 3
MAX_BYTES = 16 * 10**6  # of a manifest
GENERATOR = re.compile(r"[\w.]+:\w+")
SHA256 = re.compile(r"[0-9a-f]{64}")
VERSION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+!-]{0,254}")
CUDA = re.compile(r"[0-9]{1,4}")


class BadManifest(ValueError):
    """A manifest that no version of this project has written; the message says what is wrong with it."""


def parsed(content: bytes) -> dict[str, Any]:
    """A manifest in today's layout, from its bytes. `was` in it is the layout that it was written in. Raises BadManifest."""
    try:
        manifest = json.loads(content)
    except (ValueError, RecursionError):
        raise BadManifest("its manifest is no JSON") from None
    if not isinstance(manifest, dict) or type(manifest.get("layout")) is not int:
        raise BadManifest("its manifest does not say which layout it has")
    try:
        return {**upgraded(manifest), "was": manifest["layout"]}
    except (KeyError, TypeError):
        raise BadManifest("its manifest lacks what its layout has") from None


def require_valid(manifest: dict[str, Any]) -> None:
    """Raises BadManifest unless every value has its type, and every name can be the name of a folder and leads nowhere else."""
    modules = manifest.get("modules")
    if not isinstance(manifest.get("isa"), str):
        raise BadManifest("its manifest names no instruction set")
    if not isinstance(modules, list):
        raise BadManifest("the modules in its manifest are no list")
    for number, entry in enumerate(modules, 1):
        if wrong := _wrong_key(entry):
            raise BadManifest(f"module {number} in its manifest has a {wrong} that this project does not write")
    checksums: dict[str, str] = {}
    for entry in modules:  # several modules may be one file
        if checksums.setdefault(member(entry), entry["sha256"]) != entry["sha256"]:
            raise BadManifest(f"its manifest has two checksums of {member(entry)!r}")
    if len({json.dumps({**entry, "sha256": ""}, sort_keys=True) for entry in modules}) < len(modules):
        raise BadManifest("its manifest names a module twice")


def member(entry: dict[str, Any], layout: int = LAYOUT) -> str:
    """The name that a module has in the tar, in a layout."""
    file = f"{entry['arch']}/{entry['name']}/{entry['name']}.so"
    if layout < 3:
        return file
    cuda = [f"cu{entry['cuda']}"] if entry["cuda"] else []
    return "/".join(["-".join([entry["library"] or "none", *filter(None, [entry["version"]]), *cuda]), file])


def _wrong_key(entry: object) -> str:
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
    for key, pattern in {"cuda": CUDA, "version": VERSION}.items():
        value = entry.get(key, ...)
        if value is not None and not (isinstance(value, str) and pattern.fullmatch(value)):
            return key
    library = entry.get("library")
    return "" if library == "" or (isinstance(library, str) and NAME.fullmatch(library)) else "library"


ONE_LIBRARY = {"flashinfer": "flashinfer-python"}  # the key of layout 1 for the version, and the library that it was of


def upgraded(manifest: dict[str, Any]) -> dict[str, Any]:
    """A manifest in today's layout; one of an unknown layout as it is. Raises KeyError for one that lacks what its layout has."""
    if manifest["layout"] not in (1, 2):
        return manifest
    if manifest["layout"] == 1:
        ((key, library),) = ONE_LIBRARY.items()
        libraries, modules = {library: manifest[key]}, [{**entry, "library": library} for entry in manifest["modules"]]
    else:
        libraries, modules = manifest["libraries"], manifest["modules"]
    versions = {"": None, **libraries}
    upgraded_modules = [{"cuda": None, **entry, "version": versions[entry["library"]]} for entry in modules]
    return {"layout": LAYOUT, "isa": manifest["isa"], "modules": upgraded_modules}
