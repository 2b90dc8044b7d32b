"""The questions against rows worked out by hand; tests/test_answers.py holds them to the committed datasets."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.analysis import how_timed
from orchestrator.analysis.dataset import Dataset
from orchestrator.analysis.questions import (
    VIEWS,
    ask,
    best,
    crossover,
    draft,
    energy,
    engine_default,
    expected_tokens,
    fp8,
    odd,
    open_views,
    padding,
    q_len,
    query_text,
    regret,
    roofline,
    step,
)
from orchestrator.analysis.questions.tables import lead
from orchestrator.analysis.sql import Where
from orchestrator.config.draft_cost import Draft
from orchestrator.config.engine import selected
from orchestrator.config.ranges import Bounds
from orchestrator.config.settings import Settings
from orchestrator.planning.expand import expand
from orchestrator.storage import folder
from orchestrator.storage.row import Row, to_table
from orchestrator.tables import Grid
from tests.helpers.timed_rows import asked, made, views_of

VLLM, SGLANG = (selected(name)[0].title for name in ("vllm", "sglang"))

HAND = pytest.approx


def records(view: str, *rows: Row, assuming: Draft | None = None) -> list[dict[str, Any]]:
    data = views_of(to_table(rows), assuming)
    return data.records(f"FROM {view} ORDER BY ALL")


# 1. The best backend


def test_the_best_backend_is_the_fastest_ok_one_with_its_margin():
    (found,) = records("best", made("a", 20.0), made("b", 10.0), made("c", 15.0), made("d", 1.0, "mismatch"))

    assert (found["backend"], found["runner_up"]) == ("b", "c")
    assert found["margin"] == HAND(0.5)
    assert (found["noise_floor"], found["above_noise"]) == (HAND(0.02), True)


def test_a_lead_over_a_rough_time_is_marked_and_must_exceed_what_that_leaves_open():
    rough = {"stop_reason": "decided"}
    (far,) = records("best", made("a", 10.0), made("b", 13.0, **rough))
    (near,) = records("best", made("a", 10.0, **rough), made("b", 11.0, **rough))  # the backend that had decided them is left out
    (grid,) = best.grids(views_of(to_table([made("a", 10.0), made("b", 13.0, **rough)])))

    assert (far["rough"], far["runner_up_rough"], far["above_noise"]) == (False, True, True)
    assert (near["rough"], near["above_noise"]) == (True, False)
    assert "(+~30%)" in grid.cells[0][-1] and "~ of times known within 5%" in grid.title


def test_times_that_were_taken_in_another_way_do_not_compete():
    """A warm cache beside a flushed one; an unsupported point goes with those of its group."""

    def group(name: str, a_us: float, **how: Any) -> list[Row]:
        rows = [made("a", a_us, **how), made("b", 20.0, **how), made("c", None, "unsupported")]
        return [{**row, "group_id": name, "point_id": name + row["backend"]} for row in rows]

    rows = [
        *group("default", 30.0, timer="g", l2="clean", icache="warm"),
        *group("warm L2", 10.0, timer="g", l2="warm", icache="warm"),
        *group("cold code", 40.0, timer="g", l2="clean", icache="cold"),
    ]
    found = records("best", *rows)
    asked_for = records("(SELECT l2, icache, count(*) AS points FROM points JOIN problems USING (problem) GROUP BY ALL)", *rows)

    assert {(f["l2"], f["icache"]): (f["backend"], f["median_us"]) for f in found} == {
        ("clean", "warm"): ("b", 20.0),
        ("warm", "warm"): ("a", 10.0),
        ("clean", "cold"): ("b", 20.0),
    }
    assert [tuple(a.values()) for a in asked_for] == [("clean", "cold", 3), ("clean", "warm", 3), ("warm", "warm", 3)]


def test_times_of_two_paces_do_not_compete_and_one_that_is_not_usual_is_named():
    how = {"context": "isolated", "timer": "g", "l2": "clean", "icache": "warm"}
    bursts = [made(name, us, pace="bursts", **how) for name, us in (("a", 10.0), ("b", 20.0))]
    slow = [{**made(name, us, pace="sustained", **how), "point_id": f"slow {name}"} for name, us in (("a", 30.0), ("b", 20.0))]
    both, alone = asked(*bursts, *slow), asked(*slow)

    assert both.execute("SELECT pace, backend FROM best ORDER BY ALL") == [("bursts", "a"), ("sustained", "b")]
    assert [" · pace sustained · " in grid.title for grid in best.fastest_grids(both)] == [False, True]
    assert " · without pause · " in best.fastest_grids(alone)[0].title
    assert [cells[1] for cells in how_timed.grids(both)[0].cells] == ["g", "g, without pause"]
    assert "timer g, without pause" in how_timed.sentences(alone)[0]


GRAPH: dict[str, Any] = {"timer": "cuda_graph_events", "launch_us": 3.0}


def test_ratios_are_of_times_without_the_launch_and_medians_stay():
    (found,) = records("best", made("a", 15.0, **GRAPH), made("b", 23.75, **{**GRAPH, "launch_us": 4.5}))

    assert (found["backend"], found["median_us"], found["own_us"]) == ("a", 15.0, 12.0)
    assert found["margin"] == HAND(20.0 / 12.0 - 1)


def test_a_lead_within_the_noise_of_medians_stays_noise_without_the_launch():
    """Of 5.2 and 5.3 µs the medians differ by 1.9%, within the floor of 2%; without 3 µs of launch it is 4.5%."""
    (found,) = records("best", made("a", 5.2, **GRAPH), made("b", 5.3, **GRAPH))

    assert found["margin"] == HAND(2.3 / 2.2 - 1)
    assert not found["above_noise"]


@pytest.mark.parametrize(
    "keys",
    [
        {"timer": "cupti_graph_kernels", "launch_us": 4.0},  # its spans begin after the launch
        {"timer": "cuda_graph_events", "launch_us": None},  # never measured
    ],
)
def test_nothing_is_taken_off_a_time_without_a_launch_or_with_an_unknown_one(keys: dict[str, Any]):
    (found,) = records("best", made("a", 10.0, **keys), made("b", 15.0, **keys))

    assert (found["own_us"], found["margin"]) == (10.0, HAND(0.5))


def test_a_row_s_own_time_counts_before_what_its_host_s_class_adds():
    times = {
        "a": {"own_us": 11.0, "launch_us": 4.9},
        "b": {"launch_us": 3.8},
        "c": {"launch_us": 3.81},
        "d": {"own_us": 3.0, "context": "step"},
        "e": {"own_us": 8.0, "launch_us": 2.9},  # twice an empty graph's: no launch takes that
        "f": {"own_us": 10.7, "launch_us": 2.9},
    }
    found = asked(*(made(name, 14.0, **{**GRAPH, **keys}) for name, keys in times.items()))

    assert found.execute("SELECT backend, own_us FROM current ORDER BY backend") == [
        ("a", 11.0),
        ("b", 11.0),
        ("c", 10.25),
        ("d", None),
        ("e", 11.0),
        ("f", 10.7),
    ]


@pytest.mark.parametrize(
    ("us", "floor"),
    [(23.0, math.hypot(0.02, 1.96 * math.sqrt(2) * 0.3 / 20)), (49.9, math.hypot(0.02, 0.8316 / 46.9)), (50.0, 0.02)],
)
def test_below_50_us_a_ratio_holds_what_launches_differ_by(us: float, floor: float):
    (found,) = records("best", made("a", us, **GRAPH), made("b", us * (1 + floor) + 0.01, **GRAPH))

    assert (found["noise_floor"], found["above_noise"]) == (pytest.approx(floor, rel=1e-3), True)
    assert not records("best", made("a", us, **GRAPH), made("b", us * (1 + floor) - 0.01, **GRAPH))[0]["above_noise"]


def test_each_ratio_is_of_times_without_the_launch():
    rows = [
        verified("paged_decode", "fa2_tc", 13.0, 8192, **GRAPH),
        verified("paged_prefill", "fa2", 23.0, 8192, **GRAPH),
        verified("paged_prefill", "auto", 33.0, 8192, **GRAPH),
    ]
    (crossed,) = records("crossover", *rows)
    (chosen,) = records("regret", *rows)
    half, fp8 = (made("fa2_tc", us, kv_dtype=kv, **GRAPH) for us, kv in ((23.0, "bf16"), (13.0, "fp8_e4m3")))
    (gained,) = records("fp8", half, {**fp8, "point_id": "fp8"})
    (cost,) = (
        r
        for r in records(
            "q_len", *(made("fa2_tc", us, s_qo=q, routine="paged_decode", **GRAPH) for us, q in ((13.0, 1), (18.0, 2)))
        )
    )

    assert (crossed["decode_us"], crossed["ahead_by"]) == (13.0, HAND(1.0))
    assert (chosen["auto_us"], chosen["best_us"], chosen["regret"]) == (30.0, 20.0, HAND(1.5))
    assert gained["fp8_kv_gain"] == HAND(2.0)
    assert cost["cost"] == HAND(1.5)


def test_a_step_of_several_layers_pays_the_launch_in_its_rest():
    keys = {"routine": "paged_decode", "mask": "causal", **GRAPH}
    found = records(
        "draft", *(made("fa2_tc", us, s_qo=q, **keys) for us, q in ((13.0, 1), (13.0, 2))), assuming=Draft(layers=10, rest_us=100)
    )

    assert found[0]["one_token_per_s"] == HAND(8 / 200 * 1e6)


def with_energy(backend: str, median_us: float, joules: float, **keys: Any) -> Row:
    return made(backend, median_us, energy_j=joules, energy_token_j=joules / 8, energy_rel=0.02, **keys)


def test_the_least_energy_need_not_be_the_fastest_s():
    rows = [with_energy("a", 10.0, 0.012), with_energy("b", 11.0, 0.008), with_energy("torch_sdpa", 5.0, 0.001)]
    (found,) = records("energy", *rows)

    assert (found["backend"], found["energy_j"], found["median_us"]) == ("b", 0.008, 11.0)
    assert (found["fastest"], found["fastest_over_least"]) == ("a", HAND(1.5))
    assert energy.grids(asked(*rows))[0].cells == (("1", "8", "b 8 ±2.0% (1; 11.0); a 12 (10.0)"),)
    assert energy.summary(asked(*rows)) == (
        "the fastest backend takes the least energy at 0 of 1 problems; at most it takes 1.50 times the least, before uncertainties"
    )


def test_a_fastest_backend_without_an_energy_is_not_known_to_take_more():
    rows = [with_energy("a", 10.0, 0.012), with_energy("b", 11.0, 0.008), made("c", 9.0)]

    assert energy.grids(asked(*rows))[0].cells == (("1", "8", "b 8 ±2.0% (1; 11.0); c not known (9.0)"),)
    assert energy.summary(asked(*rows)) is None


def test_one_backend_alone_shows_nothing_of_energy():
    alone = with_energy("a", 10.0, 0.012)

    assert energy.grids(asked(alone))[0].cells == (("1", "8", "a 12 ±2.0% (1.5; 10.0); no other has one"),)
    assert energy.summary(asked(alone)) is None


DRAFT: Row = {"routine": "paged_decode", "mask": "causal"}


def test_a_generated_token_takes_the_energy_of_the_expected_tokens_of_its_draft():
    """With acceptance 0.5 a call of 4 query tokens yields 1 + 0.5 + 0.25 + 0.125 tokens for each of 8 requests."""
    four = made("a", 20.0, s_qo=4, energy_j=0.030, energy_token_j=0.030 / 32, energy_rel=0.02, **DRAFT)
    rows, half = [with_energy("a", 10.0, 0.012, **DRAFT), four], Draft(acceptance=0.5)
    found = sorted(records("energy", *rows, assuming=half), key=lambda record: record["s_qo"])
    (grid,) = energy.grids(asked(*rows, assuming=half))

    assert found[0]["energy_generated_j"] == found[0]["energy_token_j"] == 0.0015
    assert found[1]["energy_generated_j"] == HAND(0.030 / (8 * 1.875)) == HAND(0.002)
    assert [cells[-1] for cells in grid.cells] == [
        "a 12 ±2.0% (1.5; 10.0); no other has one",
        "a 30 ±2.0% (0.938, 2; 20.0); no other has one",
    ]
    assert "± its 95% interval (mJ a query token, mJ a generated token of a draft at acceptance 0.5;" in grid.title
    assert "generated" not in energy.grids(asked(rows[0]))[0].title


@pytest.mark.parametrize(
    ("keys", "acceptance"),
    [
        ({"s_qo": 128}, 0.5),
        ({"min_s_qo": 1}, 0.5),
        ({"mask": "binary"}, 0.5),
        ({"routine": "ragged_prefill"}, 0.5),
        ({}, (0.9, 0.8)),
    ],
)
def test_a_call_that_is_no_draft_of_a_known_length_has_no_generated_tokens(keys: Row, acceptance: float | tuple[float, ...]):
    row = with_energy("a", 10.0, 0.012, **{**DRAFT, "s_qo": 4, **keys})
    (found,), (draft,) = (records("energy", row, assuming=Draft(acceptance=given)) for given in (acceptance, 0.5))

    assert (found["energy_j"], found["energy_generated_j"]) == (0.012, None)
    assert keys or draft["energy_generated_j"] is not None


def test_without_energy_the_question_has_no_answer():
    assert (energy.grids(asked(made("a", 10.0))), energy.summary(asked(made("a", 10.0)))) == ([], None)


def on_host(backend: str, median_us: float, plan_us: float | None, call_us: float, **keys: Any) -> Row:
    """A row of a graph replay whose launch takes 3 µs, with the host's time of a plan and of a call."""
    host = {"plan_host_us": plan_us, "plan_syncs": 1, "plan_d2h_copies": 2, "plan_h2d_copies": 3, "plan_kernels": 4}
    return made(backend, median_us, **{**GRAPH, "cuda_graph": True, **host, "call_host_us": call_us, **keys})


