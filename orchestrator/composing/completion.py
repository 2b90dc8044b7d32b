"""What a shell completes behind the `=` of a key with few values, or with a dataset. Hydra completes keys, and files of conf/."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, get_args, get_origin

from pydantic import BaseModel

from orchestrator.config.modes import MODES
from orchestrator.config.settings import OF_MODE

DATASETS = ("results.path", "baseline", "candidate", "noise", "into", "cards")  # keys that name one


def completed(line: str) -> list[str]:
    """The words that the last word of a command line may become; none if that is not for this file to say."""
    *before, word = line.split(" ")
    key, equals, begun = word.partition("=")
    if not equals:
        return []
    mode = next((one.removeprefix("mode=") for one in before if one.startswith("mode=")), "")
    values: Iterable[str] = MODES
    if key != "mode":
        values = _datasets(begun) if key in DATASETS else _choices(key.split("."), mode)
    return [f"{key}={value}" for value in values if value.startswith(begun)]


def _choices(path: list[str], mode: str) -> list[str]:
    """The values of a key that has few, in one mode or in all if none was typed."""
    found: list[object] = [OF_MODE[mode]] if mode in OF_MODE else [*OF_MODE.values()]
    for name in path:
        classes = [one for one in found if isinstance(one, type) and issubclass(one, BaseModel)]
        fields = [(field.alias or key, field) for one in classes for key, field in one.model_fields.items()]
        found = [field.annotation for key, field in fields if key == name]
    return list(dict.fromkeys(value for one in found for value in _literals(one)))


def _literals(type_: object) -> list[str]:
    """The values of a Literal, also of one that may be null instead, and of a bool."""
    if type_ is bool:
        return ["true", "false"]
    parts = get_args(type_)
    return [*map(str, parts)] if get_origin(type_) is Literal else [value for part in parts for value in _literals(part)]


def _datasets(begun: str) -> Iterator[str]:
    """The datasets of a folder as `results.path` takes them, and its folders, with a slash for what is in them."""
    folder = begun[: begun.rfind("/") + 1] or ("" if begun else "results/")
    for one in sorted(Path(folder).glob("[!._]*")) if Path(folder).is_dir() else ():
        if one.is_dir():
            yield f"{folder}{one.name}{'' if (one / 'rows.parquet').exists() else '/'}"
        elif one.suffix == ".parquet":
            yield f"{folder}{one.stem}"
