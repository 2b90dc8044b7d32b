"""A bar for a person on a terminal: points done, ETA, failures."""

from __future__ import annotations

import io
from collections.abc import Callable

from rich.console import Console

from orchestrator.config.settings import Settings
from orchestrator.machines import known_devices
from orchestrator.planning.decide import make_plan
from orchestrator.planning.expand import expand
from orchestrator.scheduling.progress import Progress
from orchestrator.storage.row import describe, finish


def shown(settings: Settings, terminal: bool) -> str:
    screen = io.StringIO()
    plan = make_plan(expand(settings), [known_devices()["cpu"]], settings)
    point = plan.decisions_of("run")[0].point
    with Progress(Console(file=screen, force_terminal=terminal, width=160)) as progress:
        progress.begin(plan, plan, workers=2)
        progress.rows([finish({**describe(point)}, "ok"), finish({**describe(point)}, "failed", "boom")])
    return screen.getvalue()


def test_a_terminal_shows_points_done_and_failures(settings: Callable[..., Settings]):
    screen = shown(settings("+sweep=smoke"), terminal=True)

    assert "24 points: 0 in the dataset already, 8 to run on 2 worker(s)" in screen
    assert "2/24" in screen
    assert "1 failed" in screen and "boom" in screen


def test_each_line_of_the_bar_shows_from_its_begin_on(settings: Callable[..., Settings]):
    screen = io.StringIO()
    plan = make_plan(expand(settings("+sweep=smoke")), [known_devices()["cpu"]], settings("+sweep=smoke"))
    with Progress(Console(file=screen, force_terminal=True, width=160)) as progress:
        progress.stage("Ray starts")
        progress._bar.refresh()
        before = screen.getvalue()
        progress.begin(plan, plan, workers=1)
        progress.begin_modules(0, 0)
        progress._bar.refresh()
    after = screen.getvalue()[len(before) :]

    assert "Ray starts" in before and "points" not in before
    assert "0/24" in after and "kernel modules" not in after


def test_elsewhere_it_is_quiet(settings: Callable[..., Settings]):
    assert shown(settings("+sweep=smoke"), terminal=False).strip() == ""