LAYERS_10 = Draft(layers=10)


def test_a_step_is_its_plan_and_its_layers_and_the_launch_of_one_graph():
    (fast, planless) = records(
        "(FROM step ORDER BY backend)", on_host("fast", 13.0, 80.0, 30.0), on_host("planless", 16.0, 0.0, 10.0), assuming=LAYERS_10
    )

    assert (fast["own_us"], fast["attention_us"]) == (10.0, 100.0)
    assert (fast["graph_step_us"], planless["graph_step_us"]) == (HAND(80 + 3 + 100), HAND(3 + 130))
    assert (fast["eager_step_us"], planless["eager_step_us"]) == (HAND(80 + 10 * 30), HAND(10 * 13))
    assert (fast["kernel_rank"], fast["step_rank"]) == (1, 2)
    assert (planless["kernel_rank"], planless["step_rank"]) == (2, 1)
    assert (fast["over_least"], fast["plan_share"]) == (HAND(183 / 133), HAND(80 / 183))


def test_the_table_of_a_step_is_ranked_and_its_summary_says_what_a_plan_changes():
    rows = [on_host("fast", 13.0, 80.0, 30.0), on_host("planless", 16.0, 0.0, 10.0, plan_syncs=None)]
    data = views_of(to_table(rows), LAYERS_10)
    (grid,) = step.grids(data)

    assert grid.title == "attention of a step: a plan and 10 layers · m · q bf16, kv bf16 · H200"
    assert grid.cells == (
        ("1", "8", "8,192", "1", "planless", "133 (1.00×)", "130", "0.0 (0.0%)", "–, 2, 3, 4", "10.0", "13.0 (2)"),
        ("1", "8", "8,192", "2", "fast", "183 (1.38×)", "380", "80.0 (44%)", "1, 2, 3, 4", "30.0", "10.0 (1)"),
    )
    assert step.summary(data) == (
        "the backend with the fastest kernel has the cheapest step at 0 of 1 problems; planning is up to 0.0% of the cheapest "
        "step; without a graph it takes up to 0.98 times as long"
    )


