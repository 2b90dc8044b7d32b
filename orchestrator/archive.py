"""Compiled kernel modules in one file, for machines without a compiler: `mode=compile` writes it, every other mode loads it.

A tar whose first member is `manifest.json`: FlashInfer's version, the instruction set, and of each module its architecture,
generator, arguments, name, SHA-256 and the major version of the CUDA that it asks for. The others are
`<architecture>/<name>/<name>.so`.
"""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import os
import platform
import tarfile
import tempfile
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import FileLock

from kernels.adapter import Module
from kernels.modules import Library, other_cuda
from orchestrator.builds import Key
from orchestrator.errors import UserError

MANIFEST = "manifest.json"
LAYOUT = 1


def read(
    path: str, flashinfer_version: str | None, wanted: Iterable[Key] | None = None, cuda: str | None = None
) -> dict[Key, Library]:
    """Those modules of an archive that are wanted, or all of them; `cuda` is that of the torch beside which they are to run.

    Raises UserError for a file that is no such archive, is damaged, or was made for another FlashInfer, instruction set or CUDA.
    """
    try:
        with tarfile.open(path, "r:*") as tar:
            keys, found = _chosen(path, tar, flashinfer_version, wanted)
    except FileNotFoundError:
        make = f"make it where there is an nvcc: mode=compile device=... modules={path}"
        raise UserError(f"modules={path!r}: there is no such file; {make}") from None
    except (OSError, EOFError, tarfile.TarError, zlib.error, lzma.LZMAError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"modules={path!r}: it cannot be read ({error}); make it again with mode=compile") from None
    if missing := keys - set(found):
        raise UserError(
            f"modules={path!r}: it is damaged: {len(missing)} of its modules are missing; make it again with mode=compile"
        )
    for library in found.values():
        if words := other_cuda(library, cuda):
            raise UserError(
                f"modules={path!r}: {library.name} was {words}; make it again with mode=compile and the nvcc of CUDA {cuda}, "
                f"under another name"
            )
    return found


def _chosen(
    path: str, tar: tarfile.TarFile, flashinfer_version: str | None, wanted: Iterable[Key] | None
) -> tuple[set[Key], dict[Key, Library]]:
    """Those of the manifest's modules that are wanted, and of these what is there."""
    first = tar.next()
    if first is None or first.name != MANIFEST:
        raise UserError(f"modules={path!r}: it holds no {MANIFEST}; allowed: what mode=compile modules=FILE.tar.xz has written")
    manifest = json.loads(_content(tar, first))
    _require_fit(path, manifest, flashinfer_version)
    entries = {_member(entry): entry for entry in manifest["modules"]}
    keys = {name: _key(entry) for name, entry in entries.items()}
    chosen = set(keys.values()) if wanted is None else set(wanted) & set(keys.values())
    found: dict[Key, Library] = {}
    for member in tar:
        if keys.get(member.name) in chosen:
            library = Library(Path(member.name).stem, _content(tar, member))
            _require_whole(path, member.name, library, entries[member.name]["sha256"])
            found[keys[member.name]] = library
    return chosen, found


def write(path: str, libraries: Mapping[Key, Library], flashinfer_version: str | None) -> int:
    """Puts modules into an archive, beside what it holds already; how many it then holds.

    Raises UserError where it cannot be written, and where what it holds is for another FlashInfer.
    """
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with FileLock(_lock_of(path)):  # of two that compile into one file on a machine, neither loses its modules
            return _write(path, libraries, flashinfer_version)
    except OSError as error:
        raise UserError(
            f"modules={path!r}: cannot be written ({error.strerror}); type a file in a folder that is yours. What was compiled "
            f"is kept, and is not compiled again"
        ) from None


def _lock_of(path: str) -> Path:
    """Beside no archive, where it would lie about."""
    named = hashlib.sha256(str(Path(path).resolve()).encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"attention-orchestrator-{os.getuid()}-{named}"


def _write(path: str, libraries: Mapping[Key, Library], flashinfer_version: str | None) -> int:
    held = read(path, flashinfer_version) if Path(path).exists() else {}
    both = {**held, **libraries}
    entries = [_entry(key, library) for key, library in sorted(both.items(), key=lambda item: (item[0][0], item[1].name))]
    manifest = {"layout": LAYOUT, "flashinfer": flashinfer_version, "isa": platform.machine(), "modules": entries}
    fresh = Path(f"{path}.{os.getpid()}")
    compression = Path(path).suffix.removeprefix(".").replace("tar", "")
    try:
        with tarfile.open(fresh, f"w:{compression}") as tar:  # type: ignore[call-overload]
            _add(tar, MANIFEST, json.dumps(manifest, indent=1).encode())
            for entry in entries:
                _add(tar, _member(entry), both[_key(entry)].content)
        fresh.replace(path)
    finally:
        with suppress(OSError):
            fresh.unlink()  # also where the run is interrupted
    return len(both)


def _require_fit(path: str, manifest: Mapping[str, Any], flashinfer_version: str | None) -> None:
    here = {"layout": LAYOUT, "flashinfer": flashinfer_version, "isa": platform.machine()}
    for name, needed in here.items():
        if manifest[name] != needed:
            raise UserError(
                f"modules={path!r}: made for {name} {manifest[name]}, and here it is {needed}; "
                f"make it again with mode=compile under {name} {needed}, or type another name"
            )


def _require_whole(path: str, member: str, library: Library, expected: str) -> None:
    if hashlib.sha256(library.content).hexdigest() != expected:
        raise UserError(
            f"modules={path!r}: {member} is damaged (its SHA-256 is not the manifest's); make it again with mode=compile"
        )


def _entry(key: Key, library: Library) -> dict[str, Any]:
    arch, module = key
    checksum = hashlib.sha256(library.content).hexdigest()
    named = {"arch": arch, "name": library.name, "generator": module.generator, "args": list(module.args)}
    return named | {"sha256": checksum, "cuda": library.cuda}


def _key(entry: Mapping[str, Any]) -> Key:
    return entry["arch"], Module(entry["generator"], tuple(entry["args"]))


def _member(entry: Mapping[str, Any]) -> str:
    return f"{entry['arch']}/{entry['name']}/{entry['name']}.so"


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(member)
    if file is None:
        raise ValueError(f"{member.name} is no file")
    return file.read()


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))
