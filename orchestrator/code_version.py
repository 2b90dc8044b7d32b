"""Which code made a row: the version of this project, and a hash of the plugin that a backend comes from. Imports no plugin."""

from __future__ import annotations

import ast
import hashlib
import os
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from orchestrator import PACKAGED, ROOT

COMMIT_VARIABLE = "ORCHESTRATOR_COMMIT"  # for images that carry the code without its .git
COMMIT_FILE = "COMMIT"  # of an installed copy; setup.py writes it
OWN_FOLDERS = ("kernels", "orchestrator")
HASH_DIGITS = 8
OF_PLUGIN = rf"[^y][.][0-9a-f]{{{HASH_DIGITS}}}$"  # of a row's version; the hash of edited files follows `.dirty`


@cache
def own_version() -> str:
    """This project's version with its git commit, and a hash of the code if files differ: an edited backend is another one."""
    base, commit = _release(), os.environ.get(COMMIT_VARIABLE)
    changed: str | None = None
    if commit is None and (ROOT / ".git").exists():
        commit = (_git("rev-parse", "--short=12", "HEAD") or "").strip() or None
        changed = _git("status", "--porcelain", "--", *OWN_FOLDERS)
    if commit is None and PACKAGED and (ROOT / COMMIT_FILE).is_file():
        commit = (ROOT / COMMIT_FILE).read_text(encoding="utf-8")
    known = f"{base}+g{commit}" if commit else base
    if not changed:
        return known
    return f"{known}.dirty.{_hash(sorted(path for folder in OWN_FOLDERS for path in (ROOT / folder).rglob('*.py')))}"


@cache
def plugin_code(module: str) -> str:
    """A hash of a plugin's code with its helper files, 8 hex digits; empty for a module that `own_version` covers.

    Helper files lie in the plugin's own folder: modules that it imports, and files that a string in its source names, such as
    "mine.cu". What these import and name counts too.
    """
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        return ""
    file = Path(spec.origin).resolve()
    if any(file.is_relative_to(ROOT / folder) for folder in OWN_FOLDERS):
        return ""
    package = module if spec.submodule_search_locations is not None else module.rpartition(".")[0]
    return _hash(sorted(_with_helpers(file, package)))


def with_plugin(own: str, code: str) -> str:
    """The version of a row whose backend comes from a plugin with this hash; without a hash it is the project's own."""
    return f"{own}.{code}" if code else own


def _release() -> str:
    try:
        return version("attention-orchestrator")
    except PackageNotFoundError:
        return "unknown"


def _git(*args: str) -> str | None:
    try:
        return subprocess.run(["git", "-C", str(ROOT), *args], capture_output=True, text=True, check=True, timeout=10).stdout
    except (OSError, subprocess.SubprocessError):
        return None


def _hash(files: list[Path]) -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:HASH_DIGITS]


def _with_helpers(file: Path, package: str) -> set[Path]:
    """A plugin's file and all its helper files. `package` is the dotted name of the folder that it lies in, or empty."""
    found: set[Path] = set()
    start = [file, file.parent / "__init__.py"] if package else [file]
    waiting = [path for path in start if path.is_file()]
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found.add(path)
        if path.suffix == ".py":
            waiting += _named_in(path, file.parent, package)
    return found


def _named_in(path: Path, folder: Path, package: str) -> Iterator[Path]:
    """The files under `folder` that a source file imports or names."""
    here = [*filter(None, package.split(".")), *path.relative_to(folder).parts[:-1]]  # the package that the file is in
    try:
        tree = ast.parse(path.read_bytes())
    except SyntaxError:  # its own content is in the hash, and importing it says what is wrong
        return
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield from _files_of(alias.name.split("."), folder, package)
            case ast.ImportFrom(module=module, names=names, level=level):
                base = here[: len(here) - level + 1] if level else []
                source = [*base, *(module.split(".") if module else [])]
                for alias in names:  # each name may be a module itself
                    yield from _files_of([*source, alias.name], folder, package)
            case ast.Constant(value=str(text)):
                yield from _files_of_text(text, path.parent, folder, package)


def _files_of(name: list[str], folder: Path, package: str) -> Iterator[Path]:
    """The files of a dotted name and of the packages on the way to it, so far as they lie under `folder`."""
    outer = package.split(".") if package else []
    if name[: len(outer)] != outer:
        return
    place = folder
    for part in name[len(outer) :]:
        place /= part
        yield from (path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file())


def _files_of_text(text: str, origin: Path, folder: Path, package: str) -> Iterator[Path]:
    """A file that a string names, such as "mine.cu", or the module of a generator, such as "mine_build:spec"."""
    if re.fullmatch(r"[\w.]+:\w+", text):
        yield from _files_of(text.partition(":")[0].split("."), folder, package)
    elif re.fullmatch(r"[\w./-]{1,200}\.\w+", text):
        path = (origin / text).resolve()
        if path.is_relative_to(folder) and path.is_file():
            yield path
