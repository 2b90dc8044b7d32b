"""How the code and its tests are laid out."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from orchestrator import ROOT

HERE = Path(__file__).parent
PRODUCT = [path for package in ("kernels", "orchestrator") for path in sorted((ROOT / package).rglob("*.py"))]
MAX_FILE_LINES, MAX_FUNCTION_LINES = 300, 45
# A GPU kernel takes no objects and calls few functions; nor does the call that starts one, which lists what it takes.
ON_THE_GPU = {"kernels/check/fused.py": {"tile_sums"}, "kernels/check/fused_kernel.py": {"weigh_tile"}}
TEST_FILE = re.compile(r"\btests(?:\.\w+)*\.(?:test_\w+|conftest)\b")


def test_no_file_imports_a_test_file_or_a_conftest():
    """What is shared stands in tests/helpers. Code that a test hands to another process counts too."""
    files = [path for path in HERE.rglob("*.py") if path != Path(__file__)]
    named = {path: set(TEST_FILE.findall(path.read_text())) - {_module(path)} for path in files}

    assert len(files) > 60
    assert {path: names for path, names in named.items() if names} == {}


def test_no_file_and_no_function_is_too_long_to_read_at_once():
    lines = {str(path.relative_to(ROOT)): path.read_text() for path in PRODUCT}
    files = {name: text.count("\n") for name, text in lines.items()}
    functions = {
        f"{name}:{node.lineno} {node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for name, text in lines.items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name not in ON_THE_GPU.get(name, ())
    }

    assert len(files) > 200
    assert {name: length for name, length in files.items() if length > MAX_FILE_LINES} == {}, "split it where a part has a name"
    assert {name: length for name, length in functions.items() if length > MAX_FUNCTION_LINES} == {}, "name its parts"


def _module(path: Path) -> str:
    """A test file may name itself, for a process that it starts."""
    return ".".join(path.relative_to(HERE.parent).with_suffix("").parts)
