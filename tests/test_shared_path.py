"""The code between plan and row knows no kernel library: what it needs of one is said by adapters and their toolchains."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from kernels import registry
from orchestrator import ROOT

SHARED = ("scheduling", "worker", "pools", "planning", "storage", "commands", "run.py", "machines.py", "libraries.py")
OLD_COLUMN = {"orchestrator/storage/columns/sections.py", "orchestrator/machines.py"}  # `flashinfer_version`, by which people ask
ENGINES = {"orchestrator/planning/expand.py"}  # how a sweep of an engine's flags is typed
FORMATS = {"orchestrator/commands/export.py"}  # other programs' formats, by their names
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef)


def test_only_the_old_column_names_a_kernel_library():
    distributions = {name for adapter in registry.adapters().values() for name in adapter.distributions}
    parts = {"torch", "triton", "cuda", "nvidia", "fla"}  # what comes with torch, or a part of other words
    libraries = {name.partition("-")[0] for name in distributions} - parts
    places = [ROOT / "orchestrator" / place for place in SHARED]
    files = {file for place in places for file in (place.rglob("*.py") if place.is_dir() else [place])}
    named = {file for file in files if any(one in word for word in words_of(file) for one in libraries)}

    assert libraries >= {"flashinfer", "tokenspeed", "vllm", "sglang"}
    assert {str(file.relative_to(ROOT)) for file in named} == OLD_COLUMN | ENGINES | FORMATS


def words_of(file: Path) -> Iterator[str]:
    """Names and texts in a file's code, lower case. Docstrings, which give examples to users, are left out."""
    tree = ast.parse(file.read_text())
    documented = [node.body[0] for node in ast.walk(tree) if isinstance(node, DOCUMENTED) and ast.get_docstring(node)]
    docstrings = {node.value for node in documented if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        for key in ("id", "attr", "arg", "module", "name", "value"):
            if node not in docstrings and isinstance(word := getattr(node, key, None), str):
                yield word.lower()
