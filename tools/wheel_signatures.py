"""The signatures that adapters call, in every release of a library, read from its wheels. Nothing is installed or imported.

    pip download --no-deps --dest wheels flashinfer-python==0.6.3    # for each release; the same for tokenspeed-fa3
    python tools/wheel_signatures.py wheels

It writes `tools/signatures.json`, from which `tools/releases.py` makes docs/versions.md: each with its first release, or null.
"""

from __future__ import annotations

import ast
import json
import sys
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from zipfile import ZipFile

import yaml
from packaging.utils import parse_wheel_filename
from packaging.version import Version

from orchestrator import ROOT

DATA = ROOT / "tools" / "signatures.json"

FLASHINFER = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
METHODS = ("__init__", "plan", "_plan_impl", "run", "resolved_backend", "csr", "dual")
OPERATORS = ("fwd", "get_scheduler_metadata")  # of FlashAttention-3: how many arguments its own functions hand over

Definition = ast.FunctionDef | ast.ClassDef
Found = dict[str, str | None]


class Wheel:
    """The Python files of a wheel, parsed when they are asked for."""

    def __init__(self, path: Path) -> None:
        self._zip = ZipFile(path)
        self._names = set(self._zip.namelist())
        self._parsed: dict[str, ast.Module] = {}

    def file_of(self, module: str) -> str | None:
        """The file of a module such as `flashinfer.mla`; None if there is none."""
        stem = module.replace(".", "/")
        return next((name for name in (f"{stem}.py", f"{stem}/__init__.py") if name in self._names), None)

    def tree(self, file: str) -> ast.Module:
        if file not in self._parsed:
            self._parsed[file] = ast.parse(self._zip.read(file))
        return self._parsed[file]

    def find(self, module: str, name: str) -> Definition | None:
        """What a module gives by this name, through its imports from the same package; the last definition of several."""
        if (file := self.file_of(module)) is None:
            return None
        body = [node for node in ast.walk(self.tree(file)) if isinstance(node, Definition | ast.ImportFrom)]
        own = [node for node in self.tree(file).body if isinstance(node, Definition) and node.name == name]
        if own:
            return own[-1]
        for node in body:
            names = {alias.asname or alias.name: alias.name for alias in node.names} if isinstance(node, ast.ImportFrom) else {}
            if isinstance(node, ast.ImportFrom) and node.level and (name in names or "*" in names):
                package = module.split(".") if file.endswith("__init__.py") else module.split(".")[:-1]
                parts = [*package[: len(package) - node.level + 1], *([node.module] if node.module else [])]
                found = self.find(".".join(parts), names.get(name, name))
                if found is not None:
                    return found
        return None


def signature(node: ast.FunctionDef) -> str:
    """The arguments as Python writes them, without annotations; a default that is no constant is written as None."""
    given = node.args
    for argument in (*given.posonlyargs, *given.args, *given.kwonlyargs, *filter(None, (given.vararg, given.kwarg))):
        argument.annotation = None
    given.defaults = [one if isinstance(one, ast.Constant) else ast.Constant(None) for one in given.defaults]
    given.kw_defaults = [one if one is None or isinstance(one, ast.Constant) else ast.Constant(None) for one in given.kw_defaults]
    return ast.unparse(given)


def of_flashinfer(wheel: Wheel) -> Found:
    """The signature of every function and method that adapters call, by `module:name`."""
    found: Found = {}
    for module, names in FLASHINFER.items():
        for name in names:
            node = wheel.find(f"flashinfer.{module}".rstrip("."), name)
            key = f"{module}:{name}"
            if isinstance(node, ast.ClassDef):
                found[key] = "class"
                methods = (one for one in node.body if isinstance(one, ast.FunctionDef) and one.name in METHODS)
                found |= {f"{key}.{method.name}": signature(method) for method in methods}
            else:
                found[key] = None if node is None else signature(node)
    return found


def of_flash_attn_3(wheel: Wheel) -> Found:
    """How many arguments each operator takes: as many as the library's own Python functions hand over."""
    calls = [node for node in ast.walk(wheel.tree("flash_attn_interface.py")) if isinstance(node, ast.Call)]
    counts = {node.func.attr: len(node.args) for node in calls if isinstance(node.func, ast.Attribute)}
    return {f"flash_attn_3:{name}": ", ".join(f"a{i}" for i in range(counts[name])) for name in OPERATORS}


READERS = {"flashinfer-python": of_flashinfer, "tokenspeed-fa3": of_flash_attn_3}


def read(folder: Path) -> dict[str, dict[str, object]]:
    """All wheels of a folder: the releases of each library, and what changed with which."""
    wheels: dict[str, dict[Version, Path]] = {name: {} for name in READERS}
    for path in folder.glob("*.whl"):
        name, version, *_ = parse_wheel_filename(path.name)
        if name in wheels:
            wheels[name][version] = path
    data: dict[str, dict[str, object]] = {}
    for name, found in wheels.items():
        by_release = {str(version): READERS[name](Wheel(found[version])) for version in sorted(found)}
        data[name] = {"releases": list(by_release), "signatures": changes(by_release)}
    return data


def changes(by_release: dict[str, Found]) -> dict[str, list[list[str | None]]]:
    """Each signature with the release from which on it is so."""
    keys = dict.fromkeys(key for found in by_release.values() for key in found)
    of_key = {key: [(release, found.get(key)) for release, found in by_release.items()] for key in keys}
    return {key: [[next(same)[0], text] for text, same in groupby(of, key=itemgetter(1))] for key, of in of_key.items()}


def main() -> None:
    data = read(Path(sys.argv[1]))
    DATA.write_text(json.dumps(data, indent=1) + "\n")
    print({name: len(one["releases"]) for name, one in data.items()})  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
