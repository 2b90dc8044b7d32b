"""`python -m orchestrator`."""

import sys

from orchestrator import first_line, gc_pause


def main() -> int:
    """Runs the command of this process, and returns its exit code."""
    first_line.say(sys.argv[1:])
    with gc_pause.paused():
        from orchestrator import cli  # takes half a second

    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
