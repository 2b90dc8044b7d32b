"""Plans of points that are timed in a step: what they cost, what cannot be one, and their ids."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kernels.problem import Problem
from kernels.step.size import size_of
from orchestrator.config.settings import Settings
from orchestrator.errors import UserError
from orchestrator.machines import known_devices
from orchestrator.planning.decide import make_plan
from orchestrator.planning.expand import expand
from orchestrator.planning.plan import Plan

STEP = "timing.context=step"
ONE = ("+sweep=specdec_long_ctx", "sweep.backend=[fa2_tc]", "sweep.dtype=[{q: bf16, kv: bf16}]", "sweep.s_qo=[1]")


def plan_of(settings: Settings, device: str = "h200") -> Plan:
    return make_plan(expand(settings), [known_devices()[device]], settings)


def test_a_step_takes_the_memory_of_its_layers(settings: Callable[..., Settings]):
    asked = settings(*ONE, STEP)
    layer, room = asked.model.layer, int(known_devices()["h200"].memory_bytes * 0.9)
    assert layer is not None
    alone = {d.point.problem: d.cost for d in plan_of(settings(*ONE)).decisions}
    for decision in plan_of(asked).decisions:
        problem = decision.point.problem
        size = size_of(problem, layer, known_devices()["h200"].tb_per_sec, room)

        assert decision.cost.memory_bytes > size.layers * (problem.input_bytes + size.weight_bytes)
        assert decision.cost.own_bytes >= size.layers * alone[problem].own_bytes
        assert decision.cost.point_s > alone[problem].point_s
        assert decision.kind == "run" or "too big" in decision.reason


def test_the_main_sweep_in_a_step_fits_an_h200_but_for_its_largest_copies(settings: Callable[..., Settings]):
    skipped = plan_of(settings("+sweep=specdec_long_ctx", STEP)).decisions_of("skipped")

    assert {d.point.backend for d in skipped} <= {"torch_sdpa"}
    assert {d.reason.partition(":")[0] for d in skipped} <= {"too big", "too slow"}


def test_backends_of_a_problem_are_measured_together_if_they_fit(settings: Callable[..., Settings]):
    plan = plan_of(settings("+sweep=specdec_long_ctx", STEP, "sweep.batch_size=[1]", "sweep.s_kv=[8192]", "sweep.s_qo=[1]"))

    assert len(plan.groups) == len({d.point.group_id for d in plan.decisions_of("run")})


def test_a_cache_of_4_bits_is_unsupported_in_a_step_alone(settings: Callable[..., Settings]):
    packed = ("+sweep=specdec_long_ctx", "sweep.dtype=[{q: bf16, kv: nvfp4}]", "sweep.batch_size=[1]", "sweep.s_kv=[8192]")
    in_step = plan_of(settings(*packed, STEP), "b200").decisions

    assert {d.kind for d in in_step} == {"unsupported"}
    assert all(d.reason.startswith("timing.context=step needs: keys and values of 8 bits or more") for d in in_step)
    assert not any("timing.context" in d.reason for d in plan_of(settings(*packed), "b200").decisions)


@pytest.mark.parametrize("forced", [(), ("check.force_unsupported=true",)], ids=["", "forced"])
def test_a_split_that_brings_requests_into_another_order_is_planned_out_of_a_step_alone(
    settings: Callable[..., Settings], forced: tuple[str, ...]
):
    specs = "sweep.batch=[{batch_spec: q1s8k_15q4s8k},{batch_spec: 15q4s8k_q1s8k}]"
    sweep = (
        "+sweep=mixed_q_len",
        specs,
        "sweep.kernel=[{routine: paged_decode, backend: fa2_tc+fa2@4}]",
        "sweep.include=[]",
        *forced,
    )
    sweep = (*sweep, "sweep.dtype=[{q: bf16, kv: bf16}]")
    found = {d.point.problem.batch_spec: (d.kind, d.reason) for d in plan_of(settings(*sweep, STEP)).decisions}

    assert found == {
        "q1s8k_15q4s8k": (
            "unsupported",
            "timing.context=step needs: the requests of the decode call first in batch_spec, such as 15q4s8k_q1s8k",
        ),
        "15q4s8k_q1s8k": ("run", ""),
    }
    assert {d.kind for d in plan_of(settings(*sweep)).decisions} == {"run"}


def test_how_points_are_timed_and_how_large_a_layer_is_enter_the_ids_of_steps_alone(settings: Callable[..., Settings]):
    def ids(*overrides: str) -> list[str]:
        return [point.point_id for point in expand(settings("+sweep=smoke", *overrides))]

    assert ids() == ids("timing.context=isolated") == ids("model.layer.hidden_size=4096")
    assert not set(ids()) & set(ids(STEP))
    assert not set(ids(STEP)) & set(ids(STEP, "model.layer.hidden_size=4096"))
    assert not set(ids(STEP)) & set(ids(STEP, "timing.step_layers=5"))


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("~model.layer",), "timing.context=step: model llama_3_1_70b does not say how large"),
        (("timing.timer=cupti",), "timing.timer=graph timing.criterion=ci95"),
        (("timing=nvbench",), "timing.timer=graph timing.criterion=ci95"),
        (("timing.step_layers=1",), "step_layers"),
        (("+model.layer.num_experts=8",), "num_experts and experts_per_token come together"),
    ],
)
def test_what_cannot_be_a_step_is_refused_in_words(settings: Callable[..., Settings], overrides: tuple[str, ...], words: str):
    with pytest.raises(UserError, match=words):
        settings("+sweep=smoke", *overrides, STEP)


def test_layers_without_a_step_are_refused(settings: Callable[..., Settings]):
    with pytest.raises(UserError, match=r"allowed only with timing\.context=step"):
        settings("+sweep=smoke", "timing.step_layers=5")


def test_a_sweep_with_heads_of_its_own_is_no_step(settings: Callable[..., Settings]):
    with pytest.raises(UserError, match="the sweep sets num_qo_heads of its own"):
        expand(settings("+sweep=smoke", "+sweep.num_qo_heads=[16]", STEP))


def test_the_points_of_the_table_are_six(settings: Callable[..., Settings]):
    plan = plan_of(settings("+sweep=in_step", STEP))
    found = [
        (p.backend, p.problem.batch_size, p.problem.s_kv, p.problem.s_qo, p.problem.kv_dtype)
        for p in expand(settings("+sweep=in_step"))
    ]

    assert found == [
        ("fa2_tc", 1, 8192, 1, "bf16"),
        ("flash_attn_3", 1, 32768, 4, "bf16"),
        ("fa2_tc", 8, 8192, 1, "bf16"),
        ("trtllm-native", 8, 8192, 1, "fp8_e4m3"),
        ("fa2_tc", 8, 8192, 1, "fp8_e4m3"),
        ("trtllm-native", 8, 32768, 4, "bf16"),
    ]
    assert {d.kind for d in plan.decisions} == {"run"}
    assert all(isinstance(d.point.problem, Problem) for d in plan.decisions)
