"""Compiled modules in one file: what goes in comes out, and what does not fit is refused with words."""

from __future__ import annotations

import io
import json
import os
import pickle
import platform
import random
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from kernels.adapter import Module
from kernels.compile.build import _stub_driver, build, find_nvcc
from kernels.compile.module_cache import Library, install
from kernels.contract.toolchain import Toolchain
from kernels.libraries.flashinfer_modules import FLASHINFER
from orchestrator import ROOT
from orchestrator.errors import UserError
from orchestrator.planning.plan import ModuleKey
from orchestrator.scheduling import archive
from orchestrator.scheduling.archive import LAYOUT, load_archive
from tests.helpers.command_line import environment, run

ONE, OTHER = ("9.0a", Module("a.b:c", ("bf16", 64, True), FLASHINFER)), ("10.0a", Module("a.b:c", ("bf16", 64, True), FLASHINFER))
HERE, LATER = {"flashinfer-python": "0.7.2"}, {"flashinfer-python": "0.8.0"}
MODULES: dict[ModuleKey, Library] = {
    ONE: Library("m_64", b"\x7fELF one libcudart.so.13\0" * 1000),
    OTHER: Library("m_64", b"\x7fELF other"),
}


@pytest.mark.parametrize("name", ["m.tar", "m.tar.gz", "m.tar.xz"])
def test_what_goes_in_comes_out(name: str, tmp_path: Path):
    path = str(tmp_path / "new" / name)

    assert archive.write(path, MODULES, HERE) == {"flashinfer-python 0.7.2": 2}
    assert archive.read(path, HERE) == MODULES
    assert archive.read(path, HERE, [ONE, ("9.0a", Module("no:such", ()))]) == {ONE: MODULES[ONE]}


def test_a_second_sweep_adds_its_modules(tmp_path: Path):
    path = str(tmp_path / "m.tar")
    archive.write(path, {ONE: MODULES[ONE]}, HERE)

    assert archive.write(path, {OTHER: MODULES[OTHER]}, HERE) == {"flashinfer-python 0.7.2": 2}
    assert archive.read(path, HERE) == MODULES


def test_modules_that_share_a_file_are_all_found_and_the_file_is_there_once(tmp_path: Path):
    """FlashInfer gives XQA's modules for a chain and for a tree one name."""
    path = str(tmp_path / "m.tar")
    chain, tree = (("9.0a", Module("a.b:c", ("bf16", 64, of_tree), FLASHINFER)) for of_tree in (False, True))
    modules = {chain: MODULES[ONE], tree: MODULES[ONE]}

    assert archive.write(path, modules, HERE) == {"flashinfer-python 0.7.2": 2}
    assert archive.read(path, HERE) == modules
    assert archive.read(path, HERE, [tree]) == {tree: MODULES[ONE]}
    assert archive.write(path, {OTHER: MODULES[OTHER]}, HERE) == {"flashinfer-python 0.7.2": 3}
    with tarfile.open(path) as tar:
        assert len(tar.getnames()) == 3  # with the manifest


def test_a_manifest_with_two_checksums_of_one_file_is_refused(tmp_path: Path):
    path = tmp_path / "m.tar"
    entry = {"arch": "9.0a", "name": "m", "generator": "a.b:c", "args": [1], "cuda": None, "library": "", "version": None}
    entries = [{**entry, "sha256": "0" * 64}, {**entry, "args": [2], "sha256": "1" * 64}]
    manifest = json.dumps({"layout": LAYOUT, "isa": platform.machine(), "modules": entries}).encode()
    with tarfile.open(path, "w") as tar:
        part = tarfile.TarInfo("manifest.json")
        part.size = len(manifest)
        tar.addfile(part, io.BytesIO(manifest))

    with pytest.raises(UserError, match=r"its manifest has two checksums of 'none/9\.0a/m/m\.so'"):
        archive.read(str(path), HERE)


