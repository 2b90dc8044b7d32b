"""Compiled kernel modules in one file, for machines without a compiler: `mode=compile` writes it, every other mode loads it.

The file is a tar. Its first member is `manifest.json` (`kernels/compile/manifest.py`): the versions of the kernel libraries, the
instruction set, and for each module its library, architecture, generator, arguments, name, SHA-256 and the major version of the
CUDA that it needs.
The other members are `<architecture>/<name>/<name>.so`.
"""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import platform
import secrets
import tarfile
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from kernels.adapter import Module
from kernels.compile.manifest import LAYOUT, MAX_BYTES, BadManifest, parsed, require_valid
from kernels.compile.module_cache import Library, other_cuda
from orchestrator.errors import UserError
from orchestrator.libraries import LibraryVersions
from orchestrator.planning.plan import ModuleKey
from orchestrator.scheduling.archive_lock import locked
from orchestrator.untrusted.files import open_to_read, open_to_write

MANIFEST = "manifest.json"
MAX_MODULE = 1 << 31  # bytes of one module


def load_archive(
    path: str | None, machine_versions: Sequence[LibraryVersions], wanted: Collection[ModuleKey]
) -> dict[ModuleKey, Library]:
    """Those of the wanted modules that the archive of a run has; none without an archive (`modules=null`).

    `machine_versions` are the library versions of the machines that will load them.
    Raises UserError if the archive cannot be read, or if it does not fit every machine.
    """
    if path is None:
        return {}
    first, *others = machine_versions
    found = read(path, first, wanted, first["cuda"])
    for versions in others:
        for library in _libraries_of(wanted):
            _require_equal(path, library, first.get(library), versions.get(library))
        _require_cuda(path, found.values(), versions["cuda"])
    return found


def read(
    path: str, versions: LibraryVersions, wanted: Collection[ModuleKey] | None = None, cuda: str | None = None
) -> dict[ModuleKey, Library]:
    """The wanted modules of an archive, or all of them. `cuda` is that of the PyTorch beside which they will run.

    `versions` are those of the kernel libraries where they will run, by names on PyPI.
    Raises UserError for a file that is no such archive, is damaged, or was made for another instruction set or CUDA, or for another
    version of a library that wanted modules are of.
    """
    return _read(path, versions, wanted, cuda)[0]


def _read(
    path: str, versions: LibraryVersions, wanted: Collection[ModuleKey] | None = None, cuda: str | None = None
) -> tuple[dict[ModuleKey, Library], Mapping[str, Any]]:
    """As `read`, with the manifest."""
    try:
        with open_to_read(path) as file, tarfile.open(fileobj=file, mode="r:*") as tar:
            keys, found, manifest = _chosen(path, tar, versions, wanted)
    except FileNotFoundError:
        make = f"make it on a machine with nvcc: mode=compile device=... modules={path}"
        raise UserError(f"modules={path!r}: there is no such file; {make}") from None
    except BadManifest as error:
        raise UserError(f"modules={path!r}: {error}; make it again with mode=compile") from None
    except (EOFError, tarfile.TarError, zlib.error, lzma.LZMAError, ValueError):
        raise UserError(
            f"modules={path!r}: it cannot be read: it is no archive, or it is damaged; make it again with mode=compile"
        ) from None
    except OSError as error:
        why = error.strerror or "it is damaged"
        raise UserError(f"modules={path!r}: it cannot be read ({why}); make it again with mode=compile") from None
    if missing := keys - set(found):
        raise UserError(
            f"modules={path!r}: it is damaged: {len(missing)} of its modules are missing; make it again with mode=compile"
        )
    _require_cuda(path, found.values(), cuda)
    return found, manifest


def _chosen(
    path: str, tar: tarfile.TarFile, versions: LibraryVersions, wanted: Collection[ModuleKey] | None
) -> tuple[set[ModuleKey], dict[ModuleKey, Library], Mapping[str, Any]]:
    """Which modules of the manifest are wanted, those of them that the file contains, and the manifest."""
    first = tar.next()
    if first is None or first.name != MANIFEST:
        raise UserError(f"modules={path!r}: it holds no {MANIFEST}; allowed: a file that mode=compile modules=FILE.tar.xz wrote")
    manifest = parsed(_content(tar, first, MAX_BYTES))
    _require_equal(path, "layout", manifest["layout"], LAYOUT)
    require_valid(manifest)
    _require_equal(path, "isa", manifest["isa"], platform.machine())
    _require_versions(path, manifest["libraries"], versions, wanted)
    entries = {_member(entry): entry for entry in manifest["modules"]}
    keys = {name: _key(entry) for name, entry in entries.items()}
    chosen = set(keys.values()) if wanted is None else set(wanted) & set(keys.values())
    found: dict[ModuleKey, Library] = {}
    for member in tar:
        if member.size > MAX_MODULE:
            raise BadManifest(f"{member.name!r} in it says that it has {member.size:,} bytes; allowed: up to {MAX_MODULE:,}")
        if member.name not in keys and member.name != MANIFEST:
            raise BadManifest(f"it holds {member.name!r}, which its manifest does not name")
        if keys.get(member.name) in found:
            raise BadManifest(f"it holds {member.name!r} twice")
        if keys.get(member.name) in chosen:
            library = Library(Path(member.name).stem, _content(tar, member, MAX_MODULE))
            _require_whole(path, member.name, library, entries[member.name]["sha256"])
            found[keys[member.name]] = library
    return chosen, found, manifest


