"""One backend for a deployment, worked out by hand.

Each case is a model of one dataset, since opening one takes half a second.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from orchestrator import notes
from orchestrator.analysis.dataset import Dataset
from orchestrator.analysis.questions import engine_default, one_backend, open_views, traffic_weights
from orchestrator.analysis.questions.cache_size import no_room
from orchestrator.analysis.questions.deployments import HERE, Choice, Part, parts
from orchestrator.analysis.step_rest import PRESETS, ModelPlace
from orchestrator.analysis.traffic import Mix, TrafficPoint
from orchestrator.config.draft_cost import Draft
from orchestrator.config.engine import selected
from orchestrator.config.weights import checked_weights
from orchestrator.reporting.report import NEEDS
from orchestrator.storage.row import Row, to_table
from tests.helpers.command_line import Invoke
from tests.helpers.datasets import MAIN, RESULTS
from tests.helpers.timed_rows import made, views_of
from tests.helpers.winners import launch_of

FLASH, XQA, NATIVE = (
    "--attention-backend FLASH_ATTN",
    "--attention-backend FLASHINFER",
    "-ac.backend=FLASHINFER -ac.use_trtllm_attention=false",
)
VLLM, SGLANG = (selected(name)[0].title for name in ("vllm", "sglang"))
PADDED = RESULTS / "h200_engines/padded_graphs"
Key = tuple[str, str, str]  # model, phase, engine


def measured(model: str, backend: str, us: float | None, s_qo: int = 1, status: str = "ok", **keys: Any) -> Row:
    defaults = {"routine": "paged_decode", "mask": "causal", "compute_capability": "9.0", "rel_err": 0.002}
    row = made(backend, us, status, **{"s_qo": s_qo, "model": model, **defaults, **keys})
    return {**row, "point_id": "-".join(str(row[key]) for key in ("point_id", "model", "routine", "q_dtype", "kv_dtype"))}


def two_workloads(model: str) -> list[Row]:
    flash = [measured(model, "flash_attn_3", us, q) for us, q in ((10.0, 1), (20.0, 4))]
    return [*flash, *(measured(model, "trtllm-native", us, q) for us, q in ((12.0, 1), (10.0, 4)))]


FP8: dict[str, Any] = {"kv_dtype": "fp8_e4m3"}
ROWS = (
    *two_workloads("even"),
    *(measured("even", name, us, 8) for name, us in (("flash_attn_3", 20.0), ("trtllm-native", 8.0))),
    *(measured("tie", name, us) for name, us in (("flash_attn_3", 10.0), ("trtllm-native", 9.9))),
    *(measured("few", "flash_attn_3", us, batch_size=b) for b, us in ((1, 10.0), (8, 20.0))),
    *(measured("few", "trtllm-native", us, batch_size=b) for b, us in ((1, 12.0), (8, 10.0))),
    *(
        measured("batches", name, us, batch_size=batch)
        for name, times in {
            "flash_attn_3": (10.0, 10.0, 10.0),
            "trtllm-native": (8.0, 8.0, 30.0),
            "vllm_triton": (20.0, 20.0, 4.0),
        }.items()
        for batch, us in zip((1, 8, 64), times, strict=True)
    ),
    measured("partly", "flash_attn_3", 10.0, 2),
    measured("partly", "flash_attn_3", 20.0, 4),
    measured("partly", "trtllm-native", 1.0, 2),
    measured("partly", "trtllm-native", None, 4, "unsupported"),
    *(measured("other", name, us) for name, us in (("trtllm-native", 10.0), ("fa2_tc", 11.0))),
    *(measured("wrong", name, us) for name, us in (("trtllm-native", 30.0), ("vllm_triton", 20.0))),
    measured("wrong", "flash_attn_3_vllm", None, status="mismatch", rel_err=0.2, tolerance=0.01),
    measured("wrong", "flash_attn_3", 5.0),
    measured("fp8", "flash_attn_3", 10.0, q_dtype="fp8_e4m3", **{**FP8, "rel_err": 0.04}),
    measured("fp8", "trtllm-native", 15.0, **FP8),
    *(measured("routines", "fa2_tc", 10.0, q) for q in (1, 4)),
    *(measured("routines", name, us, 4, routine="paged_prefill") for name, us in (("auto", 30.0), ("fa2", 20.0))),
    *(measured("builds", name, us) for name, us in (("flash_attn_3", 10.0), ("flash_attn_3_vllm", 12.0), ("trtllm-native", 11.0))),
    measured("builds", "torch_sdpa", 99.0),
)


def answered(data: Dataset) -> dict[Key, Part]:
    """The part of each model, phase and engine."""
    return {(part.title.partition(" ")[0], part.phase, part.who): part for part in parts(data)}


def line_of(data: Dataset, model: str, phase: str, who: str) -> dict[str, str]:
    grids = [grid for grid in one_backend.grids(data) if grid.header == one_backend.HEADER]
    lines = [dict(zip(one_backend.HEADER, cells, strict=True)) for grid in grids for cells in grid.cells]
    return next(
        line for line in lines if line["deployment"].startswith(model) and line["for"].startswith(phase) and line["engine"] == who
    )


def choice_of(part: Part, name: str) -> Choice:
    return next(choice for choice in part.choices if choice.name == name)


@pytest.fixture(scope="module")
def data() -> Dataset:
    return views_of(to_table(ROWS))


@pytest.fixture(scope="module")
def told(data: Dataset) -> dict[Key, Part]:
    return answered(data)


def test_decode_and_drafts_are_two_answers(told: dict[Key, Part], data: Dataset):
    decode, drafts = (told["even", phase, VLLM] for phase in ("decode", "drafts"))

    rest = "FLASHINFER without TRT-LLM, FLEX_ATTENTION, TRITON_ATTN not measured"
    assert (
        decode.answer.words
        == f"nothing to type: FLASH_ATTN is the default; the next best, FLASHINFER, takes 20.0% more time; {rest}"
    )
    assert drafts.what == "drafts of 3, 7"
    assert drafts.answer.words == f"{XQA} (55.3% less time than the default FLASH_ATTN)"
    line = line_of(data, "even", "drafts", VLLM)
    assert (line["mean"], line["at worst"], line["workloads"]) == ("1.00", "1.00", "2")
    assert "trtllm_mha" in told["even", "drafts", SGLANG].choices[0].name


def test_a_server_that_drafts_k_tokens_is_asked_for_alone():
    found = answered(views_of(to_table(ROWS[:6]), drafts=7))

    assert {(phase, part.lengths) for (_, phase, _), part in found.items()} == {("drafts", (8,))}
    assert {phase for _, phase, _ in answered(views_of(to_table(ROWS[:6]), drafts=0))} == {"decode"}


@pytest.mark.parametrize(
    ("model", "phase", "why"),
    [
        ("tie", "decode", "FLASHINFER takes as long (-1.0%, noise 2.0%)"),
        (
            "few",
            "decode",
            "FLASHINFER takes 22.5% less time by the mean, and is ahead by more than noise at only 1 of 2 workloads; "
            "batch 8: FLASHINFER −50.0%",
        ),
        (
            "batches",
            "decode",
            "the next best, TRITON_ATTN, takes 17.0% more time; batch 1, 8: FLASHINFER −20.0%; batch 64: TRITON_ATTN −60.0%; "
            "FLASHINFER without TRT-LLM, FLEX_ATTENTION not measured",
        ),
        (
            "partly",
            "drafts",
            "no other flag has a time at all its workloads; FLASHINFER without TRT-LLM, FLEX_ATTENTION, TRITON_ATTN not measured",
        ),
    ],
)
def test_the_default_stays_unless_another_is_clearly_faster(told: dict[Key, Part], model: str, phase: str, why: str):
    assert told[model, phase, VLLM].answer.words == f"nothing to type: FLASH_ATTN is the default; {why}"


def test_an_engine_s_own_build_is_the_default_where_it_was_measured_and_a_stand_in_is_named(told: dict[Key, Part]):
    own, stand_in = (told[model, "decode", VLLM].default for model in ("builds", "tie"))
    assert own is not None and stand_in is not None

    assert (own.ran, own.stands_in, own.mean) == ("flash_attn_3_vllm", "", pytest.approx(1.2))
    assert (stand_in.ran, stand_in.stands_in) == ("flash_attn_3", "flash_attn_3")
    assert "stands in for the engine's own build" in one_backend.stands_on(stand_in)


def test_what_ran_and_was_wrong_is_called_wrong_and_is_left(told: dict[Key, Part]):
    """Another build of the kernel does not take its place, and the fastest flag that was right does."""
    part = told["wrong", "decode", VLLM]
    wrong = "wrong at 1 (error up to 20%, allowed 1%; batch 8, s_kv 8,192, s_qo 1)"

    assert part.default is not None and part.default.not_right == wrong
    assert part.answer.words == (
        f"no advice: the default FLASH_ATTN has no time ({wrong}); of what was right, TRITON_ATTN is fastest"
    )


def test_a_default_that_was_wrong_somewhere_gives_way_to_a_flag_that_was_right_everywhere():
    rows = [measured("m", name, us, batch_size=b) for b in (1, 8) for name, us in (("flash_attn_3", 10.0), ("trtllm-native", 12.0))]
    rows[2] = measured("m", "flash_attn_3", None, batch_size=8, status="mismatch", rel_err=0.5, tolerance=0.01)
    part = answered(views_of(to_table(rows)))["m", "decode", VLLM]

    assert part.answer.choice is not None and part.answer.choice.name == XQA
    assert part.answer.why.startswith("the default FLASH_ATTN was wrong at 1 (error up to 50%")


def test_a_kept_default_that_was_wrong_somewhere_says_so_first():
    rows = [measured("m", "flash_attn_3", 10.0, batch_size=1)]
    rows.append(measured("m", "flash_attn_3", None, batch_size=8, status="mismatch", rel_err=0.5, tolerance=0.01))
    part = answered(views_of(to_table(rows)))["m", "decode", VLLM]

    assert part.answer.words == (
        "nothing to type, but FLASH_ATTN, the default, was right at 1 of 2 workloads, wrong at 1 (error up to 50%, allowed 1%; "
        "batch 8, s_kv 8,192, s_qo 1); no other flag has a time; FLASHINFER, FLASHINFER without TRT-LLM, "
        "FLEX_ATTENTION, TRITON_ATTN not measured"
    )


def test_a_default_that_was_not_measured_supports_no_advice(told: dict[Key, Part]):
    assert told["other", "decode", VLLM].answer.words == (
        "no advice: the default FLASH_ATTN has no time (not measured at 1); of what was right, FLASHINFER is fastest"
    )


def test_a_backend_without_a_row_somewhere_is_not_right_everywhere():
    rows = [made("a", 10.0), made("b", 12.0), made("b", 20.0, s_kv=16384)]
    (part,) = parts(views_of(to_table(rows)))

    assert (part.workloads, part.answer.words) == (2, "b")
    assert [(one.name, one.not_right) for one in part.choices] == [("b", ""), ("a", "not measured at 1")]


def test_references_are_named_with_their_time_and_not_ranked(told: dict[Key, Part]):
    assert told["builds", "decode", HERE].references == {"torch_sdpa": [99.0, 99.0]}
    assert all("torch_sdpa" not in choice.name for choice in told["builds", "decode", HERE].choices)


def test_over_an_fp8_cache_the_dtype_of_the_queries_comes_with_the_choice(told: dict[Key, Part]):
    part = told["fp8", "decode", VLLM]
    exact = answered(views_of(to_table([row for row in ROWS if row["model"] == "fp8"]), max_rel_err=0.01))["fp8", "decode", VLLM]

    assert part.answer.keeps and part.answer.choice is not None and part.answer.choice.error == "4%"
    assert exact.answer.choice is None and "too coarse at 1" in exact.answer.why


def test_drafts_run_in_the_routine_that_the_flag_leads_to(told: dict[Key, Part]):
    """Without XQA vLLM's wrapper verifies in the prefill kernel that it chooses itself; SGLang's flashinfer in fa2."""
    native, flashinfer = (
        choice_of(told["routines", "drafts", who], name)
        for who, name in ((VLLM, NATIVE), (SGLANG, "--attention-backend flashinfer"))
    )

    assert (native.mean, flashinfer.mean) == (pytest.approx(3.0), pytest.approx(2.0))
    assert choice_of(told["routines", "decode", VLLM], NATIVE).mean == 1.0


def test_a_release_is_asked_for_by_name():
    """The same flag runs another kernel for drafts in vLLM 0.25.1, as was seen in a running engine. A flag that other releases
    run otherwise says for which it holds."""
    rows = [measured("m", name, us, 4) for name, us in (("flash_attn_3", 20.0), ("trtllm-native", 10.0))]
    rows.append(measured("m", "fa3", 60.0, 4, routine="paged_prefill"))
    old, new = (parts(views_of(to_table(rows), engines=selected(name)))[0] for name in ("vllm_0_25_1", "vllm_0_33_0"))

    assert [choice_of(part, XQA).mean for part in (old, new)] == [pytest.approx(6.0), pytest.approx(1.0)]
    assert choice_of(old, XQA).runs == "fa3 (FlashInfer), seen on H200"
    assert one_backend.stands_on(choice_of(new, XQA)) == (
        "FLASHINFER runs trtllm-native, seen on H200: kernel_mha of llama_3_1_70b in results/h200_engines/vllm_0_33"
    )
    assert new.holds == "holds for vLLM 0.32.0, 0.33.0 (seen); 0.25.1 runs paged_prefill/auto (seen)"
    assert old.answer.keeps and old.holds == "holds for vLLM 0.25.1 (seen), 0.32.0, 0.33.0 (seen)"
    flags = next(grid for grid in one_backend.grids_of([new]) if grid.title.startswith("every flag"))
    assert {line[flags.header.index("type")]: line[flags.header.index("holds for")] for line in flags.cells}[XQA] == (
        "vLLM 0.32.0, 0.33.0 (seen); 0.25.1 runs paged_prefill/auto (seen)"
    )


def test_the_report_says_the_same_of_a_default_in_both_questions(data: Dataset):
    costs = {cells[:3]: cells for cells in engine_default.grids(data)[0].cells}
    flags = {cells[:3]: cells for cells in one_backend.grids(data)[0].cells}

    assert len(costs) > 10
    assert {key: cells[-1] for key, cells in costs.items()} == {key: flags[key][3] for key in costs}


@pytest.mark.parametrize(
    ("of_batches", "words"),
    [
        ({1: 10.0, 8: 4.0, 64: 5.0}, "(41.5% less time than the default FLASH_ATTN; batch 8, 64: −50.0% to −60.0%; 1: same)"),
        ({1: 13.0, 8: 4.0, 64: 4.0}, "(40.8% less time than the default FLASH_ATTN; batch 8, 64: −60.0%; 1: +30.0%)"),
        ({1: 5.0, 8: 4.0, 64: 5.0}, "(53.6% less time than the default FLASH_ATTN)"),
    ],
)
def test_a_flag_that_gains_at_some_batch_sizes_only_says_at_which(of_batches: dict[int, float], words: str):
    """By the mean of each batch size, here of one context."""
    times = (("flash_attn_3", dict.fromkeys(of_batches, 10.0)), ("trtllm-native", of_batches))
    rows = [measured("m", name, us, batch_size=batch) for name, of in times for batch, us in of.items()]

    assert answered(views_of(to_table(rows)))["m", "decode", VLLM].answer.words.endswith(words)


@pytest.mark.parametrize(
    ("us", "errors", "words"),
    [
        (15.0, (0.04, 0.002), "the next best, FLASHINFER, takes 50.0% more time; err 4%, 20× FLASHINFER's"),
        (5.0, (0.04, 0.002), "(50.0% less time than the default FLASH_ATTN, err 4%, 20× FLASHINFER's)"),
        (5.0, (0.002, 0.004), "(50.0% less time than the default FLASH_ATTN; err 0.4%, 2× its)"),
        (5.0, (0.002, 0.003), "(50.0% less time than the default FLASH_ATTN)"),
        (15.0, (0.002, 0.04), "the next best, FLASHINFER, takes 50.0% more time"),
        (15.0, (None, 0.002), "the next best, FLASHINFER, takes 50.0% more time"),
    ],
)
def test_an_answer_says_if_the_flag_or_the_default_that_it_replaces_is_much_less_exact(
    us: float, errors: tuple[float | None, float], words: str
):
    """By the rule of question=best; one that is slower and less exact needs no words."""
    times = (("flash_attn_3", 10.0), ("trtllm-native", us))
    rows = [measured("m", name, time, rel_err=rel_err) for (name, time), rel_err in zip(times, errors, strict=True)]
    data = views_of(to_table(rows))

    rest = "; FLASHINFER without TRT-LLM, FLEX_ATTENTION, TRITON_ATTN not measured"
    assert answered(data)["m", "decode", VLLM].answer.words.removesuffix(rest).endswith(words)


def test_the_price_of_a_flag_is_that_of_the_pages_with_more_flags():
    """Alone with its own pages a default would be the fastest there; they say what pages save, and nothing else."""
    rows = [
        *(
            measured("m", name, us, page_size=64)
            for name, us in (("flash_attn_3", 12.0), ("trtllm-native", 10.0), ("vllm_triton", 20.0))
        ),
        measured("m", "flash_attn_3", 15.0, page_size=16),
        measured("m", "flash_attn_3_sglang", 9.0, page_size=1),
    ]
    rows = [{**row, "point_id": f"{i}-{row['point_id']}"} for i, row in enumerate(rows)]
    mix = Mix((TrafficPoint(8, 9000.0, 1),), ())
    data = views_of(to_table(rows), traffic=mix, engines=selected("vllm"))
    part = answered(data)["m", "decode", VLLM]
    default = next(choice for choice in part.choices if choice.is_default)

    assert (part.workloads, default.served, default.not_right) == (1, 1, "")
    assert default.mean == pytest.approx(12.0 / 10.0, rel=0.1) and "pages of 64 take" in default.pages_words
    assert [page for (page,) in data.execute("SELECT page_size FROM engine_default WHERE engine LIKE 'vLLM%'")] == [64]
    assert [cells[1:5] for cells in traffic_weights.grids(data, mix)[0].cells] == [("decode", "1", "8 × 8,192: 100%")]


def test_weights_change_the_answer_and_leave_out_what_has_none():
    weights = checked_weights([{"batch_size": 8, "weight": 9}, {"batch_size": 1, "weight": 1}])
    rows = [row for row in ROWS if row["model"] == "few"]
    alone = answered(views_of(to_table(rows), weights=checked_weights([{"batch_size": 1, "weight": 2}])))["few", "decode", VLLM]

    assert answered(views_of(to_table(rows), weights=weights))["few", "decode", VLLM].answer.choice.name == XQA  # type: ignore[union-attr]
    assert (alone.answer.keeps, alone.workloads) == (True, 1)


def test_weights_that_fit_no_workload_are_named_with_their_share(capsys: pytest.CaptureFixture[str]):
    entries = [{"batch_size": 8, "weight": 1}, {"batch_size": 7, "weight": 2}, {"s_kv": 9, "weight": 1}]
    with notes.buffered():
        views_of(to_table(two_workloads("m")), weights=checked_weights(entries))
        notes.release()

    assert (
        "weights: 2 of 3 entries, 75% of the weight, fit no measured workload: {batch_size: 7}, {s_kv: 9}"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize("entry", [{"s_qo": 1}, {"s_qo": 1, "weight": 0}, {"s_q": 1, "weight": 1}, {"s_qo": [[1]], "weight": 1}, 3])
def test_wrong_weights_are_told(entry: object):
    with pytest.raises(ValueError, match=r"weights=.*allowed:"):
        checked_weights([entry])


def test_weights_with_a_list_are_an_entry_for_each_value():
    found = checked_weights([{"s_qo": 4, "batch_size": [8, 32], "weight": 2}])

    assert found == ({"s_qo": 4, "batch_size": 8, "weight": 2}, {"s_qo": 4, "batch_size": 32, "weight": 2})


def best_of(rows: pd.DataFrame, keys: list[str]) -> pd.Series:
    """The fastest time, each kernel counted once by the backend of its own name."""
    own_name_first = rows.assign(own_name=rows["backend"] == rows["resolved_backend"]).sort_values(
        "own_name", ascending=False, kind="stable"
    )
    once = own_name_first.drop_duplicates([*keys, "routine", "q_dtype", "resolved_backend"])
    return once.groupby(keys)["own"].min()


def test_on_the_main_dataset_it_is_the_mean_of_the_ratios_in_pandas(main_views: Dataset):
    found = {part.phase: part for part in parts(main_views) if "kv bf16" in part.title and part.who == VLLM}
    fits = "batch_size * s_kv * 80 * 8 * 2 * 128 * 2 < 141e9"  # bytes of the cache of 80 layers, and of the GPU
    rows = main_views.current().query(f"status == 'ok' and kv_dtype == 'bf16' and backend not in ('torch_sdpa', 'auto') and {fits}")
    rows = rows.assign(own=rows["median_us"] - launch_of(rows))
    wide = rows.pivot_table(index=["batch_size", "s_kv", "s_qo"], columns="backend", values="own")
    regret = wide["trtllm-native"] / best_of(rows, ["batch_size", "s_kv", "s_qo"])
    for phase, of in (("decode", regret.xs(1, level=2)), ("drafts", regret.drop(1, level=2))):
        xqa = choice_of(found[phase], XQA)

        assert xqa.mean == pytest.approx((of.prod()) ** (1 / len(of)), rel=1e-6)
        assert (xqa.record["worst"], xqa.served) == (pytest.approx(of.max(), rel=1e-9), len(of))


def test_traffic_weighs_each_draft_length_as_pandas_does():
    """Decode steps count for the nearest measured workload, and each draft length gets all of them."""
    mix = Mix((TrafficPoint(8, 9000.0, 3), TrafficPoint(30, 9000.0, 1)), (), ("assumed",))
    nearest = {(8, 8192): 0.75, (32, 8192): 0.25}
    data = open_views(MAIN, where={"kv_dtype": "bf16", "s_qo": (1, 4)}, traffic=mix)
    found = {part.phase: choice_of(part, XQA) for part in parts(data) if part.who == VLLM}

    rows = data.current().query("status == 'ok' and backend not in ('torch_sdpa', 'auto')")
    rows = rows.assign(own=rows["median_us"] - launch_of(rows))
    wide = rows.pivot_table(index=["batch_size", "s_kv", "s_qo"], columns="backend", values="own")
    regret = (wide["trtllm-native"] / best_of(rows, ["batch_size", "s_kv", "s_qo"])).loc[
        lambda of: [one[:2] in nearest for one in of.index]
    ]
    (grid,) = traffic_weights.grids(data, mix)

    for phase, s_qo in (("decode", 1), ("drafts", 4)):
        of = regret.xs(s_qo, level=2)
        assert found[phase].mean == pytest.approx(np.exp(np.average(np.log(of), weights=[0.75, 0.25])), rel=1e-9)
        assert found[phase].served == 2
    title = "llama_3_1_70b · 64 query heads (tp 1) · kv bf16 · clean L2 · NVIDIA H200"
    assert grid.cells == (
        (title, "decode", "1", "8 × 8,192: 75%, 32 × 8,192: 25%"),
        (title, "drafts", "4", "8 × 8,192: 75%, 32 × 8,192: 25%"),
    )
    assert grid.title.endswith("; assumed")


def test_a_batch_in_padded_graphs_shares_the_traffic_with_the_same_batch_alone_as_in_pandas():
    """A deployment and draft length have the traffic once: 70% at batch 9 and 30% at batch 5, whatever graphs they run in."""
    mix = Mix((TrafficPoint(9, 9000.0, 7), TrafficPoint(5, 9000.0, 3)), ())
    data = open_views(PADDED, where={"kv_dtype": "bf16"}, traffic=mix)
    found = {part.phase: choice_of(part, FLASH) for part in parts(data) if part.who == VLLM}

    rows = data.current().query("status == 'ok' and backend != 'torch_sdpa' and batch_size in (5, 9)")
    rows = rows.assign(own=rows["median_us"] - launch_of(rows), graph_batch=rows["graph_batch"].fillna(0))
    wide = rows.pivot_table(index=["s_qo", "batch_size", "graph_batch", "graph_fill"], columns="backend", values="own")
    regret = np.log(wide["flash_attn_3"] / best_of(rows, ["s_qo", "batch_size", "graph_batch", "graph_fill"]))
    of_batch = regret.groupby(level=["s_qo", "batch_size"]).mean().unstack()
    (grid,) = traffic_weights.grids(data, mix)

    assert len(regret) == 12  # two batches, each alone and in two graphs, at two draft lengths
    for choice, (_, of) in zip((found["decode"], found["drafts"]), sorted(of_batch.iterrows()), strict=True):
        assert choice.mean == pytest.approx(np.exp(0.7 * of[9] + 0.3 * of[5]), rel=1e-9)
    assert data.scalar("SELECT sum(weight) FROM (SELECT DISTINCT workload, weight FROM workloads)") == pytest.approx(2)
    assert "9 × 8,192: 23%, 9 in a graph of 16 with fill 0 × 8,192: 23%" in grid.cells[0][3]


def test_a_default_that_is_kept_and_much_slower_somewhere_says_where_as_in_pandas():
    data = open_views(PADDED, where={"kv_dtype": "bf16", "s_qo": 1})
    rows = data.current().query("status == 'ok' and backend != 'torch_sdpa'")
    rows = rows.assign(own=rows["median_us"] - launch_of(rows), graph_batch=rows["graph_batch"].fillna(0))
    wide = rows.pivot_table(index=["batch_size", "s_qo", "graph_batch", "graph_fill"], columns="backend", values="own")
    regret = wide["flash_attn_3"] / wide.min(axis=1)
    slower, (batch, *_) = int((regret > 1.2).sum()), regret.idxmax()
    notes = [note for _, note in one_backend.grids(data)[2].cells if note.startswith(VLLM) and "more than" in note]

    assert notes == [
        f"{VLLM}, decode: at batch {batch}, s_kv 8,192, s_qo 1 FLASH_ATTN takes {regret.max():.2f} times fa2_tc; more than "
        f"1.2 times the fastest at {slower} of {len(regret)} workloads"
    ]


@pytest.mark.parametrize(("at_eight", "kept"), [(1.0, True), (3.0, False)])
def test_traffic_weighs_the_workloads_that_decide_against_a_default(at_eight: float, kept: bool):
    """XQA is clearly faster at one of three batches alone: with most of the traffic there the default goes."""
    times = {1: (10.0, 10.0), 8: (40.0, 10.0), 64: (10.0, 10.0)}
    rows = [
        measured("w", name, us, batch_size=batch)
        for batch, both in times.items()
        for name, us in zip(("flash_attn_3", "trtllm-native"), both, strict=True)
    ]
    mix = Mix(tuple(TrafficPoint(batch, 8192.0, at_eight if batch == 8 else 1.0) for batch in times), ())
    part = answered(views_of(to_table(rows), traffic=mix))["w", "decode", VLLM]
    xqa = choice_of(part, XQA)

    assert part.answer.keeps == kept
    assert xqa.margin is not None and (xqa.margin.ahead, xqa.margin.workloads) == (1, 3)
    assert ("with 60% of the weight" in xqa.margin.why_not("x")) == (not kept)


def test_each_device_has_the_traffic_once_and_other_pages_share_it():
    keys = [{"page_size": 16}, {"page_size": 64}, {"device_name": "H100"}]
    rows = [measured("d", name, 10.0, **key) for key in keys for name in ("fa2_tc", "trtllm-native")]
    rows = [{**row, "point_id": f"{i}-{row['point_id']}"} for i, row in enumerate(rows)]
    mix = Mix((TrafficPoint(8, 9000.0, 1),), ())
    data = views_of(to_table(rows), traffic=mix)
    (grid,) = traffic_weights.grids(data, mix)
    lines = [(cells[0].rpartition(" · ")[2], *cells[1:5]) for cells in grid.cells]

    assert dict(data.execute("SELECT device_name, sum(DISTINCT weight) FROM one_backend GROUP BY ALL")) == {"H100": 1, "H200": 0.5}
    assert lines == [
        ("H100", "decode", "1", "8 × 8,192: 100%"),
        ("H200", "decode, page_size 16", "1", "8 × 8,192: 50%"),
        ("H200", "decode, page_size 64", "1", "8 × 8,192: 50%"),
    ]


def test_where_no_engine_has_a_flag_the_title_says_so(data: Dataset):
    nets = open_views(RESULTS / "h200_gated_delta/gated_delta", threads=1, where={"tp": 8, "kv_dtype": "bf16"})
    titles = [one_backend.grids(of)[0].title for of in (nets, data)]
    fp32 = open_views(RESULTS / "h200_gated_delta/gated_delta", threads=1, where={"tp": 8, "kv_dtype": "fp32"})
    assert [part.answer.words for part in parts(fp32)] == [
        "no advice: no backend has a right answer for every workload; nearest: gdn_decode, at 12 (not measured at 6)"
    ]

    assert [one_backend.NO_FLAG in title for title in titles] == [True, False]


def test_traffic_that_no_measured_workload_is_near_is_named_with_the_axes_that_would_be():
    mix = Mix(
        (TrafficPoint(8, 9000.0, 5), TrafficPoint(20, 9000.0, 2), TrafficPoint(300, 600.0, 2), TrafficPoint(400, 9000.0, 1)), ()
    )
    data = views_of(to_table([measured("d", "fa2_tc", 10.0)]), traffic=mix)
    _, warning = traffic_weights.grids(data, mix)

    assert warning.title.startswith("warning: no measured workload is near this part of your traffic; near is 1/2 to 2 times")
    assert warning.cells[0][1:] == ("1", "50%", "sweep.batch_size=[20,400] sweep.s_kv=[600,9000]")


def test_prompts_weigh_prompts_and_chunks_have_no_weight():
    keys: dict[str, Any] = {"routine": "ragged_prefill", "batch_size": 1}
    prompts = [
        measured("p", name, us, n, s_kv=n, **keys) for name, us, n in (("fa2", 10.0, 512), ("fa2", 90.0, 4096), ("fa3", 60.0, 4096))
    ]
    chunks = [measured("p", name, us, 1024, s_kv=8192, routine="paged_prefill") for name, us in (("fa2", 10.0), ("fa3", 20.0))]
    data = views_of(to_table([*prompts, *chunks]), traffic=Mix((TrafficPoint(None, 700.0, 1),), (TrafficPoint(None, 4000.0, 1),)))
    part = answered(data)["p", "prefill", HERE]

    assert part.workloads == 1
    assert {choice.name: choice.mean for choice in part.choices} == {"fa3 (FlashInfer)": 1.0, "fa2": pytest.approx(1.5)}


@pytest.mark.parametrize("key", ["num_kv_heads", "head_dim_qk"])
def test_heads_without_a_models_name_are_told_apart(key: str):
    rows = [
        of_size(name, 1, us, model="custom", **{key: size}) for size in (4, 8) for name, us in (("fa2_tc", size), ("cudnn", 6.0))
    ]
    found = one_backend.grids(views_of(to_table([{**row, "point_id": f"{n}"} for n, row in enumerate(rows)])))
    named = {cell for grid in found for cells in grid.cells for cell in cells if str(cell).startswith("custom")}

    assert {next((size for size in (4, 8) if f"{key} {size}" in title), None) for title in named} == {4, 8}


# Workloads that no deployment of one GPU can have


BIG: dict[str, Any] = {"model": "llama_3_1_70b", "num_qo_heads": 64, "num_kv_heads": 8, "head_dim_qk": 128, "head_dim_vo": 128}


def of_size(name: str, batch: int, us: float, **keys: Any) -> Row:
    given = {**BIG, "device_name": "NVIDIA H200", "batch_size": batch, "s_kv": 8192, **keys}
    return measured(given.pop("model"), name, us, **given)


# A token of 80 layers is 2 * 8 * 128 * 2 bytes * 80 = 328 kB, so 64 * 8,192 tokens are 172 GB, and an H200 has 141.
SIZES = [of_size(*given) for given in (("fa2_tc", 32, 10.0), ("cudnn", 32, 20.0), ("fa2_tc", 64, 90.0), ("cudnn", 64, 10.0))]


def notes_of(data: Dataset) -> list[str]:
    grid = next(grid for grid in one_backend.grids(data) if grid.header == ("deployment", "note"))
    return [note for _, note in grid.cells if "do not count" in note]


def test_a_workload_whose_cache_alone_is_larger_than_the_gpu_does_not_count():
    found = views_of(to_table(SIZES), weights=checked_weights([{"batch_size": 64, "weight": 3}, {"batch_size": 32, "weight": 1}]))
    line = line_of(found, "llama", "decode", "(of all backends here)")

    assert (line["type"], line["workloads"], line["mean"]) == ("fa2_tc", "1", "1.00")  # at batch 64 cudnn is 9 times as fast
    assert notes_of(found) == [
        no_room(None, "NVIDIA H200", "llama_3_1_70b", 1) + "; "
        "1 of 2 measured workloads, with 75% of the weight, do not count: their KV cache of 80 layers alone is larger than "
        "the GPU's 141 GB (the smallest: 172 GB of bf16 at tp 1, batch 64, s_kv 8,192; it fits beside 16-bit weights from tp 4 on: "
        "tp=4); if GPUs share the layers, type draft.layers=N"
    ]


@pytest.mark.parametrize(("us", "typed"), [(20.0, "nothing to type: FLASH_ATTN is the default; "), (4.0, f"{XQA} (")])
def test_an_answer_says_where_its_flag_was_wrong_at_workloads_that_do_not_count_for_their_size(us: float, typed: str):
    name, other = ("flash_attn_3_vllm", "trtllm-native")[:: 1 if us > 10 else -1]
    wrong = {"status": "mismatch", "rel_err": 0.2, "tolerance": 0.07}
    rows = [of_size("flash_attn_3_vllm", 32, 10.0), of_size("trtllm-native", 32, us), of_size(other, 64, 10.0)]
    (part,) = (one for one in parts(views_of(to_table([*rows, of_size(name, 64, None, **wrong)]))) if one.who == VLLM)

    words = "wrong at 1 too big (error up to 20%)"
    assert typed + words in part.answer.words and part.brief().endswith("; wrong at 1 too big")


def test_the_weights_of_traffic_name_the_workloads_that_do_not_fit():
    mix = Mix((TrafficPoint(32, 8192.0, 1), TrafficPoint(64, 8192.0, 3)), ())
    grid, *_ = traffic_weights.grids(views_of(to_table(SIZES), traffic=mix), mix)

    assert grid.cells[0][3] == "64 × 8,192: 75% (does not fit), 32 × 8,192: 25%"


@pytest.mark.parametrize(
    ("change", "layers"),
    [
        ({}, 40),  # 86 GB
        ({"kv_dtype": "fp8_e4m3"}, None),  # 86 GB
        ({"num_kv_heads": 4}, None),  # 86 GB
        ({"model": "mine"}, None),  # nobody knows its layers
        ({"model": "gemma_3_27b"}, None),  # most of its layers have a window, and keep less
        ({"device_name": "NVIDIA unknown"}, None),
        ({"window": 1024}, None),
    ],
)
def test_a_workload_that_may_fit_counts(change: dict[str, Any], layers: int | None):
    rows = [of_size(name, 64, us, **change) for name, us in (("fa2_tc", 20.0), ("cudnn", 10.0))]
    found = views_of(to_table(rows), Draft(layers=layers))

    assert [part.answer.words for part in parts(found) if part.who == HERE] == ["cudnn"]
    assert notes_of(found) == []


def test_a_dataset_of_workloads_that_are_all_too_big_has_no_answer_and_is_told_why():
    found = views_of(to_table(SIZES[2:]))

    assert one_backend.grids(found) == []
    assert "whose KV cache fits the GPU" in NEEDS["one_backend"]


@pytest.mark.parametrize(
    ("draft", "layers", "rest"),
    [(Draft(), 80, 80 * PRESETS[ModelPlace("llama_3_1_70b", "NVIDIA H200", 1)][64]), (Draft(layers=10, rest_us=900), 10, 900)],
)
def test_what_a_flag_saves_of_a_step_is_its_largest_difference_times_the_layers(draft: Draft, layers: int, rest: float):
    """XQA over an FP8 cache with bf16 queries, beside FlashAttention-3 with FP8 ones; all layers are alike."""
    where = {"kv_dtype": "fp8_e4m3", "s_qo": 1, "batch_size": 64, "s_kv": 8192, "routine": "paged_decode"}
    data = open_views(MAIN, draft, where=where)
    rows = data.current().query("status == 'ok'")
    own = {
        (row["backend"], row["q_dtype"]): row["median_us"] - launch
        for (_, row), launch in zip(rows.iterrows(), launch_of(rows), strict=True)
    }
    flash, xqa = own["flash_attn_3", "fp8_e4m3"], own["trtllm-native", "bf16"]
    (line,) = [cells for cells in one_backend.grids(data)[1].cells if cells[2].startswith("vLLM")]

    assert line[3:] == (
        "FLASHINFER",
        f"{xqa - flash:+.1f}",
        f"{layers}",
        f"{(xqa - flash) * layers / 1e3:+.2f}",
        f"{(xqa - flash) * layers / (rest + flash * layers):+.1%}",
        f"{flash * layers / 1e3:.2f}",
        f"{rest / 1e3:.2f}",
        f"{flash * layers / (rest + flash * layers):.1%}",
        "batch 64, s_kv 8,192, s_qo 1",
    )


def test_a_step_says_the_range_over_all_workloads():
    decode, drafts = one_backend.grids(views_of(to_table([row for row in ROWS if row["model"] == "even"])))[1].cells[::2]

    assert (decode[4], drafts[4]) == ("+2.0", "-12.0 (-12.0 to -10.0)")


def test_a_step_whose_rest_nobody_measured_or_that_has_layers_of_two_kinds_has_no_share():
    data = open_views(RESULTS / "h200_main/servers", where={"model": ["gpt_oss_120b", "llama_3_1_8b"], "s_qo": 1, "tp": 1})
    lines = {
        (cells[0].partition(" ")[0], cells[1]): (*cells[5:8], *cells[9:11])
        for cells in one_backend.grids(data)[1].cells
        if cells[2].startswith("vLLM")
    }

    assert {key: (layers, *shares) for key, (layers, _, *shares) in lines.items()} == {
        ("gpt_oss_120b", "decode, full layers"): ("18", "–", "–", "–"),
        ("gpt_oss_120b", "decode, sliding layers"): ("18", "–", "–", "–"),
        ("llama_3_1_8b", "decode"): ("32", "–", "–", "–"),
    }


def test_a_flag_that_no_release_has_for_a_cache_holds_for_none(invoke: Invoke):
    server = ("model=deepseek_v3", "tp=8", "device=h100", "engine=vllm", "where={kv_dtype: fp8_e4m3}")
    told = invoke("mode=report", "question=one_backend", *server, "full=true", "format=markdown").stdout

    assert "| no known release of vLLM; 0.25.1 has no such flag for it; " in told
