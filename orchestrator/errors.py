"""Every exception of the orchestrator, and the words for wrong input.

OrchestratorError
├── UserError            what was typed cannot work: exit code 2, and nothing was started
│   └── DamagedDataset   a file of a dataset is damaged, or is not this project's
├── CannotStore          the dataset can no longer be written: exit code 1, what was reported is kept
│   └── DatasetGone      somebody deleted the dataset under the run: exit code 1, and what is lost is said
├── NoWorkers            no worker is left and none can be started: exit code 1, the same command resumes
├── WorkerDied           a worker's process is gone: the scheduler tries its points again
├── OtherVersions        a worker has other libraries than the run was planned with: it does not start
└── LeftOut              a machine that joined cannot be used: the run goes on without it
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Literal

from pydantic import ValidationError

DeathCause = Literal["point", "memory", "machine"]


class OrchestratorError(Exception):
    """Whatever the orchestrator raises on purpose. The message is for a person."""


class UserError(OrchestratorError):
    """Wrong input: the message names the key, the value given, what is allowed and what to type next."""


class DamagedDataset(UserError):
    """A file of a dataset is damaged, or is not this project's. The message names it; the file is left as it is."""


class CannotStore(OrchestratorError):
    """The dataset cannot be written any more. Rows that were reported before are kept."""


class DatasetGone(CannotStore):
    """Somebody has deleted or exchanged the dataset while a run writes to it. The message says what is lost, and what is kept."""


class NoWorkers(OrchestratorError):
    """No worker is left and none can be started."""


class WorkerDied(OrchestratorError):
    """The worker's process is gone; the message says what is known about its end.

    `cause` is the point that it was running, a host without free memory, or its machine, which is gone.
    """

    def __init__(self, message: str, cause: DeathCause = "point") -> None:
        super().__init__(message)
        self.cause = cause


class OtherVersions(OrchestratorError):
    """The libraries of a worker are not those that the run was planned with."""


class LeftOut(OrchestratorError):
    """A machine that joined cannot be used; the message says why."""


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