def test_without_draft_layers_a_step_has_those_of_the_model():
    llama, custom = (records("step", on_host("a", 13.0, 80.0, 30.0, model=model))[0] for model in ("llama_3_1_70b", "custom"))

    assert (llama["layers"], custom["layers"]) == (80, 1)


def test_a_call_that_no_graph_captured_is_ranked_by_what_it_takes_eagerly():
    eager = {"timer": "cuda_events", "cuda_graph": False, "launch_us": None}
    (found,) = records("step", on_host("a", 13.0, 80.0, 30.0, **eager), assuming=LAYERS_10)

    assert (found["graph_step_us"], found["step_us"]) == (None, HAND(380))
    assert step.grids(views_of(to_table([on_host("a", 13.0, 80.0, 30.0, **eager)]), LAYERS_10))[0].cells[0][5] == "–"


def test_only_points_with_a_known_plan_are_ranked_and_no_kernel_twice():
    """`auto` goes with what it chose; another backend of the same kernel has another plan, as flash_attn_3_unplanned has."""
    rows = [
        on_host("unstated", 10.0, None, 30.0),
        on_host("torch_sdpa", 5.0, 0.0, 1.0),
        made("not_asked", 4.0, **GRAPH),
        on_host("fa2_tc", 13.0, 80.0, 30.0, resolved_backend="fa2_tc"),
        on_host("auto", 13.0, 80.0, 30.0, resolved_backend="fa2_tc"),
        on_host("unplanned", 15.0, 0.0, 30.0, resolved_backend="fa3"),
        on_host("planned", 15.0, 10.0, 30.0, resolved_backend="fa3"),
    ]

    assert {r["backend"] for r in records("step", *rows)} == {"fa2_tc", "unplanned", "planned"}


def test_without_host_times_a_step_has_no_answer():
    assert (step.grids(asked(made("a", 10.0))), step.summary(asked(made("a", 10.0)))) == ([], None)


def test_a_table_says_over_which_lines_it_was_measured():
    rows = [made("a", 10.0, l2="clean", **GRAPH), made("b", 12.0, l2="clean", **GRAPH)]
    (grid,) = best.grids(asked(*rows))
    (how,) = how_timed.grids(asked(*rows))

    assert grid.title.endswith("· m · q bf16, kv bf16 · clean L2 · H200")
    assert how.cells == (("H200", "cuda_graph_events", "clean", "–", "2", "3.0"),)
    assert how_timed.sentences(asked(*rows)) == [
        "2 points on H200: timer cuda_graph_events, L2 clean, instruction caches unknown; "
        "ratios are of times without the launch of a graph, 3.0 µs"
    ]


@pytest.mark.parametrize(("low", "high", "above"), [(27.0, 29.0, True), (24.0, 30.0, False)])
def test_costs_in_a_step_whose_intervals_overlap_are_no_lead(low: float, high: float, above: bool):
    how = {"context": "step", "timer": "cuda_graph_events"}
    first = made("a", 10.0, in_step_us=25.0, in_step_low_us=24.5, in_step_high_us=25.5, **how)
    second = made("b", 10.0, in_step_us=28.0, in_step_low_us=low, in_step_high_us=high, **how)
    (found,) = records("best", first, second)

    assert (found["backend"], found["margin"], found["above_noise"]) == ("a", HAND(0.12), above)


def test_points_of_a_step_are_ranked_by_what_they_cost_there():
    how = {"context": "step", "timer": "g", "l2": "clean", "icache": "warm"}
    rows = [made("a", 10.0, in_step_us=30.0, **how), made("b", 20.0, in_step_us=25.0, **how), made("c", None, "unsupported")]
    isolated = [
        {**made(name, us, **{**how, "context": "isolated"}), "point_id": f"{name}-isolated"}
        for name, us in (("a", 10.0), ("b", 20.0))
    ]
    rows = [{**row, "group_id": "step"} for row in rows] + [{**row, "group_id": "isolated"} for row in isolated]
    found = {record["context"]: record for record in records("best", *rows)}

    assert {context: (f["backend"], f["median_us"]) for context, f in found.items()} == {
        "step": ("b", 25.0),
        "isolated": ("a", 10.0),
    }
    assert found["step"]["margin"] == HAND(0.2)
    titles = [grid.title for grid in best.grids(views_of(to_table(rows)))]
    assert [("µs in a step" in title, "median µs" in title) for title in titles] == [(False, True), (True, False)]
    assert ["clean L2" in title for title in titles] == [True, False]


