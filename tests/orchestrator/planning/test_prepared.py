"""The points that a benchmark prepares in its own process: those that its command line asks for."""

from __future__ import annotations

import pytest

from benchmarks import prepared
from orchestrator.errors import UserError
from orchestrator.machines import known_devices

SMALL = (
    "+sweep=specdec_long_ctx",
    "sweep.backend=[flash_attn_3,trtllm-native,fa2_tc]",
    "sweep.batch_size=[64]",
    "sweep.s_kv=[8192]",
    "sweep.s_qo=[1]",
)
H200 = known_devices()["h200"]


def asked(*overrides: str) -> set[tuple[str, str, str]]:
    """Backend, dtype of the queries and dtype of the cache of each point."""
    found = prepared.points_of(prepared.settings_of([*SMALL, *overrides]), H200)
    return {(point.backend, point.problem.q_dtype, point.problem.kv_dtype) for point in found}


def test_where_chooses_the_points_that_are_prepared():
    backends = ("flash_attn_3", "trtllm-native", "fa2_tc")

    assert {kv for *_, kv in asked()} == {"bf16", "fp8_e4m3"}
    assert asked("where={q_dtype: bf16, kv_dtype: bf16}") == {(backend, "bf16", "bf16") for backend in backends}
    assert asked("where={backend: fa2_tc, kv_dtype: [bf16]}") == {("fa2_tc", "bf16", "bf16")}


def test_where_is_refused_if_no_point_has_its_key_or_its_values():
    with pytest.raises(UserError, match="kv_dtyp") as unknown:
        asked("where={kv_dtyp: bf16}")
    with pytest.raises(UserError, match="no point of sweep specdec_long_ctx has these values; type others"):
        asked("where={s_qo: 3}")

    assert "kv_dtype" in str(unknown.value)


def test_points_that_are_done_or_have_no_rank_are_left_out_and_the_lowest_rank_comes_first():
    settings = prepared.settings_of(list(SMALL))
    every = prepared.points_of(settings, H200)
    done = {point.point_id for point in every if point.backend == "fa2_tc"}
    ranks = {"trtllm-native": 0, "fa2_tc": 0, "flash_attn_3": 1}

    assert {point.backend for point in prepared.points_of(settings, H200, done)} == {"flash_attn_3", "trtllm-native"}
    found = prepared.points_of(settings, H200, done, lambda point: ranks[point.backend])
    assert [ranks[point.backend] for point in found] == sorted(ranks[point.backend] for point in found)
    kept = prepared.points_of(settings, H200, rank=lambda point: None if point.problem.kv_dtype == "bf16" else 0)
    assert {point.problem.kv_dtype for point in kept} == {"fp8_e4m3"}
