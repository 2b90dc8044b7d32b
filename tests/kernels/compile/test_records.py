"""What a machine remembers of its compiled modules: found again without a build, for as long as that is right."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kernels.adapter import Module
from kernels.compile import records
from kernels.compile.build import Built, build, install
from kernels.compile.module_cache import Library, folder_of
from kernels.contract.toolchain import Toolchain
from kernels.libraries.flashinfer_modules import FLASHINFER
from orchestrator.scheduling.builds import ThreadedBuilds

ARCH = "cpu"  # of which a build needs no toolkit


@dataclass
class Spec:
    """Compiles the library's source by copying it. `name` is the module's."""

    name: str

    @property
    def compiled(self) -> Path:
        return Written.home / f"{self.name}.so"

    def build(self) -> None:
        Written.builds += 1
        self.compiled.write_bytes(b"from " + (Written.home / "source").read_bytes())

    def get_library_path(self) -> Path:
        return self.compiled


@dataclass(frozen=True)
class Written(Toolchain):
    """A library of one source, of which every module is compiled."""

    library: str = "one-source"
    home = Path()
    builds = 0

    def sources(self) -> str:
        return (self.home / "source").read_text()

    def is_compiled_here(self, spec: Any) -> bool:
        return bool(spec.compiled.is_file())


MODULE = Module(f"{__name__}:Spec", ("m",), Written())
KEY = (ARCH, MODULE)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(Written, "home", tmp_path)
    monkeypatch.setattr(Written, "builds", 0)
    (tmp_path / "source").write_text("one")
    return tmp_path


def built() -> bytes:
    """What a run of today gives its workers."""
    made = install(build(MODULE, ARCH))
    assert made.error is None and made.library is not None
    return made.library.content


def test_a_module_that_was_compiled_here_is_built_again_only_when_its_source_changes(home: Path):
    assert built() == built() == b"from one"
    assert Written.builds == 1
    (home / "source").write_text("two")

    assert records.found_again([KEY]) == {}
    assert built() == built() == b"from two"
    assert Written.builds == 2


def test_a_module_that_came_in_an_archive_is_found_again_beside_one_that_another_program_compiled(home: Path):
    install(archived())
    Spec("m").build()  # as the library does when another program uses it
    Written.builds = 0
    (home / "source").write_text("two")

    assert built() == b"from the archive"
    assert Written.builds == 0


def archived() -> Built:
    return Built(MODULE, ARCH, 0.0, library=Library("m", b"from the archive"))


@pytest.mark.parametrize("change", ["file", "gone", "record"])
def test_a_file_or_a_record_that_is_not_what_it_was_is_not_trusted(change: str):
    install(archived())
    folder = folder_of(ARCH, MODULE.toolchain)
    (record,) = (folder / ".records").iterdir()
    match change:
        case "file":
            (folder / "m" / "m.so").write_bytes(b"cut")
        case "gone":
            (folder / "m" / "m.so").unlink()
        case "record":
            record.write_text(record.read_text().replace('"m"', '"../../m"').replace('"sources": null', '"sources": 1'))

    assert records.found_again([KEY]) == {}


def test_a_source_that_changed_while_it_was_compiled_leaves_no_record(home: Path):
    records.put(ARCH, MODULE, Library("m", b"from one"), compiled_on=platform.node(), sources="older")

    assert records.found_again([KEY]) == {}


def test_a_module_from_another_machine_is_found_again_whatever_the_sources_are_here(home: Path):
    records.put(ARCH, MODULE, Library("m", b"from there"), compiled_on="another machine", sources="its own")

    assert records.found_again([KEY]) == {KEY: Library("m", b"from there")}


def test_what_is_there_is_given_at_once_and_without_a_thread():
    install(archived())
    builds = ThreadedBuilds([KEY], {}, cores=2, loaded={ARCH})

    assert [one.library for one in builds.wait(0.0)] == [Library("m", b"from the archive")]
    assert (builds.left, Written.builds) == (0, 0)


def test_an_edited_source_of_flashinfer_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    package = tmp_path / "flashinfer" / "data"
    package.mkdir(parents=True)
    (tmp_path / "flashinfer" / "__init__.py").write_text("raise RuntimeError('imported')")
    (source := package / "mha.cu").write_text("int a;")
    spec = type("Spec", (), {"origin": str(tmp_path / "flashinfer" / "__init__.py")})
    monkeypatch.setattr("kernels.libraries.flashinfer_modules.find_spec", lambda name: spec)
    before = [FLASHINFER.sources(), FLASHINFER.sources()]
    source.write_text("int abc;")
    edited = FLASHINFER.sources()
    monkeypatch.setenv("FLASHINFER_EXTRA_CUDAFLAGS", "-G")

    assert len({*before}) == 1
    assert len({before[0], edited, FLASHINFER.sources()}) == 3
