"""Yes, no, mostly or what it depends on: the first lines of question=fp8, against shapes worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from orchestrator.analysis.connection import Record
from orchestrator.analysis.questions import fp8, open_views
from tests.helpers.datasets import RESULTS

Gains = Mapping[tuple[int, int], float]  # by s_qo and s_kv


def server(batch: int, kv: Gains, q: Gains | None = None, **keys: Any) -> list[Record]:
    """Rows of the view fp8: the gain of each shape with 16-bit queries, and with FP8 queries."""
    return [
        {
            "batch_size": batch,
            "s_qo": s_qo,
            "s_kv": s_kv,
            "half_rel_err": 0.002,
            "half_own_us": 100.0,
            "fp8_kv_gain": kv.get((s_qo, s_kv)),
            "fp8_kv_rel_err": 0.003,
            "fp8_kv_rough": False,
            "fp8_q_gain": (q or {}).get((s_qo, s_kv)),
            "fp8_q_rel_err": 0.04,
            "fp8_q_rough": False,
            **keys,
        }
        for s_qo, s_kv in kv
    ]


def gains(*values: float) -> Gains:
    return dict(zip([(1, 1024), (1, 8192), (4, 1024), (4, 8192)], values, strict=True))


ERRORS = "at an error of 0.3% (over 16 bits 0.2%); there is no time with FP8 queries, which may be faster"


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (gains(1.1, 1.2, 1.3, 1.4), "yes at batch 8: 10% to 40% faster (9.1 to 28.6 µs a call)"),
        (gains(0.8, 0.8, 0.5, 0.8), "no at batch 8: takes 25% to 100% longer (25.0 to 100.0 µs a call)"),
        (gains(1.01, 0.99, 1.0, 1.0), "no at batch 8: as fast within 2%"),
        (gains(1.01, 0.8, 1.0, 1.0), "no at batch 8: takes up to 25% longer"),
        (
            gains(0.8, 1.2, 0.8, 1.3),
            "it depends on s_kv at batch 8: 20% to 30% faster (16.7 to 23.1 µs a call), "
            "but at s_kv 1,024 takes 25% longer (25.0 µs a call)",
        ),
        (
            gains(1.2, 1.2, 1.0, 1.0),
            "it depends on s_qo at batch 8: 20% faster (16.7 µs a call), but at s_qo 4 is as fast within 2%",
        ),
        (
            gains(1.2, 1.2, 0.8, 1.3),
            "mostly yes at batch 8: 20% to 30% faster (16.7 to 23.1 µs a call), "
            "but at s_kv 1,024 with s_qo 4 takes 25% longer (25.0 µs a call)",
        ),
        (
            gains(0.8, 0.5, 1.3, 0.8),
            "mostly no at batch 8: takes 25% to 100% longer (25.0 to 100.0 µs a call), "
            "but at s_kv 1,024 with s_qo 4 is 30% faster (23.1 µs a call)",
        ),
        (
            gains(0.8, 1.2, 1.2, 0.8),
            "it depends on s_kv and s_qo at batch 8: 20% faster (16.7 µs a call), "
            "but at 2 of 4 workloads (below) takes 25% longer (25.0 µs a call)",
        ),
    ],
)
def test_it_is_yes_or_no_or_depends_on_an_axis(found: Gains, sentence: str):
    assert fp8.sentences(server(8, found)) == [f"{sentence}, with 16-bit queries, {ERRORS}"]


@pytest.mark.parametrize(
    ("kv", "q", "sentence"),
    [
        (
            gains(1.5, 1.5, 0.8, 1.1),
            gains(1.3, 1.4, 1.2, 1.4),
            "yes at batch 8: 20% to 50% faster (16.7 to 33.3 µs a call), with 16-bit queries at s_qo 1, ",
        ),
        (  # FP8 queries were wrong at s_kv 8,192
            gains(0.5, 0.5, 0.5, 0.5),
            {(1, 1024): 1.3, (4, 1024): 1.4},
            "it depends on s_kv at batch 8: 30% to 40% faster (23.1 to 28.6 µs a call), "
            "but at s_kv 8,192 takes 100% longer (100.0 µs a call),"
            " with 16-bit queries at s_kv 8,192, ",
        ),
    ],
)
def test_each_workload_takes_the_queries_that_are_faster_there(kv: Gains, q: Gains, sentence: str):
    (told,) = fp8.sentences(server(8, kv, q))

    assert told.startswith(f"{sentence}else FP8 queries, at an error of ") and "may be faster" not in told


def told(*servers: Sequence[Record]) -> list[str]:
    return [words.partition(":")[0] for words in fp8.sentences([row for rows in servers for row in rows])]


def test_batches_that_follow_one_another_and_are_told_the_same_share_a_sentence():
    yes, no = gains(1.1, 1.1, 1.1, 1.1), gains(0.9, 0.9, 0.9, 0.9)

    assert told(server(1, no), server(8, yes), server(32, yes), server(64, no)) == [
        "no at batch 1",
        "yes at batch 8 to 32",
        "no at batch 64",
    ]


def test_a_gain_over_a_rough_time_is_marked_and_unchecked_answers_are_named():
    rows = server(8, gains(1.1, 1.1, 1.1, 1.1), fp8_kv_rough=True, fp8_kv_rel_err=None)

    assert fp8.sentences(rows)[0].startswith(
        "yes at batch 8: ~10% faster (9.1 µs a call), with 16-bit queries, and answers were not checked;"
    )


def test_the_first_lines_of_the_main_dataset_answer_as_its_rows_do():
    data = open_views(RESULTS / "h200_main/specdec_long_ctx")
    best = "max(fp8_kv_gain) FILTER (s_qo = 1), max(fp8_q_gain) FILTER (s_qo > 1)"
    highest = max(data.single_row(f"SELECT {best} FROM fp8 WHERE batch_size > 1")) - 1
    mostly, yes = (words for _, words in fp8.grids(data)[0].cells)

    assert mostly.startswith("mostly yes at batch 1: ")
    assert yes.startswith("yes at batch 8 to 64: ") and f" to {highest:.0%} faster (" in yes


def test_a_server_has_one_answer_whichever_routine_takes_its_drafts():
    """Over each cache a draft takes the faster of paged decode and paged prefill: their answers were two, and opposite."""
    data = open_views(RESULTS / "h200_main/servers.parquet", threads=1, where={"model": "llama_3_1_70b", "tp": 8})
    answers, *tables = fp8.grids(data)
    workloads = "SELECT count(DISTINCT workload) FROM workloads JOIN problems USING (problem) WHERE kv_dtype = 'bf16'"

    assert len({title for title, _ in answers.cells}) == 1 and not any("routine" in grid.title for grid in (answers, *tables))
    assert data.scalar("SELECT count(*) FROM fp8") == data.scalar(workloads) == 14
