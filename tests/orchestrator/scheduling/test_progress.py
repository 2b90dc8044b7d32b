"""A bar for a person on a terminal: points done, both clocks, failures; elsewhere a line now and then."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Callable
from itertools import pairwise

import pytest
from rich.console import Console

from orchestrator.config.settings import Settings
from orchestrator.machines import known_devices
from orchestrator.planning.decide import make_plan
from orchestrator.planning.expand import expand
from orchestrator.planning.plan import Plan
from orchestrator.scheduling.progress import EVERY_S, Progress, TimeLeft
from orchestrator.storage.row import describe, finish


def shown(settings: Settings, terminal: bool, seconds: float = 0.0) -> str:
    screen = io.StringIO()
    plan = make_plan(expand(settings), [known_devices()["cpu"]], settings)
    point = plan.decisions_of("run")[0].point
    never = plan.decisions_of("unsupported")[0].point
    with Progress(Console(file=screen, force_terminal=terminal, width=160), every_s=seconds or EVERY_S) as progress:
        progress.begin(plan, plan, workers=2)
        progress.rows([finish({**describe(never)}, "unsupported", "needs a GPU"), finish({**describe(point)}, "failed", "boom")])
        progress.rows([finish({**describe(point), "median_us": 22.18}, "ok")])
        time.sleep(4 * seconds)
    return screen.getvalue()


def test_a_terminal_shows_points_done_and_failures(settings: Callable[..., Settings]):
    screen = shown(settings("+sweep=smoke"), terminal=True)

    assert "24 points: 0 in the dataset already, 8 to run on 2 worker(s), 16 that cannot run" in screen
    assert "2/8" in screen and "elapsed" in screen and "left" in screen
    assert "1 failed; last: " in screen and "22.2 µs (batch " in screen and "boom" in screen


def plan_on_a_cpu(settings: Callable[..., Settings]) -> Plan:
    return make_plan(expand(settings("+sweep=smoke")), [known_devices()["cpu"]], settings("+sweep=smoke"))


def test_each_line_of_the_bar_shows_from_its_begin_on(settings: Callable[..., Settings]):
    screen = io.StringIO()
    plan = plan_on_a_cpu(settings)
    with Progress(Console(file=screen, force_terminal=True, width=160)) as progress:
        progress.stage("Ray starts")
        progress._bar.refresh()
        before = screen.getvalue()
        progress.begin(plan, plan, workers=1)
        progress.begin_modules(0, 0)
        progress._bar.refresh()
    after = screen.getvalue()[len(before) :]

    assert "Ray starts" in before and "points" not in before
    assert "0/8" in after and "kernel modules" not in after
    assert "-:--:--" in after  # nobody has measured what a CPU does


def test_elsewhere_it_is_a_line_every_now_and_then(settings: Callable[..., Settings]):
    assert shown(settings("+sweep=smoke"), terminal=False) == ""
    plan, console = plan_on_a_cpu(settings), Console(file=(screen := io.StringIO()), width=160)
    with Progress(console, every_s=0.05) as progress:
        progress.begin(plan, plan, workers=1)
        time.sleep(0.2)
    assert "points 0 of 8, elapsed 0:00:00; workers load" in screen.getvalue() and "left" not in screen.getvalue()
    lines = shown(settings("+sweep=smoke"), terminal=False, seconds=0.1).splitlines()

    assert 2 <= len(lines) <= 5
    assert re.fullmatch(
        r"points 2 of 8, elapsed 0:00:0\d, left about 0:\d\d:\d\d; 1 failed; last: \w+ 22.2 µs \(batch .*", lines[-1]
    )


def test_the_time_left_begins_as_the_plan_has_it_and_does_not_jump(settings: Callable[..., Settings]):
    """Points that take twice as long as planned, by two workers, after a compilation of 100 s; those that never run end first."""
    given = settings("+sweep=specdec_long_ctx")
    plan = make_plan(expand(given), [known_devices()["h200"]], given)
    clock = [0.0]
    left = TimeLeft(plan, 2, now=lambda: clock[0])
    shown = [left.seconds]
    assert shown[0] == pytest.approx(sum(group.cost_s for group in plan.groups) / 2)

    left.finished(decision.point.point_id for decision in plan.decisions_of("unsupported"))
    assert left.seconds == shown[0]
    clock[0] = 100.0
    for group in plan.groups:
        clock[0] += 2 * group.cost_s / 2
        left.finished(point.point_id for point in group.points)
        shown.append(left.seconds)
    steps = [abs(b - a) / shown[0] for a, b in pairwise(shown)]

    assert max(steps) < 0.12 and max(shown) < 2 * shown[0]
    middle = len(plan.groups) // 2
    assert shown[middle + 1] == pytest.approx(sum(group.cost_s for group in plan.groups[middle + 1 :]), rel=0.25)
    assert shown[-1] == pytest.approx(0.0)