def write(path: str, libraries: Mapping[ModuleKey, Library], versions: LibraryVersions) -> dict[str, int]:
    """Adds modules to an archive, which need not exist yet; returns how many it then contains of each library and its version.

    `versions` are those of the kernel libraries by names on PyPI.
    Raises UserError if it cannot be written, or if a module in it is of another version of its library.
    """
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with locked(path):  # two runs that compile into one file both keep their modules
            return _write(path, libraries, versions)
    except OSError as error:
        raise UserError(
            f"modules={path!r}: cannot be written ({error.strerror}); type a file in a folder that is yours. What was compiled "
            f"is kept, and is not compiled again"
        ) from None


def _write(path: str, libraries: Mapping[ModuleKey, Library], versions: LibraryVersions) -> dict[str, int]:
    present, manifest = _read(path, versions) if Path(path).exists() else ({}, {"modules": []})
    both = {**present, **libraries}
    of_key = {_key(entry): entry for entry in manifest["modules"]} | {key: _entry(key, one) for key, one in libraries.items()}
    entries = sorted(of_key.values(), key=lambda entry: (entry["arch"], entry["name"]))
    counts = Counter(entry["library"] for entry in entries)
    used = {library: versions[library] for library in sorted(counts) if library}
    manifest = {"layout": LAYOUT, "libraries": used, "isa": platform.machine(), "modules": entries}
    fresh = Path(f"{path}.{secrets.token_hex(4)}")  # processes of two machines may have one number
    compression = Path(path).suffix.removeprefix(".").replace("tar", "")
    try:
        with open_to_write(fresh, new=True) as file, tarfile.open(fileobj=file, mode=f"w:{compression}") as tar:  # type: ignore[call-overload]
            _add(tar, MANIFEST, json.dumps(manifest, indent=1).encode())
            for entry in entries:
                _add(tar, _member(entry), both[_key(entry)].content)
        fresh.replace(path)
    finally:
        with suppress(OSError):
            fresh.unlink()  # also if the run is interrupted
    return {f"{library} {used[library]}" if library else "no library": count for library, count in sorted(counts.items())}


def _require_versions(
    path: str, made_for: Mapping[str, str | None], here: LibraryVersions, wanted: Collection[ModuleKey] | None
) -> None:
    """An archive may also have modules of a library that this run does not use, in whatever version."""
    for library in made_for if wanted is None else _libraries_of(wanted) & set(made_for):
        _require_equal(path, library, made_for[library], here.get(library))


def _libraries_of(keys: Collection[ModuleKey]) -> set[str]:
    return {module.toolchain.library for _, module in keys} - {""}


def _require_equal(path: str, name: str, made_for: object, here: object) -> None:
    if made_for != here:
        raise UserError(
            f"modules={path!r}: made for {name} {made_for}, and here it is {here or 'not installed'}; "
            f"make it again with mode=compile{f' under {name} {here}' if here else ''}, or type another name"
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
    named["library"] = module.toolchain.library
    return named | {"sha256": checksum, "cuda": library.cuda}


def _key(entry: Mapping[str, Any]) -> ModuleKey:
    return entry["arch"], Module(entry["generator"], tuple(entry["args"]))


def _member(entry: Mapping[str, Any]) -> str:
    return f"{entry['arch']}/{entry['name']}/{entry['name']}.so"


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo, limit: int) -> bytes:
    """The bytes of a member. Raises BadManifest for a link, a folder or a device, and for more bytes than a module has."""
    if not member.isreg():
        raise BadManifest(f"{member.name!r} in it is no plain file")
    if member.size > limit:
        raise BadManifest(f"{member.name!r} in it says that it has {member.size:,} bytes; allowed: up to {limit:,}")
    file = tar.extractfile(member)
    assert file is not None  # it is a plain file
    return file.read()


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))
