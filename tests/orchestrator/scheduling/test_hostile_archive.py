"""Archives of modules whose manifest or members this project did not write: refused before a byte of them is kept."""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import tarfile
from pathlib import Path
from typing import Any

import pytest

from kernels.adapter import Module
from kernels.compile import module_cache
from kernels.compile.module_cache import Library
from orchestrator.errors import UserError
from orchestrator.scheduling import archive

CONTENT = b"a shared object"
ENTRY = {
    "arch": "9.0a",
    "name": "m",
    "generator": "a.b:c",
    "args": [1],
    "sha256": hashlib.sha256(CONTENT).hexdigest(),
    "cuda": None,
    "library": "",
    "version": None,
}


def manifest(entry: dict[str, Any] | None = None, **changes: object) -> bytes:
    whole = {"layout": 3, "isa": platform.machine(), "modules": [{**ENTRY, **(entry or {})}]}
    return json.dumps({**whole, **changes}).encode()


def an_archive(path: Path, *members: tuple[str, bytes] | tuple[str, bytes, bytes, str]) -> str:
    with tarfile.open(path, "w") as tar:
        for name, content, *kind in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            if kind:
                member.type, member.linkname = kind  # type: ignore[assignment]
            tar.addfile(member, io.BytesIO(content))
    return str(path)


HOSTILE = {
    "no object": b"[]",
    "null": b"null",
    "a number": b"3",
    "no JSON": b"\xff",
    "brackets without end": b"[" * 100_000,
    "a number without end": b'{"layout": ' + b"9" * 5000 + b"}",
    "a layout that is a list": manifest(layout=[2]),
    "an instruction set that is a list": manifest(isa=[1]),
    "no modules": manifest(modules=None),
    "modules that are a mapping": manifest(modules={"a": 1}),
    "modules that are numbers": manifest(modules=[1]),
    "a module twice": manifest(modules=[ENTRY, ENTRY]),
    "an older layout": manifest(layout=2),
    "an absolute folder": manifest({"arch": "/etc"}),
    "a folder above": manifest({"arch": ".."}),
    "an absolute name": manifest({"name": "/tmp/x"}),
    "a name above": manifest({"name": "../../x"}),
    "a name that is a list": manifest({"name": [1]}),
    "no architecture": manifest({"arch": None}),
    "arguments of lists": manifest({"args": [[1]]}),
    "arguments that are text": manifest({"args": "abc"}),
    "a checksum that is a number": manifest({"sha256": 3}),
    "a generator that is a path": manifest({"generator": "../x:y"}),
    "a generator that is a list": manifest({"generator": ["x"]}),
    "no version": json.dumps(
        {"layout": 3, "isa": platform.machine(), "modules": [{k: v for k, v in ENTRY.items() if k != "version"}]}
    ).encode(),
    "a version that is a path": manifest({"library": "l", "version": "1/../../x"}),
    "a version that is a list": manifest({"library": "l", "version": ["1"]}),
    "a library that is a path": manifest({"library": "../l", "version": "1"}),
    "a CUDA that is a path": manifest({"library": "l", "version": "1", "cuda": "/x"}),
    "a place twice": manifest(modules=[{**ENTRY, "library": "l", "version": "1-2"}, {**ENTRY, "library": "l-1", "version": "2"}]),
    "no layout of ours": manifest(layout=4),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_manifest_is_refused(tmp_path: Path, what: str):
    path = an_archive(tmp_path / "m.tar", ("manifest.json", HOSTILE[what]), ("none/9.0a/m/m.so", CONTENT))
    before = Path(path).read_bytes()

    def of_environment() -> object:
        return archive.read_fitting(path, {"cuda": None}, ["9.0a"])

    for use in (
        lambda: archive.read(path, {}),
        lambda: archive.read(path, {}, []),
        lambda: archive.write(path, {}, {}),
        of_environment,
    ):
        with pytest.raises(UserError, match=r"modules='.*manifest|modules='.*made for isa") as refused:
            use()
        assert "Error" not in str(refused.value) and "' object" not in str(refused.value)
    assert Path(path).read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["m.tar"]


LINK, HARD, FOLDER = tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE
MEMBERS: dict[str, list[Any]] = {
    "a manifest that is a link": [("manifest.json", b"", LINK, "/etc/passwd")],
    "a manifest that links to itself": [("manifest.json", b"", LINK, "manifest.json")],
    "a manifest that is a folder": [("manifest.json", b"", FOLDER, "")],
    "a module that is a link": [("manifest.json", manifest()), ("none/9.0a/m/m.so", b"", LINK, "/etc/passwd")],
    "a module that is a hard link": [("manifest.json", manifest()), ("none/9.0a/m/m.so", b"", HARD, "manifest.json")],
    "an absolute member": [("manifest.json", manifest()), ("/etc/x", b"x"), ("none/9.0a/m/m.so", CONTENT)],
    "a member above": [("manifest.json", manifest()), ("../x", b"x"), ("none/9.0a/m/m.so", CONTENT)],
    "a member twice": [("manifest.json", manifest()), ("none/9.0a/m/m.so", CONTENT), ("none/9.0a/m/m.so", CONTENT)],
    "other bytes": [("manifest.json", manifest()), ("none/9.0a/m/m.so", b"other")],
}


@pytest.mark.parametrize("what", MEMBERS)
def test_a_hostile_member_is_refused(tmp_path: Path, what: str):
    with pytest.raises(UserError, match="make it again with mode=compile"):
        archive.read(an_archive(tmp_path / "m.tar", *MEMBERS[what]), {})


def test_a_manifest_that_says_it_is_huge_is_not_read(tmp_path: Path):
    header = tarfile.TarInfo("manifest.json")
    header.size = 1 << 40
    (tmp_path / "m.tar").write_bytes(header.tobuf() + b"\0" * 10_240)

    with pytest.raises(UserError, match=r"1,099,511,627,776 bytes; allowed: up to|cannot be read"):
        archive.read(str(tmp_path / "m.tar"), {})


def test_an_archive_that_is_a_fifo_or_a_folder_is_refused(tmp_path: Path):
    os.mkfifo(tmp_path / "fifo.tar")
    (tmp_path / "folder.tar").mkdir()

    for name in ("fifo.tar", "folder.tar"):
        with pytest.raises(UserError, match="a plain file is needed"):
            archive.read(str(tmp_path / name), {})


def test_the_one_that_they_are_made_of_is_read(tmp_path: Path):
    path = an_archive(tmp_path / "m.tar", ("manifest.json", manifest()), ("none/9.0a/m/m.so", CONTENT))

    assert archive.read(path, {}) == {("9.0a", Module("a.b:c", (1,))): Library("m", CONTENT)}


@pytest.mark.parametrize(("arch", "name"), [("..", "m"), ("9.0a", "../m"), ("9.0a", "/tmp/m"), ("9.0a", ".."), ("9.0a", "")])
def test_no_module_is_installed_out_of_its_folder(arch: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    with pytest.raises(ValueError, match="whose names are no paths"):
        module_cache.install(arch, Library(name, CONTENT))
    assert list(tmp_path.rglob("*.so")) == []
