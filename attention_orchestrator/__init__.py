"""The Python interface of attention-orchestrator: `open` a dataset, `ask` it a question, `compare` two, `run` a sweep.

The names are the same in a checkout and in an installed copy. docs/commands.md has an example of each.
"""

from typing import TYPE_CHECKING, Any

from orchestrator.api import Dataset, UserError, ask, compare, open, run, version

if TYPE_CHECKING:
    from orchestrator.analysis.compare.comparison import Comparison

__all__ = ["Comparison", "Dataset", "UserError", "__version__", "ask", "compare", "open", "run"]
__version__ = version()


def __getattr__(name: str) -> Any:
    """`Comparison`, which loads pandas: the command imports this package before it does anything."""
    if name != "Comparison":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from orchestrator.analysis.compare.comparison import Comparison

    return Comparison
