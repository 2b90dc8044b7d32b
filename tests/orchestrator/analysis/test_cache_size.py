"""Shapes whose KV cache alone is larger than the GPU's memory, in the questions about drafts and about engines' defaults."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.analysis.dataset import Dataset
from orchestrator.analysis.questions import cache_size, draft, engine_default, roofline
from orchestrator.analysis.questions.cache_size import no_room
from orchestrator.config.draft_cost import Draft
from orchestrator.config.model import shipped
from orchestrator.storage.row import to_table
from tests.helpers.command_line import Invoke
from tests.helpers.timed_rows import made, views_of

# 80 layers of 8 KV heads of 128 in bf16 are 328 kB a token: 32 x 8,192 tokens are 86 GB, 64 x 8,192 are 172, and an H200 has 141.
SHAPE: dict[str, Any] = {
    "model": "llama_3_1_70b",
    "num_qo_heads": 64,
    "num_kv_heads": 8,
    "head_dim_qk": 128,
    "head_dim_vo": 128,
    "s_kv": 8192,
    "routine": "paged_decode",
    "mask": "causal",
    "device_name": "NVIDIA H200",
    "compute_capability": "9.0",
}
DEFAULT = "flash_attn_3"  # of vLLM
# µs by batch and query tokens. What fits: the default is best without drafts. What does not: it takes 9 times as long.
TIMES = {
    (32, 1): {DEFAULT: 10.0, "fa2_tc": 11.0},
    (32, 4): {DEFAULT: 20.0, "fa2_tc": 22.0},
    (64, 1): {DEFAULT: 90.0, "fa2_tc": 10.0},
    (64, 4): {DEFAULT: 90.0, "fa2_tc": 10.0},
}
TOO_BIG = (
    "their KV cache of 80 layers alone is larger than the GPU's 141 GB (the smallest: 172 GB of bf16 at tp 1, batch 64, s_kv "
    "8,192; it fits beside 16-bit weights from tp 4 on: tp=4)"
)


def data(layers: int | None = None) -> Dataset:
    rows = []
    for (batch, s_qo), times in TIMES.items():
        for name, us in times.items():
            row = made(name, us, **SHAPE, batch_size=batch, s_qo=s_qo)
            rows.append({**row, "point_id": f"{name}-{batch}-{s_qo}"})
    return views_of(to_table(rows), Draft(layers=layers))


def said(cells: tuple[tuple[str, ...], ...]) -> list[str]:
    return [cell[0] for cell in cells if "do not count" in cell[0]]


def test_caches_that_are_all_too_large_are_why_there_is_no_draft_and_the_roofline_names_them():
    rows = data().current().query("batch_size == 64").assign(bytes=1e9, frac_of_peak=0.5, bound="memory", peak_tb_per_sec=4.0)
    found = views_of(rows)
    (why,) = draft.grids(found)
    *tables, too_big = roofline.grids(found)

    assert [TOO_BIG in words for (words,) in why.cells] == [True]
    assert tables and [cells for cells in too_big.cells if TOO_BIG in cells[0] and "cannot be served" in cells[0]] != []


@pytest.mark.parametrize("window", [None, 128])
def test_windowed_layers_keep_their_window_alone(window: int | None):
    """gpt_oss_120b has 18 full layers, of 2 kB a token in bf16 and 8 heads, and 18 with a window of 128."""
    of_model = {**SHAPE, "model": "gpt_oss_120b", "head_dim_qk": 64, "head_dim_vo": 64, "window": window, "s_qo": 1}
    rows = [made(DEFAULT, 10.0, **of_model, batch_size=batch) | {"point_id": str(batch)} for batch in (32, 512)]
    sizes = {problem: size for problem, size in views_of(to_table(rows)).execute("SELECT problem, cache_bytes FROM cache_sizes")}

    assert sorted(sizes.values()) == [batch * 18 * 2048 * (8192 + 128) for batch in (32, 512)]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, "; it fits beside 16-bit weights from tp 4 on: tp=4"),  # 86 + 70 GB on 2, 43 + 35 GB on 4
        ({"batch_size": 1024}, ""),  # 2.7 TB
        ({"num_kv_heads": 1, "batch_size": 512}, ""),  # more GPUs copy its one head
    ],
)
def test_a_cache_that_is_too_large_names_the_size_that_holds_it(change: dict[str, Any], words: str):
    row = made(DEFAULT, 10.0, **{**SHAPE, "batch_size": 64, "s_qo": 1, **change})
    ((_, said),) = cache_size.left_out(views_of(to_table([row]))).items()

    assert words in said and ("from tp" in said) == (words != "")


@pytest.mark.parametrize(("layers", "batches"), [(None, {32}), (40, {32, 64})])
def test_a_draft_is_answered_for_shapes_that_fit(layers: int | None, batches: set[int]):
    found = data(layers)
    _, warning, *tables = draft.grids(found)

    assert {record["batch_size"] for record in found.records("FROM draft")} == batches
    assert {int(cell[0]) for cell in tables[-1].cells} == batches
    assert [TOO_BIG in words for words in said(warning.cells)] == ([] if len(batches) > 1 else [True])


@pytest.mark.parametrize(("layers", "worst", "points"), [(None, "1.00", "1"), (40, "9.00", "2")])
def test_an_engine_s_default_is_judged_by_shapes_that_fit(layers: int | None, worst: str, points: str):
    table, _, left_out = engine_default.grids(data(layers))
    of_vllm = {cells[1]: cells for cells in table.cells if cells[2].startswith("vLLM")}

    assert (of_vllm["decode"][8], of_vllm["decode"][5]) == (worst, f"{points} of {points}")
    assert [TOO_BIG in words for words in said(left_out.cells)] == ([True] if layers is None else [])


@pytest.mark.parametrize(
    ("model", "tp", "gpu", "fits_from"),
    [
        ("llama_3_1_70b", 1, "NVIDIA H100 80GB HBM3", 2),
        ("llama_3_1_70b", 1, "NVIDIA H200", 2),  # 137 of 141 GB: none is left for a cache
        ("llama_3_1_405b", 4, "NVIDIA H200", 8),
        ("llama_3_1_70b", 2, "NVIDIA H200", None),
        ("llama_3_1_8b", 1, "NVIDIA H100 80GB HBM3", None),
        ("gpt_oss_120b", 1, "NVIDIA H100 80GB HBM3", None),  # its experts have 4 bits: 65 GB
        ("deepseek_v3", 1, "NVIDIA H200", None),  # of 8 GPUs, which share its experts
        ("qwen3_next_80b_a3b", 1, "NVIDIA H200", 2),  # no sizes of its layers are known
        ("mine", 1, "NVIDIA H200", None),
        ("llama_3_1_70b", 1, "a GPU", None),
        ("llama_3_1_70b", 1, "cpu", None),  # the reference's
    ],
)
def test_a_model_whose_weights_do_not_fit_is_named_with_the_size_that_does(model: str, tp: int, gpu: str, fits_from: int | None):
    said = no_room(None, gpu, model, tp)

    assert said.startswith(f"{model} at tp {tp} does not fit one {gpu}") if fits_from else said == ""
    assert fits_from is None or said.endswith(f"they fit from tp {fits_from} on")
    assert no_room(4, gpu, model, tp) == ""


def test_published_weights_are_those_of_all_gpus_that_share_them_and_every_model_with_experts_has_their_size():
    place, weights = "deepseek_v3 over 8 GPUs does not fit one NVIDIA H100 80GB HBM3", "86 GB per GPU (689 GB in all)"

    assert {no_room(None, "NVIDIA H100 80GB HBM3", "deepseek_v3", tp) for tp in (1, 4, 8)} == {
        f"{place}: its published weights take {weights}, a KV cache more, and the GPU has 80 GB; they fit from tp 16 on"
    }
    assert [name for name, of in shipped().items() if "num_experts" in of.get("layer", {}) and not of.get("weights_gb")] == []


def test_a_report_and_an_export_say_first_that_the_weights_do_not_fit(invoke: Invoke):
    asked = ("model=llama_3_1_70b", "tp=1", "device=h100", "engine=vllm")
    screen, flags = invoke("mode=report", *asked).stdout, invoke("export=vllm", *asked[:3]).stdout
    words = no_room(None, "NVIDIA H100 80GB HBM3", "llama_3_1_70b", 1)

    assert words in " ".join(" ".join(screen.splitlines()[:3]).split())
    assert "# " + words in flags
