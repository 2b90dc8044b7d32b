"""What runs where, what does not and why, what it costs; and that planning starts nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from orchestrator.config.settings import Settings
from orchestrator.machines import known_devices
from orchestrator.planning import decide
from orchestrator.planning.cost import RACED_SHARE
from orchestrator.planning.decide import make_plan
from orchestrator.planning.expand import expand
from orchestrator.planning.plan import Plan
from orchestrator.reporting import plan_tables

MAIN = "+sweep=specdec_long_ctx"


def plan_for(settings: Settings, *devices: str) -> Plan:
    return make_plan(expand(settings), [known_devices()[name] for name in devices], settings)


def decisions_by_kind(plan: Plan) -> dict[str, int]:
    return dict(Counter(d.kind for d in plan.decisions))


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ("h200", {"run": 960, "unsupported": 960}),
        ("b200", {"run": 816, "unsupported": 1104}),
        ("a100", {"run": 428, "unsupported": 1488, "skipped": 4}),
    ],
)
def test_the_main_sweep_on_gpus_that_are_not_here(settings: Callable[..., Settings], device: str, expected: dict[str, int]):
    assert decisions_by_kind(plan_for(settings(MAIN), device)) == expected


def test_every_point_has_one_decision_and_every_refusal_a_reason(settings: Callable[..., Settings]):
    plan = plan_for(settings(MAIN), "cpu")

    assert len(plan.decisions) == len({d.point for d in plan.decisions}) == 1920
    assert all(bool(d.reason) == (d.kind != "run") for d in plan.decisions)


@pytest.mark.parametrize("sweep", ["rule_edges_paged", "rule_edges_mla", "encoder", "padded_graphs", "mla_mtp", "mixed_q_len"])
def test_an_answer_is_that_of_each_problem_however_often_it_is_asked(
    sweep: str, settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
):
    """A backend is asked once for problems that are alike in what it reads; here every one is asked."""
    once = plan_for(settings(f"+sweep={sweep}", "check.force_unsupported=true"), "h200", "b200", "rtx5090")
    monkeypatch.setattr(decide, "_once", lambda function: function)

    assert plan_for(settings(f"+sweep={sweep}", "check.force_unsupported=true"), "h200", "b200", "rtx5090") == once


def test_a_point_too_big_for_the_device_is_skipped_with_the_estimate(settings: Callable[..., Settings]):
    plan = plan_for(
        settings(MAIN, "sweep.backend=[fa2_tc]", "sweep.dtype=[{q: bf16, kv: bf16}]", "sweep.batch_size=64", "sweep.s_kv=131072"),
        "rtx5090",
    )

    # 64 * 131072 tokens * 8 heads * 256 * 2 bytes = 34.4 GB of KV cache against 0.9 * 32 GB
    assert {d.kind for d in plan.decisions} == {"skipped"}
    assert plan.decisions[0].reason.startswith("too big: needs about 36.6")
    assert "of 28.8 GB on NVIDIA GeForce RTX 5090" in plan.decisions[0].reason


def test_a_point_too_slow_is_skipped_with_the_estimate_and_the_limit(settings: Callable[..., Settings]):
    plan = plan_for(settings(MAIN, "limits.point_seconds=0.2"), "h200")
    slow = plan.decisions_of("skipped")

    assert slow
    assert all("limits.point_seconds is 0.2" in d.reason and "too slow: about" in d.reason for d in slow)
    assert all(d.cost.total_s > 0.2 for d in slow)
    assert all(d.cost.total_s <= 0.2 for d in plan.decisions_of("run"))


def test_points_that_share_inputs_form_a_group_and_long_groups_come_first(settings: Callable[..., Settings]):
    plan = plan_for(settings(MAIN), "h200")

    assert sum(len(g.points) for g in plan.groups) == 960
    assert all(len({p.problem for p in g.points}) == 1 for g in plan.groups)
    assert [g.cost_s for g in plan.groups] == sorted((g.cost_s for g in plan.groups), reverse=True)


def test_modules_are_distinct_and_each_knows_its_points(settings: Callable[..., Settings]):
    plan = plan_for(settings(MAIN), "h200")

    assert len(plan.modules) == 14
    assert {arch for arch, _ in plan.modules} == {"9.0a"}
    assert (
        sum(len(points) for points in plan.modules.values()) == 960 - 64 - 64 - 384
    )  # cudnn, torch_sdpa and FlashAttention-3 compile nothing


def test_in_a_mixed_cluster_a_point_goes_to_the_devices_that_support_it(settings: Callable[..., Settings]):
    plan = plan_for(settings(MAIN), "h200", "b200")
    where = {(d.point.backend, d.devices) for d in plan.decisions_of("run") if d.point.problem.q_dtype == "fp8_e4m3"}

    assert ("trtllm-gen", ("NVIDIA B200",)) in where
    assert ("auto", ("NVIDIA H200",)) in where
    assert decisions_by_kind(plan)["run"] == 960 + 64 + 192  # and what only a B200 runs: FP8 queries, trtllm-gen


def test_more_workers_take_less_time_down_to_that_of_the_longest_group(settings: Callable[..., Settings]):
    plan = plan_for(settings(MAIN), "h200")

    assert plan.eta_s(2) == pytest.approx(plan.eta_s(1) / 2, rel=0.01)
    thirds = replace(plan.groups[0], cost_s=10.0)
    plan.__dict__["groups"] = [thirds] * 3
    assert (plan.eta_s(2), plan.eta_s(64)) == (20.0, 10.0)  # no group is shared
    assert ("estimated time, without compilation", "25 s, of which 15 s until workers have started; 61 workers have no group") in (
        plan_tables.grids(plan, 64)[-1].cells
    )
    assert plan.eta_s(10**6) == plan.groups[0].cost_s


def test_a_module_that_fails_for_one_architecture_leaves_the_others(settings: Callable[..., Settings]):
    plan = plan_for(settings("+sweep=smoke", "sweep.backend=[fa2_tc,torch_sdpa]"), "h200", "a100")
    archs = {known_devices()[name].name: known_devices()[name].arch for name in ("h200", "a100")}
    hopper = {key: "ptxas died" for key in plan.modules if key[0] == "9.0a"}
    left, uncompiled = plan.without_modules(hopper, archs)

    assert uncompiled == {}
    assert {(d.point.backend, len(d.devices)) for d in left.decisions} == {("fa2_tc", 1), ("torch_sdpa", 2)}
    assert all(d.devices == ("NVIDIA A100-SXM4-80GB",) for d in left.decisions if d.point.backend == "fa2_tc")

    left, uncompiled = plan.without_modules(dict.fromkeys(plan.modules, "ptxas died"), archs)

    assert {d.point.backend for d in left.decisions} == {"torch_sdpa"}
    assert {reason.partition(" did not compile: ")[2] for reason in uncompiled.values()} == {"ptxas died"}


def test_forced_points_run_what_rules_forbid_but_nothing_too_big(settings: Callable[..., Settings]):
    forced = ("sweep.backend=[trtllm-gen]", "check.force_unsupported=true", "sweep.dtype=[{q: bf16, kv: bf16}]")
    plan = plan_for(settings(MAIN, *forced, "sweep.batch_size=[1,512]", "sweep.s_kv=[131072]"), "h200")
    by_batch = {batch: {d.kind for d in plan.decisions if d.point.problem.batch_size == batch} for batch in (1, 512)}

    assert by_batch == {1: {"run"}, 512: {"skipped"}}
    assert all("needs: the SM100 family" in d.reason for d in plan.decisions_of("run"))


def test_a_wide_window_costs_sdpa_the_copy_of_the_whole_cache(settings: Callable[..., Settings]):
    points = ("+sweep=smoke", "sweep.backend=[torch_sdpa]", "sweep.batch_size=16", "sweep.s_kv=[131072]", "sweep.s_qo=[4]")
    plain, window = plan_for(settings(*points, "sweep.window=[null,128]"), "h200").decisions

    assert window.cost.memory_bytes >= plain.cost.memory_bytes


def test_a_plan_expects_less_of_backends_that_race_and_skips_none_the_more(settings: Callable[..., Settings]):
    full, raced = (plan_for(settings(MAIN, f"timing.precision={precision}"), "h200") for precision in ("full", "decide"))
    alone = [plan_for(settings(MAIN, "sweep.backend=fa2_tc", f"timing.precision={p}"), "h200") for p in ("full", "decide")]
    saved = sum(decision.cost.race_saves_s for decision in raced.decisions_of("run"))

    assert raced.eta_s(1) == pytest.approx(full.eta_s(1) - saved)
    assert saved / sum(d.cost.point_s for d in full.decisions_of("run")) == pytest.approx(
        1 - RACED_SHARE, abs=0.2
    )  # the rest is no sampling
    assert alone[0].eta_s(1) == alone[1].eta_s(1)  # nobody to race with
    # Whoever is contested is measured in full, so what may run does not depend on it.
    assert [d.kind for d in full.decisions] == [d.kind for d in raced.decisions]
    assert [d.cost.point_s for d in full.decisions] == [d.cost.point_s for d in raced.decisions]
