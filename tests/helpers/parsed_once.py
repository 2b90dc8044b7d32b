"""YAML that OmegaConf parses once in each process: a command composes about 15 files, and parsing them takes a fifth of that."""

from __future__ import annotations

from copy import deepcopy
from types import SimpleNamespace
from typing import IO, Any

import yaml
from omegaconf import omegaconf

_known: dict[str, Any] = {}


def parse_once() -> None:
    """Makes OmegaConf remember what a text says. A text that is no YAML raises each time."""
    omegaconf.yaml = SimpleNamespace(**{**vars(yaml), "load": _load})


def _load(stream: str | IO[str], Loader: Any) -> Any:
    text = stream if isinstance(stream, str) else stream.read()
    if text not in _known:
        _known[text] = yaml.load(text, Loader=Loader)
    return deepcopy(_known[text])