def test_the_noise_of_steps_is_that_of_their_cost_there():
    def twins(**how: Any) -> float:
        pair = [made("a", us, twin=twin, in_step_us=cost, **how) for twin, us, cost in ((0, 10.0, 30.0), (1, 10.1, 33.0))]
        rows = to_table([{**row, "group_id": "g", "point_id": str(row["twin"])} for row in pair])
        return float(Dataset([rows], noise=[rows]).scalar("SELECT max(noise_floor) FROM noise"))

    assert twins(context="step") == HAND(0.1)
    assert twins(context="isolated") == HAND(0.01)


def test_a_copy_without_pages_is_a_reference_and_wins_only_alone():
    (found,) = records("best", made("torch_sdpa", 5.0), made("b", 10.0), made("c", 15.0))
    (alone,) = records("best", made("torch_sdpa", 5.0))
    of = [("paged_decode", "fa2_tc", 10.0), ("paged_prefill", "fa2", 12.0)]
    rows = [made(name, us, routine=routine, s_qo=4) for routine, name, us in of]
    with_reference = [*rows, *(made("torch_sdpa", us / 2, routine=routine, s_qo=4) for routine, _, us in of)]

    assert (found["backend"], found["margin"], found["reference_us"]) == ("b", HAND(0.5), 5.0)
    assert (alone["backend"], alone["margin"], alone["reference_us"]) == ("torch_sdpa", None, 5.0)
    assert records("crossover", *with_reference) == records("crossover", *rows) != []


@pytest.mark.parametrize("name", ["torch_sdpa+fa2", "fa2_tc+torch_sdpa", "torch_sdpa+torch_sdpa@4"])
def test_a_split_batch_with_a_reference_in_it_is_one(name: str):
    (found,) = records("best", made(name, 5.0), made("fa2_tc+fa2@4", 10.0), made("torch_sdpa_like", 15.0))

    assert (found["backend"], found["runner_up"], found["reference_us"]) == ("fa2_tc+fa2@4", "torch_sdpa_like", 5.0)


def test_a_backend_alone_has_no_margin():
    (found,) = records("best", made("a", 20.0))

    assert (found["runner_up"], found["margin"], found["above_noise"]) == (None, None, None)


def test_a_lead_that_is_no_more_than_noise_says_so():
    (grid,) = best.grids(asked(made("a", 10.0), made("b", 10.1), made("a", 10.0, s_kv=32768), made("b", 10.3, s_kv=32768)))

    assert grid.cells == (("1", "8", "a 10.0 (≈1.0%) unchecked", "a 10.0 (+3.0%) unchecked"),)


def test_a_lead_of_twice_the_time_or_more_is_a_factor():
    rows = [made("a", 10.0), made("b", 19.9), made("a", 10.0, s_kv=32768), made("b", 58.8, s_kv=32768, stop_reason="decided")]
    (grid,) = best.grids(asked(*rows))

    assert grid.cells == (("1", "8", "a 10.0 (+99%) unchecked", "a 10.0 (~5.9×) unchecked"),)
    assert (lead(9.4, "+"), lead(8.94, "+"), lead(0.031, "≈", True)) == ("10×", "9.9×", "≈~3.1%")


@pytest.mark.parametrize(("pairs", "floor"), [(50, 0.05), (49, 0.05 + 0.51 * 0.45)])
def test_the_noise_floor_comes_from_the_noise_dataset_beside(tmp_path: Path, pairs: int, floor: float):
    """A/A pairs of 20 to 100 µs differ by 5%, one of 500 µs by half. 50 pairs of a range have a percentile of their own. With fewer
    all pairs of the device count: of 49 and one, the percentile lies 0.51 of the way from the last but one to the last."""
    near = [made("a", us, twin=twin, group_id=f"g{i}") for i in range(pairs) for twin, us in enumerate((50.0, 52.5))]
    far = [made("a", us, twin=twin, group_id="far") for twin, us in enumerate((500.0, 750.0))]
    for i, row in enumerate([*near, *far]):
        row["point_id"] = str(i)
    kept(tmp_path / "d", made("a", 30.0), made("b", 30.9))
    kept(tmp_path / "d_noise", *near, *far)
    (found,) = open_views(tmp_path / "d").records("FROM best")

    assert found["noise_floor"] == HAND(floor)
    assert not found["above_noise"]


def kept(path: Path, *rows: Row) -> None:
    written = folder.FolderStore(str(path))
    written.add(rows)
    written.close()


# 2. Crossovers


def verified(routine: str, backend: str, median_us: float, s_kv: int, **keys: Any) -> Row:
    row = made(backend, median_us, routine=routine, s_qo=4, s_kv=s_kv, **keys)
    return {**row, "point_id": f"{routine}-{row['point_id']}"}


def test_the_crossover_is_where_prefill_stays_ahead():
    rows = [
        verified("paged_decode", "xqa", 10.0, 1024),
        verified("paged_decode", "fa2_tc", 12.0, 1024),
        verified("paged_prefill", "fa2", 15.0, 1024),
        verified("paged_decode", "xqa", 30.0, 8192),
        verified("paged_prefill", "fa2", 24.0, 8192),
        verified("paged_decode", "xqa", 90.0, 50000),
        verified("paged_prefill", "fa2", 60.0, 50000),
        verified("paged_prefill", "fa3", 300.0, 50000),
    ]
    (grid,) = crossover.grids(asked(*rows))

    assert grid.header == ("s_qo", "batch", "s_kv 1,024", "s_kv 8,192", "s_kv 50,000", "prefill ahead from")
    cells = (f"{words} unchecked" for words in ("decode xqa 10.0 (+50%)", "prefill fa2 24.0 (+25%)", "prefill fa2 60.0 (+50%)"))
    assert grid.cells == (("4", "8", *cells, "8,192"),)
    assert crossover.summary(asked(*rows)) == "decode at 1, prefill at 2, either at 0 problems"


def test_a_crossover_that_never_or_always_holds_says_so():
    never = [verified("paged_decode", "xqa", 10.0, 1024), verified("paged_prefill", "fa2", 15.0, 1024)]
    always = [verified("paged_decode", "xqa", 10.0, 1024), verified("paged_prefill", "fa2", 9.0, 1024)]

    assert crossover.grids(asked(*never))[0].cells[0][-1] == "never"
    assert crossover.grids(asked(*always))[0].cells[0][-1] == "always"


