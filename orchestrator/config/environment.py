"""A Python environment other than the one that runs the command: which versions of which libraries it has, or where it is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator

from orchestrator.config.base import Frozen, own_files
from orchestrator.errors import UserError, explain
from orchestrator.untrusted import yaml as untrusted_yaml
from orchestrator.untrusted.files import expanded

# `flashinfer-0.6.13` and `flashinfer==0.6.13` are shown as `flashinfer:0.6.13`, under these names or the library's on PyPI.
SHORT = {"flashinfer": "flashinfer-python", "fa3": "tokenspeed-fa3", "flash-attn-3": "tokenspeed-fa3", "fa4": "flash-attn-4"}
TYPED = re.compile(r"(?P<library>[A-Za-z][\w.-]*?)\s*(?:===?|:|-|@|\s)\s*(?P<version>\d[\w.+!]*)")
MAX_SHOWN = 40  # characters of a wrong name
NAME = re.compile(r"[A-Za-z0-9_.:+!-]{1,100}")  # it becomes part of a folder's name, and of names of files that are looked for


class LibraryVersion(NamedTuple):
    """A library as it was typed, and its version."""

    library: str
    version: str

    @property
    def distribution(self) -> str:
        """The library's name on PyPI."""
        return SHORT.get(self.library, self.library)

    def __str__(self) -> str:
        """As messages and documents show it, and as the name of an environment."""
        return f"{self.library}:{self.version}"


def parsed(typed: str) -> LibraryVersion | None:
    """What `LIBRARY:VERSION` means, or another spelling of it; None for anything else, such as a library alone."""
    found = TYPED.fullmatch(typed.strip())
    return LibraryVersion(found["library"], found["version"]) if found else None


def shown(typed: str) -> str:
    """The spelling that is shown, of a library with its version; any other text as it is."""
    found = parsed(typed)
    return typed if found is None else str(found)


class Environment(Frozen):
    """The keys of `conf/env/*.yaml`.

    `requirements` are what pip would be given, `wheels` a folder that they come from instead of the package index. `python` is an
    interpreter. Without requirements it is that of an environment that exists, such as an engine's own; with them a new environment
    is made with it. `shares` says what a new one has of the environment that runs the command: `torch` and what comes with it, or
    `all` but what the requirements name.
    """

    name: Annotated[str, Field(pattern=rf"^{NAME.pattern}$")]
    requirements: Annotated[tuple[str, ...], BeforeValidator(lambda given: [given] if isinstance(given, str) else given or ())] = ()
    wheels: Annotated[str, AfterValidator(expanded)] | None = None
    python: Annotated[str, AfterValidator(expanded)] | None = None
    shares: Literal["torch", "all"] = "torch"

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.requirements and self.python is None:
            raise ValueError(
                f"env.{self.name}: it has neither requirements nor a python; give requirements: ['flashinfer-python==0.6.13'], or "
                f"python: /path/to/venv/bin/python"
            )
        if any(sign < " " for one in self.requirements for sign in one):
            raise ValueError(f"env.{self.name}.requirements={list(self.requirements)!r}: allowed: text without control characters")
        if options := [one for one in self.requirements if one.startswith("-") and not one.startswith("-e ")]:
            raise ValueError(
                f"env.{self.name}.requirements: {options[0]!r} is an option of pip; allowed: requirements such as "
                f"flashinfer-python==0.6.13; give wheels for a folder, or type UV_DEFAULT_INDEX=... before the command for an index"
            )
        if self.wheels is not None and not self.requirements:
            raise ValueError(f"env.{self.name}.wheels={self.wheels!r}: allowed only with requirements; give these, or leave it out")
        return self


def find(name: str, typed: dict[str, Any]) -> Environment:
    """An environment that was typed (`+env.NAME={...}`), of `conf/env`, or a library with its version; UserError for no such."""
    if not NAME.fullmatch(name):
        short = name if len(name) <= MAX_SHOWN else f"{name[:MAX_SHOWN]}..."
        raise UserError(
            f"sweep.env={short!r}: allowed: a name of up to 100 letters, digits, _ . : + ! and -, such as flashinfer:0.6.13 or mine"
        )
    own = {shown(key): keys for key, keys in typed.items()}  # as `config/sweep.py` has the names of a sweep
    file = own_files("env").get(name)
    keys = own.get(name) if name in own or file is None else untrusted_yaml.read(str(file), "sweep.env")[1]
    if keys is not None and not isinstance(keys, Mapping):
        raise UserError(
            f"env.{name}={keys!r}: allowed: a mapping; type \"+env.{name}={{requirements: ['flashinfer-python==0.6.13']}}\""
        )
    if keys is None and (found := parsed(name)):
        keys = {"requirements": [f"{found.distribution}=={found.version}"]}
    if keys is None:
        known = ", ".join(sorted({*typed, *own_files("env")})) or "none yet"
        raise UserError(
            f"sweep.env={name!r}: unknown environment; conf/env has {known}; type a library with its version, such as "
            f"flashinfer:0.6.13, or type \"+env.{name}={{requirements: ['flashinfer-python==0.6.13']}}\""
        )
    try:
        return Environment.model_validate({"name": name, **keys})
    except ValidationError as error:
        raise UserError(explain(error, f"env.{name}")) from None
