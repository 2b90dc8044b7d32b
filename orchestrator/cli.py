"""What a person types: composes the config, turns what is wrong with it into words, runs its mode, ends with its exit code."""

from __future__ import annotations

import os
import re
import signal
import sys
from difflib import get_close_matches
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel

from kernels.timing import Timing
from orchestrator.axes import KEYS
from orchestrator.commands import INTERRUPTED, OK, execute
from orchestrator.draft import Draft
from orchestrator.errors import UserError, unknown
from orchestrator.model import Model
from orchestrator.settings import Check, Cluster, Dashboard, Limits, Results, Settings, load

WRONG_INPUT = 2
BROKEN_PIPE = 141  # as a shell has it for SIGPIPE
MULTIRUN = ("-m", "--multirun")

_composed: list[Settings] = []  # what got through the door
_exit_codes: list[int] = []  # of every job of a multirun: Hydra drops what a job returns


def main() -> None:
    """Entry point. Ends the process with the contract's exit code; no traceback for wrong input."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises, and the words are ours
    signal.signal(signal.SIGTERM, _interrupt)
    # Hydra's parser takes overrides in one piece alone: what stood behind `-m` would be unknown to it.
    sys.argv[1:] = sorted(sys.argv[1:], key=lambda word: word not in MULTIRUN)
    try:
        _compose()
    except (HydraException, OmegaConfBaseException) as error:
        _fail(_explain_hydra(error))
    except ValueError as error:
        if _composed:
            raise
        _fail(_explain_hydra(error))  # Hydra raises it bare for some overrides, such as a group set to null
    except KeyboardInterrupt:
        _exit_codes.append(INTERRUPTED)
    sys.exit(max(_exit_codes, default=OK))


def _interrupt(signum: int, frame: object) -> None:
    raise KeyboardInterrupt


@hydra.main(version_base="1.3", config_path="pkg://conf", config_name="config")  # type: ignore[untyped-decorator]
def _compose(config: DictConfig) -> None:
    if INTERRUPTED in _exit_codes:  # of an earlier job of this multirun: who stops it means all of it
        return
    try:
        if config.get("mode") == "support":  # asks for no sweep
            print(_support([config.adapters] if isinstance(config.adapters, str) else list(config.adapters)), end="")
            return
        settings = load(_with_files(_plain(config)))
        _composed.append(settings)
        _exit_codes.append(execute(settings, list(HydraConfig.get().overrides.task)))
        sys.stdout.flush()
    except UserError as error:
        _fail(str(error))
    except BrokenPipeError:  # `| head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left goes nowhere, without a word at the end
        _exit_codes.append(BROKEN_PIPE)


def _support(plugins: list[str]) -> str:
    from orchestrator import support

    try:
        return support.page(tuple(plugins))
    except (ImportError, ValueError, AttributeError) as error:
        raise UserError(f"adapters={plugins}: {error}; allowed: modules that hold a tuple ADAPTERS") from None


def _with_files(config: dict[str, Any]) -> dict[str, Any]:
    if config.get("import") is None and config.get("export") is None:
        return config
    from orchestrator.formats.door import taken_in

    return taken_in(config)


def _plain(config: DictConfig) -> dict[str, Any]:
    plain = OmegaConf.to_container(config, resolve=True)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def _fail(message: str) -> None:
    print(f"error: {message}", file=sys.stderr)
    _exit_codes.append(WRONG_INPUT)


def _explain_hydra(error: Exception) -> str:
    """Hydra's error without its frame, and the nearest thing that would have been right."""
    words = " ".join(line.strip() for line in str(error).splitlines() if line.strip())
    words = words.partition("Config search path:")[0].removeprefix("In 'config': ").strip()
    if group := re.match(r"Could not find '(\w+)/(.*?)' Available options in '\w+': (.*)", words):
        return unknown(group[1], group[2], (name for name in group[3].split() if name != "base"))
    merge = r"Error merging override ([\w.]+)=(\{.*\})|Cannot merge DictConfig with ListConfig full_key: ([\w.]+)"
    if ranged := re.search(merge, words):
        key, given = ranged[1] or ranged[3], ranged[2] or "{min: 1, max: 8}"
        return f"{key}: it holds a list, which a mapping cannot replace; type '{key}=[{given}]', or [{given}] in YAML"
    if key := re.match(r"Could not override '([\w.]+)'", words):
        near = get_close_matches(key[1], _all_keys(), n=1)
        if near and near[0] == key[1]:
            return f"{key[1]}: this config does not set it yet; type +{key[1]}=..."
        hint = f"did you mean '{near[0]}'?" if near else "type python -m orchestrator --help for the keys there are."
        return f"{key[1]}: there is no such key; {hint}"
    return f"{words}\n  type python -m orchestrator --help for the groups and keys there are"


def _all_keys() -> list[str]:
    """Every key of a run, with dots, for a sweep that has none of its own."""
    sections: dict[str, type[BaseModel]] = {
        "limits": Limits,
        "timing": Timing,
        "check": Check,
        "results": Results,
        "cluster": Cluster,
        "model": Model,
        "draft": Draft,
        "dashboard": Dashboard,
    }
    nested = [f"{name}.{field}" for name, section in sections.items() for field in section.model_fields]
    top = [field.alias or name for name, field in Settings.model_fields.items()]
    return [*top, *nested, *(f"sweep.{key}" for key in (*KEYS, "dtype", "exclude", "include"))]
