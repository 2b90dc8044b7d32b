"""The committed main dataset, opened once."""

from __future__ import annotations

import pytest

from orchestrator.analysis.dataset import Dataset
from orchestrator.analysis.questions import open_views
from tests.helpers.datasets import MAIN


@pytest.fixture(scope="session")
def main_views() -> Dataset:
    return open_views(MAIN)
