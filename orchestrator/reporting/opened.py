"""The dataset that a command asks about, with everything that its keys set."""

from __future__ import annotations

from orchestrator.analysis import traffic
from orchestrator.analysis.cards import learn_from
from orchestrator.analysis.dataset import Dataset
from orchestrator.analysis.questions import open_views
from orchestrator.analysis.traffic import Mix
from orchestrator.config.settings import Answers, Settings


def mix_of(settings: Settings) -> Mix | None:
    """The traffic of the file that `traffic` names, if it names one. Raises UserError for a file that cannot be read."""
    return None if settings.traffic is None else traffic.read(settings.traffic)


def opened(settings: Answers, mix: Mix | None) -> Dataset:
    """The rows of `results.path` that `where` keeps, with a view for every question. Raises UserError as `open_dataset` does."""
    return open_views(
        settings.results.path,
        settings.draft,
        where=settings.where,
        cards=None if settings.cards is None else learn_from(settings.cards),
        max_rel_err=settings.best.max_rel_err,
        weights=settings.weights,
        traffic=mix,
    )
