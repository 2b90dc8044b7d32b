"""Compiled kernel modules in one file, for machines without a compiler: `mode=compile` writes it, every other mode loads it.

The file is a tar. Its first member is `manifest.json`: the instruction set, and an entry for each module, the other members. An
entry has the version of its library and the major version of the CUDA that it needs, so one archive can hold modules of several.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import lzma
import platform
import tarfile
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

from filelock import FileLock
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr, ValidationError

from kernels.adapter import Module
from kernels.compile import module_cache
from kernels.compile.module_cache import Library, cache_folder, other_cuda
from kernels.contract.toolchain import Toolchain
from orchestrator.errors import BadManifest, UserError, explain
from orchestrator.libraries import LibraryVersions
from orchestrator.planning.plan import ModuleKey
from orchestrator.untrusted.door import from_json
from orchestrator.untrusted.files import is_same, open_to_read, open_to_write, write_whole

MANIFEST = "manifest.json"
LAYOUT = 3
MAX_BYTES = 16 * 10**6  # of a manifest
Name = Annotated[str, Field(pattern=f"^{module_cache.NAME.pattern}$")]
MAX_MODULE = 1 << 31  # bytes of one module
Choose = Callable[[Sequence["Entry"]], list["Entry"]]
CANNOT_LOCK = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)  # of a file system without locks


class Entry(BaseModel):
    """A module. `library` is its library's name on PyPI, or empty, `version` that library's. Names lead into no other folder."""

    model_config = ConfigDict(frozen=True)

    arch: Name
    name: Name
    generator: Annotated[str, Field(pattern=r"^[\w.]+:\w+$")]
    args: tuple[StrictStr | StrictInt | StrictBool, ...]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    cuda: Annotated[str, Field(pattern="^[0-9]{1,4}$")] | None
    library: Name | Literal[""]
    version: Annotated[str, Field(pattern="^[A-Za-z0-9_][A-Za-z0-9_.+!-]{0,254}$")] | None

    @property
    def member(self) -> str:
        """The name that the module has in the tar. Several modules may be one file: their generator gives them one name."""
        of = [self.library or "none", *filter(None, [self.version]), *([f"cu{self.cuda}"] if self.cuda else [])]
        return f"{'-'.join(of)}/{self.arch}/{self.name}/{self.name}.so"

    @property
    def key(self) -> ModuleKey:
        """The module, as plans name it."""
        return self.arch, Module(self.generator, self.args, Toolchain(self.library))


class Manifest(BaseModel):
    """What the first member of an archive holds."""

    layout: int = LAYOUT
    isa: str
    modules: tuple[Entry, ...]


def parsed(content: bytes) -> Manifest:
    """A manifest from its bytes. Raises BadManifest."""
    try:
        found = from_json(content)
        if found.get("layout") != LAYOUT:
            raise ValueError(f"it has another layout than {LAYOUT}")
        manifest = Manifest.model_validate(found)
    except ValidationError as error:
        raise BadManifest(f"its manifest is none of this project's: {explain(error).splitlines()[0]}") from None
    except ValueError as error:
        raise BadManifest(f"its manifest is none of this project's: {error}") from None
    checksums = dict[str, str]()
    for entry in manifest.modules:
        if checksums.setdefault(entry.member, entry.sha256) != entry.sha256:
            raise BadManifest(f"its manifest has two checksums of {entry.member!r}")
    if max(Counter(manifest.modules).values(), default=0) > 1:
        raise BadManifest("its manifest names a module twice")
    return manifest


def load_archive(
    path: str | None, machine_versions: Sequence[LibraryVersions], wanted: Collection[ModuleKey]
) -> dict[ModuleKey, Library]:
    """The wanted modules of a run's archive, if it has one. Raises UserError if it cannot be read or does not fit all machines."""
    if path is None:
        return {}
    first, *others = machine_versions
    found = read(path, first, wanted, first["cuda"])
    for versions in others:
        for library in sorted(_libraries_of(found)):
            _require_equal(path, library, first.get(library), versions.get(library))
        _require_cuda(path, found.values(), versions["cuda"])
    return found


