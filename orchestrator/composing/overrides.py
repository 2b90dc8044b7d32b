"""Checks the arguments of a command before Hydra composes anything. Its errors say what to type."""

from __future__ import annotations

import math
import os
import re
from argparse import Namespace
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import NoReturn

from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Glob, IntervalSweep, Override, RangeSweep
from hydra.errors import HydraException

import conf
from orchestrator.config.modes import MODES
from orchestrator.errors import UserError, unknown
from orchestrator.untrusted.files import expanded

MULTIRUN = ("-m", "--multirun")
MAX_CHARACTERS = 20_000  # of an argument: reading more takes longer than writing a file
MAX_VALUES = 10_000  # in an argument
MAX_JOBS = 1_000  # of one command with -m
HOME = re.compile(r"(?<==)~[^,\[\]{}]*$|(?<=[\[,])\s*~[^,\[\]{}]*")
BATCHES = "hydra.sweeper.max_batch_size"  # how many jobs of one command Hydra prepares at a time
PLAIN_PATH = re.compile(r"[\w./@%+:-]+")  # which Hydra reads without quotes


def checked(argv: Sequence[str]) -> list[str]:
    """The arguments in the order that Hydra's parser wants, with `~` as the home folder.

    Hydra takes all overrides only in one piece, so `-m` goes first. Raises UserError for what cannot be read, for an option that
    does not exist, and for more jobs or values than a person means.
    """
    words = [_at_home(word) for word in sorted(argv, key=lambda word: word not in MULTIRUN)]
    if "--version" in words:
        return words
    parser = get_args_parser()
    parser.error = _refuse_option
    options = parser.parse_args(words)
    _refuse_hidden(options)
    parsed = [_parsed(word) for word in options.overrides]
    _require_one_mode(parsed)
    _require_once(parsed)
    jobs = math.prod(_choices(override, options.multirun) for override in parsed)
    if jobs > MAX_JOBS:
        raise UserError(
            f"-m: these values make {jobs:.3g} jobs; allowed: up to {MAX_JOBS:,}; an axis takes a list instead, KEY=[1,2]"
        )
    return words


def _at_home(word: str) -> str:
    """An argument whose paths begin with `~`, as a shell leaves them behind `results.path=`."""
    if "'" in word or '"' in word or word.startswith("~"):
        return word
    return HOME.sub(lambda found: _quoted(expanded(found[0].strip())), word)


def _quoted(path: str) -> str:
    if PLAIN_PATH.fullmatch(path):
        return path
    return "'" + path.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _refuse_option(message: str) -> NoReturn:
    """In place of argparse, which prints a page of Hydra's options."""
    typed = re.search(r"--([\w.]+)(=\S+)?$", message)
    if typed and (typed[2] or typed[1] in MODES):
        meant = f"{typed[1]}{typed[2]}" if typed[2] else f"mode={typed[1]}"
        raise UserError(f"{typed[0]}: keys have no dashes; type {meant}")
    raise UserError(f"{message}; type python -m orchestrator --help for a list of them")


def _refuse_hidden(options: Namespace) -> None:
    """Raises UserError for options of Hydra that this project does not have: one unpickles a file, which may run any program."""
    if options.experimental_rerun:
        raise UserError(
            f"--experimental-rerun {options.experimental_rerun}: this option is not taken, since its file could run any program; "
            "type the command again, or mode=replay point=ID results.path=DIR for one point"
        )
    if options.shell_completion and "COMP_LINE" not in os.environ and any(word.startswith("query=") for word in options.overrides):
        raise UserError(
            "--shell-completion query=...: only a shell asks this, for the words that somebody types; leave it out, "
            "or type python -m orchestrator --help for all keys"
        )


def _require_one_mode(overrides: Sequence[Override]) -> None:
    """Raises UserError for two modes in one command, of which Hydra would take the last without a word."""
    typed = dict.fromkeys(override.input_line or "" for override in overrides if override.key_or_group == "mode")
    if len(typed) > 1:
        raise UserError(f"{' '.join(typed)}: a command has one mode; type one of them")


def _require_once(overrides: Sequence[Override]) -> None:
    """Raises UserError for two values of a key, of which Hydra takes the last without a word. Of groups it says so itself."""
    typed: dict[str, str] = {}
    mappings: dict[str, str] = {}
    for override in overrides:
        word = override.input_line or ""
        if override.is_delete() or override.key_or_group in groups():
            continue
        if isinstance(override._value, dict) and (first := mappings.setdefault(override.key_or_group, word)) != word:
            raise UserError(f"{override.key_or_group}: given twice, by {first} and by {word}; put both into one pair of braces")
        for key in _keys_set_by(override):
            if typed.setdefault(key, word) != word:
                raise UserError(f"{key}: given twice, by {typed[key]} and by {word}; type one of them")


