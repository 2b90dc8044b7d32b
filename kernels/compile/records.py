"""Records of a machine's compiled modules, so that a later run finds them without importing the library that they belong to.

Beside the modules in their folder (`module_cache`) lies a record of each: its file's size and time of change, and its origin.
One that came in an archive, or from another machine, is found again as long as its file is as it was.
One that was compiled here is found again as long as what it was compiled from is as it was, too (`Toolchain.sources`).
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from kernels.compile import module_cache
from kernels.compile.module_cache import Library, folder_of
from kernels.contract.toolchain import Module, Toolchain, find_nvcc

RECORDS = ".records"


def put(arch: str, module: Module, library: Library, compiled_on: str = "", sources: str | None = None) -> None:
    """Puts a module's file where workers look, and a record of what compiled it from what if its library is known. OSError."""
    if not compiled_on and (old := _read(arch, module)) and _file_of(arch, module, old) == library:
        return
    module_cache.install(arch, library, module.toolchain)
    if not module.toolchain.library:
        return
    file, here = _record_of(arch, module), compiled_on == platform.node()
    if here and (sources is None or sources != sources_of(module.toolchain)):  # a source may have been edited meanwhile
        file.unlink(missing_ok=True)
        return
    found = module_cache.file_in(folder_of(arch, module.toolchain), library.name).stat()
    record: dict[str, Any] = {"generator": module.generator, "args": list(module.args), "name": library.name}
    record |= {"sources": sources if here else None, "size": found.st_size, "mtime_ns": found.st_mtime_ns}
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_suffix(f".{platform.node()}-{os.getpid()}")
    fresh.write_text(json.dumps(record))
    fresh.replace(file)


def found_again(keys: Iterable[tuple[str, Module]]) -> dict[tuple[str, Module], Library]:
    """Those of the modules, by architecture, that are here and still what they were."""
    now: dict[Toolchain, str | None] = {}
    found = {}
    for arch, module in keys:
        record = _read(arch, module)
        if record and not _is_outdated(record, module, now) and (library := _file_of(arch, module, record)):
            found[arch, module] = library
    return found


def is_outdated(arch: str, module: Module) -> bool:
    """Whether the module that is here was compiled here from other sources than there are now."""
    record = _read(arch, module)
    return bool(record) and _is_outdated(record, module, {})


def _is_outdated(record: Mapping[str, Any], module: Module, now: dict[Toolchain, str | None]) -> bool:
    """`now` keeps what modules of a library would be compiled from: finding that out takes a tenth of a second."""
    if record["sources"] is None:
        return False
    if module.toolchain not in now:
        now[module.toolchain] = sources_of(module.toolchain)
    return bool(record["sources"] != now[module.toolchain])


def _file_of(arch: str, module: Module, record: Mapping[str, Any]) -> Library | None:
    """The module of a record; None if its file is another one, or gone."""
    with suppress(OSError, ValueError):
        file = module_cache.file_in(folder_of(arch, module.toolchain), record["name"])
        found = file.stat()
        if (found.st_size, found.st_mtime_ns) == (record["size"], record["mtime_ns"]):
            return Library(record["name"], file.read_bytes())
    return None


def sources_of(toolchain: Toolchain) -> str | None:
    """What modules would be compiled from here, and by which compiler; None if the library's toolchain does not know."""
    sources = toolchain.sources()
    nvcc = find_nvcc()
    return sources and f"{sources} {nvcc} {nvcc and nvcc.stat().st_mtime_ns}"


def _record_of(arch: str, module: Module) -> Path:
    named = hashlib.sha256(repr((module.generator, module.args)).encode()).hexdigest()[:32]
    return folder_of(arch, module.toolchain) / RECORDS / f"{named}.json"


def _read(arch: str, module: Module) -> dict[str, Any]:
    """The record of a module; empty without one, or for one that is damaged."""
    if not module.toolchain.library:
        return {}
    with suppress(OSError, ValueError):
        record = json.loads(_record_of(arch, module).read_text())
        keys = {"generator": str, "args": list, "name": str, "sources": str | None, "size": int, "mtime_ns": int}
        if isinstance(record, dict) and all(isinstance(record.get(key, ...), kind) for key, kind in keys.items()):
            same = (record["generator"], tuple(record["args"])) == (module.generator, module.args)
            return record if same else {}
    return {}
