"""Yes, no, mostly or what it depends on: the first lines of question=fp8, against shapes worked out by hand."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pytest

from orchestrator.analysis.connection import Record
from orchestrator.analysis.questions import fp8, open_views
from orchestrator.analysis.questions.tables import times
from orchestrator.config.engine import selected
from orchestrator.reporting.opened import of_flags
from orchestrator.storage.row import Row, to_table
from tests.helpers.command_line import Invoke
from tests.helpers.datasets import RESULTS
from tests.helpers.timed_rows import made, views_of

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
        (gains(0.8, 0.8, 0.5, 0.8), "no at batch 8: takes 1.25 to 2 times as long (25.0 to 100.0 µs a call)"),
        (gains(1.01, 0.99, 1.0, 1.0), "no at batch 8: as fast within 2%"),
        (gains(1.01, 0.8, 1.0, 1.0), "no at batch 8: takes up to 25% more time"),
        (
            gains(0.8, 1.2, 0.8, 1.3),
            "it depends on s_kv at batch 8: 20% to 30% faster (16.7 to 23.1 µs a call), "
            "but at s_kv 1,024 takes 25% more time (25.0 µs a call)",
        ),
        (
            gains(1.2, 1.2, 1.0, 1.0),
            "it depends on s_qo at batch 8: 20% faster (16.7 µs a call), but at s_qo 4 is as fast within 2%",
        ),
        (
            gains(1.2, 1.2, 0.8, 1.3),
            "mostly yes at batch 8: 20% to 30% faster (16.7 to 23.1 µs a call), "
            "but at s_kv 1,024 with s_qo 4 takes 25% more time (25.0 µs a call)",
        ),
        (
            gains(0.8, 0.5, 1.3, 0.8),
            "mostly no at batch 8: takes 1.25 to 2 times as long (25.0 to 100.0 µs a call), "
            "but at s_kv 1,024 with s_qo 4 is 30% faster (23.1 µs a call)",
        ),
        (
            gains(0.8, 1.2, 1.2, 0.8),
            "it depends on s_kv and s_qo at batch 8: 20% faster (16.7 µs a call), "
            "but at 2 of 4 workloads (full=true lists them) takes 25% more time (25.0 µs a call)",
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
        (  # FP8 queries were not measured at s_kv 8,192
            gains(0.5, 0.5, 0.5, 0.5),
            {(1, 1024): 1.3, (4, 1024): 1.4},
            "it depends on s_kv at batch 8: 30% to 40% faster (23.1 to 28.6 µs a call), "
            "but at s_kv 8,192 takes 2 times as long (100.0 µs a call),"
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
    highest = max(data.single_row(f"SELECT {best} FROM fp8 WHERE batch_size > 1 AND NOT too_big")) - 1
    mostly, yes = (words for _, words in fp8.grids(data)[0].cells)

    assert mostly.startswith("mostly yes at batch 1: ")
    # At batch 64 the smallest 16-bit cache is larger than the GPU.
    assert yes.startswith("yes at batch 8 to 32: ") and f" to {highest:.0%} faster (" in yes


def test_a_server_has_one_answer_whichever_routine_takes_its_drafts():
    """Over each cache a draft takes the faster of paged decode and paged prefill: their answers were two, and opposite."""
    data = open_views(RESULTS / "h200_main/servers.parquet", threads=1, where={"model": "llama_3_1_70b", "tp": 8})
    answers, *tables = fp8.grids(data)
    workloads = "SELECT count(DISTINCT workload) FROM workloads JOIN problems USING (problem) WHERE kv_dtype = 'bf16'"

    assert len({title for title, _ in answers.cells}) == 1 and not any("routine" in grid.title for grid in (answers, *tables))
    assert data.scalar("SELECT count(*) FROM fp8") == data.scalar(workloads) == 14


def timed(backend: str, us: float | None, queries: str = "bf16", kv: str = "fp8_e4m3", status: str = "ok", **keys: Any) -> Row:
    shape = {"routine": "paged_decode", "mask": "causal", "compute_capability": "9.0", "rel_err": 0.003, "s_kv": 1024, **keys}
    row = made(backend, us, status, q_dtype=queries, kv_dtype=kv, **shape)
    return {**row, "point_id": f"{row['point_id']}-{queries}-{kv}"}


def wrong(backend: str, s_kv: int, error: float, reason: str, batch: int = 8) -> Row:
    keys = {"rel_err": error, "tolerance": 0.07, "reason": reason, "batch_size": batch}
    return {**timed(backend, None, "fp8_e4m3", status="mismatch", s_kv=s_kv, **keys), "reason": reason}


BUILDS = [
    *(timed("flash_attn_3", us, kv="bf16", s_kv=s_kv) for s_kv, us in ((1024, 20.0), (8192, 40.0), (65536, 80.0))),
    *(timed("trtllm-native", us, s_kv=s_kv) for s_kv, us in ((1024, 25.0), (8192, 120.0))),
    timed("flash_attn_3_sglang", 10.0, "fp8_e4m3", rel_err=0.02),
    timed("flash_attn_3_vllm", 16.0, "fp8_e4m3", rel_err=0.02),
    *(wrong(name, 8192, 0.19, "many rows are off") for name in ("flash_attn_3_sglang", "flash_attn_3_vllm")),
    wrong("flash_attn_3_vllm", 65536, 0.02, "keys 0 to 63 count 0.5 times instead of once"),
]


def test_queries_whose_answers_were_wrong_are_said_to_be_and_not_to_be_slower():
    """Else three times the time with 16-bit queries reads like a choice; where nothing over FP8 was right, no answer counts it."""
    answer, left_out, table = fp8.grids(views_of(to_table(BUILDS)))
    (((_, words),), (_, note)) = answer.cells, left_out.cells[0]

    assert (
        "but at s_kv 8,192 takes 3 times as long (80.0 µs a call), with 16-bit queries at s_kv 8,192 (where FP8 queries were wrong)"
        ", else FP8 queries" in words
    )
    assert "; over FP8 WRONG at 1 more of these workloads" in words and "may be faster" not in words
    assert note == (
        "FP8 queries were wrong at 2 of 3 workloads (s_kv 8,192 at batch 8; s_kv 65,536 at batch 8); "
        "flash_attn_3_sglang: error up to 19%, allowed 7%"
    )
    (_, _, queries, *cells) = table.cells[1]
    assert (queries, cells[1:]) == (
        "FP8 queries",
        [
            "flash_attn_3_sglang was wrong: error up to 19%, allowed 7%",
            "flash_attn_3_vllm was wrong: keys 0 to 63 count 0.5 times instead of once",
        ],
    )


@pytest.mark.parametrize(
    ("engine", "gain", "name"),
    [
        (None, "2.00", "flash_attn_3_sglang"),
        ("vllm", "1.25", "FLASH_ATTN (flash_attn_3_vllm)"),
        ("sglang", "2.00", "fa3 (flash_attn_3_sglang)"),
    ],
)
def test_an_engine_is_asked_with_its_flags_over_both_caches(engine: str | None, gain: str, name: str):
    """The build of another engine is no choice for its user."""
    rows, engines = to_table(BUILDS), selected() if engine is None else selected(engine)
    read = partial(views_of, rows, engines=engines)
    answer, *_, table = fp8.grids(read() if engine is None else of_flags(read, advised=True))

    assert any(cell.startswith(f"{gain} {name}, ") for row in table.cells for cell in row)
    of_any = "the fastest backend of any engine and dtype of queries (flags of one: engine=vllm)"
    of_one = f"the flags that question=one_backend names of {engines[0].title}"
    assert f"By time, with {of_any if engine is None else of_one};" in answer.title


def test_an_engine_is_asked_with_the_flag_that_its_answer_names():
    """At batch 8 another flag is faster over FP8, which a server that also has batches 1 and 64 does not take."""
    rows = [timed("flash_attn_3_vllm", 40.0, kv="bf16", batch_size=batch) for batch in (1, 8, 64)]
    rows += [timed("flash_attn_3_vllm", us, "fp8_e4m3", batch_size=batch) for batch, us in ((1, 20.0), (8, 36.0), (64, 20.0))]
    rows += [timed("trtllm-native", us, batch_size=batch) for batch, us in ((1, 60.0), (8, 30.0), (64, 60.0))]
    table, engines = to_table(rows), selected("vllm")
    found = {advised: of_flags(partial(views_of, table, engines=engines), advised=advised) for advised in (True, False)}

    of_eight = "SELECT shown FROM points JOIN problems USING (problem) WHERE batch_size = 8 AND kv_dtype = 'fp8_e4m3' ORDER BY 1"
    flags = [name for (name,) in found[False].execute(of_eight)]
    assert flags == ["FLASHINFER (trtllm-native)", "FLASH_ATTN (flash_attn_3_vllm)"]
    assert [name for (name,) in found[True].execute(of_eight)] == flags[1:]
    winners = "SELECT batch_size, backend FROM best WHERE kv_dtype = 'fp8_e4m3' ORDER BY 1"  # whatever the dtype of queries
    assert found[False].execute(winners) == [(1, flags[1]), (8, flags[0]), (64, flags[1])]
    assert found[True].execute("SELECT batch_size, fp8_q_gain, fp8_kv_gain FROM fp8 ORDER BY 1") == [
        (1, 2.0, None),
        (8, pytest.approx(40 / 36), None),
        (64, 2.0, None),
    ]


def test_an_engine_is_asked_over_the_datasets_that_name_its_flags_over_each_cache(invoke: Invoke):
    """A dataset with both caches may have fallbacks of the engine alone over one of them."""
    asked = ("mode=report", "model=deepseek_v3", "tp=8", "device=h200", "engine=vllm")
    each = (invoke(*asked, "question=one_backend", f"where={{kv_dtype: {kv}}}").stderr for kv in ("bf16", "fp8_e4m3"))
    read = [name for told in each for name in re.findall(r"note: read (\S+?)(?:\.parquet)?,", told)]
    told = invoke(*asked, "question=fp8")

    assert len({*read}) == 2 and f"results.path=[{','.join(read)}" in "".join(told.stdout.split("\n  "))
    assert "yes at batch 1 to 128" in told.stdout and "FLASHMLA" in told.stdout


def test_a_model_with_full_and_windowed_layers_has_an_answer_for_all_of_them():
    """gpt-oss has as many of each: (40 + 10) / (20 + 20). One kind without an FP8 time leaves no answer for the model."""
    rows = [
        {**timed(backend, us, queries, kv, model="gpt_oss_120b", window=window), "point_id": f"{backend} {kv} {window}"}
        for window, half, fp8_us, queries_of in ((None, 40.0, 20.0, "bf16"), (128, 10.0, 20.0, "fp8_e4m3"))
        for backend, us, queries, kv in (("fa2", half, "bf16", "bf16"), ("flash_attn_3", fp8_us, queries_of, "fp8_e4m3"))
    ]
    data, one_kind = views_of(to_table(rows)), views_of(to_table(rows[:-1]))

    told = "SELECT fp8_windowed_gain, fp8_full_gain, fp8_kv_gain, fp8_q_gain, half_own_us FROM fp8_of_models"
    assert data.execute(told) == [(1.25, None, None, None, 25.0)] and one_kind.execute(told) == []
    assert fp8.grids(data)[0].cells[0][1].startswith("yes at batch 8: 25% faster (5.0 µs a call), with FP8 queries in windowed")


def test_an_engine_whose_default_has_no_time_has_no_answer_and_is_said_to_have_no_advice():
    """The flags that have one may be fallbacks, over which FP8 looks slow or fast."""
    rows = to_table([timed("trtllm-native", 20.0, kv="bf16"), timed("trtllm-native", 10.0)])
    (left_out,) = fp8.grids(of_flags(partial(views_of, rows, engines=selected("vllm")), advised=True))
    why = "no advice: the default FLASH_ATTN has no time (not measured at 1); of what was right, FLASHINFER is fastest"

    assert [note for _, note in left_out.cells] == [
        f"over {kv}, decode: {why}; nothing is compared; leave engine out to compare kernels" for kv in ("bf16", "fp8_e4m3")
    ]
    assert len(fp8.grids(views_of(rows))) == 2


def test_the_screen_of_a_server_begins_with_its_main_workloads_and_says_what_it_leaves_out(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "80")
    asked = ("mode=report", "question=fp8", "model=deepseek_v3", "tp=8", "device=h200")
    lines = invoke(*asked).stdout.splitlines()
    told = " ".join(" ".join(lines).split())
    whole = " ".join(invoke(*asked, "full=true").stdout.split())

    assert max(map(len, lines[:-2])) <= 80 and len(lines) <= 42  # the last ones have a path to paste
    assert told.count("deepseek_v3 · tp 8 · ") <= 3  # in the titles of three tables
    assert "one query length: yes at batch 1 to 8, " in told and "; drawn query lengths: no at batch 16 to 64" in told
    assert "min_s_qo" not in told and told.index("one query length yes") < told.index("time over 16 bits / over FP8")
    assert not [line for line in lines if line.startswith(("            yes", "            no"))]
    assert "(where FP8 queries were wrong)" in told and "error up to 19%, allowed 7%" in told
    assert "larger than the GPU's 141 GB (s_kv 65,536 from batch 32 on): no answer counts them" in told
    assert "at s_kv 65,536 with s_qo 1 takes 3.13 times as long" in told and "(below)" not in told
    _, main, drawn = whole.split("time over 16 bits / over FP8")
    assert " · one query length · " in main.partition("┏")[0] and " · drawn query lengths · " in drawn.partition("┏")[0]


def test_a_cache_that_the_gpu_has_no_room_for_is_in_no_answer():
    data = open_views(RESULTS / "h200_main/specdec_long_ctx")
    answer, left_out, table, *_ = fp8.grids(data)
    (too_big,) = data.single_row("SELECT count(*) FROM fp8 WHERE too_big")

    assert not any("64" in words.partition(":")[0] for _, words in answer.cells)
    assert left_out.cells[0][1].startswith(
        f"{too_big} of 64 workloads have a 16-bit cache of 80 layers larger than the GPU's 141 GB"
    )
    assert any(cells[:2] == ("1", "64") for cells in table.cells)


@pytest.mark.parametrize(
    ("ratios", "than", "words"),
    [
        ((0.8,), "", "20.0% less time"),
        ((1.05,), "FLASH_ATTN", "5.0% more time than FLASH_ATTN"),
        ((1.05, 1.5), "", "5.0% to 50.0% more time"),
        ((13.415,), "", "13.4 times as long"),
        ((2.92, 3.02), "FLASH_ATTN", "2.92 to 3.02 times as long as FLASH_ATTN"),
    ],
)
def test_from_twice_the_time_on_words_say_how_many_times(ratios: Sequence[float], than: str, words: str):
    assert times(*ratios, than=than) == words
