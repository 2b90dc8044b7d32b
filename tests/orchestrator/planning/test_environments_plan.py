"""Plans of points that run in environments: the memory of their processes, and what they cannot be measured by."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from orchestrator.config.settings import Settings
from orchestrator.machines import known_devices
from orchestrator.planning.decide import make_plan
from orchestrator.planning.expand import expand
from orchestrator.planning.plan import CONTEXT_BYTES, Plan, process_bytes
from orchestrator.reporting import plan_tables
from orchestrator.tables import Grid

LARGE = ("+sweep=specdec_long_ctx", "sweep.dtype=[{q: bf16, kv: bf16}]", "sweep.batch_size=[64]", "sweep.s_qo=[1]")
COMPILATION = "compilation, once, if none is cached"
VERSIONS = [f"flashinfer:0.7.{number}" for number in range(4)]


def plan_of(settings: Settings) -> Plan:
    return make_plan(expand(settings), [known_devices()["h200"]], settings)


def envs(*names: str) -> str:
    return f"sweep.env=[{','.join(names)}]"


def test_a_point_in_an_environment_takes_the_memory_of_its_process(settings: Callable[..., Settings]):
    plan = plan_of(settings(*LARGE, "sweep.backend=[fa2_tc]", "sweep.s_kv=[8192]", envs("null", VERSIONS[0])))
    costs = {decision.point.env: decision.cost for decision in plan.decisions_of("run")}
    problem = plan.decisions[0].point.problem

    assert process_bytes(problem) == CONTEXT_BYTES + problem.input_bytes
    assert costs[VERSIONS[0]].memory_bytes == costs[None].memory_bytes + process_bytes(problem)
    assert costs[VERSIONS[0]].own_bytes == costs[None].own_bytes


def test_a_point_whose_inputs_fit_once_and_not_twice_is_skipped_in_an_environment_alone(settings: Callable[..., Settings]):
    """Inputs of 69 GB, of which an H200 has room for one."""
    plan = plan_of(settings(*LARGE, "sweep.backend=[fa2_tc]", "sweep.s_kv=[262144]", envs("null", VERSIONS[0])))

    assert {d.point.env: d.kind for d in plan.decisions} == {None: "run", VERSIONS[0]: "skipped"}
    assert plan.decisions_of("skipped")[0].reason.startswith("too big: needs about 14")


@pytest.mark.parametrize(
    ("s_kv", "backends", "expected"),
    [
        (8192, "fa2_tc,fa2", [8]),  # 2 GB of inputs, five times
        (131072, "fa2_tc", [2, 2]),  # 34 GB, which fits three times: the worker's own, and two processes
        (131072, "fa2_tc,fa2", [2, 2, 2, 2]),
    ],
)
def test_processes_that_do_not_fit_together_split_the_group(
    s_kv: int, backends: str, expected: list[int], settings: Callable[..., Settings]
):
    plan = plan_of(settings(*LARGE, f"sweep.backend=[{backends}]", f"sweep.s_kv=[{s_kv}]", envs(*VERSIONS)))
    room = int(known_devices()["h200"].memory_bytes * 0.9)

    assert [len(group.decisions) for group in plan.groups] == expected
    for group in plan.groups:
        one = group.decisions[0]
        alone = one.cost.memory_bytes - one.cost.own_bytes - process_bytes(one.point.problem)
        own = sum(d.cost.own_bytes for d in group.decisions)
        assert alone + own + process_bytes(one.point.problem) * len({d.point.env for d in group.decisions}) <= room


@pytest.mark.parametrize("forced", ["true", "false"])
def test_a_step_in_an_environment_is_unsupported_and_says_what_to_type(forced: str, settings: Callable[..., Settings]):
    asked = (*LARGE, "sweep.backend=[fa2_tc]", "sweep.s_kv=[8192]", envs("null", VERSIONS[0]), "timing.context=step")
    plan = plan_of(settings(*asked, f"check.force_unsupported={forced}"))

    assert {d.point.env: d.kind for d in plan.decisions} == {None: "run", VERSIONS[0]: "unsupported"}
    assert plan.decisions_of("unsupported")[0].reason == (
        "timing.context=step needs: the environment that runs the command: type sweep.env=[null], "
        "or the command with the Python of that environment"
    )


def test_the_modules_of_each_environment_are_shown_and_their_time_counts(settings: Callable[..., Settings]):
    def tables(*names: str) -> dict[str, Grid]:
        plan = plan_of(settings(*LARGE, "sweep.backend=[fa2_tc]", "sweep.s_kv=[8192]", envs(*names)))
        return {grid.title.partition(":")[0]: grid for grid in plan_tables.grids(plan, workers=1)}

    one, two = tables("null"), tables("null", VERSIONS[0])
    modules, of_both = one["kernel modules to compile"], two["kernel modules to compile"]

    assert (modules.title, modules.header) == ("kernel modules to compile: 1", ("arch", "module", "points"))
    assert of_both.title == "kernel modules to compile: 2; for other environments, those that the versions here would load"
    assert [row[0] for row in of_both.cells] == ["default", VERSIONS[0]]
    assert [row[1:] for row in of_both.cells] == [*modules.cells] * 2
    times = [next(cell for cell in found["cost"].cells if cell[0] == COMPILATION) for found in (one, two)]
    assert times[0] != times[1]
