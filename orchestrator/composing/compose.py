"""Composes the configuration of a command with Hydra, as plain values, and explains the word that Hydra does not take."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import hydra
import yaml
from hydra.core.override_parser.types import Override
from hydra.errors import ConfigCompositionException, MissingConfigException
from omegaconf import OmegaConf

import conf
from orchestrator.composing.overrides import HELP, RANGE, groups, read
from orchestrator.config import config_json
from orchestrator.config.modes import MODES
from orchestrator.config.settings import NO_SWEEP_PATH, Settings, meant_by, nearest_key
from orchestrator.config.sweep import SWEEP_KEYS
from orchestrator.errors import UserError, shown, unknown
from orchestrator.untrusted import yaml as untrusted_yaml
from orchestrator.untrusted.files import expanded, read_text

Config = dict[str, Any]

CONFIG_DIR = "--config-dir="
FROM_FILE = "config_json"  # the name under which Hydra finds what `model=PATH/config.json` says
VERSION = "1.3"  # of Hydra's rules
MAX_VALUES = 10_000  # in a file: composing more takes a minute


def composed(overrides: Sequence[str], config_dir: str | None = None) -> Config:
    """The configuration of a command's words, with files of `config_dir` too. Raises UserError for what there is not."""
    own = [] if config_dir is None else [_folder(config_dir)]
    with _model_files(overrides) as (named, made):
        folders = ",".join(f'"file://{_escaped(folder)}"' for folder in (*own, *made))
        search = [f"hydra.searchpath=[{folders}]"] if folders else []
        words = [_for_hydra(word, config_dir) for word in named]
        try:
            return _by_hydra([*search, *words])
        except RecursionError:
            raise UserError(
                f"{CONFIG_DIR}{config_dir}: a defaults list in it leads back to its own file; leave one name out of it"
            ) from None
        except MissingConfigException as error:
            group, name = str(error.missing_cfg_file).rpartition("/")[::2]
            hint = f"; a file of your own is found with --config-dir DIR, as DIR/{group}/{name}.yaml" if group else ""
            if group == "model":
                hint = f"; any other, such as an encoder: save its page's config.json and type model=PATH/config.json{hint}"
            options = (option for option in error.options or () if option != "base")
            raise UserError(unknown(group or "defaults", name, options) + hint) from None
        except ConfigCompositionException as error:
            typed = dict(word.partition("=")[::2] for word in words)
            default = "export" if "export" in typed else Settings.model_fields["mode"].default
            mode = typed["mode"] if typed.get("mode") in MODES else default
            raise UserError(_of_word(_first_refused(search, words), mode) or _as_said(error)) from None
        except Exception as error:  # of whatever class: what Hydra composes is what was typed, or lies in the folder
            raise UserError(_as_said(error)) from None


def _by_hydra(words: Sequence[str]) -> Config:
    with hydra.initialize_config_module(conf.__name__, version_base=VERSION):
        found = OmegaConf.to_container(hydra.compose("config", overrides=list(words)), resolve=True)
    return {str(key): value for key, value in found.items()}  # type: ignore[union-attr]


def _first_refused(search: Sequence[str], words: Sequence[str]) -> Override:
    """The word that Hydra does not take behind those before it, the choices of files first, since they bring keys."""
    ordered = sorted(read(words).overrides, key=lambda override: override.key_or_group not in groups())

    def is_refused(count: int) -> bool:
        try:
            _by_hydra([*search, *(str(override.input_line) for override in ordered[:count])])
        except ConfigCompositionException:
            return True
        except Exception:  # a value that is wrong is no word that is refused
            return False
        return False

    return ordered[bisect_left(range(1, len(ordered)), True, key=is_refused)]


@contextmanager
def _model_files(words: Sequence[str]) -> Iterator[tuple[list[str], list[Path]]]:
    """The words, in which `model=PATH/config.json` names a file, and the folder that has it, if any. Raises UserError."""
    paths = [word.partition("=")[2].strip("'\"") for word in words if word.startswith("model=")]
    if not paths or not config_json.is_named(paths[-1]):
        yield list(words), []
        return
    with TemporaryDirectory() as folder:
        file = Path(folder) / "model" / f"{FROM_FILE}.yaml"
        file.parent.mkdir()
        file.write_text(yaml.safe_dump(config_json.read(paths[-1])), encoding="utf-8")
        yield [f"model={FROM_FILE}" if word.startswith("model=") else word for word in words], [Path(folder)]


