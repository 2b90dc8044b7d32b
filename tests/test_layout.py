"""How the tests are laid out."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
TEST_FILE = re.compile(r"\btests(?:\.\w+)*\.(?:test_\w+|conftest)\b")


def test_no_file_imports_a_test_file_or_a_conftest():
    """What is shared stands in tests/helpers. Code that a test hands to another process counts too."""
    files = [path for path in HERE.rglob("*.py") if path != Path(__file__)]
    named = {path: set(TEST_FILE.findall(path.read_text())) - {_module(path)} for path in files}

    assert len(files) > 60
    assert {path: names for path, names in named.items() if names} == {}


def _module(path: Path) -> str:
    """A test file may name itself, for a process that it starts."""
    return ".".join(path.relative_to(HERE.parent).with_suffix("").parts)
