"""Reads the arguments of a command, before Hydra composes anything. Errors say what to type."""

from __future__ import annotations

import argparse
import itertools
import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import NoReturn

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, RangeSweep, Sweep, ValueType
from hydra.errors import HydraException

import conf
from orchestrator.config import config_json
from orchestrator.config.base import own_files
from orchestrator.config.modes import MODES
from orchestrator.config.read_keys import mode_meant
from orchestrator.config.sweep import SWEEP_KEYS
from orchestrator.errors import UserError, unknown
from orchestrator.untrusted.files import expanded
from orchestrator.untrusted.yaml import MAX_DEPTH

MAX_CHARACTERS = 20_000  # of an argument: reading more takes longer than writing a file
MAX_VALUES = 10_000  # in an argument
MAX_JOBS = 1_000  # of one command with -m
HOME = re.compile(r"(?<==)~[^,\[\]{}]*$|(?<=[\[,])\s*~[^,\[\]{}]*")
PLAIN_PATH = re.compile(r"[\w./@%+:-]+")  # which Hydra reads without quotes
RANGE = re.compile(r"^(\+{0,2}sweep\.\w+=)(\{ *(?:from|to) *:.*\})$")  # as the values of an axis
QUOTED, FLAT_BRACES, LISTS = re.compile(r"'[^']*'|\"[^\"]*\""), re.compile(r"\{([^{}]*)\}"), re.compile(r"\[[^\[\]]*\]")
HELP = "type python -m orchestrator --help"


@dataclass(frozen=True)
class Arguments:
    """What was typed: overrides, as Hydra parses them; a folder of a person's own files; and options that only show something."""

    overrides: tuple[Override, ...]
    multirun: bool = False
    config_dir: str | None = None
    shows: tuple[str, ...] = ()

    @property
    def words(self) -> list[str]:
        return [str(override.input_line) for override in self.overrides]

    def jobs(self) -> Iterator[list[str]]:
        """The overrides of each job: one job, or with -m one for each combination of values."""
        values = (
            [f"{one.get_key_element()}={value}" for value in one.sweep_string_iterator()]
            if one.is_sweep_override()
            else [str(one.input_line)]
            for one in self.overrides
        )
        return map(list, itertools.product(*values))


def read(argv: Sequence[str]) -> Arguments:
    """The arguments, with `~` as the home folder. Raises UserError for a wrong one, and for more than a person means."""
    typed = _parser().parse_intermixed_args(with_models([_at_home(word) for word in argv]))
    shows = [_dashed(name) for name in ("help", "hydra_help", "resolve", "shell_completion") if getattr(typed, name)]
    shows += [word for name in ("cfg", "info", "package") if (value := getattr(typed, name)) for word in (_dashed(name), value)]
    if typed.shell_completion:
        if "COMP_LINE" not in os.environ and any(word.startswith("query=") for word in typed.overrides):
            raise UserError(
                f"--shell-completion query=...: only a shell asks this, for the words that somebody types; leave it out, or {HELP} "
                "for all keys"
            )
        return Arguments((), shows=(*shows, *typed.overrides))
    overrides = tuple(map(_parsed, typed.overrides))
    overrides += tuple(map(_parsed, mode_meant(typed.overrides)))
    _require_once(overrides)
    _require_braces(overrides)
    found = Arguments(overrides, typed.multirun, typed.config_dir, tuple(shows))
    several = list(filter(Override.is_sweep_override, overrides))
    for override in several:
        _require_several(override, typed.multirun)
    if math.prod(sum(1 for _ in itertools.islice(one.sweep_iterator(), MAX_JOBS + 1)) for one in several) > MAX_JOBS:
        raise UserError(f"-m: more than {MAX_JOBS:,} jobs; allowed: up to {MAX_JOBS:,}; an axis takes a list, KEY=[1,2]")
    return found


def with_models(words: Sequence[str]) -> list[str]:
    """The words, with `import=` of a model's config.json as the `model=` that it means. Raises UserError for two models."""
    found = [
        f"model={value}" if key == "import" and config_json.is_one(value.strip("'\"")) else word
        for word in words
        for key, _, value in [word.partition("=")]
    ]
    models = [word for word, meant in zip(words, found, strict=True) if meant.startswith("model=")]
    if found != list(words) and len(models) > 1:
        raise UserError(f"{' '.join(models)}: each is a model, and a command has one; type one of them")
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.error = _refuse_option  # type: ignore[method-assign]
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--multirun", "-m", action="store_true")
    parser.add_argument("--config-dir", "-cd")
    parser.add_argument("--help", "-h", action="store_true")
    parser.add_argument("--hydra-help", action="store_true")
    parser.add_argument("--shell-completion", "-sc", action="store_true")
    parser.add_argument("--cfg", "-c", choices=["job", "hydra", "all"])
    parser.add_argument("--resolve", action="store_true")
    parser.add_argument("--package", "-p")
    parser.add_argument(
        "--info", "-i", nargs="?", const="all", choices=["all", "config", "defaults", "defaults-tree", "plugins", "searchpath"]
    )
    return parser


