"""Compiling a module: the build's environment on a machine without a driver, and the message of a failure."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kernels.adapter import Module
from kernels.compile import build as builder
from kernels.compile.build import build
from kernels.contract.toolchain import Toolchain
from kernels.libraries.flashinfer_modules import FLASHINFER
from orchestrator import ROOT


@dataclass(frozen=True)
class Flags(Toolchain):
    """FlashInfer's environment, for specifications that are not its own."""

    def environment(self, arch: str, link_flags: str) -> dict[str, str]:
        return FLASHINFER.environment(arch, link_flags)


def named(error: str) -> Module:
    return Module("tests.helpers.build_spec:spec", (error,), Flags())


@pytest.fixture(autouse=True)
def same_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("FLASHINFER_CUDA_ARCH_LIST", "LIBRARY_PATH", "CPATH", "CUDA_HOME", "FLASHINFER_EXTRA_LDFLAGS"):
        monkeypatch.setenv(variable, os.environ.get(variable, ""))
        if not os.environ[variable]:
            monkeypatch.delenv(variable)


def test_a_module_that_builds_has_no_error():
    built = build(named(""), "9.0a")

    assert (built.error, built.arch) == (None, "9.0a")
    assert os.environ["FLASHINFER_CUDA_ARCH_LIST"] == "9.0a"


def test_a_module_that_fails_carries_the_first_error():
    log = "[1/3] nvcc mha.cu\nmha.cu(7): error: no such thing\n  1 error detected\nninja: build stopped"

    assert build(named(log), "9.0a").error == "mha.cu(7): error: no such thing 1 error detected ninja: build stopped"


def test_a_library_that_cannot_be_imported_did_not_fail_to_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "broken_library.py").write_text("raise ImportError('libbroken.so: undefined symbol: _plan')")
    monkeypatch.syspath_prepend(str(tmp_path))
    modules = [Module("broken_library:spec", (128,), toolchain) for toolchain in (Toolchain("broken-library"), Toolchain())]

    assert [one.why_missing(str(build(one, "9.0a").error)) for one in modules] == [
        "broken-library cannot be imported: libbroken.so: undefined symbol: _plan",
        "the library of spec(128) cannot be imported: libbroken.so: undefined symbol: _plan",
    ]


def test_modules_compiled_without_a_driver_still_load_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(builder, "_has_driver", lambda: False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    build(named(""), "9.0a")
    source, library = tmp_path / "m.c", tmp_path / "m.so"
    source.write_text("void cuTensorMapEncodeTiled(void); void f(void) { cuTensorMapEncodeTiled(); }")
    flags = os.environ["FLASHINFER_EXTRA_LDFLAGS"].split()
    subprocess.run(["gcc", "-shared", "-fPIC", str(source), *flags, "-o", str(library)], check=True)
    needed = subprocess.run(["readelf", "-d", str(library)], check=True, capture_output=True, text=True).stdout

    assert "libcuda.so.1" in needed


@pytest.mark.parametrize(
    ("said", "version"), [("cuda: Optional[str] = '13.0'", "13.0"), ("cuda = '12.8'", "12.8"), ("cuda = None", "None")]
)
def test_the_cuda_of_torch_is_known_without_importing_it(tmp_path: Path, said: str, version: str):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise RuntimeError('imported')")
    (tmp_path / "torch" / "version.py").write_text(f"from typing import Optional\n{said}\nhip: Optional[str] = '6.0'\n")
    code = "from kernels.compile.module_cache import cuda_of_torch; print(cuda_of_torch())"
    here = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT)))}
    done = subprocess.run([sys.executable, "-c", code], env=here, capture_output=True, text=True, check=False)

    assert done.stdout.strip() == version, done.stderr


def test_it_runs_in_a_process_that_has_imported_nothing_else():
    loaded = "{'torch', 'flashinfer'} & set(sys.modules)"
    code = f"import sys; from kernels.compile import build; assert not {loaded}; print(build.__file__)"
    found: Any = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()

    assert Path(found) == Path(builder.__file__)


NINJA = """
rule work
  command = date +"%s.%N" >> $out; sleep 0.3; date +"%s.%N" >> $out
"""
SHARED = (
    "import subprocess, sys; from kernels.compile.build import share_cores; share_cores(4); sys.exit(subprocess.call(sys.argv[1:]))"
)


def test_the_builds_of_a_process_share_its_cores_and_leave_no_file(tmp_path: Path):
    """Two of four cores are for builds. One ninja takes its own core and the two that are free."""
    (tmp_path / "build.ninja").write_text(NINJA + "".join(f"build out{i}: work\n" for i in range(8)))
    (scratch := tmp_path / "scratch").mkdir()
    ninja = Path(sys.executable).parent / "ninja"
    env = {**os.environ, "TMPDIR": str(scratch), "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", SHARED, ninja, "-C", tmp_path], env=env, check=True, capture_output=True)
    spans = [sorted(map(float, out.read_text().split())) for out in tmp_path.glob("out*")]
    at_once = max(sum(start <= moment < end for start, end in spans) for moment, _ in spans)

    assert len(spans) == 8
    assert at_once == 3
    assert list(scratch.iterdir()) == []