def test_another_flashinfer_is_refused_and_can_be_added(tmp_path: Path):
    path = str(tmp_path / "m.tar")
    archive.write(path, MODULES, HERE)
    with pytest.raises(UserError, match=r"made for flashinfer-python 0\.7\.2, and here it is 0\.8\.0; make it again"):
        archive.read(path, LATER)

    newer = {ONE: Library("m_64", b"\x7fELF newer")}
    assert archive.write(path, newer, LATER) == {"flashinfer-python 0.7.2": 2, "flashinfer-python 0.8.0": 1}
    assert archive.read(path, LATER) == newer and archive.read(path, HERE) == MODULES
    with pytest.raises(UserError, match=r"made for flashinfer-python 0\.7\.2 and 0\.8\.0, and here it is 0\.9\.0"):
        archive.read(path, {"flashinfer-python": "0.9.0"})


def test_an_environment_gets_the_modules_of_its_own_versions_and_cuda(tmp_path: Path):
    path = str(tmp_path / "m.tar")
    of_cuda = {cuda: {ONE: Library("m_64", f"libcudart.so.{cuda}\0".encode())} for cuda in ("12", "13")}
    for modules, versions in ((MODULES, LATER), (of_cuda["12"], HERE), (of_cuda["13"], HERE)):
        archive.write(path, modules, versions)

    def there(version: str, cuda: str, *archs: str) -> dict[ModuleKey, Library]:
        return archive.read_fitting(path, {"flashinfer-python": version, "cuda": cuda}, archs)

    assert there("0.7.2", "12.8", "9.0a") == of_cuda["12"] and there("0.7.2", "13.0", "9.0a", "10.0a") == of_cuda["13"]
    assert there("0.8.0", "13.0", "9.0a", "10.0a") == MODULES and there("0.8.0", "12.8", "9.0a", "10.0a") == {OTHER: MODULES[OTHER]}
    assert there("0.9.0", "13.0", "9.0a") == {} == archive.read_fitting(None, {}, [])
    assert archive.read(path, HERE, [ONE], cuda="12.8") == of_cuda["12"]
    assert [module.toolchain.library for _, module in there("0.8.0", "13.0", "9.0a")] == ["flashinfer-python"]


@dataclass(frozen=True)
class OtherToolchain(Toolchain):
    library: str = "another-library"


FROM_OTHER = ("9.0a", Module("other:make", (8,), OtherToolchain()))
OF_NONE = ("9.0a", Module("mine:make", ()))
MANY: dict[ModuleKey, Library] = {**MODULES, FROM_OTHER: Library("o", b"other"), OF_NONE: Library("n", b"none")}


def test_modules_of_several_libraries_go_by_their_own_versions(tmp_path: Path):
    path, both = str(tmp_path / "m.tar"), {**HERE, "another-library": "1"}

    counts = {"another-library 1": 1, "flashinfer-python 0.7.2": 2, "no library": 1}
    assert archive.write(path, MANY, both) == counts
    assert archive.read(path, both) == MANY
    assert archive.read(path, {**LATER, "another-library": "1"}, [FROM_OTHER, OF_NONE]) == {
        key: MANY[key] for key in (FROM_OTHER, OF_NONE)
    }
    for versions, words in (
        ({**HERE, "another-library": "2"}, "here it is 2; .* under another-library 2"),
        (HERE, "not installed"),
    ):
        with pytest.raises(UserError, match=f"made for another-library 1, and .*{words}"):
            archive.read(path, versions, [ONE, FROM_OTHER])
    assert archive.write(path, {}, both) == counts  # what it had stays of its library


def test_a_damaged_module_is_named(tmp_path: Path):
    path = tmp_path / "m.tar"
    archive.write(str(path), MODULES, HERE)
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"\x7fELF one", b"\x7fELF oNe", 1))
    assert path.read_bytes() != whole
    with pytest.raises(UserError, match=r"flashinfer-python-0\.7\.2-cu13/9\.0a/m_64/m_64\.so is damaged"):
        archive.read(str(path), HERE)

    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"m\.tar'.*make it again with mode=compile"):
        archive.read(str(path), HERE)