def _for_hydra(word: str, config_dir: str | None) -> str:
    """A word as Hydra takes it: a range in the place of an axis's list, and `engine=NAME`, whose files Hydra does not merge."""
    word = RANGE.sub(r"\1[\2]", word)
    key, equals, name = word.partition("=")
    if key != "engine" or not equals or not name or name == "null":
        return word
    folder = "null" if config_dir is None else f"'{_escaped(Path(expanded(config_dir)).resolve())}'"
    return f"engine={{name: {name}, folder: {folder}}}"


def from_words(words: Sequence[str]) -> Config:
    """The configuration of a command's words as they are typed, without -m. Raises UserError for wrong ones."""
    arguments = read(words)
    return composed(arguments.words, arguments.config_dir)


def with_sweep_of_row(config: Config, typed: list[str]) -> tuple[Config, list[str]]:
    """A configuration and its words, with the sweep of the row if its mode takes one. Raises UserError if it fits no more."""
    mode, path = str(config.get("mode")), (config.get("results") or {}).get("path")
    # As it was typed: YAML would read an id of digits alone, such as 123456789012, as a number.
    points = [value.strip("'\"") for key, _, value in (word.partition("=") for word in typed) if key == "point"]
    point = points[-1] if points and points[-1] not in ("", "null") else None
    if point is not None:
        config = {**config, "point": point}
    takes_row = mode in MODES and MODES[mode].sweep_of_row
    if not takes_row or config.get("sweep") is not None or config.get("import") or path == NO_SWEEP_PATH:
        return config, typed
    from orchestrator.planning.replay import overrides_of, require_no_environment

    if not isinstance(path, str):
        raise UserError(f"results.path={path}: mode={mode} takes one dataset; type the one that has the point")
    words = [*overrides_of(path, point, typed), *typed]
    found = from_words(words)
    require_no_environment(found["sweep"], typed)
    return {**found, "point": point}, words


def _folder(config_dir: str) -> Path:
    """A folder of a person's own files. Raises UserError if it is none, or one of the files is not YAML with keys."""
    try:
        folder = Path(expanded(config_dir)).resolve()
        found = folder.is_dir()
    except OSError as error:
        raise UserError(f"--config-dir: {shown(config_dir)}: {error.strerror}; type another folder") from None
    if not found:
        raise UserError(f"--config-dir: there is no folder {folder}")
    for file in (file for group in sorted(groups()) for file in sorted(folder.glob(f"{group}/*.yaml"))):
        _, data = untrusted_yaml.parse(read_text(file, "config"), str(file), MAX_VALUES)
        if not isinstance(data, dict | None):
            what = "a list" if isinstance(data, list) else "no keys with values"
            raise UserError(f"{file}:1: {what}; allowed: keys with values, such as batch_size: [1, 16]")
        wrong = [key for key, value in (data or {}).items() if key in SWEEP_KEYS and isinstance(value, dict)]
        if file.parent.name == "sweep" and wrong:
            raise UserError(
                f"{file}: {wrong[0]}: its value is a list; type {wrong[0]}: [...], a range as [{{from: 1, to: 9, step: 2}}]"
            )
    return folder


def _escaped(folder: Path) -> str:
    return str(folder).replace("\\", "\\\\").replace('"', '\\"')


def _as_said(error: Exception) -> str:
    """Hydra's or OmegaConf's own message, and how values are written."""
    key = str(getattr(error, "full_key", None) or "")
    said = str(error or error.__cause__).partition("\n")[0] or "the configuration cannot be put together"
    values = "a list stands in brackets, KEY: [1, 2]; ${KEY} is another key, ${oc.env:NAME,VALUE} a variable"
    return f"{key + ': ' if key else ''}{said}; {values}"


def _of_word(override: Override, mode: str) -> str:
    """What is wrong with the key of a word that Hydra does not take; empty where a file is chosen, in which the fault lies."""
    key, near = override.key_or_group, nearest_key(override.key_or_group)
    if override.is_add() and key in groups():
        return ""
    if override.is_add():
        return f"+{key}: the config has this key already; type {key}=... without the +"
    if override.is_delete():
        return f"~{key}: {'none is chosen' if key in groups() else 'unknown key'}, so nothing can be left out; {HELP} for all"
    if near == key:
        return f"{key}: it has no value yet, and a new key begins with a +; type +{key}={'NAME' if key in groups() else '...'}"
    return f"{key}: unknown key; {meant_by(key, mode, str(override.input_line).partition('=')[2])}"