def test_only_equal_problems_cross_over():
    rows = [verified("paged_decode", "xqa", 10.0, 1024, page_size=16), verified("paged_prefill", "fa2", 9.0, 1024, page_size=64)]

    assert records("crossover", *rows) == []


def test_two_kernels_within_two_percent_are_either():
    rows = [verified("paged_decode", "fa2_tc", 10.0, 1024), verified("paged_prefill", "fa2", 10.1, 1024)]

    assert crossover.grids(asked(*rows))[0].cells == (("4", "8", "either fa2_tc 10.0 (+1.0%) unchecked", "never"),)


def test_the_fp8_gain_is_the_best_16_bit_time_over_the_best_fp8_time():
    rows = [
        made("fa2", 30.0),
        made("xqa", 28.0),
        made("fa2", 40.0, kv_dtype="fp8_e4m3"),
        made("xqa", 14.0, kv_dtype="fp8_e4m3"),
        made("fa3", 56.0, kv_dtype="fp8_e4m3", q_dtype="fp8_e4m3"),
        made("fa2", 10.0, kv_dtype="fp8_e4m3", s_kv=1),  # nothing to compare with
    ]
    for row in rows:
        row["point_id"] += row["q_dtype"] + row["kv_dtype"]
    (found,) = records("fp8", *rows)

    assert (found["half_us"], found["half_backend"]) == (28.0, "xqa")
    assert (found["fp8_kv_gain"], found["fp8_kv_backend"]) == (HAND(2.0), "xqa")
    assert (found["fp8_q_gain"], found["fp8_q_backend"]) == (HAND(0.5), "fa3")
    answer, table = fp8.grids(asked(*rows))
    assert "is not measured here" in answer.title
    assert answer.cells[0][1] == "yes at batch 8: 100% faster (14.0 µs a call), with 16-bit queries, and answers were not checked"
    assert table.header == ("s_qo", "batch", "queries", "s_kv 8,192")
    assert table.cells == (
        ("1", "8", "16-bit queries", "2.00 xqa, 14.0 for 28.0 µs, unchecked"),
        ("1", "8", "FP8 queries", "0.50 fa3 (FlashInfer), 56.0 for 28.0 µs, unchecked"),
    )
    assert fp8.summary(asked(*rows)) == "yes at batch 8"


def test_a_draft_against_its_tokens_taken_apart_and_one_after_another():
    """4 tokens at batch 2 are 8 requests of one token, or 4 steps of 2."""
    rows = [
        made("fa3", 20.0, routine="mla", s_qo=4, batch_size=2, num_qo_heads=16),
        made("fa2", 25.0, routine="mla", s_qo=4, batch_size=2, num_qo_heads=16),
        made("fa2", 50.0, routine="mla", s_qo=1, batch_size=8, num_qo_heads=16),
        made("fa2", 4.0, routine="mla", s_qo=1, batch_size=2, num_qo_heads=16),
    ]
    (found,) = records("q_len", *rows)
    gain, cost = q_len.grids(asked(*rows))

    assert (found["gain"], found["cost"]) == (HAND(2.5), HAND(5.0))
    assert gain.header == ("heads", "s_kv", "s_qo", "batch 2")
    assert (gain.cells, cost.cells) == ((("16", "8192", "4", "2.50"),), (("16", "8192", "4", "5.00"),))
    assert q_len.summary(asked(*rows)) == (
        "a draft costs more than its tokens one after another at 1 of 1 problems, more than its tokens as requests of one at 0 of 1"
    )


def test_a_draft_of_a_gated_delta_net_is_compared_with_one_token_at_its_batch_alone():
    """It has no context, so `s_kv` is `s_qo`; its tokens depend on each other, so none are apart; prompts are no drafts."""
    net = {"routine": "gated_delta", "num_qo_heads": 16}
    rows = [
        made("gdn_decode", 10.0, s_qo=1, s_kv=1, routine_axes="states=last", **net),
        made("gdn_decode", 25.0, s_qo=4, s_kv=4, routine_axes="states=each", **net),
        made("gdn_decode", 99.0, s_qo=1, s_kv=1, batch_size=32, routine_axes="states=last", **net),
        made("gdn_chunk", 80.0, s_qo=1024, s_kv=1024, routine_axes="states=last", **net),
    ]
    beside = [made("fa3", us, s_qo=q, s_kv=1024, routine="paged_decode", num_qo_heads=16) for q, us in ((1, 10.0), (2, 11.0))]
    (found,) = records("q_len", *rows)
    grids = q_len.grids(asked(*rows, *beside))

    assert (found["s_qo"], found["gain"], found["cost"]) == (4, None, HAND(2.5))
    assert [("gated delta nets" in grid.title, grid.cells) for grid in grids] == [
        (False, (("16", "1024", "2", "1.10"),)),
        (True, (("16", "4", "4", "2.50"),)),
    ]


# 3. Regret


def test_the_regret_of_auto_is_its_time_over_the_best_s():
    rows = [
        made("auto", 30.0, routine="paged_prefill", resolved_backend="fa3", command="again 1"),
        made("fa2", 10.0, routine="paged_prefill", resolved_backend="fa2"),
        made("auto", 10.2, routine="paged_prefill", resolved_backend="fa2", s_kv=1024, command="again 2"),
        made("fa2", 10.0, routine="paged_prefill", resolved_backend="fa2", s_kv=1024),
        made("torch_sdpa", 1.0, routine="paged_prefill", resolved_backend="torch_sdpa_cuda"),
    ]
    summary, worst = regret.grids(asked(*rows))

    assert summary.cells == (("paged_prefill", "bf16", "bf16", "H200", "–", "2", "fa2, fa3 (FlashInfer)", "50%", "2.01", "3.00"),)
    assert worst.cells == (("3.00", "fa3 (FlashInfer)", "30.0", "fa2", "10.0", "unchecked", "again 1"),)
    assert "50% of 2 problems; at worst it takes 3.00 times as long: fa3 (FlashInfer) for fa2" in str(regret.summary(asked(*rows)))


