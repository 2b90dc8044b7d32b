"""The door for data of others: whatever reading them raises becomes words, and is wrong input, never a bug."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from orchestrator.errors import OrchestratorError, UserError

MAX_DIGITS = 20  # of a whole number: one beyond fits no column, and takes long to compute with
MAX_SAID = 600  # characters of what an exception says
log = logging.getLogger(__name__)


@contextmanager
def reading(what: str, advice: str) -> Iterator[None]:
    """Raises UserError, `WHAT: why; ADVICE`, in place of whatever exception the block raises; UserErrors go through."""
    try:
        yield
    except OrchestratorError:
        raise
    except Exception as error:
        log.info("%s", what, exc_info=True)
        raise UserError(f"{what}: {fault(error)}; {advice}") from None


def fault(error: Exception) -> str:
    """An exception of somebody's data in words."""
    whole = str(error)
    said = whole if len(whole) <= MAX_SAID else f"{whole[: MAX_SAID // 2]}…{whole[-MAX_SAID // 2 :]}"
    match error:
        case RecursionError() | MemoryError():
            return "it is nested too deep, or needs more memory than there is"
        case OSError():
            return f"it cannot be read ({error.strerror or said})"
        case ValueError():
            return said
    return f"a value of a wrong kind or size ({said})"


def any_json(text: str | bytes) -> Any:
    """What a JSON text holds. Raises ValueError in words for anything else, a key given twice, and long numbers."""
    try:
        return json.loads(text, object_pairs_hook=_once, parse_int=_whole)
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
        raise ValueError("no JSON") from None


def from_json(text: str | bytes) -> dict[str, Any]:
    """The object that a JSON text holds. Raises ValueError as `any_json` does, and for what is no object."""
    return as_object(any_json(text))


def as_object(found: object) -> dict[str, Any]:
    """What a JSON text held, if it is an object. Raises ValueError otherwise."""
    if not isinstance(found, dict):
        raise ValueError("no JSON object, {...}")
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)[:50]!r} stands there twice; delete one")
    return found


def _whole(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"a whole number of {len(digits)} digits; allowed: up to {MAX_DIGITS}")
    return int(digits)