def _dashed(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _at_home(word: str) -> str:
    """An argument whose paths begin with `~`, as a shell leaves them behind `results.path=`."""
    if "'" in word or '"' in word or word.startswith("~"):
        return word
    return HOME.sub(lambda found: _quoted(expanded(found[0].strip())), word)


def _quoted(path: str) -> str:
    escaped = path.replace("\\", "\\\\").replace("'", "\\'")
    return path if PLAIN_PATH.fullmatch(path) else f"'{escaped}'"


def _refuse_option(message: str) -> NoReturn:
    """In place of argparse, which prints a page."""
    typed = re.search(r"--([\w.]+)(=\S+)?$", message)
    if typed and (typed[2] or typed[1] in MODES):
        meant = f"{typed[1]}{typed[2]}" if typed[2] else f"mode={typed[1]}"
        raise UserError(f"{typed[0]}: keys have no dashes; type {meant}")
    raise UserError(f"{message}; {HELP} for a list of them")


def _require_once(overrides: Sequence[Override]) -> None:
    """Raises UserError for two values of a key, of which Hydra takes the last without a word. Of groups it says so itself."""
    typed: dict[str, str] = {}
    mappings: dict[str, str] = {}
    for override in overrides:
        word, value = override.input_line or "", _value(override)
        if override.is_delete() or override.key_or_group in groups():
            continue
        if isinstance(value, dict) and (first := mappings.setdefault(override.key_or_group, word)) != word:
            raise UserError(f"{override.key_or_group}: given twice, by {first} and by {word}; put both into one pair of braces")
        # The keys in a mapping, which is merged with what is there.
        names = [f"{override.key_or_group}.{name}" for name in value] if isinstance(value, dict) else []
        for key in names or [override.key_or_group]:
            if typed.setdefault(key, word) != word:
                raise UserError(f"{key}: given twice, by {typed[key]} and by {word}; type one of them")


def _require_braces(overrides: Sequence[Override]) -> None:
    """Raises UserError for a column of `where` that is typed as a key, and for a mapping in the place of an axis's list."""
    if any(isinstance(_value(override), dict) for override in overrides if override.key_or_group == "where"):
        return
    for override in overrides:
        if RANGE.match(str(override.input_line)):
            continue
        first, _, name = override.key_or_group.partition(".")
        value = str(override.input_line).partition("=")[2].strip("'\"")
        if first == "where" and name:
            raise UserError(
                f"where.{name}={value}: where takes columns with their values in braces; type 'where={{{name}: {value}}}'"
            )
        if first == "sweep" and name in SWEEP_KEYS and isinstance(_value(override), dict):
            raise UserError(
                f"sweep.{name}: its value is a list, and a mapping cannot replace it; type 'sweep.{name}=[{value}]', "
                f"or [{value}] in YAML"
            )


def _require_readable(word: str) -> None:
    """Raises UserError for what Hydra reads slowly, or reads otherwise than a person: no UTF-8, or a key twice in braces."""
    if len(word) > MAX_CHARACTERS:
        raise UserError(
            f"{word[:40]}...: {len(word):,} characters; allowed: up to {MAX_CHARACTERS:,}; write them into a sweep's file"
        )
    if any("\ud800" <= sign <= "\udfff" for sign in word):
        raise UserError(f"{word}: no text in UTF-8; type it as UTF-8")
    for braces in FLAT_BRACES.findall(QUOTED.sub('""', word)):
        names = [part.partition(":")[0].strip() for part in LISTS.sub("", braces).split(",")]
        if twice := [name for name in names if name and names.count(name) > 1]:
            raise UserError(f"{word}: {twice[0]} stands there twice; type one of them")


def _parsed(word: str) -> Override:
    _require_readable(word)
    if "=" not in word and not word.startswith("~"):
        of_mode = f"mode={word}" if word in MODES else "KEY=VALUE, without spaces around the ="
        raise UserError(f"{word}: it gives no key a value; type {f'+sweep={word}' if word in own_files('sweep') else of_mode}")
    try:
        override = OverridesParser.create().parse_override(word)
    except (HydraException, RecursionError, ValueError):
        how = "a list as KEY=[1,2], a mapping as 'KEY={a: 1}', and other signs in quotes within quotes: \"KEY='a b'\""
        if pair := re.fullmatch(r"(\w+)=(\w+)[=:](.+)", word):
            raise UserError(f"{word}: a mapping stands in braces; type '{pair[1]}={{{pair[2]}: {pair[3]}}}'") from None
        raise UserError(f"{word}: it cannot be read as KEY=VALUE; type {how}") from None
    if not override.key_or_group:
        raise UserError(f"{word}: a key is needed before the =; type KEY=VALUE")
    if override.is_hydra_override():
        raise UserError(f"{word}: such a key is the project's own to set; leave it out; for your own files type --config-dir DIR")
    value = _value(override)
    if isinstance(value, list) and (inner := [one for one in value if isinstance(one, Sweep)]):
        raise UserError(f"{word}: no function stands in a list; type its values, or a range of an axis: {_as_range(inner[0])}")
    if _depth(value) > MAX_DEPTH:
        raise UserError(f"{override.key_or_group}: lists and mappings more than {MAX_DEPTH} deep; write fewer brackets")
    if _size(value) > MAX_VALUES:
        raise UserError(f"{override.key_or_group}: more than {MAX_VALUES:,} values; write fewer")
    _require_choice(override)
    return override


def _value(override: Override) -> object:
    """The value of an override, nothing if it has several."""
    return None if override.is_sweep_override() else override.value()


def _require_choice(override: Override) -> None:
    """Raises UserError for a group of conf/ that is given anything but the name of one of its files."""
    group, value = override.key_or_group, _value(override)
    if group not in groups() or override.is_delete() or override.is_sweep_override() or isinstance(value, dict):
        return
    names = value if isinstance(value, list) else [value]
    if not all(isinstance(name, str) for name in names):
        shown = {None: "null", True: "true", False: "false"}.get(value, value) if not isinstance(value, list) else value  # type: ignore[call-overload]
        raise UserError(unknown(group, shown, own_files(group)))
    if len(names) > 1:
        of_each, first = ",".join(map(str, names)), (override.input_line or "").partition("=")[0]
        raise UserError(
            f"{override.input_line}: {group} takes one file; "
            f"type one of them, or -m {first}={of_each} to run the command once for each"
        )


def _require_several(override: Override, multirun: bool) -> None:
    """Raises UserError for several values without -m, and for those that are no list."""
    key = override.key_or_group
    if not multirun:
        what = f"a list stands in brackets, {_as_list(override)}" if key not in (*groups(), "mode") else "it takes one"
        raise UserError(f"{override.input_line}: several values; {what}; to run the command once for each, add -m")
    if override.is_interval_sweep() or override.value_type == ValueType.GLOB_CHOICE_SWEEP:
        raise UserError(f"{override.input_line}: allowed with -m: values with commas between them, {key}=1,2")


def _as_list(override: Override) -> str:
    """How the values of an override are typed as a list."""
    key, typed = override.key_or_group, str(override.input_line).partition("=")[2]
    if isinstance(of := override.value(), RangeSweep):
        return f"'{key}=[{_as_range(of)}]'"
    values = re.sub(r"^choice\((.*)\)$", r"\1", typed)
    return f"{key}=[{'1,2' if '(' in values else values}]"


def _as_range(of: object) -> str:
    """A range of Hydra's, which lacks its end, as one of an axis, which has it; an example for anything else."""
    whole = of.range() if isinstance(of, RangeSweep) else None
    if isinstance(whole, range) and whole.step > 0 and whole:
        return f"{{from: {whole[0]}, to: {whole[-1]}, step: {whole.step}}}"
    return "{from: 1024, to: 4096, step: 1024}"


def _depth(value: object) -> int:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(_depth, inside), default=0)


def _size(value: object) -> int:
    if isinstance(value, dict):
        return sum(map(_size, value.values())) + len(value)
    return sum(map(_size, value)) + 1 if isinstance(value, list) else 1


@cache
def groups() -> frozenset[str]:
    """The folders of conf/, each of which is a key that takes the name of a file in it."""
    return frozenset(entry.name for entry in files(conf).iterdir() if entry.is_dir() and not entry.name.startswith("_"))
