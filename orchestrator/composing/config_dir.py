"""`--config-dir`, the folder of a person's own YAML files: a word of the commands that are printed and stored."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hydra._internal.utils import get_args_parser

from orchestrator.errors import UserError

OPTION = "--config-dir"
PREFIX = f"{OPTION}="


def words_of(argv: Sequence[str]) -> list[str]:
    """`--config-dir=FOLDER` as one word, if the arguments of a command name a folder, else none."""
    folder = get_args_parser().parse_args(list(argv)).config_dir
    return [] if folder is None else [f"{PREFIX}{folder}"]


def for_compose(stored: Sequence[str], typed: Sequence[str]) -> list[str]:
    """The overrides of a row's command and those that were typed, as Hydra composes them.

    A folder that was typed is in Hydra's search path already. Raises UserError if the folder of the row is not here.
    """
    overrides = [word for word in (*stored, *typed) if not word.startswith(PREFIX)]
    folders = [word.removeprefix(PREFIX) for word in stored if word.startswith(PREFIX)]
    if not folders:
        return overrides
    folder = Path(folders[0]).expanduser().resolve()
    if not folder.is_dir():
        raise UserError(f"{PREFIX}{folders[0]}: the row's sweep lies in this folder, which is not here; type {OPTION} FOLDER")
    quoted = str(folder).replace("\\", "\\\\").replace('"', '\\"')
    return [f'hydra.searchpath=["file://{quoted}"]', *overrides]
