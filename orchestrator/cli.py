"""The command line: Hydra composes the configuration, a command runs it, and errors become one message and an exit code."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import hydra
from hydra._internal.hydra import Hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

import conf
from orchestrator import notes, output, verbose
from orchestrator.analysis.connection import was_interrupted
from orchestrator.code_version import own_version
from orchestrator.commands import INTERRUPTED, OK, execute
from orchestrator.composing import config_dir, config_files
from orchestrator.composing.overrides import checked
from orchestrator.composing.stored_sweep import to_dict, with_sweep_of_row
from orchestrator.composing.words import in_words
from orchestrator.errors import UserError
from orchestrator.untrusted.text import for_terminal

WRONG_INPUT = 2
UNWRITTEN = 74  # EX_IOERR of sysexits.h: 1 would say that something was measured, and is slower
ADVICE = "what was measured, or written to files, is kept; type the command again, with its output sent to another place"
BROKEN_PIPE = 141  # what a shell reports for SIGPIPE
TO_MEASURE = ("flashinfer", "pynvml", "ray", "torch", "uv")  # what the extra `run` installs: no other command needs it


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command with these arguments, by default those of the process, and returns its exit code.

    Wrong input prints one message on stderr and gives 2; an output that cannot be written gives 74. Any other exception is a
    bug and is raised.
    """
    with output.guarded() as stream:
        code = _run(list(sys.argv[1:] if argv is None else argv))
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            code = max(code, _close_stdout())
        if stream is None or stream.unwritten is None:
            return code
    print(f"error: the output could not be written: {stream.unwritten}; {ADVICE}", file=sys.stderr)
    return max(code, UNWRITTEN)


def _run(words: list[str]) -> int:
    """Runs the command and returns its exit code."""
    if "--version" in words:  # Hydra would print its own
        print(f"attention-orchestrator {own_version()}")
        return OK
    words, is_verbose = verbose.split(words)
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises its errors instead of printing them
    Hydra.get_mode = _mode
    config_files.install()
    try:
        words = checked(words)
    except UserError as error:
        return _fail(str(error))
    session = Session()
    with (
        _arguments(words),
        _sigterm_interrupts(),
        warnings.catch_warnings(),
        notes.buffered(),
        verbose.logging_to_stderr(is_verbose),
    ):
        warnings.filterwarnings("error", "provider=", UserWarning)  # Hydra's, for a folder of configuration that is not there
        session.run()
    return max(session.exit_codes, default=OK)


def composed(overrides: Sequence[str]) -> dict[str, Any]:
    """The configuration of a command's words, for callers in Python. Raises UserError if there is no such key or file."""
    config_files.install()
    try:
        with hydra.initialize_config_module(conf.__name__, version_base="1.3"):
            return to_dict(hydra.compose("config", overrides=checked(overrides)))
    except (HydraException, OmegaConfBaseException, ValueError, RecursionError) as error:
        raise UserError(_explain(error)) from None


class Session:
    """The jobs of one command: one, or several with `-m`. Hydra drops what a job returns, so it is kept here."""

    def __init__(self) -> None:
        self.exit_codes: list[int] = []
        self.bug: Exception | None = None  # what a job raised and is no user error

    def run(self) -> None:
        """Runs the jobs that Hydra makes of the arguments of this process."""
        run_jobs = hydra.main(version_base="1.3", config_path=f"pkg://{conf.__name__}", config_name="config")(self.run_job)
        try:
            run_jobs()
        except BrokenPipeError:  # the reader of --help, such as `head`, has ended
            self.exit_codes.append(_close_stdout())
        except SystemExit as end:  # after --help, and for an option that does not exist
            self.exit_codes.append(end.code if isinstance(end.code, int) else OK)
        except KeyboardInterrupt:
            if INTERRUPTED not in self.exit_codes:  # no command was there to say it: it was planning, or reading
                print("interrupted", file=sys.stderr)
            self.exit_codes.append(INTERRUPTED)
        except (HydraException, OmegaConfBaseException, UserError, ValueError, OSError, RecursionError, UserWarning) as error:
            if error is self.bug:
                raise
            self.exit_codes.append(_fail(_explain(error)))

    def run_job(self, config: DictConfig) -> None:
        """Runs one job. Raises KeyboardInterrupt if it was interrupted, so that Hydra starts no further job."""
        try:
            typed = [*config_dir.words_of(sys.argv[1:]), *HydraConfig.get().overrides.task]
            code = execute(*with_sweep_of_row(to_dict(config), typed))
            sys.stdout.flush()
            notes.release()
        except UserError as error:
            code = _fail(str(error))
        except OmegaConfBaseException as error:  # an interpolation such as ${nothing}
            code = _fail(in_words(error))
        except BrokenPipeError:  # the reader, such as `head`, has ended
            code = _close_stdout()
        except ModuleNotFoundError as error:
            if error.name not in TO_MEASURE:
                self.bug = error
                raise
            hint = "type pip install 'attention-orchestrator[run]'"
            code = _fail(f"{error.name} is not installed, and this command measures; {hint}")
        except Exception as error:
            if was_interrupted(error):  # in a query of DuckDB
                raise KeyboardInterrupt from None
            self.bug = error
            raise
        self.exit_codes.append(code)
        if code == INTERRUPTED:
            raise KeyboardInterrupt


@contextmanager
def _arguments(argv: Sequence[str]) -> Iterator[None]:
    """Puts arguments where Hydra reads them."""
    before = sys.argv
    sys.argv = [before[0], *argv]
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


def _close_stdout() -> int:
    """Drops what is still to be written. Returns the exit code."""
    output.discard(sys.stdout)
    return BROKEN_PIPE


def _fail(message: str) -> int:
    print(for_terminal(f"error: {message}"), file=sys.stderr)
    return WRONG_INPUT


def _explain(error: Exception) -> str:
    """Why no configuration could be composed."""
    match error:
        case UserError():
            return str(error)
        case RecursionError():
            files = " -> ".join(config_files.circle())
            return f"the defaults of {files or 'a file'} lead back to the first; leave one of them out of a defaults list"
        case OSError() if error.strerror:
            return f"{error.filename}: it cannot be used ({error.strerror}); type another path"
    return in_words(error)
