"""Every exception of the orchestrator, and the words for wrong input."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from importlib.resources import files
from typing import Literal

import yaml
from pydantic import ValidationError

MAX_LINES, MAX_SHOWN, MAX_NAMES, FEW = 20, 200, 80, 8  # of a name that is near one, a list of columns is no help
HELP = "type python -m orchestrator --help for all keys"
_WORDS: dict[str, dict[str, str]] = yaml.safe_load(files(__package__).joinpath("errors.yaml").read_text(encoding="utf-8"))
ALLOWED, SHORT_NAMES = _WORDS["allowed"], _WORDS["short_names"]
DeathCause = Literal["point", "memory", "machine"]


class OrchestratorError(Exception):
    """Whatever the orchestrator raises on purpose. The message is for a person."""


class UserError(OrchestratorError):
    """Wrong input: the message names the key, the value given, what is allowed and what to type next."""


class DamagedDataset(UserError):
    """A file of a dataset is damaged, or is not this project's. The message names it; the file is left as it is."""


class NoRows(UserError):
    """A dataset has no rows, or none with the values that `where` asks for; `near`: what is beside a length that lacks alone."""

    def __init__(self, message: str, near: Mapping[str, Sequence[int]] | None = None) -> None:
        super().__init__(message)
        self.near = near or {}


class NotTaken(ValueError):
    """What many lines have in common that are not taken, and the word of this one: NotTaken(message, name)."""


class BadManifest(ValueError):
    """An archive of compiled modules that no version of this project has written; the message says what is wrong with it."""


class NotPlain(OSError):
    """A name that is no plain file: a link, a FIFO, a folder. `strerror` says what it is, as with any other OSError of a file."""

    def __init__(self, path: object, what: str) -> None:
        super().__init__(0, f"it is {what}, but a plain file is needed; find out where it came from, and remove it", str(path))


class CannotStore(OrchestratorError):
    """The dataset cannot be written any more. Rows that were reported before are kept."""


class DatasetGone(CannotStore):
    """Somebody has deleted or exchanged the dataset while a run writes to it. The message says what is lost, and what is kept."""


class NoWorkers(OrchestratorError):
    """No worker is left and none can be started."""


class WorkerDied(OrchestratorError):
    """The worker's process is gone, in words; `cause` is the point that it ran, a host without free memory, or its lost machine."""

    def __init__(self, message: str, cause: DeathCause = "point") -> None:
        super().__init__(message)
        self.cause = cause


class OtherVersions(OrchestratorError):
    """The libraries of a worker are not those that the run was planned with."""


class LeftOut(OrchestratorError):
    """A machine that joined cannot be used; the message says why."""


class CannotMeasure(OrchestratorError):
    """A release that cannot be measured at all: its environment cannot be made, or nothing of it runs. The message says why."""


class WroteInputs(OrchestratorError):
    """A backend changed small inputs in its turn, while it was timed."""


def unknown(what: str, given: object, allowed: Iterable[str]) -> str:
    """`what` has no `given`; the nearest name, and all that are allowed."""
    near = did_you_mean(given, names := sorted(allowed))
    left = f", ... ({len(names) - FEW} more)" * (len(names) > MAX_NAMES and bool(near))
    return f"{what}: unknown '{given}';{near} allowed: {', '.join(names[: FEW if left else None])}{left}"


def did_you_mean(given: object, names: Iterable[str]) -> str:
    """` did you mean 'NAME'?` with what a common short name stands for, or the nearest name; nothing if none is near."""
    known, meant = list(names), SHORT_NAMES.get(str(given))
    plain = re.sub(r"[-. ]", "_", str(given).rpartition("/")[2].lower())  # as a model's page is called
    near = [meant] if meant in known else get_close_matches(str(given), known, n=1) or get_close_matches(plain, known, n=1)
    return f" did you mean '{near[0]}'?" if near else ""


def explain(error: ValidationError, prefix: str = "", meant: Callable[[str], str] = lambda key: HELP) -> str:
    """One line for each wrong key of a pydantic error: key, value, what is allowed; `meant` says what to type if unknown."""
    lines = dict.fromkeys(_line(e, prefix, meant) for e in error.errors(include_url=False))  # type: ignore[arg-type]
    shown = list(lines)[:MAX_LINES]
    return "\n".join([*shown, *([f"and {len(lines) - MAX_LINES} more"] if len(lines) > MAX_LINES else [])])


def _line(error: dict[str, object], prefix: str, meant: Callable[[str], str]) -> str:
    loc = error["loc"]
    assert isinstance(loc, tuple)
    key = ".".join(part for part in (prefix, *map(str, loc)) if part)
    message = str(error["msg"]).removeprefix("Value error, ")
    match error["type"]:
        case "value_error":
            return message  # ours, which names its keys itself
        case "int_parsing" | "int_type" | "int_from_float":
            return f"{key}={shown(error['input'])}: allowed: a whole number"
        case "extra_forbidden":
            return f"{key}: unknown key; {meant(key)}"
        case "missing":
            return f"{key}: a value is needed"
    bound = message.removeprefix("Input should be ")  # as people say it
    plain = bound.replace("greater than or equal to", "at least").replace("less than or equal to", "at most")
    allowed = ALLOWED.get(str(error["type"])) or plain
    near = did_you_mean(error["input"], re.findall(r"'([^']*)'", allowed)) if error["type"] == "literal_error" else ""
    return f"{key}={shown(error['input'])}:{near} allowed: {allowed}"


def shown(value: object) -> str:
    """A value as a person typed it, or nearly so; a long one is cut."""
    try:
        text = {None: "null", True: "true", False: "false"}[value] if value is None or isinstance(value, bool) else repr(value)
    except ValueError:
        return "a number of too many digits"
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def as_typed(value: object) -> str:
    """A mapping, a list or a value as it is typed on the command line: `{s_qo: [1, 4], kv_dtype: bf16}`."""
    match value:
        case Mapping():
            return f"{{{', '.join(f'{key}: {as_typed(one)}' for key, one in value.items())}}}"
        case list() | tuple():
            return f"[{', '.join(map(as_typed, value))}]"
        case str():
            return value
    return shown(value)
