"""The releases of a library between two, from a package index or a folder of wheels."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name, parse_sdist_filename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from orchestrator.config import environment
from orchestrator.errors import UserError
from orchestrator.untrusted.door import from_json, reading

SIMPLE_JSON = "application/vnd.pypi.simple.v1+json"  # PEP 691
INDEX_VARIABLES = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL")  # as uv and pip read them
SECONDS = 30


@dataclass(frozen=True)
class Release:
    """A release, and whether its publisher has taken all of its files back."""

    version: str
    yanked: bool = False

    @property
    def order(self) -> Version:
        return Version(self.version)


@dataclass(frozen=True)
class Range:
    """The releases from the good to the bad one, in this order, and those left out in between, with why."""

    distribution: str
    versions: tuple[str, ...]
    left_out: tuple[tuple[str, str], ...] = ()


def parsed(key: str, typed: str | None) -> tuple[str, str]:
    """Distribution and version of `good=flashinfer:0.5.3`, in any spelling. Raises UserError for anything else."""
    found = environment.parsed(typed or "")
    try:
        if found is not None:
            return canonicalize_name(found.distribution), str(Version(found.version))
    except InvalidVersion:
        pass
    raise UserError(f"{key}={typed}: allowed: a library with its version; type {key}=flashinfer:0.6.3")


def between(
    good: str | None, bad: str | None, known: Iterable[Release], *,
    pre: bool = False, yanked: bool = False, where: str = "the index", key: str = "good",
) -> Range:  # fmt: skip
    """The releases from `good` to `bad`, both included, in this direction: the bad one may be the older.

    Pre-releases and those taken back are left out unless they are asked for, or are one of the two. Raises UserError if the two
    are not releases of one distribution, or are the same; `key` is that of the good one.
    """
    (name, first), (other, last) = parsed(key, good), parsed("bad", bad)
    if name != other:
        raise UserError(f"bad={bad}: good={good} is a release of {name}; allowed: two releases of one distribution")
    by_order = {release.order: release for release in known}
    for typed, version in ((key, first), ("bad", last)):
        if Version(version) not in by_order:
            listed = ", ".join(by_order[order].version for order in sorted(by_order)[-12:])
            raise UserError(f"{typed}={name}:{version}: {where} has no such release; it has {listed or 'none'}")
    if Version(first) == Version(last):
        raise UserError(f"bad={bad}: good is the same release; type another one")
    low, high = sorted((Version(first), Version(last)))
    inside = [by_order[order] for order in sorted(by_order) if low <= order <= high]
    told = [(one.version, "" if one.order in (low, high) else _why_not(one, pre, yanked)) for one in inside]
    chosen = [version for version, why in told if not why]
    return Range(name, tuple(chosen if low == Version(first) else reversed(chosen)), tuple(of for of in told if of[1]))


def _why_not(release: Release, pre: bool, yanked: bool) -> str:
    """Why a release that nobody named is left out; empty if it is not."""
    return "a pre-release" if release.order.is_prerelease and not pre else "taken back" if release.yanked and not yanked else ""


def since(first: str, known: Sequence[Release], is_here: bool, where: str, *, pre: bool = False, yanked: bool = False) -> Range:
    """The releases from the first one on, which may be unknown if it is installed here. Raises UserError as `between` does."""
    name, version = parsed("watch.since", first)
    newest = max((one.order for one in known if not _why_not(one, pre, yanked)), default=Version(version))
    if newest <= Version(version) and (is_here or any(one.order == Version(version) for one in known)):
        return Range(name, (version,))
    return between(first, f"{name}:{newest}", known, pre=pre, yanked=yanked, where=where, key="watch.since")


def find(name: str, mode: str, wheels: str | None) -> tuple[list[Release], str]:
    """The releases of a distribution, and where they are: a folder of wheels, or the package index.

    Raises UserError if there is no such folder, and if the index does not list them. `mode` is that whose keys it names.
    """
    return (of_folder(name, wheels, mode), wheels) if wheels else (of_index(name, mode), "the package index")


def of_folder(name: str, folder: str, mode: str = "bisect") -> list[Release]:
    """The releases of a distribution that a folder has wheels of. Raises UserError if there is no such folder."""
    if not Path(folder).is_dir():
        raise UserError(f"{mode}.wheels={folder}: no such folder; type the folder that has the wheels of all releases")
    names = [path.name for path in Path(folder).iterdir()]
    return _of_files({"filename": one} for one in names if canonicalize_name(one.partition("-")[0]) == canonicalize_name(name))


def index(environment: Mapping[str, str] = os.environ) -> str:
    """The package index that uv or pip use here, by variables or pip's files. Raises UserError if there is no pip here to ask."""
    if named := next((environment[variable] for variable in INDEX_VARIABLES if environment.get(variable)), None):
        return named
    configured = _pip("config", "list")  # "global.index-url='https://...'", of a command after that of all
    if lines := re.findall(r"^(?:global|index|install)\.index-url='(.*)'$", configured, re.MULTILINE):
        return str(lines[-1])
    default = re.search(r"Base URL of the Python Package\s+Index\s+\(default\s+(\S+?)\)", _pip("help", "install"))
    if default is None:
        variables = ", ".join(INDEX_VARIABLES)
        raise UserError(f"no package index is named: set one of {variables}, or type bisect.wheels=FOLDER or watch.wheels")
    return default[1]


def _pip(*words: str) -> str:
    """What pip prints, empty if there is none here."""
    asked = [sys.executable, "-m", "pip", "--disable-pip-version-check", *words]
    return subprocess.run(asked, capture_output=True, text=True, check=False, timeout=SECONDS).stdout


def of_index(name: str, mode: str = "bisect", environment: Mapping[str, str] = os.environ) -> list[Release]:
    """The releases of a distribution on the package index that pip or uv use here. Raises UserError if it does not answer."""
    address = f"{index(environment).rstrip('/')}/{canonicalize_name(name)}/"
    asked = urllib.request.Request(address, headers={"Accept": f"{SIMPLE_JSON}, text/html;q=0.1"})
    without = f"without an index, type {mode}.wheels=FOLDER with the wheels of all releases"
    with (
        reading(f"mode={mode}: the package index does not list {name}", without),
        urllib.request.urlopen(asked, timeout=SECONDS) as answer,
    ):
        content, is_json = answer.read(), "json" in answer.headers.get_content_type()
        return _of_files(from_json(content)["files"] if is_json else _of_html(content.decode(errors="replace")))


def _of_html(page: str) -> Iterator[Mapping[str, Any]]:
    """The files of an index that answers in HTML only (PEP 503)."""
    for attributes, name in re.findall(r"<a\b([^>]*)>([^<]+)</a>", page):
        yield {"filename": name.strip(), "yanked": "data-yanked" in attributes}


def _of_files(files: Iterable[Mapping[str, Any]]) -> list[Release]:
    """One release for each version of these files. It is taken back if all of its files are (`yanked` may hold a reason)."""
    yanked: dict[Version, bool] = {}
    for file in files:
        if (version := _version_of(str(file["filename"]))) is not None:
            yanked[version] = yanked.get(version, True) and bool(file.get("yanked", False))
    return [Release(str(version), taken_back) for version, taken_back in sorted(yanked.items())]


def _version_of(filename: str) -> Version | None:
    try:
        return parse_wheel_filename(filename)[1] if filename.endswith(".whl") else parse_sdist_filename(filename)[1]
    except ValueError:  # the base of all that they raise
        return None
