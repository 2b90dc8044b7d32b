"""Wheels of a library that exists in tests alone, and environments made of them."""

from __future__ import annotations

import zipfile
from pathlib import Path

from kernels.engines.flags import ENGINES

LIBRARY = "ao-fakekernel"
SOURCE = '''
"""A kernel library in two versions: in the second, some kernels are broken."""
import os, signal, time

VERSION = {version!r}


def run(kernel, out):
    """Runs after the right answer is in `out`."""
    if VERSION.startswith("1"):
        return
    if kernel == "crashes":
        os.kill(os.getpid(), signal.SIGSEGV)
    if kernel == "hangs":
        time.sleep(1e6)
    if kernel == "turns_wrong":
        out.mul_(1.5)
'''


def write_engine(folder: Path, engine: str = "vllm", release: str | None = None) -> Path:
    """A wheel of the stand-in for an engine. Unpacked it is a folder for PYTHONPATH."""
    here, version = Path(__file__).parent, release or ENGINES[engine]
    info = f"{engine}-{version}.dist-info"
    files = {
        str(file.relative_to(here / f"fake_{engine}")): file.read_text() for file in sorted((here / f"fake_{engine}").rglob("*.py"))
    }
    files["fake_gpu.py"] = (here / "fake_gpu.py").read_text()
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {engine}\nVersion: {version}\n"
    return _written(folder / f"{engine}-{version}-py3-none-any.whl", files, info)


def write_wheel(folder: Path, version: str, requires: str = "") -> None:
    """A wheel of this version, which may require something."""
    package, info = LIBRARY.replace("-", "_"), f"{LIBRARY.replace('-', '_')}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {LIBRARY}\nVersion: {version}\n" + (
        f"Requires-Dist: {requires}\n" if requires else ""
    )
    files = {f"{package}/__init__.py": SOURCE.format(version=version), f"{info}/METADATA": metadata}
    _written(folder / f"{package}-{version}-py3-none-any.whl", files, info)


def _written(path: Path, files: dict[str, str], info: str) -> Path:
    files[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = "".join(f"{name},,\n" for name in (*files, f"{info}/RECORD"))
    with zipfile.ZipFile(path, "w") as wheel:
        for name, content in {**files, f"{info}/RECORD": record}.items():
            wheel.writestr(name, content)
    return path
