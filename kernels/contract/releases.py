"""Releases of kernel libraries: for which of them a support rule is known, and what came with which. Imports no kernel library."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

Versions = Mapping[str, str | None]  # by the name of a distribution; None: not installed


@dataclass(frozen=True)
class Since:
    """What a library has since a release, and whether a problem asks for it. `what` continues "... or later for"."""

    release: str
    what: str
    asked: bool


def installed(distributions: Iterable[str]) -> Versions:
    """The versions of these distributions in this very process; None for one that is not installed."""
    found: dict[str, str | None] = {}
    for name in distributions:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def requirements(names: Iterable[str], rules: Iterable[str]) -> tuple[str, ...]:
    """What pip is asked for to have these: the bounds that rules name, such as `vllm>=0.32.0,<0.33`, or any release."""
    bounds = [(name_of(rule), rule) for rule in rules]
    return tuple(one for name in names for one in [rule for of, rule in bounds if of == name] or [name])


def is_from(installed_version: str, release: str) -> bool:
    """Whether a version is that release or a later one. A version that is no version number is taken for a later one."""
    from packaging.version import InvalidVersion, Version

    try:
        return Version(installed_version) >= Version(release)
    except InvalidVersion:
        return True


def name_of(requirement: str) -> str:
    """The distribution that a requirement such as `flashinfer-python>=0.6.0,<0.8` is about."""
    from packaging.requirements import Requirement

    return Requirement(requirement).name


def meets(requirement: str, installed_version: str) -> bool:
    """Whether a version meets a requirement. A pre-release counts like a release, and what is no version number does not."""
    from packaging.requirements import Requirement
    from packaging.version import InvalidVersion, Version

    try:
        return Requirement(requirement).specifier.contains(Version(installed_version), prereleases=True)
    except InvalidVersion:
        return False
