"""How the code and its tests are laid out."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

from orchestrator import ROOT

HERE = Path(__file__).parent
PRODUCT = [path for package in ("kernels", "orchestrator") for path in sorted((ROOT / package).rglob("*.py"))]
MAX_FILE_LINES, MAX_FUNCTION_LINES = 500, 45
# A GPU kernel takes no objects and calls few functions; nor does the call that starts one, which lists what it takes.
ON_THE_GPU = {"kernels/check/fused.py": {"tile_sums"}, "kernels/check/fused_kernel.py": {"weigh_tile", "attend_split"}}
# Words of older versions for which the field has its own: workspace bytes, accumulator dtype, poison, sentinel, MIN_, MAX_.
OLD_WORDS = re.compile(r"\b(?:LEAST|MOST)_[A-Z]+\b|\bspoil\w*|\bplanting\b|\bsum_dtype\b|\bextra_bytes\b(?!\")")
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


def test_no_two_classes_have_one_name():
    """One name means one thing, whichever package it stands in."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in PRODUCT:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(".".join(path.relative_to(ROOT).with_suffix("").parts))

    assert len(places) > 300
    assert {name: tuple(sorted(modules)) for name, modules in places.items() if len(modules) > 1} == {}


def test_no_method_waits_for_another_one_to_be_called_first():
    """What a method needs is there from the construction on; an `assert` on an attribute says that it may not be."""
    found = {
        f"{path.relative_to(ROOT)}:{node.lineno}": ast.unparse(node.test)
        for path in PRODUCT
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Assert) and re.search(r"\bself\.\w+ is not None", ast.unparse(node.test))
    }

    assert found == {}


def test_old_words_do_not_come_back():
    found = {str(path.relative_to(ROOT)): set(OLD_WORDS.findall(path.read_text())) for path in PRODUCT}

    assert {name: words for name, words in found.items() if words} == {}


def test_the_page_on_the_architecture_says_of_each_package_what_it_does_not_know():
    table = (ROOT / "docs" / "architecture.md").read_text().partition("## Packages")[2].partition("\n## ")[0]
    named = set(re.findall(r"`([\w/.]+)`", table))
    parts = [path for package in ("kernels", "orchestrator") for path in (ROOT / package).iterdir() if path.name[0] not in "_."]

    assert len(parts) > 40
    assert {path.name for path in parts if not {path.name, f"{path.name}/", *_spelled(path)} & named} == set()


def _spelled(path: Path) -> set[str]:
    """How a page may name a package or module: from the root, with a slash behind a folder."""
    name = str(path.relative_to(ROOT))
    return {name, f"{name}/"}


def _module(path: Path) -> str:
    """A test file may name itself, for a process that it starts."""
    return ".".join(path.relative_to(HERE.parent).with_suffix("").parts)


def test_nothing_lies_in_a_shared_temporary_folder_by_a_name_that_others_can_guess():
    assert [path for path in PRODUCT if re.search(r"gettempdir|mktemp\b|\"/tmp|NamedTemporaryFile", path.read_text())] == []
