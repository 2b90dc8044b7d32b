"""The command line: Hydra composes the configuration, a command runs it, and errors become one message and an exit code."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, get_args

import conf
import orchestrator
from orchestrator import libraries, notes, output
from orchestrator.code_version import own_version
from orchestrator.commands import BAD_POINTS, INTERRUPTED, OK, execute
from orchestrator.composing import completion
from orchestrator.composing.compose import CONFIG_DIR, VERSION, composed, with_sweep_of_row
from orchestrator.composing.overrides import HELP, Arguments, read
from orchestrator.config.settings import Format, Question
from orchestrator.errors import UserError
from orchestrator.untrusted.text import for_terminal

WRONG_INPUT = 2
VERBOSE = ("-v", "--verbose")
UNWRITTEN = 74  # EX_IOERR of sysexits.h: 1 would say that something was measured, and is slower
ADVICE = "what was measured, or written to files, is kept; type the command again, with its output sent to another place"
BROKEN_PIPE = 141  # what a shell reports for SIGPIPE
ANSWERS = "; ".join(f"{key}={' | '.join(get_args(of))}" for key, of in {"question": Question, "format": Format}.items())
OF_HELP = ("~trees", f"hydra.help.footer='{ANSWERS}'", "hydra/hydra_logging=none")  # without the tokens of trees
MEASURING = ("flashinfer", "pynvml", "ray", "torch", "uv")  # what the extra `run` installs: no other command needs it


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command with these arguments, by default those of the process, and returns its exit code.

    Wrong input prints a message on stderr and gives 2; an output that cannot be written gives 74. Any other exception is a bug.
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
    """Runs the command and returns its exit code: of several jobs the worst, and 2 for wrong input only if none of them ran."""
    if "--version" in words:  # Hydra would print its own
        print(f"attention-orchestrator {own_version()}")
        return OK
    left = [word for word in words if word not in VERBOSE]
    codes: list[int] = []
    with _sigterm_interrupts(), notes.buffered(), _logging_to_stderr(len(left) < len(words)):
        try:
            arguments = read(left)
            if arguments.shows:
                return _show(arguments)
            folder = [] if arguments.config_dir is None else [f"{CONFIG_DIR}{arguments.config_dir}"]
            jobs = [(composed(job, arguments.config_dir), [*folder, *job]) for job in arguments.jobs()]
            for config, typed in jobs:
                codes.append(_run_job(config, typed))
                if codes[-1] == INTERRUPTED:
                    break
        except UserError as error:
            codes.append(_fail(str(error)))
        except BrokenPipeError:  # the reader of --help, such as `head`, has ended
            codes.append(_close_stdout())
        except KeyboardInterrupt:  # no command was there to say it: it was planning, or reading
            print("interrupted", file=sys.stderr)
            codes.append(INTERRUPTED)
    ran = [code for code in codes if code != WRONG_INPUT]
    return max([*ran, *([BAD_POINTS] if len(ran) < len(codes) else [])]) if ran else max(codes, default=OK)


def _run_job(config: dict[str, Any], typed: list[str]) -> int:
    """Runs one job and returns its exit code. Raises what is a bug, and KeyboardInterrupt."""
    try:
        code = execute(*with_sweep_of_row(config, typed))
        sys.stdout.flush()
        notes.release()
    except UserError as error:
        return _fail(str(error))
    except BrokenPipeError:  # the reader, such as `head`, has ended
        return _close_stdout()
    except SystemExit as end:
        _fail(f"a module of adapters ended the command by sys.exit({end.code!r}); correct it, or leave it out")
        return BAD_POINTS
    except ModuleNotFoundError as error:
        if error.name not in MEASURING:
            raise
        return _fail(f"{error.name} is not installed, and this command measures; {libraries.TO_MEASURE}")
    except Exception as error:
        from orchestrator.analysis.connection import was_interrupted

        if was_interrupted(error):  # in a query of DuckDB
            raise KeyboardInterrupt from None
        raise
    return code


def _show(arguments: Arguments) -> int:
    """What Hydra shows itself: help, the configuration, or the words that a shell completes. Returns the exit code."""
    import hydra

    if "--shell-completion" in arguments.shows and (words := completion.completed(os.environ.get("COMP_LINE", ""))):
        print("\n".join(words))
        return OK
    composed(arguments.words, arguments.config_dir)  # wrong words end here
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises its errors instead of printing them
    folder = [] if arguments.config_dir is None else ["--config-dir", arguments.config_dir]
    # A shell completes a command by its name, so `python -m` installs that of the other one.
    own = OF_HELP if "--help" in arguments.shows else ()
    before, sys.argv = sys.argv, ["attention-orchestrator", *folder, *arguments.shows, *arguments.words, *own]
    try:
        hydra.main(version_base=VERSION, config_path=f"pkg://{conf.__name__}", config_name="config")(lambda config: None)()
    except SystemExit as end:  # after --help
        return end.code if isinstance(end.code, int) else OK
    except (BrokenPipeError, KeyboardInterrupt):
        raise
    except Exception as error:
        raise UserError(f"{error}; {HELP} for all keys") from None
    finally:
        sys.argv = before
    return OK


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


class OnStderr(logging.Handler):
    """Writes to what stderr is now: a bar on the terminal takes its place while it is drawn."""

    def emit(self, record: logging.LogRecord) -> None:
        sys.stderr.write(for_terminal(f"{self.format(record)}\n"))
        sys.stderr.flush()


@contextmanager
def _logging_to_stderr(wanted: bool) -> Iterator[None]:
    """For `-v`, shows what the package's loggers say meanwhile at INFO of machines, workers, modules."""
    logger = logging.getLogger(orchestrator.__name__)
    before, handler = logger.level, OnStderr()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    if wanted:
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


def _close_stdout() -> int:
    """Drops what is still to be written. Returns the exit code."""
    output.discard(sys.stdout)
    return BROKEN_PIPE


def _fail(message: str) -> int:
    print(for_terminal(f"error: {message}"), file=sys.stderr)
    return WRONG_INPUT
