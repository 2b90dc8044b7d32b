"""The manifest of an archive of compiled modules: the instruction set, and an entry for each module.

An entry has the version of its library and the major version of the CUDA that it needs, so one archive can hold modules of several
versions of a library, for several environments.
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr, ValidationError

from kernels.adapter import Module
from kernels.compile import module_cache
from kernels.contract.toolchain import Toolchain
from orchestrator.errors import BadManifest, explain
from orchestrator.planning.plan import ModuleKey
from orchestrator.untrusted.door import from_json

LAYOUT = 3
MAX_BYTES = 16 * 10**6  # of a manifest
Name = Annotated[str, Field(pattern=f"^{module_cache.NAME.pattern}$")]


class Entry(BaseModel):
    """A module. `library` is its library's name on PyPI, or empty, `version` that library's. Names lead into no other folder."""

    model_config = ConfigDict(frozen=True)

    arch: Name
    name: Name
    generator: Annotated[str, Field(pattern=r"^[\w.]+:\w+$")]
    args: tuple[StrictStr | StrictInt | StrictBool, ...]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    cuda: Annotated[str, Field(pattern="^[0-9]{1,4}$")] | None
    library: Name | Literal[""]
    version: Annotated[str, Field(pattern="^[A-Za-z0-9_][A-Za-z0-9_.+!-]{0,254}$")] | None

    @property
    def member(self) -> str:
        """The name that the module has in the tar. Several modules may be one file: their generator gives them one name."""
        of = [self.library or "none", *filter(None, [self.version]), *([f"cu{self.cuda}"] if self.cuda else [])]
        return f"{'-'.join(of)}/{self.arch}/{self.name}/{self.name}.so"

    @property
    def key(self) -> ModuleKey:
        """The module, as plans name it."""
        return self.arch, Module(self.generator, self.args, Toolchain(self.library))


class Manifest(BaseModel):
    """What the first member of an archive holds."""

    layout: int = LAYOUT
    isa: str
    modules: tuple[Entry, ...]


def parsed(content: bytes) -> Manifest:
    """A manifest from its bytes. Raises BadManifest."""
    try:
        found = from_json(content)
        if found.get("layout") != LAYOUT:
            raise ValueError(f"it has another layout than {LAYOUT}")
        manifest = Manifest.model_validate(found)
    except ValidationError as error:
        raise BadManifest(f"its manifest is none of this project's: {explain(error).splitlines()[0]}") from None
    except ValueError as error:
        raise BadManifest(f"its manifest is none of this project's: {error}") from None
    checksums = dict[str, str]()
    for entry in manifest.modules:
        if checksums.setdefault(entry.member, entry.sha256) != entry.sha256:
            raise BadManifest(f"its manifest has two checksums of {entry.member!r}")
    if max(Counter(manifest.modules).values(), default=0) > 1:
        raise BadManifest("its manifest names a module twice")
    return manifest
