"""The examples of docs/one_backend.md and docs/draft.md, from the committed main dataset."""

from __future__ import annotations

from functools import cache

from orchestrator import ROOT
from orchestrator.analysis.dataset import Dataset
from orchestrator.analysis.questions import draft, one_backend, open_views
from orchestrator.analysis.questions import pad_up as more_tokens
from orchestrator.config.draft_cost import Draft
from orchestrator.tables import Grid

MAIN = ROOT / "results" / "h200_specdec_long_ctx"
COSTS = Draft(rest="preset", acceptance="minimax_m3_eagle3", cost_us=400)


@cache
def data() -> Dataset:
    return open_views(MAIN, COSTS)


def pad_up() -> Grid:
    """The three drafts that gain most from padding."""
    (grid,) = more_tokens.grids(data())
    return Grid("", grid.header, grid.cells[:3])


def answer() -> Grid:
    """The first table of question=one_backend."""
    grid = one_backend.grids(data())[0]
    return Grid("", grid.header, grid.cells)


def drafts() -> Grid:
    """The best drafts over a bf16 cache."""
    grid = draft.grids(data(), COSTS)[0]
    return Grid("", grid.header, grid.cells)
