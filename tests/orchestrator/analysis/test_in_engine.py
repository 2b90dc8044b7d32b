"""Isolated times against attention in a running engine, worked out by hand from rows of a stand-in engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from orchestrator.analysis.dataset import Dataset
from orchestrator.analysis.questions import draft, in_engine, open_views
from orchestrator.config.draft_cost import Draft
from orchestrator.storage.row import Row, to_table
from orchestrator.tables import Grid
from tests.helpers.timed_rows import made, views_of

SHAPE: dict[str, Any] = {
    "routine": "paged_decode", "mask": "causal", "compute_capability": "9.0", "page_size": 64, "seq_lens": "fixed",
    "num_qo_heads": 64, "num_kv_heads": 8, "head_dim_qk": 128, "head_dim_vo": 128, "tp": 1, "sinks": False,
}  # fmt: skip
FLASH, XQA, FA2, PREFILL = (
    "flash::FlashAttnFwdSm90<Mainloop>",
    "kernel_mha(unsigned int)",
    "flashinfer::BatchPrefillWithPagedKVCacheKernel<16>",
    "flashinfer::PrefillWithKVCacheKernel<Mainloop>",
)
TRITON = "kernel_unified_attention"
NATIVE = "FLASHINFER:no-use_trtllm_attention"


def alone(backend: str, us: float, kernel: str | None = None, **keys: Any) -> Row:
    """An isolated row without a launch in its time."""
    row = made(backend, us, **{**SHAPE, "resolved_backend": kernel or backend, "context": "isolated", "l2": "clean", **keys})
    return {**row, "point_id": "-".join(map(str, (row["point_id"], row["routine"], row["kv_dtype"], row.get("window"))))}


def inside(flag: str, us: float, kernels: str, **keys: Any) -> Row:
    """A row of a running engine: 4 layers, 4,000 µs of a step beside attention, of which a host that takes 100 µs shows nothing."""
    step = 4 * us + 4000
    times = {
        "attention_us": us, "attention_main_us": us, "attention_combine_us": 0.0, "attention_metadata_us": 0.0,
        "engine_kernels_us": step, "engine_step_us": step, "engine_wall_us": step, "engine_host_us": 100.0,
        "engine_kv_tokens": 8192.0, "main_kernels": kernels, "step_layers": 4, "attention_share": 4 * us / step,
    }  # fmt: skip
    about = {"engine": "vllm", "engine_version": "0.25.1", "flag": flag, "engine_start": 1, "context": "engine"}
    row = made(f"vllm/{flag}", None, **{**SHAPE, **about, **times, **keys})
    return {
        **row,
        "point_id": "-".join(str(row.get(key)) for key in ("point_id", "engine_version", "step_layers", "engine_start", "window")),
    }


def answered(*rows: Row) -> Dataset:
    return views_of(to_table(rows))


def told(data: Dataset, **where: str) -> dict[str, Any]:
    """The only row of the view with these values."""
    (found,) = data.records(f"FROM in_engine WHERE {' AND '.join(f'{k} = {v!r}' for k, v in where.items()) or 'true'}")
    return found


def lines(grids: list[Grid], title: str) -> list[dict[str, str]]:
    (grid,) = (grid for grid in grids if grid.title.startswith(title))
    return [dict(zip(grid.header, cells, strict=True)) for cells in grid.cells]


THREE = (alone("flash_attn_3_vllm", 100.0, "flash_attn_3"), alone("trtllm-native", 110.0, "xqa"), alone("fa2_tc", 140.0))


@pytest.mark.parametrize(
    ("tokens", "longer", "predicted", "scaled"),
    [(8192.0, None, 100.0, "proportion"), (9011.2, None, 110.0, "proportion"), (9011.2, 340.0, 108.0, "line")],
)
def test_the_isolated_time_is_moved_to_the_length_that_was_profiled(
    tokens: float, longer: float | None, predicted: float, scaled: str
):
    more = [] if longer is None else [alone("flash_attn_3_vllm", longer, "flash_attn_3", s_kv=32768)]
    found = told(answered(THREE[0], *more, inside("FLASH_ATTN", 108.0, FLASH, engine_kv_tokens=tokens)))

    assert (found["predicted_us"], found["scaled"]) == (pytest.approx(predicted), scaled)
    assert found["error"] == pytest.approx(108.0 / predicted - 1)
    assert (found["called"], found["ran"]) == ("paged_decode/flash_attn_3_vllm", "FlashAttnFwdSm90")


def test_the_launch_of_a_graph_is_no_part_of_what_is_predicted():
    graph = {"timer": "cuda_graph_events", "launch_us": 3.0}
    found = told(answered(alone("trtllm-native", 103.0, "xqa", **graph), inside("FLASHINFER", 101.0, XQA)))

    assert (found["predicted_us"], found["error"]) == (pytest.approx(100.0), pytest.approx(0.01))


WHY_NOT = (
    (inside("FLASHINFER", 466.0, XQA, s_qo=4), "it ran kernel_mha, and paged_prefill/fa3 does not"),
    (
        inside("FLASHINFER", 110.0, f"{XQA} | {FA2}"),
        "it ran BatchPrefillWithPagedKVCacheKernel, kernel_mha, and paged_decode/trtllm-",
    ),
    (
        inside("FLASH_ATTN", 1.0, FLASH, batch_size=3),
        "no isolated row of paged_decode/flash_attn_3_vllm or paged_decode/flash_attn_3",
    ),
    (inside("FLASH_ATTN", 1.0, FLASH, page_size=16), "no isolated row of paged_decode/flash_attn_3_vllm"),
    (inside("FLASH_ATTN", 1.0, FLASH, engine_version="0.1.0"), "conf/engine has no release 0.1.0 of vllm"),
    (inside("TRITON_ATTN", 400.0, TRITON), f"it ran {TRITON}, and paged_decode/vllm_triton does not"),
    (
        inside("TRITON_ATTN", 47.0, TRITON, combine_kernels="reduce_segments", s_qo=4),
        f"it ran {TRITON}, reduce_segments, and paged_decode/vllm_triton does not",
    ),
    (inside("MINE", 1.0, "mine"), "conf/engine says nothing of MINE there"),
    (inside("FLASHINFER:no-other", 1.0, XQA), "conf/engine says nothing of FLASHINFER:no-other there"),
)


def test_what_did_not_run_the_isolated_row_s_kernel_is_not_compared_and_says_why():
    others = (alone("vllm_triton", 46.0, "triton_unified_3d"), alone("vllm_triton", 390.0, "triton_unified_2d", s_qo=4))
    others = (*others, alone("fa3", 460.0, s_qo=4, routine="paged_prefill"))
    data = answered(*THREE, *others, *(row for row, _ in WHY_NOT))
    grids = in_engine.grids(data)
    said = [line["why"] for line in lines(grids, "not compared")]

    assert all(any(why in one for one in said) for _, why in WHY_NOT)
    assert {line["error"] for line in lines(grids, "attention in a layer")} == {"–"}


EXTEND = {"engine": "sglang", "engine_version": "0.5.12.post1", "page_size": 1, "s_qo": 4}
LATENT = {"head_dim_qk": 192, "head_dim_vo": 128, "head_dim_ckv": 512, "num_kv_heads": 128, "num_qo_heads": 128, "routine": "mla"}


@pytest.mark.parametrize(
    ("isolated", "engine", "ran"),
    [
        (
            alone("sglang_triton", 60.0, "triton_extend", routine="paged_prefill", s_qo=4, page_size=1),
            inside("triton", 66.0, "_fwd_kernel", **EXTEND),
            "_fwd_kernel",
        ),
        (
            alone("flash_mla_vllm", 60.0, "flash_mla", **LATENT),
            inside(
                "FLASHMLA", 66.0, "sm90::flash_fwd_splitkv_mla_kernel<T>", combine_kernels="flash_fwd_mla_combine_kernel", **LATENT
            ),
            "flash_fwd_splitkv_mla",
        ),
    ],
)
def test_a_kernel_whose_name_holds_that_of_another_one_is_compared(isolated: Row, engine: Row, ran: str):
    found = told(answered(isolated, engine))

    assert (found["ran"], found["why_not"], found["error"]) == (ran, None, pytest.approx(0.1))


def test_a_kernel_of_decode_is_not_that_of_drafts_whose_name_it_holds():
    drafts = alone("sglang_triton", 60.0, "triton_extend", routine="paged_prefill", s_qo=4, page_size=1)
    one = alone("sglang_triton", 50.0, "triton_decode_grouped", page_size=1)
    decode = inside("triton", 55.0, "_fwd_grouped_kernel_stage1", combine_kernels="_fwd_kernel_stage2", **EXTEND | {"s_qo": 1})
    data = answered(drafts, one, decode, inside("triton", 66.0, "_fwd_kernel_stage1", **EXTEND))

    assert told(data, phase="verify")["why_not"] == "it ran _fwd_kernel_stage1, and paged_prefill/sglang_triton does not"
    assert told(data, phase="decode")["error"] == pytest.approx(0.1)


def test_drafts_in_0_25_1_are_predicted_with_the_kernel_that_was_seen_and_not_with_xqa():
    rows = [alone("trtllm-native", 86.0, "xqa", s_qo=4), alone("fa3", 460.0, s_qo=4, routine="paged_prefill")]
    found = told(answered(*rows, inside("FLASHINFER", 466.0, PREFILL, s_qo=4)))

    assert (found["called"], found["known"]) == ("paged_prefill/fa3", "seen on H200")
    assert found["error"] == pytest.approx(466 / 460 - 1)


def test_the_default_is_the_flag_that_the_engine_takes_by_itself_and_is_no_pair_with_it():
    data = answered(THREE[0], inside("default", 101.0, FLASH), inside("FLASH_ATTN", 102.0, FLASH))

    assert told(data, flag="default")["called"] == "paged_decode/flash_attn_3_vllm"
    assert data.scalar("SELECT count(*) FROM in_engine_pairs") == 0


SURE = [alone("fa2_tc", 100.0, batch_size=b) for b in range(16, 40)]
SURE += [inside(NATIVE, 100.5, FA2, batch_size=b) for b in range(16, 40)]


def test_two_flags_keep_their_order_or_the_table_says_what_hides_it():
    """A case at each batch size."""
    waits = {"engine_wall_us": 4300.0, "engine_kernels_us": 3600.0}
    cases = {
        1: ({}, "the same sign"),
        2: ({"attention_us": 98.0}, "the other sign"),
        3: (waits, "hidden by the wall: the GPU waits 16% of it, and the host takes 100 and 100 µs"),
        4: ({"engine_step_us": 4300.0}, "hidden by a step: it is 0.9% of one, which is not explained"),
    }
    rows = [
        row
        for batch, (changes, _) in cases.items()
        for row in (
            *(alone(one["backend"], one["median_us"] or 0, one["resolved_backend"], batch_size=batch) for one in THREE[:2]),
            inside("FLASH_ATTN", 100.0, FLASH, batch_size=batch),
            inside("FLASHINFER", 110.0, XQA, **{"batch_size": batch, **changes}),
        )
    ]
    found = lines(in_engine.grids(answered(*SURE, *rows)), "each two flags")

    assert {(line["flag"], line["other"], line["predicted"]) for line in found} == {("FLASHINFER", "FLASH_ATTN", "-9.1%")}
    assert {int(line["batch"]): line["so"] for line in found} == {batch: so for batch, (_, so) in cases.items()}


@pytest.mark.parametrize(("other_gpu", "gpus"), [("a", 1), ("b", 2)])
def test_flags_are_compared_on_one_gpu_alone_and_starts_say_on_how_many(other_gpu: str, gpus: int):
    first, other = {"device_uuid": "a"}, {"device_uuid": other_gpu, "engine_start": 2}
    rows = [inside("FLASH_ATTN", 100.0, FLASH, **first), inside("FLASH_ATTN", 101.0, FLASH, **other)]
    data = answered(*THREE, *rows, inside("FLASHINFER", 110.0, XQA, device_uuid=other_gpu, engine_start=3))
    (pair,) = data.records("FROM in_engine_pairs")

    assert (pair["device_uuid"], pair["flag"], pair["other"]) == (other_gpu, "FLASHINFER", "FLASH_ATTN")
    assert [(one["starts"], one["gpus"]) for one in data.records("FROM in_engine_starts")] == [(2, gpus)]


def test_a_difference_that_starts_have_too_is_not_shown_by_a_step():
    """One point in two starts, whose steps differ by 3%; attention makes 0.9% of a step."""
    starts = [
        inside(NATIVE, 140.0, FA2, engine_start=n, engine_step_us=us, engine_wall_us=us) for n, us in ((1, 4560.0), (2, 4697.0))
    ]
    rows = [inside("FLASH_ATTN", 100.0, FLASH), inside("FLASHINFER", 110.0, XQA, engine_step_us=4300.0)]
    grids = in_engine.grids(answered(*THREE, *SURE, *starts, *rows))
    (started,) = lines(grids, "what starts of one point differ by")
    pair = next(line for line in lines(grids, "each two flags") if (line["flag"], line["other"]) == ("FLASHINFER", "FLASH_ATTN"))

    assert (started["starts"], started["attention"], started["step (GPU)"]) == ("2", "0.0%", "3.0%")
    assert pair["so"] == "hidden by a step: it is 0.9% of one, and two starts differ by 3.0%"


def test_layers_with_a_window_and_without_are_two_points():
    """Of gpt-oss, over its sinks: each kind of layer is predicted by a row of its own."""
    rows = []
    for window, us in ((None, 100.0), (128.0, 10.0)):
        keys = {"window": window, "sinks": True}
        rows += [alone("flash_attn_3_vllm", us, "flash_attn_3", **keys), alone("vllm_triton", 2 * us, "triton_unified_2d", **keys)]
        rows += [inside("FLASH_ATTN", us, FLASH, **keys), inside("TRITON_ATTN", 2 * us, TRITON, **keys)]
    data = answered(*rows)
    grids = in_engine.grids(data)

    assert [found["error"] for found in data.records("FROM in_engine")] == pytest.approx([0.0] * 4)
    assert [line["predicted"] for line in lines(grids, "each two flags")] == ["+100.0%"] * 2
    assert not any(grid.title.startswith("what starts of one point differ by") for grid in grids if grid.cells)


def test_the_statement_has_its_figures_and_says_what_is_missed():
    small = [alone("fa2_tc", 10.0, batch_size=1), inside(NATIVE, 11.5, FA2, batch_size=1)]
    rows = [*THREE, *SURE, *small, inside("FLASH_ATTN", 101.0, FLASH), inside("FLASHINFER", 99.0, XQA), inside(NATIVE, 141.0, FA2)]
    data = answered(*rows)
    (found,) = lines(in_engine.grids(data), "does an isolated time hold")

    assert (found["compared"], found["median error"]) == ("28 of 28", "0.5%")
    assert found["within 5% or 2 µs"] == "96.4%"  # 1.5 µs of 10 are within, 11 of 110 are not
    assert (found["90th percentile of the error"], found["largest"]) == ("0.8%", "15.0%")
    assert (found["pairs of flags"], found["predicted to differ"], found["flags in order"]) == ("3", "3", "66.7%")
    assert (found["so"], found["to hold"]) == ("no", "≤2% ≥90% ≥98%")
    assert in_engine.summary(data) == (
        "vllm 0.25.1 on H200: attention is 9.1% of a step at the median of 28 points, and within 0.5% of its isolated time at that "
        "of 28; 2 of 3 pairs of flags that are predicted to differ by more than the error have the same sign"
    )
    one_flag = in_engine.summary(answered(*THREE, inside("FLASH_ATTN", 101.0, FLASH)))
    assert str(one_flag).endswith(" of its isolated time at that of 1")
    assert "no isolated row is beside them" in str(in_engine.summary(answered(inside("FLASH_ATTN", 101.0, FLASH))))


def test_each_engine_has_a_line_the_newest_release_first_and_a_flag_is_no_backend_of_flashinfer():
    ran = [
        ("vllm", "0.25.1", "FLASH_ATTN"),
        ("vllm", "0.33.0", "FLASH_ATTN"),
        ("sglang", "0.5.9", "fa3"),
        ("sglang", "0.5.23", "fa3"),
    ]
    keys = [dict(zip(("engine", "engine_version", "flag"), one, strict=True)) for one in ran]
    grids = in_engine.grids(answered(*(inside(one["flag"], 101.0, FLASH) | one | {"point_id": str(one)} for one in keys)))

    found = [line["engine"] for line in lines(grids, "does an isolated time hold")]
    assert found == ["vllm 0.33.0", "vllm 0.25.1", "sglang 0.5.23", "sglang 0.5.9"]
    assert {line["flag"] for grid in grids if "flag" in grid.header for line in lines([grid], grid.title)} == {"FLASH_ATTN", "fa3"}


def test_what_does_not_scale_with_the_layers_is_apart():
    rows = [inside("FLASH_ATTN", 100.0, FLASH, step_layers=n, engine_kernels_us=n * 600.0 + 120.0) for n in (4, 8)]
    (line,) = lines(in_engine.grids(answered(THREE[0], *rows)), "the kernels of a step beside attention")

    assert (line["a layer, µs"], line["once, µs"], line["layers measured"]) == ("500.0", "120.0", "4, 8")
    (line,) = lines(in_engine.grids(answered(THREE[0], rows[0])), "the kernels of a step beside attention")
    assert (line["a layer, µs"], line["once, µs"]) == ("530.0", "–")


def test_without_rows_of_an_engine_there_is_no_answer():
    assert in_engine.grids(answered(*THREE)) == [] and in_engine.summary(answered(*THREE)) is None


LLAMA = {"model": "llama_3_1_70b", "device_name": "NVIDIA H200"}
ISOLATED = [alone("flash_attn_3_vllm", us, "flash_attn_3", s_qo=q, batch_size=8, **LLAMA) for q, us in ((1, 100.0), (4, 110.0))]
STEPS = [
    inside("FLASH_ATTN", us, FLASH, s_qo=q, step_layers=n, engine_kernels_us=n * (us + 500.0 + q) + 120.0, **LLAMA)
    for q, us in ((1, 101.0), (4, 130.0))
    for n in (4, 8)
]


@pytest.mark.parametrize("typed", [True, False], ids=["named by draft.rest", "in the dataset itself"])
def test_drafts_take_the_rest_of_a_step_and_attention_from_the_engine_and_say_so(tmp_path: Path, typed: bool):
    """80 layers of what two numbers of layers show, and once what does not scale with them."""
    inner, outer = STEPS, ISOLATED if typed else [*ISOLATED, *STEPS]
    for name, rows in (("engine", inner), ("isolated", outer)):
        pq.write_table(to_table(rows), tmp_path / f"{name}.parquet")
    costs = Draft(rest=str(tmp_path / "engine.parquet")) if typed else Draft()
    data = open_views(tmp_path / "isolated.parquet", costs)
    (found,) = data.records("FROM draft")

    assert (found["drafted"], found["verify_backend"]) == (3, "FLASH_ATTN in vllm 0.25.1")
    assert found["step_us"] == pytest.approx(80 * (130 + 504) + 120)
    assert found["one_token_per_s"] == pytest.approx(8e6 / (80 * (101 + 501) + 120))
    assert lines(draft.grids(data), "what a step is made of") == [
        {
            "model": "llama_3_1_70b on NVIDIA H200",
            "the rest of a step is from": "vllm 0.25.1 with 4 and 8 layers",
            "steps with attention of a running engine": "2 of 2",
        }
    ]


@pytest.mark.parametrize("length", [1, 4])
def test_attention_of_an_engine_counts_only_where_one_query_token_and_a_draft_were_timed(tmp_path: Path, length: int):
    pq.write_table(to_table([row for row in STEPS if row["s_qo"] == length]), tmp_path / "engine.parquet")
    data = views_of(to_table(ISOLATED), Draft(rest=str(tmp_path / "engine.parquet"), layers=80))

    assert data.scalar("SELECT count(*) FROM engine_attention") == 0


def test_of_several_isolated_rows_one_of_the_engines_own_build_predicts():
    old = {
        **alone("trtllm-native", 120.0, "xqa", device_uuid="a", libraries="flashinfer-python 0.5.0"),
        "point_id": "old",
        "env": "old",
    }
    same = {
        **alone("trtllm-native", 100.0, "xqa", device_uuid="b", libraries="flashinfer-python 0.6.13"),
        "point_id": "same",
        "env": "same",
    }
    found = told(answered(old, same, inside("FLASHINFER", 101.0, XQA, device_uuid="a", flashinfer_version="0.6.13")))

    assert found["error"] == pytest.approx(0.01)


@pytest.mark.parametrize("newest", ["0.25.1", "0.33.0"])
def test_rows_of_one_point_by_two_releases_predict_each_its_own_release(newest: str):
    """Also where the releases run other kernels for it, and whichever was measured last."""
    of = {"0.25.1": ("triton_unified_2d", "vllm 0.25.1", 400.0), "0.33.0": ("triton_unified_3d", "vllm 0.33.0, triton 3.8.0", 50.0)}
    rows = []
    for release, (kernel, libraries, us) in of.items():
        day = "02" if release == newest else "01"
        about = {"libraries": libraries, "finished_at": f"2026-11-{day} 00:00:00+00:00", "s_qo": 4}
        rows += [alone("vllm_triton", us * s_kv / 8192, kernel, s_kv=s_kv, **about) for s_kv in (8192, 16384)]
        combining = None if release == "0.25.1" else "reduce_segments"
        of_engine = {"engine_version": release, "combine_kernels": combining, "s_qo": 4, "engine_kv_tokens": 9011.2}
        rows.append(inside("TRITON_ATTN", us * 1.1, TRITON, **of_engine))
    data = answered(*rows)
    found = [told(data, engine_version=release) for release in of]

    assert [one["why_not"] for one in found] == [None, None]
    assert [(one["isolated_kernel"], one["scaled"]) for one in found] == [(kernel, "line") for kernel, *_ in of.values()]
    assert [one["error"] for one in found] == pytest.approx([0.0, 0.0])


def test_of_several_isolated_rows_one_of_the_engines_torch_predicts_also_if_it_is_of_another_gpu():
    """Triton comes with torch, and compiles some kernels a third faster in a later release."""
    times = {"2.11.0": ("b", 100.0), "2.14.1": ("a", 70.0)}
    others = [
        {**alone("trtllm-native", us, "xqa", device_uuid=gpu, torch_version=torch), "point_id": torch}
        for torch, (gpu, us) in times.items()
    ]
    found = told(answered(*others, inside("FLASHINFER", 101.0, XQA, device_uuid="a", torch_version="2.11.0")))

    assert (found["same_gpu"], found["error"]) == (False, pytest.approx(0.01))


def test_of_several_isolated_rows_one_of_the_same_gpu_predicts():
    times = {"a": 100.0, "b": 120.0}
    others = [{**alone("trtllm-native", us, "xqa", device_uuid=gpu, env=gpu), "point_id": gpu} for gpu, us in times.items()]
    newer = {**others[1], "point_id": "a", "env": "a", "finished_at": "2099-01-01 00:00:00+00:00"}
    found = told(answered(*others, newer, inside("FLASHINFER", 101.0, XQA, device_uuid="a")))

    assert found["error"] == pytest.approx(0.01)


def test_of_several_isolated_rows_of_one_length_the_newest_predicts():
    """On the line between two lengths too: which of two rows counted was chance."""
    of_year = {8192: {21: 90.0, 22: 100.0, 20: 80.0}, 32768: {30: 350.0, 31: 340.0, 29: 300.0}}
    rows = [
        {
            **alone("flash_attn_3_vllm", us, "flash_attn_3", s_kv=s_kv, finished_at=f"20{year}-01-01 00:00:00+00:00"),
            "point_id": str(s_kv),
        }
        for s_kv, times in of_year.items()
        for year, us in times.items()
    ]
    found = told(answered(*rows, inside("FLASH_ATTN", 108.0, FLASH, engine_kv_tokens=9011.2)))

    assert found["predicted_us"] == pytest.approx(108.0)
