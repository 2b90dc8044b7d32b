"""Which keys a mode and a question have. A key that is typed and that they do not have is an error: it would change nothing."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from orchestrator.config.settings import OF_MODE, RunSettings, SuspectSettings, keys_of
from orchestrator.errors import UserError

READ_BY_QUESTIONS = {  # of mode=report with a question, the questions that read a key; a whole key goes before its first part
    "draft": ("draft", "step"), "draft.layers": ("draft", "step", "one_backend"),
    "draft.rest": ("draft", "step", "one_backend"), "draft.rest_us": ("draft", "step", "one_backend"),
    "draft.acceptance": ("draft", "step", "energy"), "weights": ("one_backend",),
}  # fmt: skip
READ_BY_NO_QUESTION = {  # the questions that do not: `draft` and `q_len` compare lengths
    "best": ("roofline", "columns"), "columns": ("odd",), "engine": ("columns",), "drafts": ("draft", "q_len", "columns"),
}  # fmt: skip

# Keys of a measurement, and the modes that measure nothing: of a command that names a sweep, which may have any mode behind it,
# these modes pass them over; in any other command nobody can have meant them.
OF_MEASURING = ("adapters", "check", "cluster", "limits", "model", "modules", "timing", "trees", "versions")
MEASURE_NOTHING = ("report", "compare", "dashboard", "site", "document", "export", "support", "conformance")
CHOOSE_A_MODEL = ("report", "site", "export", "compare")  # of the rows
TAKE_ADAPTERS = ("support", "conformance")
SWEEPS = ("sweep", "import")  # the keys that name one
SUSPECTS = "rerun=suspects"


def modes_with(key: str) -> tuple[str, ...]:
    """The modes that have a key, named by its first part; all of them for a key that is none."""
    return tuple(mode for mode, settings in OF_MODE.items() if key in keys_of(settings)) or tuple(OF_MODE)


def mode_meant(words: Sequence[str]) -> list[str]:
    """`mode=NAME` of the mode that alone has all keys, or of report if nothing is run or written; else none. Raises UserError."""
    keys = {key_of(word) for word in words}
    fit = [mode for mode in OF_MODE if all(mode in modes_with(key) for key in keys)]
    if "mode" in keys or "run" in fit:
        return []
    asks = keys.isdisjoint((*SWEEPS, "export"))
    meant = [mode for mode in fit if mode not in TAKE_ADAPTERS and (len(fit) == 1 or (asks and mode == "report"))]
    if asks and not meant and (wrong := complaint(words, "run")):
        raise UserError(wrong)
    return [f"mode={mode}" for mode in meant]


def is_read(override: str, mode: str, question: str | None = None, *, suspects: bool = False) -> bool:
    """Whether a mode, and a question of mode=report, has the key of an override such as `draft.layers=80`."""
    key = key_of(override)
    if mode not in modes_with(key) and not (suspects and key in keys_of(SuspectSettings)):
        return False
    if mode != "report" or question is None:
        return True
    return question in _questions_of(override, question) and question not in READ_BY_NO_QUESTION.get(key, ())


def _questions_of(override: str, *default: str) -> tuple[str, ...]:
    return READ_BY_QUESTIONS.get(path_of(override), READ_BY_QUESTIONS.get(key_of(override), default))


def path_of(override: str) -> str:
    """The whole key: `draft.layers` of `draft.layers=80`."""
    return override.lstrip("+~").partition("=")[0]


def key_of(override: str) -> str:
    """The first part of an override's key: `draft` of `draft.layers=80`."""
    return path_of(override).partition(".")[0]


def only_read(overrides: Iterable[str], mode: str) -> list[str]:
    """The overrides that a mode has, for a command to type."""
    typed = list(overrides)
    return [override for override in typed if is_read(override, mode, suspects=_of_suspects(typed, mode))]


def complaint(overrides: Sequence[str], mode: str, question: str | None = None) -> str | None:
    """What is wrong with the first override that a mode or question does not have, and which do; None if it has all."""
    for override in overrides:
        if not is_read(override, mode, question, suspects=_of_suspects(overrides, mode)):
            key = key_of(override)
            if key == "export" and mode == "report":
                kept = shlex.join(only_read((one for one in overrides if key_of(one) not in ("mode", "question")), "export"))
                return f"export: it is a command of its own; type python -m orchestrator {kept}"
            if key == "backend":
                rows = f"chooses rows by their columns; type 'where={{backend: {override.partition('=')[2]}}}'"
                does = rows if mode in MEASURE_NOTHING else "takes the backends of its sweep; type sweep.backend=[...]"
                return f"backend: mode={mode} {does}"
            if mode not in modes_with(key):
                here = " measures this machine's GPUs and" * (key == "device" and mode not in MEASURE_NOTHING)
                does_not, does = f"mode={mode}{here}", f"mode={', '.join(modes_with(key))}"
            else:
                does_not = f"question={question}"
                does = " or ".join(f"question={name}" for name in _questions_of(override))
            return f"{path_of(override)}: {does_not} does not read it; leave it out{f', or type {does}' * bool(does)}"
    return _of_measuring(overrides, mode)


def _of_suspects(overrides: Sequence[str], mode: str) -> bool:
    return OF_MODE.get(mode) is RunSettings and SUSPECTS in overrides


def _of_measuring(overrides: Sequence[str], mode: str) -> str | None:
    """What is wrong with the first key of a measurement in a command that measures nothing, and names no sweep either."""
    if mode not in MEASURE_NOTHING or any(path_of(override) in SWEEPS for override in overrides):
        return None
    for override in overrides:
        key = key_of(override)
        if path_of(override) == "model" and not override.startswith("+") and mode in CHOOSE_A_MODEL:
            continue
        if key in OF_MEASURING and not (key == "adapters" and mode in TAKE_ADAPTERS):
            rows = "" if mode in TAKE_ADAPTERS else ", or choose rows by their columns: type where={COLUMN: VALUE}"
            return f"{override.lstrip('+~')}: mode={mode} measures nothing and does not read {key}; leave it out{rows}"
    return None