def test_what_an_engine_takes_by_itself_costs_over_the_fastest():
    hopper = {"routine": "paged_decode", "compute_capability": "9.0"}
    rows = [
        made("flash_attn_3", 10.0, **hopper, s_qo=1),
        made("flash_attn_3", 10.0, **hopper, s_qo=4),
        made("flash_attn_3_unplanned", 12.0, **hopper, s_qo=4),
        made("fa2_tc", 8.0, **hopper, s_qo=1),
        made("fa2_tc", 11.0, **hopper, s_qo=4),
        made("torch_sdpa", 1.0, **hopper, s_qo=1),
        made("fa2_tc", 5.0, **hopper, s_qo=8),  # nobody's default was measured here
    ]
    found = {(r["engine"], r["s_qo"]): (r["taken"], r["best"], r["regret"]) for r in records("engine_default", *rows)}

    assert found == {
        (VLLM, 1): ("flash_attn_3", "fa2_tc", HAND(1.25)),
        (SGLANG, 1): ("flash_attn_3", "fa2_tc", HAND(1.25)),
        (VLLM, 4): ("flash_attn_3", "flash_attn_3", HAND(1.0)),
        (SGLANG, 4): ("flash_attn_3_unplanned", "flash_attn_3", HAND(1.2)),
    }
    timed = (made(name, us, **hopper, **GRAPH) for name, us in (("flash_attn_3", 23.0), ("fa2_tc", 13.0)))  # 3 µs of launch
    (vllm, _) = records("engine_default", *timed)
    assert (vllm["taken_us"], vllm["best_us"], vllm["regret"]) == (20.0, 10.0, HAND(2.0))
    table, worst, _ = engine_default.grids(asked(*rows))
    figures = {(cells[2], cells[1]): cells[5:9] for cells in table.cells}
    assert figures[VLLM, "decode"] == ("1 of 1", "0%", "1.25", "1.25")
    assert figures[SGLANG, "drafts of 3, 7"] == ("1 of 2 (not measured at 1)", "0%", "1.20", "1.20")
    assert ("1.20", SGLANG, "paged_decode/flash_attn_3_unplanned") in [cells[:3] for cells in worst.cells]
    assert (worst.header[-1], worst.cells[-1][-1]) in {("point_id", row["point_id"]) for row in rows}
    assert f"{VLLM}'s default, decode: within 2% of the fastest at 0.0% of 1 workloads, up to 1.25 times as long (fa2_tc)" in str(
        engine_default.summary(asked(*rows))
    )


HOPPER = {"compute_capability": "9.0"}
FP8_CACHE = {"kv_dtype": "fp8_e4m3"}
DEEPSEEK, GROUPED = {"head_dim_qk": 192, "head_dim_vo": 128}, {"head_dim_qk": 128, "head_dim_vo": 128}
PROMPT = {**HOPPER, "routine": "ragged_prefill", "s_qo": 512, "s_kv": 512}


@pytest.mark.parametrize(
    ("keys", "taken"),
    [
        ({**HOPPER, "routine": "paged_prefill", "mask": "binary", "tree": [-1, 0, 0, 1]}, {SGLANG: "fa2"}),
        ({**HOPPER, "routine": "mla"}, {VLLM: "flash_attn_3", SGLANG: "flash_attn_3_unplanned"}),
        ({"compute_capability": "10.0", "routine": "mla"}, {VLLM: "trtllm-native", SGLANG: "trtllm-native"}),
        ({**HOPPER, "routine": "mla", "q_dtype": "fp8_e4m3", **FP8_CACHE}, {VLLM: "flash_mla_vllm"}),
        ({**PROMPT, **DEEPSEEK}, {VLLM: "flash_attn_3", SGLANG: "flash_attn_3"}),
        ({**PROMPT, **GROUPED}, {}),
        ({"compute_capability": "8.0", "routine": "paged_decode"}, {VLLM: "flash_attn_2_vllm", SGLANG: None}),
        ({"compute_capability": "12.0", "routine": "paged_decode", **FP8_CACHE}, {VLLM: "trtllm-native", SGLANG: None}),
    ],
)
def test_the_default_depends_on_gpu_routine_cache_mask_and_heads(keys: dict[str, Any], taken: dict[str, str | None]):
    """None: the engine takes another backend, which has no row here."""
    names = ("fa2", "flash_attn_3", "flash_attn_3_unplanned", "trtllm-native", "flash_mla_vllm", "flash_attn_2_vllm")
    rows = [made(name, 10.0, **{"s_qo": 4, **keys}) for name in names]
    found = {r["engine"]: r["taken"] for r in records("engine_default", *rows)}

    assert found == {engine: name for engine, name in taken.items() if name}


@pytest.mark.parametrize(("who", "own"), [("vllm", "flash_attn_3_vllm"), ("sglang", "flash_attn_3_sglang")])
@pytest.mark.parametrize("s_qo", [1, 4])
def test_an_engine_s_own_build_counts_where_it_was_measured(who: str, own: str, s_qo: int):
    """Slower or faster than the build that stands in for it, and for this engine alone."""
    at = {"routine": "paged_decode", "compute_capability": "9.0", "s_qo": s_qo}
    builds, other = ("flash_attn_3", "flash_attn_3_unplanned"), {**at, "s_kv": 16384}
    measured = [made(own, 13.0, **at), *(made(name, 12.0, **keys) for name in builds for keys in (at, other))]
    found = records("engine_default", *measured, *(made("fa2_tc", 10.0, **keys) for keys in (at, other)))
    engine = selected(who)[0].title

    assert sorted((r["s_kv"], r["taken"] == own, r["stand_in"], r["regret"]) for r in found if r["engine"] == engine) == [
        (8192, True, False, HAND(1.3)),
        (16384, False, True, HAND(1.2)),
    ]
    assert own not in {r["taken"] for r in found if r["engine"] != engine}
    assert len(found) == 4


# 4. Distance to the limit


def test_the_roofline_has_each_point_with_the_roof_at_its_intensity():
    """4e9 FLOPs over 1e9 bytes in 500 µs: 8 TFLOP/s at 4 FLOPs a byte, where 4 TB/s bear 16."""
    measured = {"peak_tb_per_sec": 4.0, "peak_tflops": 800.0, "tflops": 8.0, "tb_per_sec": 2.0, "flops": 4 * 10**9, "bytes": 10**9}
    row = made("a", 500.0, routine="mla", bound="memory", frac_of_peak=0.5, kv_read_amplification=2.0, **measured)
    (found,) = records("roofline", row)
    (grid,) = roofline.grids(asked(row))
    names = ("flash_attn_3", "flash_attn_3_vllm")
    builds = [{**row, "backend": name, "point_id": name, "resolved_backend": "flash_attn_3"} for name in names]

    assert (found["intensity"], found["roof"], found["frac_of_peak"]) == (HAND(4.0), HAND(16.0), 0.5)
    assert found["tflops"] / found["roof"] == HAND(found["frac_of_peak"])
    assert grid.cells == (("mla", "a", "bf16", "bf16", "1", "800", "50%", "50%", "50%", "2.00", "2.00"),)
    assert grid.title.startswith("bound by memory: fraction of its measured ceiling (4.00 TB/s) · ")  # no word of a column
    assert grid.header[-2:] == ("KV reads possible", "at most")
    assert [cells[1] for cells in roofline.grids(asked(*builds))[0].cells] == [*names]
    of_flag = views_of(to_table(builds), flags=[(1, "FLASH_ATTN")])
    assert [cells[1] for cells in roofline.grids(of_flag)[0].cells] == ["flash_attn_3_vllm"]
    assert grid.header[6:9] == ("most", "median", "least")
    assert roofline.summary(asked(row)) == "50% of the measured ceiling at the median of 1 points, 50% at best"


