"""The base of all configuration, the values that an axis or a filter may have, and the files of conf/ by their names."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

import yaml

import conf
from kernels.data import Data as Frozen

__all__ = ["Frozen", "Scalar", "own_files", "own_table"]
Scalar = bool | int | float | str
SUFFIX = ".yaml"


@cache
def own_files(group: str) -> Mapping[str, Traversable]:
    """The files of a group of conf/ that a person may name, such as those of `model`, by their names and in this order."""
    found = {
        entry.name.removesuffix(SUFFIX): entry for entry in files(conf).joinpath(group).iterdir() if entry.name.endswith(SUFFIX)
    }
    return {name: found[name] for name in sorted(found.keys() - {"base"})}


@cache
def own_table(name: str) -> Any:
    """What a file beside the groups of conf/ holds."""
    return yaml.safe_load(files(conf).joinpath(f"{name}{SUFFIX}").read_text(encoding="utf-8"))
