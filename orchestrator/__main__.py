"""`python -m orchestrator`. Prints the first line that a person sees before anything is imported that takes a while."""

import sys
from collections.abc import Sequence

from orchestrator import gc_pause

MEASURING = {"mode=run", "mode=noise", "mode=check_power", "mode=replay", "mode=calibrate", "mode=compile"}  # take longer to start
ASKING = {"--help", "-h", "--hydra-help", "--version", "--info", "-i", "--cfg", "-c", "--shell-completion", "-sc"}


def say(argv: Sequence[str]) -> None:
    """Says on a terminal that a command which measures has begun. Other commands answer within a second."""
    modes = {word for word in argv if word.startswith("mode=")}
    if argv and modes <= MEASURING and not ASKING & set(argv) and sys.stderr.isatty():
        sys.stderr.write("attention-orchestrator: reading the configuration\n")
        sys.stderr.flush()


def main() -> int:
    """Runs the command of this process, and returns its exit code."""
    say(sys.argv[1:])
    with gc_pause.paused():
        from orchestrator import cli  # takes half a second

    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