def test_rows_without_a_measured_ceiling_say_so():
    assert "no ceiling was measured" in str(roofline.summary(asked(made("a", 5.0, flops=1, bytes=1))))


# 5. The best draft length


@pytest.mark.parametrize(
    ("acceptance", "s_qo", "tokens"),
    [
        (0.5, 1, 1.0),
        (0.5, 4, 1.875),  # 1 + 1/2 + 1/4 + 1/8 = (1 - 1/16) / (1 - 1/2)
        (0.0, 8, 1.0),
        (1.0, 8, 8.0),
        ((0.5, 0.5, 0.5), 4, 1.875),
        ((0.9, 0.5), 3, 2.35),  # 1 + 0.9 + 0.45
        ((0.9, 0.5), 2, 1.9),
        ((0.9, 0.5), 4, None),  # nobody said how the third position fares
    ],
)
def test_expected_tokens(acceptance: float | tuple[float, ...], s_qo: int, tokens: float | None):
    assert expected_tokens(acceptance, s_qo) == (None if tokens is None else HAND(tokens))


def drafts(**keys: Any) -> list[Row]:
    """Verify times of 10, 12, 20 and 60 µs at 1, 2, 4 and 8 tokens; the last is prefill's, where decode takes longer."""
    times = {1: 10.0, 2: 12.0, 4: 20.0, 8: 70.0}
    rows = [made("xqa", us, routine="paged_decode", mask="causal", s_qo=s_qo, batch_size=2, **keys) for s_qo, us in times.items()]
    return [*rows, {**made("fa2", 60.0, routine="paged_prefill", mask="causal", s_qo=8, batch_size=2, **keys), "point_id": "p"}]


def test_the_best_draft_yields_the_most_tokens_a_second():
    """At a = 0.5: 1 / 10, 1.5 / 12, 1.875 / 20, 1.992 / 60 tokens a µs for a request, of which there are two."""
    (found,) = records("draft", *drafts(), assuming=Draft(acceptance=0.5))

    assert (found["best_s_qo"], found["measured"]) == (2, [1, 2, 4, 8])
    assert found["tokens_per_s"] == HAND(2 * 1.5 / 12e-6)
    assert found["gain"] == HAND(1.25)


def test_without_costs_a_draft_shows_no_tokens_a_second():
    assuming = Draft(acceptance=0.5)
    (grid,) = draft.by_context(views_of(to_table(drafts()), assuming))

    assert grid.cells == (("2", "1 drafted, 1.25×, from 0.20, xqa unchecked"),)
    assert "longest known" not in grid.title  # 3 drafted tokens were measured too
    assert "by attention alone: draft.layers, draft.rest_us and draft.cost_us make it whole steps" in grid.title


def test_a_draft_s_own_cost_counts_and_so_do_layers_and_the_rest_of_a_step():
    """At a = 1, 2 layers, 20 µs of rest, 10 µs a draft and 5 a token: 1/40, 2/59, 4/85 and, by prefill, 8/185 a µs."""
    assuming = Draft(acceptance=1, layers=2, rest_us=20, start_us=10, cost_us=5)
    (found,) = records("draft", *drafts(), assuming=assuming)
    (grid,) = draft.by_context(views_of(to_table(drafts()), assuming))

    assert (found["best_s_qo"], found["step_us"], found["verify_us"]) == (4, HAND(85.0), 20.0)
    assert found["gain"] == HAND((4 / 85) / (1 / 40))
    assert grid.cells == (("2", "3 drafted, 94,118/s (1.88×), from 0.58, xqa unchecked"),)
    assert "acceptance 1, 2 layers of attention, 20 µs a step for the rest, 10 µs a draft, 5 µs a drafted token" in grid.title


def test_prefill_verifies_where_it_is_faster():
    (found,) = records("draft", *drafts(), assuming=Draft(acceptance=1, layers=1, rest_us=100))

    assert (found["best_s_qo"], found["verify_routine"], found["verify_backend"]) == (8, "paged_prefill", "fa2")


def test_a_curve_limits_drafts_and_trees_and_prompts_are_no_drafts():
    (found,) = records("draft", *drafts(), assuming=Draft(acceptance=(1.0,)))
    assert found["measured"] == [1, 2]

    assert records("draft", *drafts(seq_lens="fixed")[:1]) == []
    assert records("draft", *({**row, "mask": "binary"} for row in drafts())) == []
    assert records("draft", *({**row, "routine": "ragged_prefill"} for row in drafts()[:4])) == []


# 7. What is missing or odd


def counts(grid: Grid) -> list[int]:
    return [int(count) for _, count in grid.cells]


def test_bad_points_are_listed_with_what_runs_them_again():
    rows = [made("a", 1.0), made("b", None, "failed", "boom", command="again"), made("c", None, "unsupported", "no")]
    summary, listed = odd.grids(asked(*rows))

    assert counts(summary) == [1, 0, 0, 0, 0]
    assert listed.cells[0][0] == "failed" and listed.cells[0][-2:] == ("boom", "again")


def test_every_odd_point_is_listed():
    rows = [made("a", None, "failed", "boom", batch_size=batch) for batch in range(1, 31)]
    summary, listed = odd.grids(asked(*rows))

    assert counts(summary)[0] == len(listed.cells) == 30


@pytest.mark.parametrize(
    ("where", "never"),
    [({"status": "ok"}, "–"), ({"model": "m", "median_us": Bounds(0, 1)}, "–"), ({"s_kv": [64, 128]}, "1"), ({}, "1")],
)
def test_no_point_is_called_never_run_since_a_filter_on_results_hid_its_row(tmp_path: Path, where: Where, never: str):
    """a has three of 2 x 2 points."""
    kept(tmp_path / "d", *(made("a", 1.0, batch_size=b, s_kv=c) for b, c in ((1, 64), (1, 128), (2, 64))))
    data = open_views(tmp_path / "d", where=where)
    summary, *lists = odd.grids(data)

    assert summary.cells[1][1] == never
    assert ("where={median_us} may hide their rows" in summary.cells[1][0]) == ("median_us" in where)
    assert bool(lists) == bool(odd.summary(data)) == (never == "1")


