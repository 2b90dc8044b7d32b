"""The Python interface of attention-orchestrator: `open` a dataset, `ask` it a question, `compare` two, `run` a sweep.

The names are the same in a checkout and in an installed copy. docs/commands.md has an example of each.
"""

from orchestrator.api import Comparison, Dataset, UserError, ask, compare, open, run, version

__all__ = ["Comparison", "Dataset", "UserError", "__version__", "ask", "compare", "open", "run"]
__version__ = version()