def read(
    path: str, versions: LibraryVersions, wanted: Collection[ModuleKey] | None = None, cuda: str | None = None
) -> dict[ModuleKey, Library]:
    """The wanted modules of an archive, or all of them. `cuda` is that of the PyTorch beside which they will run.

    `versions` are those of the kernel libraries where they will run, by names on PyPI.
    Raises UserError for a file that is no such archive, is damaged, or was made for another instruction set or CUDA, or for other
    versions of a library that wanted modules are of.
    """

    def choose(entries: Sequence[Entry]) -> list[Entry]:
        of = {entry.library for entry in entries} - {""} if wanted is None else _libraries_of(wanted)
        for library in sorted(of):  # others, which this run does not use, may be of whatever versions
            made_for, here = {str(entry.version) for entry in entries if entry.library == library}, versions.get(library)
            if made_for and str(here) not in made_for:
                _require_equal(path, library, " and ".join(sorted(made_for)), here)
        return [one for one in _usable(entries, versions, cuda) if wanted is None or one.key in wanted]

    found = {entry.key: library for entry, library in _read(path, choose)}
    _require_cuda(path, found.values(), cuda)
    return found


def read_fitting(path: str | None, versions: LibraryVersions, archs: Collection[str]) -> dict[ModuleKey, Library]:
    """The modules of an archive, if any, for these versions and `archs`; others compile here. Raises UserError as `read`."""
    if path is None:
        return {}

    def choose(entries: Sequence[Entry]) -> list[Entry]:
        fitting = _usable(entries, versions, versions["cuda"])
        return [one for one in fitting if one.arch in archs and _fits_cuda(one, versions["cuda"])]

    return {entry.key: library for entry, library in _read(path, choose)}


def _usable(entries: Sequence[Entry], versions: LibraryVersions, cuda: str | None) -> list[Entry]:
    """Modules of these library versions. Of one that is there for several CUDAs, that for `cuda` comes last."""
    there = [one for one in entries if not one.library or one.version == versions.get(one.library)]
    return sorted(there, key=lambda one: _fits_cuda(one, cuda))


def _fits_cuda(entry: Entry, cuda: str | None) -> bool:
    return cuda is None or entry.cuda in (None, cuda.partition(".")[0])


def _read(path: str, choose: Choose) -> list[tuple[Entry, Library]]:
    """The entries of the manifest that `choose` gives, each with its module. Raises UserError as `read` does."""
    try:
        with open_to_read(path) as file, tarfile.open(fileobj=file, mode="r:*") as tar:
            chosen, found = _chosen(path, tar, choose)
    except FileNotFoundError:
        make = f"make it on a machine with nvcc: mode=compile device=... modules={path}"
        raise UserError(f"modules={path!r}: no such file; {make}") from None
    except BadManifest as error:
        raise _unusable(path, str(error)) from None
    except (EOFError, tarfile.TarError, zlib.error, lzma.LZMAError, ValueError):
        raise _unusable(path, "it cannot be read: it is no archive, or it is damaged") from None
    except OSError as error:
        raise _unusable(path, f"it cannot be read ({error.strerror or 'it is damaged'})") from None
    if missing := len({entry.member for entry in chosen} - found.keys()):
        raise _unusable(path, f"it is damaged: {missing} of its modules are missing")
    return [(entry, found[entry.member]) for entry in chosen]


def _unusable(path: str, why: str) -> UserError:
    return UserError(f"modules={path!r}: {why}; make it again with mode=compile")


def _chosen(path: str, tar: tarfile.TarFile, choose: Choose) -> tuple[list[Entry], dict[str, Library]]:
    """The entries that are chosen, and by the names of their members the modules that the file contains."""
    first = tar.next()
    if first is None or first.name != MANIFEST:
        raise UserError(f"modules={path!r}: it holds no {MANIFEST}; allowed: a file that mode=compile modules=FILE.tar.xz wrote")
    manifest = parsed(_content(tar, first, MAX_BYTES))
    _require_equal(path, "isa", manifest.isa, platform.machine())
    named, chosen = {entry.member for entry in manifest.modules}, choose(manifest.modules)
    checksums = {entry.member: entry.sha256 for entry in chosen}
    found: dict[str, Library] = {}
    seen = set[str]()
    for part in tar:
        if part.size > MAX_MODULE:
            raise _too_large(part, MAX_MODULE)
        if part.name not in named and part.name != MANIFEST:
            raise BadManifest(f"it holds {part.name!r}, which its manifest does not name")
        if part.name in seen:
            raise BadManifest(f"it holds {part.name!r} twice")
        seen.add(part.name)
        if part.name in checksums:
            library = Library(Path(part.name).stem, _content(tar, part, MAX_MODULE))
            if hashlib.sha256(library.content).hexdigest() != checksums[part.name]:
                raise _unusable(path, f"{part.name} is damaged (its SHA-256 is not the manifest's)")
            found[part.name] = library
    return chosen, found


