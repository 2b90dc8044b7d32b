"""`python -m orchestrator`. Prints the first line that a person sees before anything is imported that takes a while."""

import atexit
import os
import sys
import threading
from collections.abc import Sequence

from orchestrator import gc_pause

MEASURING = {"mode=run", "mode=noise", "mode=check_power", "mode=replay", "mode=calibrate", "mode=compile"}  # take longer to start
HOW_TO_HAVE = (
    "in the checkout, type pip install . to read what was measured, or make install and source .venv/bin/activate to measure"
)
SECONDS = 2.0  # that threads have to end
ASKING = {"--help", "-h", "--hydra-help", "--version", "--info", "-i", "--cfg", "-c", "--shell-completion", "-sc"}


def say(argv: Sequence[str]) -> None:
    """Says on a terminal that a command which measures has begun. Other commands answer within a second."""
    modes = {word for word in argv if word.startswith("mode=")}
    if argv and modes <= MEASURING and not ASKING & set(argv) and sys.stderr.isatty():
        sys.stderr.write("attention-orchestrator: reading the configuration\n")
        sys.stderr.flush()


def main() -> int:
    """Runs the command of this process, and returns its exit code."""
    atexit.register(_say_no_more)  # first, so it is called last
    say(sys.argv[1:])
    try:
        with gc_pause.paused():
            from orchestrator import cli  # takes half a second
    except ModuleNotFoundError as error:
        sys.stderr.write(f"error: {error.name} is not installed for {sys.executable}; {HOW_TO_HAVE}\n")
        return 2

    code = cli.main()
    _end_threads(code)
    return code


def _say_no_more() -> None:
    """Closes the screen to what a library says after Python's last word: cuDNN calls graphs that FlashInfer keeps leaked."""
    if "cudnn" in sys.modules:
        sys.stderr.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def _end_threads(code: int) -> None:
    """Ends the process now if a backend has left a thread behind, for which Python would wait for ever."""
    left = [one for one in threading.enumerate() if one is not threading.main_thread() and not one.daemon]
    for one in left:
        one.join(SECONDS / len(left))
    if any(one.is_alive() for one in left):
        sys.stdout.flush()
        os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
