"""One backend for a whole server, worked out by hand.

Each case is a model of one dataset, since opening one takes half a second.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from orchestrator import notes
from orchestrator.analysis.dataset import Dataset
from orchestrator.analysis.engine_flags import CHOICES, FLASHINFER, in_flashinfer, runs_in
from orchestrator.analysis.engines import DEFAULTS, SGLANG, VLLM
from orchestrator.analysis.questions import one_backend, open_views, traffic_weights, views_of
from orchestrator.analysis.questions.choices import Choice, servers
from orchestrator.analysis.sql import Where
from orchestrator.analysis.traffic import Mix, TrafficPoint
from orchestrator.config.draft_cost import Draft
from orchestrator.config.weights import checked_weights
from orchestrator.formats.engine_config.choice import choose
from orchestrator.formats.engine_config.flags import PHASES, flags_of
from orchestrator.formats.engine_config.shapes import sections
from orchestrator.reporting.report import NEEDS
from orchestrator.storage.row import Row, to_table
from tests.helpers.datasets import MAIN, RESULTS
from tests.helpers.timed_rows import made

FLASH, XQA = "--attention-backend FLASH_ATTN", "-ac.backend=FLASHINFER -ac.use_trtllm_attention=true"
Line = dict[str, str]


def measured(model: str, backend: str, us: float | None, s_qo: int = 1, status: str = "ok", **keys: Any) -> Row:
    defaults = {"routine": "paged_decode", "mask": "causal", "compute_capability": "9.0", "rel_err": 0.002}
    row = made(backend, us, status, **{"s_qo": s_qo, "model": model, **defaults, **keys})
    return {**row, "point_id": "-".join(str(row[key]) for key in ("point_id", "model", "routine", "q_dtype", "kv_dtype"))}


def two_shapes(model: str) -> list[Row]:
    flash = [measured(model, "flash_attn_3", us, q) for us, q in ((10.0, 1), (20.0, 4))]
    return [*flash, *(measured(model, "trtllm-native", us, q) for us, q in ((12.0, 1), (10.0, 4)))]


FP8: dict[str, Any] = {"kv_dtype": "fp8_e4m3"}
ROWS = (
    *two_shapes("even"),
    *(measured("even", name, us, 8) for name, us in (("flash_attn_3", 20.0), ("trtllm-native", 10.0))),
    *(measured("tie", name, us) for name, us in (("flash_attn_3", 10.0), ("trtllm-native", 9.9))),
    *two_shapes("few"),
    *two_shapes("mixed"),
    *two_shapes("outside"),
    *two_shapes("partly")[:2],
    measured("partly", "trtllm-native", 1.0, 1),
    measured("partly", "trtllm-native", None, 4, "unsupported"),
    *(measured("other", name, us) for name, us in (("trtllm-native", 10.0), ("fa2_tc", 11.0))),
    *(measured("none", name, us, q) for name, us, q in (("flash_attn_3", 10.0, 1), ("cudnn", 10.0, 1), ("cudnn", 30.0, 4))),
    measured("fp8", "flash_attn_3", 10.0, q_dtype="fp8_e4m3", **{**FP8, "rel_err": 0.04}),
    measured("fp8", "trtllm-native", 15.0, **FP8),
    *(measured("routines", "fa2_tc", 10.0, q) for q in (1, 4)),
    *(measured("routines", name, us, 4, routine="paged_prefill") for name, us in (("auto", 30.0), ("fa2", 20.0))),
)
WEIGHTS = checked_weights(
    [
        *({"model": model, "weight": 1} for model in ("even", "tie", "few", "partly", "other", "none", "fp8", "routines")),
        {"model": "mixed", "s_qo": 1, "weight": 9},
        {"model": "mixed", "s_qo": 4, "batch_size": 8, "weight": 1},
        {"model": "outside", "s_qo": 1, "weight": 2},
    ]
)


def lines(data: Dataset) -> list[Line]:
    grid = one_backend.grids(data)[0]
    return [dict(zip(grid.header, cells, strict=True)) for cells in grid.cells]


@pytest.fixture(scope="module")
def data() -> Dataset:
    return views_of(to_table(ROWS), weights=WEIGHTS)


@pytest.fixture(scope="module")
def told(data: Dataset) -> dict[tuple[str, str], Line]:
    """The line of each model and engine."""
    return {(line["server"].partition(" ")[0], line["engine"]): line for line in lines(data)}


@pytest.fixture(scope="module")
def choices(data: Dataset) -> dict[tuple[str, str, str], Choice]:
    return {(server.title.partition(" ")[0], c.who, c.name): c for server in servers(data) for c in server.choices}


def test_it_is_the_flag_with_the_least_geometric_mean(told: dict[tuple[str, str], Line]):
    line = told["even", VLLM]

    assert (line["type"], line["mean"], line["at worst"], line["shapes"]) == (XQA, f"{1.2 ** (1 / 3):.2f}", "1.20", "3")
    assert line["worst at"] == "decode, batch 8, s_kv 8,192, s_qo 1"
    assert "trtllm_mha" in told["even", SGLANG]["type"]
    assert told["even", "(of all backends here)"]["type"] == "trtllm-native"


@pytest.mark.parametrize(
    ("model", "why"),
    [
        ("tie", f"equal within noise (2.0%) to {XQA}: keep the default"),
        (
            "few",
            f"{XQA} takes 22.5% less time by the mean, and is ahead by more than noise at only 1 of 2 shapes: keep the default",
        ),
        ("partly", None),
    ],
)
def test_the_default_stays_unless_another_is_clearly_faster(told: dict[tuple[str, str], Line], model: str, why: str | None):
    assert told[model, VLLM]["type"] == f"{FLASH} (the default{'' if why is None else f'; {why}'})"


def test_what_the_shapes_are_is_said(data: Dataset, main_views: Dataset):
    notes = {note: servers for servers, note in one_backend.grids(data)[1].cells}
    (of_even,) = (words for words, of in notes.items() if of.startswith("even "))
    (main,) = one_backend.grids(main_views)[1].cells[:1]

    assert of_even == "2 of these 3 shapes are drafts; without speculative decoding add 'where={s_qo: 1}'"
    assert main[0] == "each" and main[1].startswith("one GPU with all 64 query heads (tp 1)")


def test_weights_change_the_answer_and_leave_out_what_has_none(told: dict[tuple[str, str], Line]):
    assert (told["mixed", VLLM]["type"], told["mixed", VLLM]["mean"]) == (f"{FLASH} (the default)", f"{2**0.1:.2f}")
    assert [told["outside", VLLM][key] for key in ("type", "mean", "shapes")] == [f"{FLASH} (the default)", "1.00", "1"]


def test_a_choice_that_does_not_serve_every_shape_is_no_answer_however_fast(
    told: dict[tuple[str, str], Line], choices: dict[tuple[str, str, str], Choice]
):
    assert told["partly", VLLM]["type"].startswith(FLASH)
    assert choices["partly", VLLM, XQA].all.missing == ("verify: 1 unsupported",)


def test_a_choice_without_rows_is_named_so_that_nobody_takes_it_for_slower(told: dict[tuple[str, str], Line]):
    assert "FLASH_ATTN" in told["other", VLLM]["its choices without a row"]
    assert "fa3" in told["other", SGLANG]["its choices without a row"]


def test_an_engine_that_was_measured_at_some_shapes_alone_gets_no_recommendation(told: dict[tuple[str, str], Line]):
    assert told["none", VLLM]["type"].startswith("none was measured at every shape")
    assert told["none", VLLM]["mean"] == "–"


def test_over_an_fp8_cache_the_dtype_of_the_queries_comes_with_the_choice(told: dict[tuple[str, str], Line]):
    exact, *_ = lines(views_of(to_table([row for row in ROWS if row["model"] == "fp8"]), max_rel_err=0.01))

    assert (told["fp8", VLLM]["type"], told["fp8", VLLM]["largest err"]) == (f"{FLASH} (the default)", "4%")
    assert (exact["type"], exact["mean"]) == (XQA, "1.00")
    assert "FLASH_ATTN" not in exact["its choices without a row"]  # it has one, which is too coarse


def test_drafts_run_in_the_routine_that_the_flag_leads_to(choices: dict[tuple[str, str, str], Choice]):
    """Without XQA vLLM's wrapper verifies in the prefill kernel that it chooses itself; SGLang's flashinfer in fa2."""
    costs = {
        name: {kind: cost.worst for kind, cost in choices["routines", *name].kinds.items()}
        for name in ((VLLM, "-ac.backend=FLASHINFER -ac.use_trtllm_attention=false"), (SGLANG, "--attention-backend flashinfer"))
    }

    assert list(costs.values()) == [{"decode": 1.0, "verify": 3.0}, {"decode": 1.0, "verify": 2.0}]


def test_every_default_is_among_the_flags_with_what_it_runs():
    offered = {(c.engine, c.major, c.routine, c.drafts, c.trees, c.backend) for c in CHOICES}

    assert {(d.engine, d.major, d.routine, d.drafts, d.trees, d.backend) for d in DEFAULTS} <= offered
    assert in_flashinfer("paged_decode", "fa2_tc") == 'BatchDecodeWithPagedKVCacheWrapper(backend="fa2", use_tensor_cores=True)'
    assert in_flashinfer("paged_decode", "flash_attn_3") is None
    assert FLASHINFER.endswith("0.7.2")


def test_sglangs_triton_runs_one_kernel_for_a_token_and_another_for_drafts_trees_and_prompts():
    flag = "--attention-backend triton"
    ran = {kind: runs_in(SGLANG, flag, 9, kind) for kind in ("decode", "verify", "chunked prefill")}

    assert ran["decode"] == ["sglang_triton in paged_decode"]
    assert {c.routine: (c.drafts, c.trees) for c in CHOICES if (c.engine, c.flags, c.major) == (SGLANG, flag, 9)} == {
        "paged_decode": (False, False),
        "paged_prefill": (True, None),
    }
    (triton,) = (one for one in flags_of("sglang", 9, "full_attention") if one.name == "triton")
    calls = {phase: triton.calls_in(phase, fp8_cache=True) for phase in PHASES}
    assert calls["decode"] == [("paged_decode", "sglang_triton", False)]
    assert calls["verify"] == calls["prefill"][:1] == [("paged_prefill", "sglang_triton", False)]
    assert ran["verify"] == ran["chunked prefill"] == ["sglang_triton in paged_prefill"]


def test_weights_that_fit_no_shape_are_named_with_their_share(capsys: pytest.CaptureFixture[str]):
    entries = [{"batch_size": 8, "weight": 1}, {"batch_size": 7, "weight": 2}, {"s_kv": 9, "weight": 1}]
    with notes.buffered():
        views_of(to_table(two_shapes("m")), weights=checked_weights(entries))
        notes.release()

    assert (
        "weights: 2 of 3 entries, with 75% of the weight, fit no measured shape: {batch_size: 7}, {s_kv: 9}"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize("entry", [{"s_qo": 1}, {"s_qo": 1, "weight": 0}, {"s_q": 1, "weight": 1}, {"s_qo": [[1]], "weight": 1}, 3])
def test_wrong_weights_are_told(entry: object):
    with pytest.raises(ValueError, match=r"weights=.*allowed:"):
        checked_weights([entry])


def test_weights_with_a_list_are_an_entry_for_each_value():
    found = checked_weights([{"s_qo": 4, "batch_size": [8, 32], "weight": 2}])

    assert found == ({"s_qo": 4, "batch_size": 8, "weight": 2}, {"s_qo": 4, "batch_size": 32, "weight": 2})


def test_on_the_main_dataset_it_is_the_mean_of_the_ratios_in_pandas(main_views: Dataset):
    (server,) = (s for s in servers(main_views) if "kv bf16" in s.title)
    xqa = next(choice for choice in server.choices_of(VLLM) if choice.name == XQA)
    fits = "batch_size * s_kv * 80 * 8 * 2 * 128 * 2 < 141e9"  # bytes of the cache of 80 layers, and of the GPU
    rows = main_views.current().query(f"status == 'ok' and kv_dtype == 'bf16' and backend != 'torch_sdpa' and {fits}")
    rows = rows.assign(own=rows["median_us"] - rows["launch_us"].min())
    wide = rows.pivot_table(index=["batch_size", "s_kv", "s_qo"], columns="backend", values="own")
    regret = wide["trtllm-native"] / wide.min(axis=1)

    assert xqa.all.mean == pytest.approx((regret.prod()) ** (1 / len(regret)), rel=1e-6)
    assert xqa.all.worst == pytest.approx(regret.max(), rel=1e-9)
    assert xqa.all.served == len(regret) == 32


def test_traffic_weighs_each_draft_length_as_pandas_does():
    """Decode steps count for the nearest measured shape, each draft length gets all of them, and `weights` come on top."""
    mix = Mix((TrafficPoint(8, 9000.0, 3), TrafficPoint(30, 9000.0, 1)), (), ("assumed",))
    nearest = {(8, 8192): 0.75, (32, 8192): 0.25}
    data = open_views(
        MAIN, where={"kv_dtype": "bf16", "s_qo": (1, 4)}, traffic=mix, weights=({"s_qo": 4, "weight": 2}, {"weight": 1})
    )
    (server,) = servers(data)
    xqa = next(choice for choice in server.choices_of(VLLM) if choice.name == XQA)

    rows = data.current().query("status == 'ok' and backend != 'torch_sdpa'")
    rows = rows.assign(own=rows["median_us"] - rows["launch_us"].min())
    wide = rows.pivot_table(index=["batch_size", "s_kv", "s_qo"], columns="backend", values="own")
    regret = (wide["trtllm-native"] / wide.min(axis=1)).loc[lambda of: [shape[:2] in nearest for shape in of.index]]
    weight = [nearest[shape[:2]] * (3 if shape[2] == 4 else 1) for shape in regret.index]
    (grid,) = traffic_weights.grids(data, mix)

    assert xqa.all.mean == pytest.approx(np.exp(np.average(np.log(regret), weights=weight)), rel=1e-9)
    assert xqa.kinds["decode"].mean == pytest.approx(
        np.exp(np.average(np.log(regret.xs(1, level=2)), weights=[0.75, 0.25])), rel=1e-9
    )
    assert (xqa.all.worst, xqa.all.served) == (pytest.approx(regret.max(), rel=1e-9), 4)
    title = "llama_3_1_70b · 64 query heads (tp 1) · kv bf16 · clean L2 · NVIDIA H200"
    assert grid.cells == (
        (title, "decode", "1", "25%", "8 × 8,192: 75%, 32 × 8,192: 25%", "0.0%", "0.0%"),
        (title, "verify", "4", "75%", "8 × 8,192: 75%, 32 × 8,192: 25%", "0.0%", "0.0%"),
    )
    assert grid.title.endswith("; assumed")


def test_a_batch_in_padded_graphs_shares_the_traffic_with_the_same_batch_alone_as_in_pandas():
    """A server and draft length have the traffic once: 70% at batch 9 and 30% at batch 5, whatever graphs they run in."""
    mix = Mix((TrafficPoint(9, 9000.0, 7), TrafficPoint(5, 9000.0, 3)), ())
    data = open_views(RESULTS / "h200_engines/padded_graphs", where={"kv_dtype": "bf16"}, traffic=mix)
    (server,) = servers(data)
    flash = next(choice for choice in server.choices_of(VLLM) if choice.name == FLASH)

    rows = data.current().query("status == 'ok' and backend != 'torch_sdpa' and batch_size in (5, 9)")
    rows = rows.assign(own=rows["median_us"] - rows["launch_us"].min(), graph_batch=rows["graph_batch"].fillna(0))
    wide = rows.pivot_table(index=["s_qo", "batch_size", "graph_batch", "graph_fill"], columns="backend", values="own")
    regret = np.log(wide["flash_attn_3"] / wide.min(axis=1))
    of_batch = regret.groupby(level=["s_qo", "batch_size"]).mean().unstack()
    (grid,) = traffic_weights.grids(data, mix)

    assert len(regret) == 12  # two batches, each alone and in two graphs, at two draft lengths
    assert flash.all.mean == pytest.approx(np.exp((0.7 * of_batch[9] + 0.3 * of_batch[5]).mean()), rel=1e-9)
    assert data.scalar("SELECT sum(weight) FROM (SELECT DISTINCT shape, weight FROM one_backend)") == pytest.approx(2)
    assert [cells[3] for cells in grid.cells] == ["50%", "50%"]
    assert "9 × 8,192: 23%, 9 in a graph of 16 with fill 0 × 8,192: 23%" in grid.cells[0][4]


def test_a_default_that_is_kept_and_much_slower_somewhere_says_where_as_in_pandas():
    data = open_views(RESULTS / "h200_engines/padded_graphs", where={"kv_dtype": "bf16"})
    rows = data.current().query("status == 'ok' and backend != 'torch_sdpa'")
    rows = rows.assign(own=rows["median_us"] - rows["launch_us"].min(), graph_batch=rows["graph_batch"].fillna(0))
    wide = rows.pivot_table(index=["batch_size", "s_qo", "graph_batch", "graph_fill"], columns="backend", values="own")
    regret = wide["flash_attn_3"] / wide.min(axis=1)
    slower, (batch, s_qo, *_) = int((regret > 1.2).sum()), regret.idxmax()
    notes = [note for _, note in one_backend.grids(data)[1].cells if note.startswith(VLLM)]

    assert (slower, len(regret)) == (7, 26)
    assert notes == [
        f"{VLLM}: keep {FLASH}, but at decode, batch {batch}, s_kv 8,192, s_qo {s_qo} it takes {regret.max():.2f} times fa2_tc; "
        "more than 1.2 times the best at 7 of 26 shapes, with 27% of the weight"
    ]
    assert f"{regret.max():.2f}" == "1.61"


@pytest.mark.parametrize(("at_eight", "kept"), [(1.0, True), (3.0, False)])
def test_traffic_weighs_the_shapes_that_decide_against_a_default(at_eight: float, kept: bool):
    """XQA is clearly faster at one of three batches alone: with most of the traffic there the default goes."""
    times = {1: (10.0, 10.0), 8: (40.0, 10.0), 64: (10.0, 10.0)}
    rows = [
        measured("w", name, us, batch_size=batch)
        for batch, both in times.items()
        for name, us in zip(("flash_attn_3", "trtllm-native"), both, strict=True)
    ]
    mix = Mix(tuple(TrafficPoint(batch, 8192.0, at_eight if batch == 8 else 1.0) for batch in times), ())
    (server,) = servers(views_of(to_table(rows), traffic=mix))
    xqa, answer = next(choice for choice in server.choices_of(VLLM) if choice.name == XQA), server.answer(VLLM)

    assert answer is not None and answer.is_default == kept
    assert xqa.margin is not None and (xqa.margin.ahead, xqa.margin.shapes) == (1, 3)
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
        ("H100", "decode", "1", "100%", "8 × 8,192: 100%"),
        ("H200", "decode, page_size 16", "1", "50%", "8 × 8,192: 50%"),
        ("H200", "decode, page_size 64", "1", "50%", "8 × 8,192: 50%"),
    ]


def test_traffic_that_no_measured_shape_is_near_is_named_with_the_axes_that_would_be():
    mix = Mix(
        (TrafficPoint(8, 9000.0, 5), TrafficPoint(20, 9000.0, 2), TrafficPoint(300, 600.0, 2), TrafficPoint(400, 9000.0, 1)), ()
    )
    data = views_of(to_table([measured("d", "fa2_tc", 10.0)]), traffic=mix)
    weights, warning = traffic_weights.grids(data, mix)

    assert weights.cells[0][5:] == ("50%", "20%")
    assert warning.title.startswith("warning: no measured shape is near this part of your traffic; near is 1/2 to 2 times")
    assert warning.cells[0][1:] == ("1", "50%", "sweep.batch_size=[20,400] sweep.s_kv=[600,9000]")


def test_prompts_weigh_prompts_and_chunks_have_no_weight():
    keys: dict[str, Any] = {"routine": "ragged_prefill", "batch_size": 1}
    prompts = [
        measured("p", name, us, n, s_kv=n, **keys) for name, us, n in (("fa2", 10.0, 512), ("fa2", 90.0, 4096), ("fa3", 60.0, 4096))
    ]
    chunks = [measured("p", name, us, 1024, s_kv=8192, routine="paged_prefill") for name, us in (("fa2", 10.0), ("fa3", 20.0))]
    data = views_of(to_table([*prompts, *chunks]), traffic=Mix((TrafficPoint(None, 700.0, 1),), (TrafficPoint(None, 4000.0, 1),)))
    (server,) = servers(data)

    assert server.shapes == {"prefill": 1}
    assert {choice.name: choice.all.mean for choice in server.choices_of("backend")} == {"fa3": 1.0, "fa2": pytest.approx(1.5)}


@pytest.mark.parametrize(("where", "kept"), [({}, [True, True]), ({"s_qo": 1}, [True, False])])
def test_it_keeps_the_default_where_the_exported_flags_do(where: Where, kept: list[bool]):
    data = open_views(MAIN, where=where)
    ours = [answer.is_default for server in servers(data) if (answer := server.answer(VLLM))]
    exported = [
        choose(part.shapes_of("full_attention"), flags_of("vllm", 9, "full_attention"), 9).flag is None for part in sections(data)
    ]

    assert ours == exported == kept


# Shapes that no server of one GPU can have


BIG: dict[str, Any] = {"model": "llama_3_1_70b", "num_qo_heads": 64, "num_kv_heads": 8, "head_dim_qk": 128, "head_dim_vo": 128}


def of_size(name: str, batch: int, us: float, **keys: Any) -> Row:
    given = {**BIG, "device_name": "NVIDIA H200", "batch_size": batch, "s_kv": 8192, **keys}
    return measured(given.pop("model"), name, us, **given)


# A token of 80 layers is 2 * 8 * 128 * 2 bytes * 80 = 328 kB, so 64 * 8,192 tokens are 172 GB, and an H200 has 141.
SIZES = [of_size(*given) for given in (("fa2_tc", 32, 10.0), ("cudnn", 32, 20.0), ("fa2_tc", 64, 90.0), ("cudnn", 64, 10.0))]


def notes_of(data: Dataset) -> list[str]:
    grid = next(grid for grid in one_backend.grids(data) if grid.header == ("server", "note"))
    return [note for _, note in grid.cells if "do not count" in note]


def test_a_shape_whose_cache_alone_is_larger_than_the_gpu_does_not_count():
    found = views_of(to_table(SIZES), weights=checked_weights([{"batch_size": 64, "weight": 3}, {"batch_size": 32, "weight": 1}]))
    (line,) = (line for line in lines(found) if line["engine"] == "(of all backends here)")

    assert (line["type"], line["shapes"], line["mean"]) == ("fa2_tc", "1", "1.00")  # at batch 64 cudnn is 9 times as fast
    assert notes_of(found) == [
        "1 of 2 measured shapes, with 75% of the weight, do not count: their KV cache of 80 layers is larger than the GPU's "
        "141 GB, from batch 64, s_kv 8,192 with 172 GB on; draft.layers says how many layers one GPU has, if GPUs share them. "
        "The memory of the model's weights is not counted"
    ]


def test_the_weights_of_traffic_name_the_shapes_that_do_not_fit():
    mix = Mix((TrafficPoint(32, 8192.0, 1), TrafficPoint(64, 8192.0, 3)), ())
    grid, *_ = traffic_weights.grids(views_of(to_table(SIZES), traffic=mix), mix)

    assert grid.cells[0][4] == "64 × 8,192: 75% (does not fit), 32 × 8,192: 25%"


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
def test_a_shape_that_may_fit_counts(change: dict[str, Any], layers: int | None):
    rows = [of_size(name, 64, us, **change) for name, us in (("fa2_tc", 20.0), ("cudnn", 10.0))]
    found = views_of(to_table(rows), Draft(layers=layers))

    assert [line["type"] for line in lines(found) if line["engine"] == "(of all backends here)"] == ["cudnn"]
    assert notes_of(found) == []


def test_a_dataset_of_shapes_that_are_all_too_big_has_no_answer_and_is_told_why():
    found = views_of(to_table(SIZES[2:]))

    assert one_backend.grids(found) == []
    assert "whose KV cache fits the GPU" in NEEDS["one_backend"]
