"""The packages that a new environment shares with the one that runs the command: torch, and others that `kernels` imports.

Torch with its CUDA libraries has gigabytes, and an environment for another FlashInfer needs the same. So it is not installed again:
a module in the environment makes only these packages importable from where they are. Nothing is written there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from orchestrator.config.environment import Environment

ROOTS = ("torch", "pydantic")
MODULE = "_attention_orchestrator_shared"
SOURCE = '''"""Finds the packages that this environment shares with another one, and no others of it."""
import importlib.machinery, sys
FOLDERS, MODULES, NAMES = {folders!r}, {modules!r}, {names!r}


class Shared(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        # The environment's own come first. A package without __init__.py, such as nvidia, has parts in both.
        return super().find_spec(name, [*sys.path, *FOLDERS]) if path is None and name in MODULES else None

    @classmethod
    def find_distributions(cls, context=None):
        import re
        from importlib.metadata import DistributionFinder, MetadataPathFinder
        wanted = None if context is None else context.name
        for one in MetadataPathFinder.find_distributions(DistributionFinder.Context(name=wanted, path=FOLDERS)):
            if re.sub("[-_.]+", "-", one.metadata["Name"]).lower() in NAMES:
                yield one


sys.meta_path.insert(0, Shared)
'''


COPIES_OF_RAY = "thirdparty_files"
# Never shared: this project, and what must have the same version as a library that may be named.
NEVER = frozenset({"attention-orchestrator", "flashinfer-cubin", "flashinfer-jit-cache"})


def packages_for(environment: Environment) -> Mapping[str, Distribution]:
    """What a new environment shares, by canonical name; nothing if it has a Python of its own or names a root."""
    named = {canonicalize_name(one.name) for one in _parsed(environment.requirements)}
    if environment.python is not None or named & set(ROOTS):
        return {}
    if environment.shares == "torch":
        return _closure()
    return {name: one for name, one in _installed_here().items() if name not in named | NEVER}


@cache
def _installed_here() -> dict[str, Distribution]:
    """All but the copies on the path of Ray's processes, which would make two environments; of two the first on the path."""
    ours = [one for one in distributions() if Path(str(one.locate_file(""))).name != COPIES_OF_RAY]
    return {canonicalize_name(one.name): one for one in reversed(ours)}


@cache
def _closure() -> dict[str, Distribution]:
    """The roots and all that they need; those that are installed here."""
    found: dict[str, Distribution] = {}
    waiting = list(ROOTS)
    while waiting:
        if (name := canonicalize_name(waiting.pop())) not in found:
            with suppress(PackageNotFoundError):
                found[name] = distribution(name)
                waiting += [one.name for one in _requirements(found[name])]
    return found


def _requirements(of: Distribution) -> list[Requirement]:
    """What a package needs here, without its extras."""
    return [one for one in _parsed(of.requires or ()) if one.marker is None or one.marker.evaluate({"extra": ""})]


def _parsed(texts: Iterable[str]) -> Iterator[Requirement]:
    """The requirements that name a package; a path, or a URL alone, names none."""
    for text in texts:
        with suppress(InvalidRequirement):
            yield Requirement(text)


def source(packages: Mapping[str, Distribution]) -> str:
    """The module that makes packages importable in another environment."""
    folders = dict.fromkeys(str(one.locate_file("")) for one in packages.values())
    modules = {name for one in packages.values() for name in _modules(one) if name.isidentifier() and name != "__pycache__"}
    return SOURCE.format(folders=list(folders), modules=sorted(modules), names=sorted(packages))


@cache
def _modules(one: Distribution) -> set[str]:
    """What a package makes importable: folders, and files without endings. `files` would make 100,000 objects."""
    lines = (one.read_text("RECORD") or "\n".join(map(str, one.files or ()))).splitlines()
    firsts = {line.partition(",")[0].partition("/")[0] for line in lines} - {".."}
    return {first.partition(".")[0] if first.endswith((".py", ".so")) else first for first in firsts}


def unmet(installed: Iterable[Distribution], packages: Mapping[str, Distribution]) -> str:
    """A package of an environment that needs another version of a shared one than is here, in words; empty if none does."""
    for one in installed:
        for need in _requirements(one):
            found = packages.get(canonicalize_name(need.name))
            if found is not None and not need.specifier.contains(found.version, prereleases=True):
                return f"{one.name} needs {need}, and here is {need.name} {found.version}"
    return ""