def write(path: str, libraries: Mapping[ModuleKey, Library], versions: LibraryVersions) -> dict[str, int]:
    """Adds modules to an archive, which need not exist yet; returns how many it then contains of each library and version.

    `versions` are those of the kernel libraries that the modules are of, by names on PyPI. Modules of other versions stay in it.
    Raises UserError if it cannot be written, or if what is there is no such archive.
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
    present = _read(path, list) if Path(path).exists() else []
    new = [(_entry(key, library, versions), library) for key, library in libraries.items()]
    # An archive keeps a module once for each version of its library and each CUDA.
    both = {(entry.key, entry.version, entry.cuda): (entry, library) for entry, library in (*present, *new)}
    sorted_by_member = sorted(both.values(), key=lambda one: one[0].member)
    counts = Counter((entry.library, entry.version) for entry, _ in sorted_by_member)
    manifest = Manifest(isa=platform.machine(), modules=tuple(entry for entry, _ in sorted_by_member))
    contents = {MANIFEST: manifest.model_dump_json(indent=1).encode()}
    contents |= {entry.member: library.content for entry, library in sorted_by_member}
    file, compression = io.BytesIO(), Path(path).suffix.removeprefix(".").replace("tar", "")
    with tarfile.open(fileobj=file, mode=f"w:{compression}") as tar:  # type: ignore[call-overload]
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    write_whole(path, file.getvalue())
    said = {f"{library} {version}" if library else "no library": count for (library, version), count in counts.items()}
    return dict(sorted(said.items()))


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


def _entry(key: ModuleKey, library: Library, versions: LibraryVersions) -> Entry:
    arch, module = key
    of = module.toolchain.library
    checksum, version = hashlib.sha256(library.content).hexdigest(), versions[of] if of else None
    about = {"library": of, "version": version, "sha256": checksum, "cuda": library.cuda}
    return Entry(arch=arch, name=library.name, generator=module.generator, args=module.args, **about)


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo, limit: int) -> bytes:
    """The bytes of a member. Raises BadManifest for a link, a folder or a device, and for more bytes than a module has."""
    if not member.isreg():
        raise BadManifest(f"{member.name!r} in it is no plain file")
    if member.size > limit:
        raise _too_large(member, limit)
    file = tar.extractfile(member)
    assert file is not None  # it is a plain file
    return file.read()


def _too_large(member: tarfile.TarInfo, limit: int) -> BadManifest:
    return BadManifest(f"{member.name!r} in it says that it has {member.size:,} bytes; allowed: up to {limit:,}")


@contextmanager
def locked(path: str) -> Iterator[None]:
    """Waits for other writers, by a hidden file beside the archive; where a disk locks no files, on this machine alone."""
    with FileLock(_local_lock_of(path)):
        lock = Path(path).with_name(f".{Path(path).name}.lock")
        while True:
            file = open_to_write(lock)
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError as error:
                if error.errno not in CANNOT_LOCK:
                    raise
            if is_same(file, lock):
                break
            file.close()  # its owner removed it while we waited
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)
            file.close()


def _local_lock_of(path: str) -> Path:
    """A lock file of this machine, in the user's own cache: in a shared temporary folder anybody could lay a link of its name."""
    named = hashlib.sha256(f"{platform.node()} {Path(path).resolve()}".encode()).hexdigest()[:16]
    folder = cache_folder("attention-orchestrator/locks")
    folder.mkdir(parents=True, exist_ok=True)
    return folder / named
