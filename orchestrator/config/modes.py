"""Every mode of the command line, one entry each. A new mode is an entry here and a file in `orchestrator/commands`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class ModeRules:
    """What runs a mode, and which keys it takes.

    `command` is the module of `orchestrator/commands` whose `execute` runs it. `needs` says what must be named: a sweep, a
    sweep or a dataset that exists (`results.path`), or nothing. Only modes that take `device=` may be about a GPU that is not
    here. The rows of a mode with `own_dataset` go to `<results.path>_<mode>`, those of mode=replay to another dataset with `into=`.
    With `takes_where` it chooses points of the sweep, or rows of several datasets, by `where`.
    A mode with `sweep_of_row` takes the sweep from the command in the row of `point`, if none is typed.
    """

    command: str
    needs: Literal["sweep", "sweep or dataset", "nothing"] = "sweep"
    takes_device: bool = False
    own_dataset: bool = False
    takes_where: bool = False
    sweep_of_row: bool = False

    @property
    def reads_dataset(self) -> bool:
        """Whether it reads one dataset and runs nothing; `where` then chooses rows of it."""
        return self.needs == "sweep or dataset"


MODES = {
    "run": ModeRules("run", takes_where=True),
    "plan": ModeRules("plan", takes_device=True, takes_where=True),
    "compile": ModeRules("compile", takes_device=True, takes_where=True),
    "replay": ModeRules("run", own_dataset=True, sweep_of_row=True),
    "calibrate": ModeRules("calibrate", needs="nothing"),
    "noise": ModeRules("run", own_dataset=True, takes_where=True),
    "check_power": ModeRules("run", own_dataset=True, takes_where=True),
    "report": ModeRules("report", needs="sweep or dataset"),
    "compare": ModeRules("compare", needs="nothing", takes_where=True),
    "bisect": ModeRules("bisect", own_dataset=True, takes_where=True),
    "dashboard": ModeRules("dashboard", needs="sweep or dataset"),
    "site": ModeRules("site", needs="sweep or dataset"),
    "import": ModeRules("import_results", takes_device=True),
    "export": ModeRules("export", needs="sweep or dataset"),
    "support": ModeRules("support", needs="nothing"),
    "conformance": ModeRules("conformance", needs="nothing"),
}
