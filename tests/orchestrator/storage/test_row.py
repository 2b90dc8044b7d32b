"""The row that others rely on: its columns, their types, and what a row without a result may not hold."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kernels.problem import Problem
from orchestrator.point import Point
from orchestrator.storage.row import (
    COLUMNS,
    RESULT_COLUMNS,
    Status,
    describe,
    finish,
    of_forced,
    schema,
    to_json,
    to_table,
)

EXACT_TEXT = """
run_id sweep point_id group_id twin attempt status reason command
routine backend env num_splits resolved_backend kernel_config model tp batch_size s_qo min_s_qo s_kv seq_lens batch_spec max_seq_len
mask mask_prefix tree window sinks page_size kv_layout page_order kv_memory
num_qo_heads num_kv_heads head_dim_qk head_dim_vo head_dim_ckv head_dim_kpe q_dtype kv_dtype out_dtype enable_pdl seed
shared_prefix return_lse graph_batch graph_fill num_states softmax_scale soft_cap routine_axes
median_us mean_us std_us min_us p05_us p95_us ci95_rel num_samples
within_block_rel between_blocks_rel lag1_autocorr bimodal samples_us samples_mhz block_sizes num_set_aside set_aside_us
timer cuda_graph l2 icache stop_reason measured_as working_set_over_l2 context pace
in_step_us in_step_low_us in_step_high_us step_us stand_in_us step_layers in_step_samples_us step_stop_reason host_us
energy_j energy_token_j energy_rel energy_flush_j energy_us energy_note
plan_host_us plan_host_p95_us plan_host_ci95_rel plan_syncs plan_d2h_copies plan_h2d_copies plan_kernels plan_device_us
call_host_us call_host_p95_us call_syncs call_copies call_kernels host_note
engine engine_version flag main_kernels combine_kernels metadata_kernels other_kernels
attention_us attention_main_us attention_combine_us attention_metadata_us attention_share
engine_kernels_us engine_step_us engine_wall_us engine_host_us engine_steps engine_profiled_steps engine_kv_tokens
engine_graph engine_runner engine_model engine_start engine_start_s
flops bytes tflops tb_per_sec bound frac_of_peak frac_of_datasheet kv_read_amplification peak_tb_per_sec peak_tflops
launch_us own_us
check max_abs_err rel_err tolerance err_over_tolerance rms_err check_max_error weight_over_limit check_min_tokens
check_pairs_covered check_stale_covered inputs_checked
lse_err lse_tolerance state_err state_tolerance lse_base launches_checked same_bits batch_invariant oracle caller_scale
compile_s inputs_s check_s measure_s rest_s total_s peak_mem_bytes
cluster device_name device_uuid compute_capability device_modes driver cuda torch_version libraries flashinfer_version ray_version
orchestrator_version
host node_id sm_clock_mhz mem_clock_mhz temperature_c power_w throttle_reasons other_processes started_at finished_at
"""
EXACT = EXACT_TEXT.split()


def test_the_columns_are_exactly_these():
    assert list(COLUMNS) == EXACT
    assert schema().names == EXACT


def test_the_types_are_those_a_query_expects():
    types = {field.name: str(field.type) for field in schema()}

    assert types["samples_us"].startswith("list<") and "double" in types["samples_us"]
    assert types["started_at"] == "timestamp[us, tz=UTC]"
    assert {types[name] for name in ("batch_size", "bytes", "num_samples")} == {"int64"}
    assert types["cuda_graph"] == "bool"


def test_a_row_that_is_not_ok_holds_no_result(problem: Callable[..., Problem]):
    point = Point(problem(), "fa2", "how")
    full = finish({**describe(point), "median_us": 3.0, "samples_us": [3.0], "tflops": 1.0, "rel_err": 0.5}, "mismatch", "off")

    assert all(full[name] is None for name in RESULT_COLUMNS)
    assert (full["status"], full["reason"], full["rel_err"]) == ("mismatch", "off", 0.5)
    assert full["started_at"] and full["finished_at"]


def test_a_column_that_does_not_exist_is_a_bug_of_ours():
    with pytest.raises(KeyError, match="medain_us"):
        finish({"medain_us": 3.0}, "ok")


def test_rows_survive_json_and_parquet(problem: Callable[..., Problem]):
    import json

    full = finish({**describe(Point(problem(), "fa2", "how")), "host_us": float("nan"), "samples_us": [1.5, 2.5]}, "ok")
    back = to_table([json.loads(to_json(full))]).to_pylist()[0]

    assert back["samples_us"] == [1.5, 2.5]
    assert back["host_us"] is None
    assert back["started_at"].isoformat() == full["started_at"]
    assert {k: v for k, v in back.items() if k not in ("started_at", "finished_at")} == {
        k: v for k, v in full.items() if k not in ("started_at", "finished_at")
    }


@pytest.mark.parametrize(
    ("status", "kept", "words"),
    [
        ("ok", "ok", "the rule is too strict: it forbids this, and it ran and was right (needs SM100)"),
        ("failed", "unsupported", "needs SM100 (forced: failed: boom)"),
        ("mismatch", "unsupported", "needs SM100 (forced: mismatch: boom)"),
        ("timeout", "timeout", "boom"),
        ("oom", "oom", "boom"),
    ],
)
def test_a_forced_point_confirms_its_rule_or_refutes_it_or_says_nothing(status: Status, kept: str, words: str):
    row = {"status": status, "reason": "" if status == "ok" else "boom"}
    row |= of_forced(row, "needs SM100")

    assert (row["status"], row["reason"]) == (kept, words)


def test_a_forced_point_whose_kernel_was_not_told_of_a_feature_says_so():
    row = {"status": "mismatch", "reason": "boom"}
    told = of_forced(row, "no sinks", ("attention sinks",))

    assert told["status"] == "unsupported"
    assert told["reason"] == "no sinks (forced: says nothing of the rule, attention sinks not passed to the kernel: mismatch: boom)"
