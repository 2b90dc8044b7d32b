"""What each mode does and prints, from settings to an exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from orchestrator.commands import ahead, reading, running
from orchestrator.commands.call import INTERRUPTED, OK, Call
from orchestrator.settings import Mode, Settings

__all__ = ["INTERRUPTED", "OK", "execute"]

WIDE = 160  # columns where the output is no terminal

COMMANDS: dict[Mode, Callable[[Call], int]] = {
    "run": running.run,
    "replay": running.run,
    "noise": running.run,
    "check_power": running.run,
    "plan": ahead.plan,
    "compile": ahead.compile_modules,
    "calibrate": ahead.calibrate,
    "report": reading.report,
    "compare": reading.compare,
    "dashboard": reading.dashboard,
    "import": reading.import_results,
    "export": reading.export,
}


def execute(settings: Settings, overrides: Sequence[str]) -> int:
    """Runs one mode. Raises UserError for wrong input found before anything starts."""
    from rich.console import Console

    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else WIDE)
    try:
        return COMMANDS[settings.mode](Call(settings, tuple(overrides), console))
    except Exception as error:
        if type(error).__module__ == "_duckdb":  # imported by what reads datasets alone
            from orchestrator.dataset import require_whole

            require_whole(settings.results.path)
        raise
