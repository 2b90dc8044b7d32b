"""What docs/architecture.md says of layers is what import-linter checks."""

from __future__ import annotations

import re
import tomllib

import pytest

from orchestrator import ROOT

CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
PAGE = (ROOT / "docs" / "architecture.md").read_text()


def layers_of(container: str) -> list[set[str]]:
    (found,) = [one["layers"] for one in CONTRACTS if one.get("containers") == [container]]
    return [set(layer.split(" | ")) for layer in found]


@pytest.mark.parametrize("container", ["orchestrator", "kernels"])
def test_imports_go_down_the_table(container: str):
    """A row may name several packages; it stands where the highest of them does."""
    at = {name: number for number, layer in enumerate(layers_of(container)) for name in layer}
    table = PAGE.partition("\n| package |")[2].partition("\n\n")[0]
    cells = [line.split("|")[1] for line in table.splitlines()[2:]]
    of_container = [cell for cell in cells if f"`{container}/" in cell]
    named = [re.findall(r"`(?:\w+/)?(\w+?)(?:\.py|/)`", cell) for cell in of_container]
    order = [min(at[name] for name in names if name in at) for names in named]

    assert len(order) > 10
    assert order == sorted(order)