def test_a_hole_is_a_point_of_a_backend_s_own_grid_without_a_row():
    """a has three of 2 x 2 points; b has all of its 1 x 2, one of them unsupported; c's draft is longer than its context."""
    rows = [made("a", 1.0, batch_size=b, s_kv=c) for b, c in ((1, 64), (1, 128), (2, 64))]
    rows += [made("b", 1.0, s_kv=64), made("b", None, "unsupported", s_kv=128)]
    rows += [made("c", 1.0, s_kv=2, s_qo=1), made("c", 1.0, s_kv=4, s_qo=4), made("c", 1.0, s_kv=4, s_qo=1)]
    found = records("holes", *rows)

    assert [(r["backend"], r["batch_size"], r["s_kv"], r["s_qo"]) for r in found] == [("a", 2, 128, 1)]
    assert odd.summary(asked(*rows)) == "1 never run"
    listed = odd.grids(asked(*rows[:3], *({**row, "window": 8, "point_id": f"w{row['point_id']}"} for row in rows[:3])))[1]
    assert [cells[-1].partition("bf16")[2] for cells in listed.cells] == [", window 8", ""]


def test_what_a_named_sweep_says_never_ran_are_its_points_without_a_row(settings: Callable[..., Settings]):
    points = expand(settings("+sweep=smoke"))
    rows = [{**made("a", 1.0), "point_id": point.point_id} for point in points[2:]]
    data = asked(*rows)
    data.points = points
    summary, listed = odd.grids(data)

    assert counts(summary)[1] == 2
    assert [cells[-1] for cells in listed.cells] == [point.point_id for point in points[:2]]


def test_no_rate_is_above_the_limit():
    rows = [made("a", 1.0, frac_of_peak=0.99), made("b", 1.0, frac_of_peak=1.01), made("c", 1.0, frac_of_datasheet=1.2)]
    found = records("over_limit", *rows)

    assert sorted((r["backend"], r["frac"]) for r in found) == [("b", HAND(1.01)), ("c", HAND(1.2))]


def line(times: list[float], **keys: Any) -> list[Row]:
    return [made("a", us, s_kv=1024 * 2**i, **keys) for i, us in enumerate(times)]


@pytest.mark.parametrize(("us", "spikes"), [(40.0, []), (51.0, []), (53.0, [1.325]), (30.0, [0.75]), (32.0, [])])
def test_a_spike_is_over_30_percent_off_the_line_of_its_neighbours(us: float, spikes: list[float]):
    """On a line of doubled times each is the geometric mean of its neighbours: 40 between 20 and 80."""
    found = records("spikes", *line([10, 20, us, 80, 160]))

    assert [r["times"] for r in found if r["s_kv"] == 4096] == [HAND(t) for t in spikes]


def test_a_step_that_every_line_makes_is_no_spike_and_one_more_on_top_is():
    """From one to two tokens every context takes 3 times the line; at 4,096 also 1.5 times that."""
    rows = [
        made("a", 10.0 * i * s_qo * (3 if s_qo == 2 else 1) * (1.5 if (s_qo, i) == (2, 4) else 1), s_kv=1024 * i, s_qo=s_qo)
        for i in (1, 2, 4, 8)
        for s_qo in (1, 2, 4)
    ]
    found = records("spikes", *rows)

    assert [(r["s_kv"], r["s_qo"], r["times"]) for r in found] == [(4096, 2, HAND(1.5))]


def test_what_is_off_on_one_axis_alone_is_no_spike():
    """A cliff at batch 4 for the longest context: off the line over batches and not over contexts."""
    rows = [made("a", 10.0 * b * c * (1.6 if b == 4 else 1), batch_size=b, s_kv=1024 * c) for b in (1, 4, 16) for c in (1, 2, 4)]

    assert records("spikes", *rows) == []


# All of them


def test_a_dataset_without_such_rows_has_no_such_answers():
    for rows in ([made("fa2", 10.0, routine="paged_decode")], [made("fa2", None, "failed", "boom")]):
        data = asked(*rows)
        assert all(
            data.records(f"FROM {view}") == [] for view in ("crossover", "fp8", "q_len", "regret", "draft", "holes", "spikes")
        )


def test_every_query_says_first_what_it_asks():
    for view in VIEWS:
        assert query_text(view).startswith("-- ")


def test_an_answer_is_a_relation_that_becomes_a_frame():
    data = asked(made("a", 20.0), made("b", 10.0))  # older DuckDBs close its connection with it
    found = ask(data, "best").df()

    assert list(found["backend"]) == ["b"]


# What a padded graph costs


def in_graph(backend: str, median_us: float, graph: int | None, fill: int = 0, **keys: Any) -> Row:
    row = made(backend, median_us, graph_batch=graph, graph_fill=fill, **{"batch_size": 3, "routine": "paged_decode", **keys})
    return {**row, "point_id": f"{row['point_id']}-{graph}-{fill}"}


def test_padding_costs_a_backend_s_padded_time_over_its_own_alone():
    rows = [in_graph("a", 10.0, None), in_graph("a", 12.0, 4), in_graph("a", 13.0, 4, fill=1), in_graph("a", 20.0, 8)]
    rows += [in_graph("b", 5.0, None), in_graph("b", 5.0, 4), in_graph("c", 1.0, 4), in_graph("a", 3.0, 4, s_kv=64)]
    rows += [in_graph("torch_sdpa", 1.0, None), in_graph("torch_sdpa", 9.0, 4)]
    found = {(r["backend"], r["graph_batch"], r["graph_fill"]): r["ratio"] for r in records("padding", *rows)}

    assert found == {("a", 4, 0): HAND(1.2), ("a", 4, 1): HAND(1.3), ("a", 8, 0): HAND(2.0), ("b", 4, 0): HAND(1.0)}
    (grid,) = padding.grids(asked(*rows))
    assert grid.header == ("s_qo", "graph_fill", "backend", "batch 3 in 4", "batch 3 in 8")
    assert grid.cells == (
        ("1", "0", "a", "1.20 (10.0)", "2.00 (10.0)"),
        ("1", "0", "b", "1.00 (5.0)", "–"),
        ("1", "1", "a", "1.30 (10.0)", "–"),
    )
    assert padding.summary(asked(*rows)) == (
        "padding costs more than 2% at 3 of 4 padded points (median by backend: a 1.30, b 1.00); "
        "at most 2.00 times the batch alone, a at paged_decode batch 3, s_kv 8,192, s_qo 1, bf16 in 8"
    )


def test_without_padding_the_question_has_no_answer_and_a_padded_time_is_no_rival_of_one_alone():
    alone, padded = in_graph("a", 10.0, None), in_graph("b", 5.0, 4)

    assert (padding.grids(asked(alone)), padding.summary(asked(alone))) == ([], None)
    assert {r["graph_batch"]: r["backend"] for r in records("best", alone, padded)} == {None: "a", 4: "b"}