@pytest.mark.parametrize("name", ["m.tar", "m.tar.gz", "m.tar.xz"])
def test_a_byte_changed_anywhere_is_refused_with_words_or_changes_nothing(name: str, tmp_path: Path):
    path = tmp_path / name
    archive.write(str(path), {ONE: Library("m_64", random.Random(0).randbytes(5000))}, HERE)
    present, whole = archive.read(str(path), HERE), path.read_bytes()
    refused = 0
    for at in range(0, len(whole), len(whole) // 60):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        try:
            assert archive.read(str(path), HERE) == present
        except UserError as error:
            refused += 1
            assert str(path) in str(error) and "mode=compile" in str(error)

    assert refused > 25


def test_modules_of_another_cuda_than_torch_are_refused(tmp_path: Path):
    path = str(tmp_path / "m.tar")
    archive.write(path, MODULES, HERE)

    assert archive.read(path, HERE, cuda="13.2") == MODULES
    assert archive.read(path, HERE, [OTHER], cuda="12.8") == {OTHER: MODULES[OTHER]}  # that one asks for none
    with pytest.raises(UserError, match=r"m_64 was compiled with CUDA 13, and torch has CUDA 12\.8 .* nvcc of CUDA 12\.8"):
        archive.read(path, HERE, cuda="12.8")


def test_an_archive_must_fit_every_machine_of_a_run(tmp_path: Path):
    path = str(tmp_path / "m.tar")
    archive.write(path, MODULES, HERE)
    old, new = ({**HERE, "cuda": cuda} for cuda in ("12.8", "13.0"))

    assert load_archive(None, [new], [ONE]) == {}
    assert load_archive(path, [new], [ONE]) == {ONE: MODULES[ONE]}
    for machines in ([new, old], [old, new]):
        with pytest.raises(UserError, match=r"torch has CUDA 12\.8"):
            load_archive(path, machines, [ONE])
    with pytest.raises(UserError, match=r"made for flashinfer-python 0\.7\.2, and here it is 0\.8\.0"):
        load_archive(path, [new, {**new, **LATER}], [ONE])


def test_an_archive_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path):
    (tmp_path / "m.tar").mkdir()  # a folder, which a file cannot replace
    with pytest.raises(UserError, match="cannot be "):
        archive.write(str(tmp_path / "m.tar"), MODULES, HERE)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot be written .*; type a file in a folder that is yours"):
        archive.write(str(tmp_path / "file" / "m.tar"), MODULES, HERE)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "m.tar"]


def test_a_file_of_something_else_is_refused(tmp_path: Path):
    text, other = tmp_path / "text.tar", tmp_path / "other.tar"
    text.write_text("no archive at all")
    with tarfile.open(other, "w") as tar:
        tar.addfile(tarfile.TarInfo("readme"), io.BytesIO())

    with pytest.raises(UserError, match="cannot be read"):
        archive.read(str(text), HERE)
    with pytest.raises(UserError, match=r"it holds no manifest\.json"):
        archive.read(str(other), HERE)
    with pytest.raises(UserError, match="no such file; make it on a machine with nvcc"):
        archive.read(str(tmp_path / "none.tar"), HERE)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["modules=m.zip"], ["modules='m.zip'"]),
        (
            ["modules=/no/such.tar.xz", "adapters=[tests.backends.compiling]", "sweep.backend=[compiled]"],
            ["no such file", "mode=compile"],
        ),
    ],
)
def test_a_wrong_archive_ends_with_code_2_before_anything_runs(args: list[str], words: list[str], tmp_path: Path):
    done = run("+sweep=smoke", "cluster=inline", "timing=quick", f"results.path={tmp_path}", *args)

    assert done.returncode == 2, done.stdout
    assert all(word in done.stderr for word in words)
    assert "Traceback" not in done.stderr


SMALLEST = Module("tests.backends.small_cuda:gen_small_module", (), FLASHINFER)
SPELLED = f"Module({SMALLEST.generator!r}, {SMALLEST.args!r}, FLASHINFER)"
LOAD = """
import sys
from kernels.adapter import Module
from kernels.compile import module_cache
from kernels.libraries.flashinfer_modules import FLASHINFER
from flashinfer.jit import env
from tests.backends.small_cuda import gen_small_module
module_cache.look_for([%s], "9.0a")
spec = gen_small_module()
assert spec.is_aot and spec.try_load() is not None, spec.aot_path
print(spec.aot_path)
"""