def _keys_set_by(override: Override) -> list[str]:
    """The key of an override; of a mapping, which is merged with what is there, the keys in it."""
    key, value = str(override.key_or_group), override._value
    return [f"{key}.{name}" for name in value] if isinstance(value, dict) and value else [key]


def _parsed(word: str) -> Override:
    if len(word) > MAX_CHARACTERS:
        raise UserError(
            f"{word[:40]}...: {len(word):,} characters; allowed: up to {MAX_CHARACTERS:,}; write them into a sweep's file"
        )
    if "=" not in word and not word.startswith("~"):
        raise UserError(f"{word}: it gives no key a value; type {_meant_by(word)}")
    try:
        override = OverridesParser.create().parse_override(word)
    except (HydraException, RecursionError, ValueError):
        how = "a list as KEY=[1,2], a mapping as 'KEY={a: 1}', and other signs in quotes within quotes: \"KEY='a b'\""
        if pair := re.fullmatch(r"(\w+)=(\w+)[=:](.+)", word):
            raise UserError(f"{word}: a mapping stands in braces; type '{pair[1]}={{{pair[2]}: {pair[3]}}}'") from None
        raise UserError(f"{word}: it cannot be read as KEY=VALUE; type {how}") from None
    if not override.key_or_group:
        raise UserError(f"{word}: a key is needed before the =; type KEY=VALUE")
    if not override.is_sweep_override() and _size(override.value()) > MAX_VALUES:
        raise UserError(f"{override.key_or_group}: more than {MAX_VALUES:,} values; write fewer")
    if override.key_or_group == BATCHES and not _is_batch_size(override._value):
        raise UserError(f"{word}: allowed: a whole number from 1, or null for no limit; type {BATCHES}=1")
    _require_choice(override)
    return override


def _is_batch_size(value: object) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 1)


def _meant_by(word: str) -> str:
    """What to type in place of a word without a value."""
    if word in options_of("sweep"):
        return f"+sweep={word}"
    return f"mode={word}" if word in MODES else "KEY=VALUE, without spaces around the ="


def _require_choice(override: Override) -> None:
    """Raises UserError for a group of conf/ that is given anything but the name of one of its files."""
    group, value = override.key_or_group, override._value
    if group not in groups() or override.is_delete() or override.is_sweep_override() or isinstance(value, dict):
        return
    names = value if isinstance(value, list) else [value]
    if not all(isinstance(name, str) or hasattr(name, "text") for name in names):
        shown = {None: "null", True: "true", False: "false"}.get(value, value) if not isinstance(value, list) else value
        raise UserError(unknown(group, shown, options_of(group)))
    if len(names) > 1:
        of_each, first = ",".join(map(str, names)), (override.input_line or "").partition("=")[0]
        raise UserError(
            f"{override.input_line}: {group} takes one file; "
            f"type one of them, or -m {first}={of_each} to run the command once for each"
        )


def _choices(override: Override, multirun: bool) -> float:
    """How many jobs an override makes, 1 if it has one value."""
    if not override.is_sweep_override():
        return 1
    key, sweep = override.key_or_group, override._value
    if not multirun:
        values = str(override.input_line).partition("=")[2]
        what = f"a list stands in brackets, {key}=[{values}]" if key not in (*groups(), "mode") else "it takes one"
        raise UserError(f"{override.input_line}: several values; {what}; to run the command once for each, add -m")
    match sweep:
        case ChoiceSweep():
            return float(len(sweep.list))
        case RangeSweep() if sweep.start is not None and sweep.stop is not None and sweep.step:
            return float(max(0, math.ceil((sweep.stop - sweep.start) / sweep.step)))
        case Glob() if key in groups():
            return len(options_of(str(key)))
        case IntervalSweep() | Glob() | _:
            raise UserError(f"{override.input_line}: allowed with -m: values with commas between them, {key}=1,2")


def _size(value: object) -> int:
    if isinstance(value, dict):
        return sum(map(_size, value.values())) + len(value)
    return sum(map(_size, value)) + 1 if isinstance(value, list) else 1


@cache
def groups() -> frozenset[str]:
    """The folders of conf/, each of which is a key that takes the name of a file in it."""
    return frozenset(entry.name for entry in files(conf).iterdir() if entry.is_dir() and not entry.name.startswith("_"))


@cache
def options_of(group: str) -> tuple[str, ...]:
    """The names that a group takes."""
    names = (entry.name for entry in files(conf).joinpath(group).iterdir())
    return tuple(sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml") and name != "base.yaml"))
