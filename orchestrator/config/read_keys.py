"""Which keys a mode and a question read. A key that is typed and not read is an error: it would change nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

RUNS = ("run", "noise", "check_power")  # that print a report of the dataset at their end
COMPARES = ("baseline", "candidate", "noise", "same", "missing", "cards")  # what mode=compare reads, and so rerun=suspects
TABLES = ("report", "compare", "plan", "conformance")  # that print tables in the format of choice
READ_BY = {  # the modes that read a key, or any key below it
    "baseline": ("compare",),
    "candidate": ("compare",),
    "noise": ("compare",),
    "same": ("compare", "replay"),
    "question": ("report",),
    "columns": ("report",),
    "missing": ("compare",),
    "good": ("bisect",),
    "bad": ("bisect",),
    "predicate": ("bisect",),
    "bisect": ("bisect",),
    "cards": ("compare", "report", *RUNS),
    "draft": ("report", "export", *RUNS),
    "weights": ("report", *RUNS),
    "best": ("report", "compare", *RUNS),
    "export": ("export", "dashboard", "site"),
    "format": TABLES,
    "dashboard": ("dashboard",),
    "into": ("replay",),
    "point": ("replay", "plan", "compile", *RUNS),
    "rerun": RUNS,
    "where": ("plan", "compile", "bisect", "report", "compare", "dashboard", "site", "export", *RUNS),
}
READ_BY_QUESTIONS = {  # of mode=report with a question, the questions that read a key; a whole key goes before its first part
    "draft": ("draft", "step"),
    "draft.layers": ("draft", "step", "one_backend"),
    "draft.acceptance": ("draft", "step", "energy"),
    "weights": ("one_backend",),
}
READ_BY_NO_QUESTION = {
    "best": ("roofline", "columns"),
    "columns": ("odd",),
}  # the questions that do not


# Keys of a measurement, and the modes that measure nothing: of a command that names a sweep, which may have any mode behind it,
# these modes pass them over; in any other command nobody can have meant them.
OF_MEASURING = ("adapters", "check", "cluster", "limits", "model", "modules", "timing", "trees", "versions")
MEASURE_NOTHING = ("report", "compare", "dashboard", "site", "export", "support", "conformance")
TAKE_ADAPTERS = ("support", "conformance")
SWEEPS = ("sweep", "import")  # the keys that name one


def is_read(override: str, mode: str, question: str | None = None) -> bool:
    """Whether a mode, and a question of mode=report, reads what an override such as `draft.layers=80` sets."""
    key = key_of(override)
    if mode not in READ_BY.get(key, (mode,)):
        return False
    if mode != "report" or question is None:
        return True
    return question in _questions_of(override, question) and question not in READ_BY_NO_QUESTION.get(key, ())


def _questions_of(override: str, *default: str) -> tuple[str, ...]:
    return READ_BY_QUESTIONS.get(_path_of(override), READ_BY_QUESTIONS.get(key_of(override), default))


def _path_of(override: str) -> str:
    """The whole key: `draft.layers` of `draft.layers=80`."""
    return override.lstrip("+~").partition("=")[0]


def key_of(override: str) -> str:
    """The first part of an override's key: `draft` of `draft.layers=80`."""
    return _path_of(override).partition(".")[0]


def only_read(overrides: Iterable[str], mode: str) -> list[str]:
    """The overrides that a mode reads, for a command to type."""
    return [override for override in overrides if is_read(override, mode)]


def complaint(overrides: Sequence[str], mode: str, question: str | None) -> str | None:
    """What is wrong with the first override that is not read, and what reads it; None if all are."""
    of_suspects = COMPARES if "rerun=suspects" in overrides else ()
    for override in overrides:
        if key_of(override) not in of_suspects and not is_read(override, mode, question):
            does_not = _who_does_not(key_of(override), mode, question)
            return f"{_path_of(override)}: {does_not}; leave it out, or type {_who_does(override, mode)}"
    return _of_measuring(overrides, mode)


def _of_measuring(overrides: Sequence[str], mode: str) -> str | None:
    """What is wrong with the first key of a measurement in a command that measures nothing, and names no sweep either."""
    if mode not in MEASURE_NOTHING or any(_path_of(override) in SWEEPS for override in overrides):
        return None
    for override in overrides:
        key = key_of(override)
        if key in OF_MEASURING and not (key == "adapters" and mode in TAKE_ADAPTERS):
            rows = "" if mode in TAKE_ADAPTERS else ", or choose rows by their columns: type where={COLUMN: VALUE}"
            return f"{override.lstrip('+~')}: mode={mode} measures nothing and does not read {key}; leave it out{rows}"
    return None


def _who_does_not(key: str, mode: str, question: str | None) -> str:
    return f"mode={mode} does not read it" if mode not in READ_BY.get(key, (mode,)) else f"question={question} does not read it"


def _who_does(override: str, mode: str) -> str:
    key = key_of(override)
    if mode in READ_BY.get(key, (mode,)):
        return " or ".join(f"question={name}" for name in _questions_of(override, "best"))
    return f"mode={', '.join(READ_BY[key])}"
