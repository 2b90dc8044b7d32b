"""Which dataset belongs to which."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.config.modes import COMPANIONS, companion, owner


@pytest.mark.parametrize("mode", COMPANIONS)
@pytest.mark.parametrize("path", ["results/a", "s3://bucket/prefix", "results/a_b"])
def test_a_companion_lies_beside_its_owner(path: str, mode: str):
    assert companion(path, mode) == companion(f"{path}/", mode) == f"{path}_{mode}"
    assert owner(companion(path, mode)) == path
    assert owner(path) is None


def test_a_path_of_a_folder_has_the_same_companion():
    assert companion(Path("results/a"), "noise") == "results/a_noise"
