"""Which points a mode runs, and the command that runs one of them again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import pytest

from kernels import registry
from kernels.mutants.drawn import BESIDE
from orchestrator.config.settings import Settings
from orchestrator.errors import UserError
from orchestrator.planning.expand import expand
from orchestrator.planning.replay import points_of, replay_command


def test_a_replay_runs_exactly_its_point(settings: Callable[..., Settings]):
    points = expand(settings("+sweep=smoke"))

    assert points_of(settings("+sweep=smoke")) == points
    assert points_of(settings("+sweep=smoke", "mode=replay", f"point={points[3].point_id}")) == [points[3]]


def test_a_point_that_the_sweep_does_not_have_is_an_error(settings: Callable[..., Settings]):
    with pytest.raises(UserError, match="none of the 24 points of sweep smoke has this point_id"):
        points_of(settings("+sweep=smoke", "mode=replay", "point=0123456789ab"))


def test_noise_measures_every_point_twice(settings: Callable[..., Settings]):
    points = points_of(settings("+sweep=smoke", "mode=noise"))

    assert [point.twin for point in points] == [0, 1] * 24
    assert [point._replace(twin=0) for point in points[1::2]] == points[::2]


def test_a_point_from_before_models_had_a_softmax_scale_is_found(settings: Callable[..., Settings]):
    sweep = ("+sweep=smoke", "model=gemma_3_27b")
    old = points_of(settings(*sweep, "model.softmax_scale=null"))[0]

    assert old.point_id not in {point.point_id for point in points_of(settings(*sweep))}
    assert points_of(settings(*sweep, "mode=replay", f"point={old.point_id}")) == [old]


def test_a_point_of_dirty_lines_says_what_to_add(settings: Callable[..., Settings]):
    """Commands in rows from before clean lines were the default name no state."""
    old = points_of(settings("+sweep=smoke", "timing.l2=dirty"))[0].point_id

    with pytest.raises(UserError, match=r"measured with timing.l2=dirty, and this asks for timing.l2=clean; add timing.l2=dirty"):
        points_of(settings("+sweep=smoke", "mode=replay", f"point={old}"))
    for typed in ("dirty", "cold"):
        (found,) = points_of(settings("+sweep=smoke", "mode=replay", f"timing.l2={typed}", f"point={old}"))
        assert found.point_id == old


def test_the_replay_command_keeps_what_was_typed_for_the_sweep(settings: Callable[..., Settings]):
    point = expand(settings("+sweep=smoke"))[0]
    command = replay_command(["+sweep=smoke", "sweep.s_kv=[256]", "mode=noise", "rerun=all", "hydra.verbose=true"], "noise")

    assert command(point) == f"python -m orchestrator +sweep=smoke 'sweep.s_kv=[256]' mode=replay point={point.point_id}"
    assert command(point._replace(twin=1)) == command(point)
    of_a_folder = replay_command(["--config-dir=/home/me/mine", "+sweep=own"], "run")  # another machine has no such folder
    assert of_a_folder(point).startswith("python -m orchestrator --config-dir=mine +sweep=own mode=replay")
    assert replay_command(["+sweep=smoke"], "check_power")(point).startswith("python -m orchestrator +sweep=smoke mode=check_power")


def test_drawn_faults_are_made_once_of_a_problem_or_of_each_backend(settings: Callable[..., Settings]):
    """Each backend's own have its name, and the tolerance of what they are made of."""
    points, keys = expand(settings("+sweep=smoke")), ["+sweep=smoke", "mode=check_power", "check.draws=2"]
    each = points_of(settings(*keys, "check.tolerance=each"))

    assert [point.backend for point in each[:2]] == [f"drawn_000@{points[0].backend}", f"drawn_001@{points[0].backend}"]
    assert len(each) == (3 + len(BESIDE) + 2) * len(points)
    assert {point.backend for point in points_of(settings(*keys))} == {"drawn_000", "drawn_001", "drawn_200", *BESIDE, "no_fault"}
    known = registry.adapters(("kernels.mutants.of_backends",))
    assert all(known[point.problem.routine, point.backend].wraps.name == point.backend.partition("@")[2] for point in each)


def test_right_outputs_stand_beside_drawn_faults_on_seeds_of_their_own(settings: Callable[..., Settings]):
    """Lengths that are drawn from the seed are those of the new seed, and the first seed is that of the faults."""
    keys = ["+sweep=smoke", "mode=check_power", "sweep.seq_lens=random", "sweep.batch_size=[8]", "sweep.seed=7"]
    faults, rights = defaultdict(set), defaultdict(set)
    for point in points_of(settings(*keys, "check.draws=30")):
        (rights if point.backend == "no_fault" else faults)[point.problem.seed].add(point.problem)

    assert set(faults) == {7}
    assert set(rights) == {7, 8, 9}
    assert rights[7] == faults[7]
    assert len(rights[8]) == len(rights[7])
    assert {problem.kv_lens for problem in rights[8]}.isdisjoint({problem.kv_lens for problem in rights[7]})


def test_a_tolerance_of_each_backend_needs_faults_of_backends(settings: Callable[..., Settings]):
    keys = ("+sweep=gated_delta", "model=qwen3_next_80b_a3b", "mode=check_power", "check.draws=3")
    assert points_of(settings(*keys))
    with pytest.raises(UserError, match="faults of gated_delta are made of the reference alone"):
        points_of(settings(*keys, "check.tolerance=each"))


def test_a_tolerance_of_each_backend_needs_drawn_faults(settings: Callable[..., Settings]):
    with pytest.raises(UserError, match=r"add check\.draws=20"):
        settings("+sweep=smoke", "mode=check_power", "check.tolerance=each")
