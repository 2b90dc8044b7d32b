"""Compiled kernel modules in one file, for machines without a compiler: `mode=compile` writes it, every other mode loads it.

The file is a tar. Its first member is `manifest.json`: FlashInfer's version, the instruction set, and for each module its
architecture, generator, arguments, name, SHA-256 and the major version of the CUDA that it needs.
The other members are `<architecture>/<name>/<name>.so`.
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
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import FileLock

from kernels.adapter import Module
from kernels.compile.module_cache import Library, other_cuda
from orchestrator.errors import UserError
from orchestrator.planning.plan import ModuleKey

MANIFEST = "manifest.json"
LAYOUT = 1


def load_archive(
    path: str | None, machine_versions: Sequence[Mapping[str, str | None]], wanted: Iterable[ModuleKey]
) -> dict[ModuleKey, Library]:
    """Those of the wanted modules that the archive of a run has; none without an archive (`modules=null`).

    `machine_versions` are the library versions of the machines that will load them.
    Raises UserError if the archive cannot be read, or if it does not fit every machine.
    """
    if path is None:
        return {}
    first, *others = machine_versions
    found = read(path, first["flashinfer_version"], wanted, first["cuda"])
    for versions in others:
        _require_equal(path, "flashinfer", first["flashinfer_version"], versions["flashinfer_version"])
        _require_cuda(path, found.values(), versions["cuda"])
    return found


def read(
    path: str, flashinfer_version: str | None, wanted: Iterable[ModuleKey] | None = None, cuda: str | None = None
) -> dict[ModuleKey, Library]:
    """The wanted modules of an archive, or all of them. `cuda` is that of the PyTorch beside which they will run.

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
    _require_cuda(path, found.values(), cuda)
    return found


def _chosen(
    path: str, tar: tarfile.TarFile, flashinfer_version: str | None, wanted: Iterable[ModuleKey] | None
) -> tuple[set[ModuleKey], dict[ModuleKey, Library]]:
    """Which modules of the manifest are wanted, and those of them that the file contains."""
    first = tar.next()
    if first is None or first.name != MANIFEST:
        raise UserError(f"modules={path!r}: it holds no {MANIFEST}; allowed: what mode=compile modules=FILE.tar.xz has written")
    manifest = json.loads(_content(tar, first))
    _require_fit(path, manifest, flashinfer_version)
    entries = {_member(entry): entry for entry in manifest["modules"]}
    keys = {name: _key(entry) for name, entry in entries.items()}
    chosen = set(keys.values()) if wanted is None else set(wanted) & set(keys.values())
    found: dict[ModuleKey, Library] = {}
    for member in tar:
        if keys.get(member.name) in chosen:
            library = Library(Path(member.name).stem, _content(tar, member))
            _require_whole(path, member.name, library, entries[member.name]["sha256"])
            found[keys[member.name]] = library
    return chosen, found


def write(path: str, libraries: Mapping[ModuleKey, Library], flashinfer_version: str | None) -> int:
    """Adds modules to an archive, which need not exist yet; returns how many it then contains.

    Raises UserError if it cannot be written, or if its modules are for another FlashInfer.
    """
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with FileLock(_lock_of(path)):  # two runs that compile into one file on one machine both keep their modules
            return _write(path, libraries, flashinfer_version)
    except OSError as error:
        raise UserError(
            f"modules={path!r}: cannot be written ({error.strerror}); type a file in a folder that is yours. What was compiled "
            f"is kept, and is not compiled again"
        ) from None


def _lock_of(path: str) -> Path:
    """A lock file in the temporary folder, so that none is left beside the archive."""
    named = hashlib.sha256(str(Path(path).resolve()).encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"attention-orchestrator-{os.getuid()}-{named}"


def _write(path: str, libraries: Mapping[ModuleKey, Library], flashinfer_version: str | None) -> int:
    present = read(path, flashinfer_version) if Path(path).exists() else {}
    both = {**present, **libraries}
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
            fresh.unlink()  # also if the run is interrupted
    return len(both)


def _require_fit(path: str, manifest: Mapping[str, Any], flashinfer_version: str | None) -> None:
    here = {"layout": LAYOUT, "flashinfer": flashinfer_version, "isa": platform.machine()}
    for name, needed in here.items():
        _require_equal(path, name, manifest[name], needed)


def _require_equal(path: str, name: str, made_for: object, here: object) -> None:
    if made_for != here:
        raise UserError(
            f"modules={path!r}: made for {name} {made_for}, and here it is {here}; "
            f"make it again with mode=compile under {name} {here}, or type another name"
        )


def _require_cuda(path: str, libraries: Iterable[Library], cuda: str | None) -> None:
    for library in libraries:
        if problem := other_cuda(library, cuda):
            raise UserError(
                f"modules={path!r}: {library.name} was {problem}; make it again with mode=compile and the nvcc of CUDA {cuda}, "
                f"under another name"
            )


def _require_whole(path: str, member: str, library: Library, expected: str) -> None:
    if hashlib.sha256(library.content).hexdigest() != expected:
        raise UserError(
            f"modules={path!r}: {member} is damaged (its SHA-256 is not the manifest's); make it again with mode=compile"
        )


def _entry(key: ModuleKey, library: Library) -> dict[str, Any]:
    arch, module = key
    checksum = hashlib.sha256(library.content).hexdigest()
    named = {"arch": arch, "name": library.name, "generator": module.generator, "args": list(module.args)}
    return named | {"sha256": checksum, "cuda": library.cuda}


def _key(entry: Mapping[str, Any]) -> ModuleKey:
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
