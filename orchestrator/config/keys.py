"""Every key that can be typed, with its dots, and the nearest key to a word that is not one."""

from __future__ import annotations

from difflib import get_close_matches
from functools import cache

from pydantic import BaseModel

from orchestrator.config.sweep import SWEEP_KEYS
from orchestrator.errors import SHORT_NAMES

RENAMED = {"dashboard.where": "where", "timing.ci95_rel": "timing.limit"}  # keys of older versions, with today's names


@cache
def all_keys(settings: type[BaseModel]) -> tuple[str, ...]:
    """Every key of the settings, with dots."""
    keys = [f"sweep.{key}" for key in (*SWEEP_KEYS, "dtype", "exclude", "include")]
    for name, field in settings.model_fields.items():
        keys.append(field.alias or name)
        if name != "sweep" and isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            keys += [f"{name}.{part.alias or key}" for key, part in field.annotation.model_fields.items()]
    return tuple(keys)


def nearest(key: str, settings: type[BaseModel]) -> str:
    """The key that is spelled most like a word, itself if it is one, the full one if its first part was left out; else empty.

    Of a key that has another name today, that name.
    """
    known = all_keys(settings)
    if key in known:
        return key
    if key in RENAMED:
        return RENAMED[key]
    by_last_part = {full.rpartition(".")[2]: full for full in known}
    if (axis := f"sweep.{SHORT_NAMES.get(key.removeprefix('sweep.'))}") in known:
        return axis
    near = get_close_matches(key, known, n=1) or get_close_matches(key, by_last_part, n=1)
    return by_last_part.get(near[0], near[0]) if near else ""
