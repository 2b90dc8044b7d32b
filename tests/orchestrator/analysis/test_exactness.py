"""The kernel that ran and its error beside every fastest time, and where more query tokens cost less."""

from __future__ import annotations

import pytest

from orchestrator.analysis.dataset import Dataset
from orchestrator.analysis.questions import best, exactness, odd, open_views, pad_up
from tests.helpers.datasets import MAIN


@pytest.fixture(scope="module")
def exact() -> Dataset:
    return open_views(MAIN, max_rel_err=0.01)


def cell(data: Dataset, dtypes: str, s_qo: str, batch: str, context: str) -> str:
    (grid,) = (g for g in best.grids(data) if dtypes in g.title)
    (line,) = (line for line in grid.cells if line[:2] == (s_qo, batch))
    return line[grid.header.index(context)]


def test_a_cell_names_the_kernel_and_says_how_much_coarser_than_the_next_it_is(main_views: Dataset):
    coarse = cell(main_views, "q bf16, kv fp8_e4m3", "8", "64", "s_kv 131,072")
    (row,) = main_views.records("""
        FROM best WHERE q_dtype = 'bf16' AND kv_dtype = 'fp8_e4m3' AND s_qo = 8 AND batch_size = 64 AND s_kv = 131072""")
    rows = main_views.current().query("q_dtype == 'bf16' and kv_dtype == 'fp8_e4m3' and s_qo == 8 and batch_size == 64")
    errors = rows[rows["s_kv"] == 131072].groupby("resolved_backend")["rel_err"].first()

    assert coarse.startswith("trtllm-native(xqa_hopper_fp8) 6,030.8")
    assert coarse.endswith(f"err {100 * row['rel_err']:.2g}%, {row['err_ratio']:.0f}× the next's")
    assert (row["kernel"], row["rel_err"]) == ("xqa_hopper_fp8", errors["xqa_hopper_fp8"])
    assert row["err_ratio"] == pytest.approx(errors["xqa_hopper_fp8"] / errors["fa2_tc"])
    assert "×" not in cell(main_views, "q bf16, kv bf16", "8", "64", "s_kv 131,072")


def test_max_rel_err_leaves_out_what_is_too_coarse_and_says_so(exact: Dataset):
    (grid,) = exactness.left_out(exact)

    assert cell(exact, "q bf16, kv fp8_e4m3", "8", "64", "s_kv 131,072").startswith("fa2_tc")
    assert {line[0]: line[1] for line in grid.cells} == {"fa3 (FlashInfer)": "16", "flash_attn_3": "192", "xqa_hopper_fp8": "32"}
    assert exact.scalar("SELECT max(rel_err) FROM best") <= 0.01
    assert exact.scalar("SELECT count(*) FROM statuses WHERE status = 'too coarse'") == 0  # it is no status of a row


def test_where_more_query_tokens_cost_less_is_found_with_its_price(main_views: Dataset, exact: Dataset):
    found = main_views.records("FROM pad_up ORDER BY batch_size, s_kv")
    (grid,) = pad_up.grids(main_views)
    best_us = {
        s_qo: main_views.scalar(f"""
            SELECT us FROM fastest WHERE q_dtype = 'bf16' AND kv_dtype = 'fp8_e4m3' AND batch_size = 8
            AND s_kv = 8192 AND s_qo = {s_qo}""")
        for s_qo in (4, 8)
    }

    assert {(r["s_qo"], r["pad_to"], r["kv_dtype"]) for r in found} == {(4, 8, "fp8_e4m3")}
    assert {r["batch_size"] for r in found} == {8, 32, 64} and len(found) == 12
    assert (found[0]["us"], found[0]["pad_us"]) == (best_us[4], best_us[8])
    assert all(r["pad_err_ratio"] > 10 and r["kernel"] != r["pad_kernel"] for r in found)
    assert "becomes" in grid.cells[0][-1] and "at up to" in str(pad_up.summary(main_views))
    assert exact.scalar("SELECT max(longer_by) FROM pad_up") < 0.03  # among exact answers there is next to nothing to gain
    assert ("more query tokens cost less, beyond noise: pad the draft", "12") in odd.grids(main_views)[0].cells


@pytest.mark.parametrize(
    ("backend", "kernel", "words"),
    [
        ("trtllm-native", "xqa_hopper_fp8", "trtllm-native(xqa_hopper_fp8)"),
        ("auto(fa2_tc)", "fa2_tc", "auto(fa2_tc)"),
        ("flash_attn_3_32_splits", "flash_attn_3", "flash_attn_3_32_splits"),
        ("fa3", "fa3", "fa3 (FlashInfer)"),
    ],
)
def test_a_kernel_is_named_if_its_backend_does_not_tell_it(backend: str, kernel: str, words: str):
    assert exactness.named(backend, kernel) == words


def test_an_answer_that_was_not_checked_says_so():
    assert exactness.error(None) == "unchecked"
    assert exactness.error(0.0026, 1.9) == "err 0.26%"