@pytest.mark.skipif(find_nvcc() is None, reason="no nvcc: nothing can be compiled here")
@pytest.mark.timeout(900)
def test_a_machine_without_a_compiler_loads_modules_from_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    code = (
        "import pickle, sys; from kernels.adapter import Module; from kernels.compile.build import build\n"
        "from kernels.libraries.flashinfer_modules import FLASHINFER\n"
        f"sys.stdout.buffer.write(pickle.dumps(build({SPELLED}, '9.0a')))"
    )
    here = environment() | {"FLASHINFER_WORKSPACE_BASE": str(tmp_path / "compiled")}
    made = subprocess.run([sys.executable, "-c", code], env=here, cwd=ROOT, capture_output=True, check=True)

    built = pickle.loads(made.stdout)
    assert built.error is None, built.error
    path = str(tmp_path / "m.tar.xz")
    archive.write(path, {("9.0a", SMALLEST): built.library}, HERE)
    (library,) = archive.read(path, HERE).values()
    said = subprocess.run([str(find_nvcc()), "--version"], capture_output=True, text=True, check=True).stdout
    assert f"release {library.cuda}." in said
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "there"))
    install("9.0a", library, FLASHINFER)
    (tmp_path / "libcuda.so.1").symlink_to(Path(_stub_driver()) / "libcuda.so")  # for machines without a driver
    nothing = {
        "LD_LIBRARY_PATH": f"{os.environ.get('LD_LIBRARY_PATH', '')}:{tmp_path}:/usr/local/cuda/lib64",
        "FLASHINFER_DISABLE_JIT": "1",
        "FLASHINFER_WORKSPACE_BASE": str(tmp_path / "empty"),
        "FLASHINFER_CUDA_ARCH_LIST": "9.0a",
    }
    loaded = subprocess.run(
        [sys.executable, "-c", LOAD % SPELLED],
        env={**os.environ, **environment(), **nothing},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert str(tmp_path / "there") in loaded.stdout, loaded.stderr


KEPT = """
import sys
from kernels.adapter import Module
from kernels.compile.build import build, find_nvcc
from kernels.compile.module_cache import Library, install, kept
from kernels.libraries.flashinfer_modules import FLASHINFER
module = %s
name = module.spec().name
install("9.0a", Library(name, b"from the archive"), FLASHINFER)
assert find_nvcc(), "this needs what may be mistaken for a compiler"
built = build(module, "9.0a")
print(built.error, built.library.content, built.library.name == name)
"""


def test_a_module_that_came_in_an_archive_is_found_again_where_there_is_a_compiler(tmp_path: Path):
    (tmp_path / "bin").mkdir()
    nvcc = tmp_path / "bin" / "nvcc"  # fails if it is asked to compile
    nvcc.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 13.0, V13.0.48'; test \"$1\" = --version\n")
    nvcc.chmod(0o755)
    here = {**os.environ, **environment(), "FLASHINFER_CUDA_ARCH_LIST": "9.0a", "CUDA_HOME": str(tmp_path)}
    here |= {"XDG_CACHE_HOME": str(tmp_path / "cache"), "FLASHINFER_WORKSPACE_BASE": str(tmp_path / "compiled")}
    done = subprocess.run([sys.executable, "-c", KEPT % SPELLED], env=here, cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.stdout.split("\n")[-2:] == ["None b'from the archive' True", ""], done.stderr


def test_without_a_compiler_the_words_say_where_to_compile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    for variable in ("FLASHINFER_CUDA_ARCH_LIST", "LIBRARY_PATH", "CPATH", "FLASHINFER_EXTRA_LDFLAGS"):
        monkeypatch.setenv(variable, os.environ.get(variable, ""))
    monkeypatch.setattr("kernels.compile.build.find_nvcc", lambda: None)
    built = build(Module("tests.backends.compiling:Spec", ("broken",)), "9.0a")

    assert built.error is not None
    assert built.error.startswith("mha.cu(7): error") and "there is no nvcc here: compile on a machine that has it" in built.error
