"""`python -m attention_orchestrator`, and the command `attention-orchestrator`."""

import sys

from orchestrator.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
