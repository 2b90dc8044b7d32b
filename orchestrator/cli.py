"""The command line: Hydra composes the configuration, a command runs it, and errors become one message and an exit code."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

import hydra
from hydra._internal.hydra import Hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel

import conf
from orchestrator.commands import INTERRUPTED, OK, execute
from orchestrator.config.settings import Settings
from orchestrator.config.sweep import SWEEP_KEYS
from orchestrator.errors import UserError, unknown

WRONG_INPUT = 2
BROKEN_PIPE = 141  # what a shell reports for SIGPIPE
TO_MEASURE = ("flashinfer", "pynvml", "ray", "torch")  # what the extra `run` installs: no other command needs it
MULTIRUN = ("-m", "--multirun")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command with these arguments, by default those of the process, and returns its exit code.

    Wrong input prints one message on stderr and gives 2. Any other exception is a bug and is raised.
    """
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises its errors instead of printing them
    Hydra.get_mode = _mode
    session = Session()
    run_jobs = hydra.main(version_base="1.3", config_path=f"pkg://{conf.__name__}", config_name="config")(session.run_job)
    with _arguments(sys.argv[1:] if argv is None else argv), _sigterm_interrupts():
        try:
            run_jobs()
        except SystemExit as end:  # after --help, and for an option that does not exist
            session.exit_codes.append(end.code if isinstance(end.code, int) else OK)
        except KeyboardInterrupt:
            session.exit_codes.append(INTERRUPTED)
        except (HydraException, OmegaConfBaseException, ValueError) as error:  # Hydra raises ValueError for e.g. model=null
            if error is session.bug:
                raise
            session.exit_codes.append(_fail(_explain_hydra(error)))
    return max(session.exit_codes, default=OK)


def composed(overrides: Sequence[str]) -> dict[str, Any]:
    """The configuration of a command's words, for callers in Python. Raises UserError if there is no such key or file."""
    try:
        with hydra.initialize_config_module(conf.__name__, version_base="1.3"):
            return _to_dict(hydra.compose("config", overrides=list(overrides)))
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise UserError(_explain_hydra(error)) from None


class Session:
    """The jobs of one command: one, or several with `-m`. Hydra drops what a job returns, so it is kept here."""

    def __init__(self) -> None:
        self.exit_codes: list[int] = []
        self.bug: Exception | None = None  # what a job raised and is no user error

    def run_job(self, config: DictConfig) -> None:
        """Runs one job. Raises KeyboardInterrupt if it was interrupted, so that Hydra starts no further job."""
        try:
            code = execute(_to_dict(config), list(HydraConfig.get().overrides.task))
            sys.stdout.flush()
        except UserError as error:
            code = _fail(str(error))
        except OmegaConfBaseException as error:  # an interpolation such as ${nothing}
            code = _fail(_explain_hydra(error))
        except BrokenPipeError:  # the reader, such as `head`, has ended
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the last flush must not complain
            code = BROKEN_PIPE
        except ModuleNotFoundError as error:
            if error.name not in TO_MEASURE:
                self.bug = error
                raise
            hint = "type pip install 'attention-orchestrator[run]'"
            code = _fail(f"{error.name} is not installed, and this command measures; {hint}")
        except Exception as error:
            self.bug = error
            raise
        self.exit_codes.append(code)
        if code == INTERRUPTED:
            raise KeyboardInterrupt


@contextmanager
def _arguments(argv: Sequence[str]) -> Iterator[None]:
    """Puts arguments where Hydra reads them. Its parser wants all overrides in one piece, so `-m` goes first."""
    before = sys.argv
    sys.argv = [before[0], *sorted(argv, key=lambda word: word not in MULTIRUN)]
    try:
        yield
    finally:
        sys.argv = before


@contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """Makes SIGTERM, which Slurm and Kubernetes send, the same as Ctrl-C."""

    def interrupt(signum: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


_compose_for_mode = Hydra.get_mode


def _mode(self: Hydra, config_name: str | None, overrides: list[str]) -> Any:
    """What Hydra composes everything once more for, which takes a third of a second: `hydra.mode`. None if nobody types it."""
    typed = any("hydra.mode" in override for override in overrides)
    return _compose_for_mode(self, config_name=config_name, overrides=overrides) if typed else None


def _to_dict(config: DictConfig) -> dict[str, Any]:
    plain = OmegaConf.to_container(config, resolve=True)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def _fail(message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return WRONG_INPUT


def _explain_hydra(error: Exception) -> str:
    """Hydra's error without its frame, and the nearest name that exists."""
    text = " ".join(line.strip() for line in str(error).splitlines() if line.strip())
    text = text.partition("Config search path:")[0].removeprefix("In 'config': ").strip()
    if group := re.match(r"Could not find '(\w+)/(.*?)' Available options in '\w+': (.*)", text):
        return unknown(group[1], group[2], (name for name in group[3].split() if name != "base"))
    merge = r"Error merging override ([\w.]+)=(\{.*\})|Cannot merge DictConfig with ListConfig full_key: ([\w.]+)"
    if ranged := re.search(merge, text):
        key, given = ranged[1] or ranged[3], ranged[2] or "{min: 1, max: 8}"
        return f"{key}: it holds a list, which a mapping cannot replace; type '{key}=[{given}]', or [{given}] in YAML"
    if key := re.match(r"Could not override '([\w.]+)'", text):
        near = get_close_matches(key[1], _all_keys(), n=1)
        if near and near[0] == key[1]:
            return f"{key[1]}: this config does not set it yet; type +{key[1]}=..."
        hint = f"did you mean '{near[0]}'?" if near else "type python -m orchestrator --help for the keys there are."
        return f"{key[1]}: there is no such key; {hint}"
    return f"{text}\n  type python -m orchestrator --help for the groups and keys there are"


def _all_keys() -> list[str]:
    """Every key that can be typed, with dots."""
    keys = [f"sweep.{key}" for key in (*SWEEP_KEYS, "dtype", "exclude", "include")]
    for name, field in Settings.model_fields.items():
        keys.append(field.alias or name)
        if name != "sweep" and isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            keys += [f"{name}.{part.alias or key}" for key, part in field.annotation.model_fields.items()]
    return keys
