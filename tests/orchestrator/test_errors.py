"""Every exception of the orchestrator stands in `orchestrator/errors.py`."""

from __future__ import annotations

import re

from orchestrator import ROOT


def test_no_exception_is_defined_elsewhere():
    files = [path for path in (ROOT / "orchestrator").rglob("*.py") if path.name != "errors.py"]

    assert [path.name for path in files if re.search(r"^class \w+\(\w*(Error|Exception)\)", path.read_text(), re.MULTILINE)] == []
