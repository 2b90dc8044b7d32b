"""The Python interface of attention-orchestrator: `open` a dataset, `ask` it a question, `compare` two, `run` a sweep.

The names are the same in a checkout and in an installed copy. docs/commands.md has an example of each.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from orchestrator.api import UserError, ask, compare, open, run, version

if TYPE_CHECKING:
    from orchestrator.analysis.compare.comparison import Comparison
    from orchestrator.analysis.dataset import Dataset

__all__ = ["Comparison", "Dataset", "UserError", "__version__", "ask", "compare", "open", "run"]
__version__ = version()
LATER = {"Comparison": "orchestrator.analysis.compare.comparison", "Dataset": "orchestrator.analysis.dataset"}


def __getattr__(name: str) -> Any:
    """A class that loads pandas or DuckDB: the command imports this package before it does anything."""
    if name not in LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(LATER[name]), name)
