"""What each mode does and prints: a function for each, which takes an `Invocation` and returns an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from kernels.timing.config import RENAMED_L2
from orchestrator.commands.invocation import BAD_POINTS, INTERRUPTED, OK, Invocation
from orchestrator.config.modes import MODES
from orchestrator.config.read_keys import complaint
from orchestrator.config.settings import load
from orchestrator.errors import UserError
from orchestrator.notes import note_once

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["BAD_POINTS", "INTERRUPTED", "OK", "execute"]

WIDTH = 160  # columns if the output is no terminal, and COLUMNS is not set


def execute(config: Mapping[str, Any], overrides: Sequence[str]) -> int:
    """Runs a configuration's mode; returns the exit code. `overrides` are the words as typed. Raises UserError for wrong input."""
    from orchestrator.formats.import_config import resolve_files
    from orchestrator.planning.model_words import with_axes, with_typed

    settings = with_axes(load(with_typed(resolve_files(config), overrides)), overrides)
    if wrong := complaint(overrides, settings.mode, getattr(settings, "question", None)):
        raise UserError(wrong)
    if (typed := (config.get("timing") or {}).get("l2")) in RENAMED_L2:
        note_once(f"timing.l2={typed} is now called {RENAMED_L2[typed]}; type timing.l2={RENAMED_L2[typed]} (docs/timing.md)")
    module, _, function = MODES[settings.mode].command.partition(".")
    command = getattr(import_module(f"{__name__}.{module}"), function or "execute")
    code: int = command(Invocation(settings, tuple(overrides), _screen()))
    return code


def _screen() -> Console:
    """The standard output. If its reader has ended, printing raises BrokenPipeError; rich alone would end the process with 1."""
    from rich.console import Console

    class Screen(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    return Screen(file=sys.stdout, width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else WIDTH)
