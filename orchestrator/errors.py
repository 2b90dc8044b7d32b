"""What a person did that cannot work, said so that they can mend it. Each of these ends the command with exit code 2."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from pydantic import ValidationError


class UserError(Exception):
    """Wrong input: the message names the key, the value given, what is allowed and what to type next."""


def unknown(what: str, given: object, allowed: Iterable[str]) -> str:
    """`what` has no `given`; the nearest name, and all that are allowed."""
    names = sorted(allowed)
    near = get_close_matches(str(given), names, n=1)
    hint = f" did you mean '{near[0]}'?" if near else ""
    return f"{what}: there is no '{given}';{hint} allowed: {', '.join(names)}"


def explain(error: ValidationError, prefix: str = "") -> str:
    """One line for each wrong key of a pydantic error: key, value, what is allowed."""
    return "\n".join(_line(e, prefix) for e in error.errors(include_url=False))  # type: ignore[arg-type]


def _line(error: dict[str, object], prefix: str) -> str:
    loc = error["loc"]
    assert isinstance(loc, tuple)
    key = ".".join(part for part in (prefix, *map(str, loc)) if part)
    message = str(error["msg"]).removeprefix("Value error, ")
    match error["type"]:
        case "value_error":
            return message  # ours, which names its keys itself
        case "int_parsing" | "int_type" | "int_from_float":
            return f"{key}={error['input']!r}: allowed: a whole number"
        case "extra_forbidden":
            return f"{key}: there is no such key; type python -m orchestrator --help for those there are"
        case "missing":
            return f"{key}: a value is needed"
    return f"{key}={error['input']!r}: allowed: {message.removeprefix('Input should be ')}"
