"""Every mode of the command line. A new mode is an entry here, a class in `settings.py` and a function in `commands`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class ModeRules:
    """What runs a mode, and what it needs. Which keys it has is in `settings.py`.

    `command` is the module of `orchestrator/commands` that runs it, with its function if that is not `execute`. `needs` says what
    must be named: a sweep, a sweep or a dataset that exists (`results.path`), or nothing. The rows of a mode with `own_dataset`
    go to `<results.path>_<mode>`, those of mode=replay to another dataset with `into=`.
    A mode with `sweep_of_row` takes the sweep from the command in the row of `point`, if none is typed.
    """

    command: str
    needs: Literal["sweep", "sweep or dataset", "nothing"] = "sweep"
    own_dataset: bool = False
    sweep_of_row: bool = False

    @property
    def reads_dataset(self) -> bool:
        """Whether it reads one dataset and runs nothing; `where` then chooses rows of it."""
        return self.needs == "sweep or dataset"


MODES = {
    "run": ModeRules("run"),
    "plan": ModeRules("plan"),
    "compile": ModeRules("compile"),
    "replay": ModeRules("run", own_dataset=True, sweep_of_row=True),
    "calibrate": ModeRules("compile.calibrate", needs="nothing"),
    "noise": ModeRules("run", own_dataset=True),
    "check_power": ModeRules("run", own_dataset=True),
    "report": ModeRules("report", needs="sweep or dataset"),
    "compare": ModeRules("compare", needs="nothing"),
    "bisect": ModeRules("bisect", own_dataset=True),
    "watch": ModeRules("watch", own_dataset=True),
    "donate": ModeRules("donate"),
    "dashboard": ModeRules("report.dashboard", needs="sweep or dataset"),
    "document": ModeRules("report.document", needs="nothing"),
    "site": ModeRules("export", needs="sweep or dataset"),
    "import": ModeRules("export.import_rows"),
    "export": ModeRules("export", needs="sweep or dataset"),
    "support": ModeRules("report.support", needs="nothing"),
    "conformance": ModeRules("conformance", needs="nothing"),
}

# Datasets beside a sweep's own: such as the A/A pairs of mode=noise, and points that mode=replay measured again.
COMPANIONS = tuple(mode for mode, rules in MODES.items() if rules.own_dataset)


def companion(path: object, mode: str) -> str:
    """The dataset that a mode writes beside the one under `path`."""
    return f"{_plain(path)}_{mode}"


def owner(path: object) -> str | None:
    """The dataset that the one under `path` is a companion of; None for a dataset of a sweep."""
    plain = _plain(path)
    return next((plain.removesuffix(f"_{mode}") for mode in COMPANIONS if plain.endswith(f"_{mode}")), None)


def _plain(path: object) -> str:
    """A dataset as it is named: a file without `.parquet`."""
    return str(path).rstrip("/").removesuffix(".parquet")
