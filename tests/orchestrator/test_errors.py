"""The tree of exceptions at the top of `orchestrator/errors.py` is the tree that there is."""

from __future__ import annotations

import re

from orchestrator import ROOT, errors
from orchestrator.errors import OrchestratorError


def drawn(kind: type[Exception], indent: str = "", mark: str = "") -> list[str]:
    lines, below = [f"{indent}{mark}{kind.__name__}"], kind.__subclasses__()
    for child in below:
        last = child is below[-1]
        lines += drawn(child, indent + {"": "", "├── ": "│   ", "└── ": "    "}[mark], "└── " if last else "├── ")
    return lines


def test_the_tree_at_the_top_is_the_one_that_there_is():
    said = [re.match(r"[│├└─ ]*\w+", line) for line in (errors.__doc__ or "").splitlines() if "Error" in line or "── " in line]

    assert [found[0] for found in said if found] == drawn(OrchestratorError)


def test_no_exception_is_defined_elsewhere():
    files = [path for path in (ROOT / "orchestrator").rglob("*.py") if path.name != "errors.py"]

    assert [path.name for path in files if re.search(r"^class \w+\(\w*(Error|Exception)\)", path.read_text(), re.MULTILINE)] == []
