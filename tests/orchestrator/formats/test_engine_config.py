"""`export=vllm` and `export=sglang`: flags, what they save and on what evidence, and no flag where the data do not support one."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from kernels import registry
from orchestrator import ROOT
from orchestrator.analysis.connection import Record
from orchestrator.analysis.keys import PROBLEM_KEYS
from orchestrator.analysis.questions import open_views
from orchestrator.analysis.step_rest import step_us
from orchestrator.config.draft_cost import Draft
from orchestrator.errors import UserError
from orchestrator.formats.engine_config.choice import call_of, choose
from orchestrator.formats.engine_config.drafts import BatchDrafts, best_drafts, ranges
from orchestrator.formats.engine_config.flags import FLAGS, Engine, Phase, flags_of
from orchestrator.formats.engine_config.shapes import Measured, Shape, sections, sections_of
from orchestrator.formats.engine_config.text import Request, config_text, text_of
from tests.helpers.command_line import Invoke
from tests.helpers.datasets import MAIN

DECODE = "paged_decode"
KEYS: Record = {
    **dict.fromkeys(PROBLEM_KEYS), "routine": DECODE, "mask": "causal", "q_dtype": "bf16", "kv_dtype": "bf16", "out_dtype": "bf16",
    "compute_capability": "9.0", "num_qo_heads": 64, "num_kv_heads": 8, "tp": 1, "page_size": 64, "l2": "clean",
    "context": "isolated",
    "batch_size": 8, "s_qo": 1, "s_kv": 8192, "rel_err": 0.001, "libraries": "lib 1", "device_name": "H200", "model": "m",
    "noise_floor": 0.02, "rest_layer_us": None, "model_layers": None,
}  # fmt: skip
STEP = Draft(layers=10, rest_us=1000, cost_us=10)


def row(backend: str, us: float | None, status: str = "ok", reason: str = "", **keys: Any) -> Record:
    """A row as the query of `sections` gives it."""
    return {**KEYS, **keys, "called": backend, "shown": backend, "status": status, "reason": reason, "own_us": us, "median_us": us}


def text(engine: Engine, *rows: Record, draft: Draft | None = None) -> str:
    return text_of(sections_of(rows), Request(engine, draft or Draft(), "results/mine"))


def test_rows_of_a_cpu_are_in_no_section():
    gpu, cpu = row("fa2", 10.0), row("torch_sdpa", 90.0, device_name="cpu", compute_capability=None)

    assert [section.keys["device_name"] for section in sections_of([cpu, gpu])] == ["H200"]
    with pytest.raises(UserError, match="was measured on a GPU"):
        text("vllm", cpu)


def flags(printed: str) -> list[str]:
    """The lines that are no comment."""
    return [line for line in printed.splitlines() if line and not line.startswith("#")]


@pytest.fixture(scope="module")
def hopper() -> dict[str, str]:
    """Decode, drafts and prompts on Hopper: XQA is faster at decode and drafts, and prompts take as long."""
    rows = [
        *(row("flash_attn_3", 100.0 * q, s_qo=q, batch_size=b) for q in (1, 2, 4) for b in (1, 8)),
        *(row("trtllm-native", 60.0 * q, s_qo=q, batch_size=b) for q in (1, 2, 4) for b in (1, 8)),
        row("flash_attn_3", 500, s_qo=8192, routine="paged_prefill"),
        row("auto", 500, s_qo=8192, routine="paged_prefill"),
        row("flash_attn_3_unplanned", 500, s_qo=8192, routine="paged_prefill"),
        *(row("flash_attn_3_unplanned", 120.0 * q, s_qo=q, batch_size=b) for q in (2, 4) for b in (1, 8)),
        row("cudnn", 30),
    ]
    return {engine: text(engine, *rows, draft=STEP) for engine in ("vllm", "sglang")}  # type: ignore[arg-type]


def test_vllm_gets_one_backend_for_a_kind_with_its_evidence_by_phase(hopper: dict[str, str]):
    printed = hopper["vllm"]
    attention, drafts = flags(printed)
    found = re.fullmatch("--attention-config '(.*)'", attention)

    assert found and json.loads(found[1]) == {"backend_per_kind": {"full_attention": "FLASHINFER"}, "use_trtllm_attention": True}
    assert "vLLM 0.32.0 on H200: m, 64 query and 8 KV heads a GPU, bf16 over a cache of bf16" in printed
    assert "measured: results/mine, lib 1; isolated calls, clean L2" in printed
    assert "decode: 40.0% less time (geometric mean of 2 shapes: batch 1 to 8, s_kv 8,192, s_qo 1;" in printed
    assert "faster by more than noise at 2, slower at 0; medians 60.0 to 60.0 against 100.0 to 100.0 µs" in printed
    assert "prefill: 0.0% less time" in printed
    assert "faster still at 1 of 7 shapes" in printed and "not available in the engine: cudnn at 1" in printed
    assert drafts.startswith("--speculative-config '")


def test_sglang_gets_a_backend_a_phase_and_which_of_the_two_runs_drafts(hopper: dict[str, str]):
    assert flags(hopper["sglang"]) == [
        "--decode-attention-backend trtllm_mha",
        "--page-size 64",
        "--speculative-attention-mode decode",
    ]
    assert "verify: 50.0% less time" in hopper["sglang"]
    assert "trtllm_mha instead of prefill's backend fa3" in hopper["sglang"]


def test_the_draft_table_is_the_best_length_of_each_batch_by_the_formula_of_the_report():
    """With 80% accepted, two drafts yield 2.44 tokens, so whole steps decide. At batch 8 attention is most of a step."""
    times = {(1, 1): 10.0, (1, 3): 11.0, (8, 1): 1000.0, (8, 3): 2900.0}
    rows = [row("flash_attn_3", us, batch_size=b, s_qo=q) for (b, q), us in times.items()]
    printed = text("vllm", *rows, draft=STEP)
    (line,) = flags(printed)

    assert json.loads(line.removeprefix("--speculative-config '")[:-1]) == {
        "num_speculative_tokens": 2, "num_speculative_tokens_per_batch_size": [[1, 2, 2], [3, 8, 0]],
    }  # fmt: skip
    gain = 2.44 / (10 * 11 + 1000 + 20) * (10 * 10 + 1000)
    assert f"batch 1: 2 drafted, {gain:.2f} times the tokens/s without drafts" in printed
    assert "batch 1: 2 drafted" in printed and "the longest draft measured, so a longer one may be better" in printed


PRESET = Draft(rest="preset", acceptance=0.7, cost_us=400)


def test_the_draft_table_stands_on_the_rest_of_a_step_that_the_question_takes():
    """With one backend alone, the question's best drafts are those of the table, and its steps take as long.

    At batch 32 the question knows the steps of one drafted token alone, and marks it as an edge: no choice for an engine.
    """
    data = open_views(MAIN, PRESET, where={"kv_dtype": "bf16", "backend": "flash_attn_3"})
    (section,) = sections(data)
    shapes = section.shapes_of("full_attention")
    (flag,) = [f for f in flags_of("vllm", 9, "full_attention") if f.default_on]
    found = {
        (b.size, c): drafts for b in best_drafts(shapes, flag, PRESET) for c, drafts in zip(b.contexts, b.by_context, strict=True)
    }
    every = data.records("SELECT batch_size, s_kv, drafted, best_s_qo, step_us, verify_us FROM draft")
    asked = [r for r in every if (r["batch_size"], r["s_kv"]) in {(s.batch_size, s.s_kv) for s in shapes}]  # whose cache fits
    steps = {(s.batch_size, s.s_kv, s.s_qo): step_us(PRESET, own.us, s.s_qo, s.layer) for s in shapes if (own := call_of(flag, s))}

    assert found == {(r["batch_size"], r["s_kv"]): r["drafted"] for r in asked if r["batch_size"] < 32}
    assert sorted({size for size, _ in found}) == [1, 8]
    assert [r["step_us"] for r in asked] == [pytest.approx(steps[r["batch_size"], r["s_kv"], r["best_s_qo"]]) for r in asked]
    assert {shape for shape, us in steps.items() if us is None} == {
        (batch, s_kv, s_qo) for batch, s_kv, s_qo in steps if batch * s_qo > 64
    }  # fmt: skip


def test_the_export_says_which_rest_it_stands_on_and_what_it_leaves_out():
    data = open_views(MAIN, PRESET, where={"kv_dtype": "bf16"})
    printed = config_text(data, "vllm", PRESET, "d")
    table = json.loads(flags(printed)[-1].removeprefix("--speculative-config '")[:-1])
    only = config_text(open_views(MAIN, PRESET, where={"kv_dtype": "bf16", "batch_size": 32}), "vllm", PRESET, "d")

    assert table["num_speculative_tokens_per_batch_size"] == [[1, 8, 7]]
    assert (
        "80 layers of 455.9 to 510.1 µs each, for 1 to 64 query tokens in a batch, as measured in steps (draft.rest=preset)"
        in printed
    )
    assert "left out: batch 32 with 3, 7 drafted, and so the whole batch, since draft.rest=preset has no step" in printed
    assert "batch 64" not in "".join(line for line in printed.splitlines() if "left out" in line)  # its cache does not fit
    assert "batch 32: 1 drafted" not in printed  # with 3 or 7 it may be faster
    assert "drafting itself is free" not in printed
    assert "no draft table: draft.rest=preset has no step with as many query tokens" in only and not flags(only)


def test_shapes_whose_cache_does_not_fit_choose_nothing_and_are_counted():
    """Over 80 layers, 16-bit caches of batch 64 take 172 GB and more."""
    where = {"kv_dtype": "bf16", "s_qo": 1}
    printed = config_text(open_views(MAIN, where=where), "sglang", Draft(), "d")

    assert "8 of 16 measured shapes do not count: their KV cache of 80 layers is larger" in printed
    assert "geometric mean of 8 shapes: batch 1 to 32" in printed
    assert "geometric mean of 16 shapes" in config_text(open_views(MAIN, Draft(layers=4), where=where), "sglang", Draft(), "d")
    with pytest.raises(UserError, match=r"no shape of results\.path=d is left; 4 of 4 measured shapes"):
        config_text(open_views(MAIN, where={**where, "batch_size": 64}), "vllm", Draft(), "d")


@pytest.mark.parametrize(
    ("best", "table"),
    [
        ({1: 3}, [[1, 1, 3]]),
        ({4: 3}, [[1, 4, 3]]),
        ({1: 3, 8: 3, 64: 0}, [[1, 22, 3], [23, 64, 0]]),
        ({1: 1, 2: 2, 3: 3}, [[1, 1, 1], [2, 2, 2], [3, 3, 3]]),
    ],
)
def test_the_table_starts_at_batch_1_and_leaves_no_gap(best: dict[int, int], table: list[list[int]]):
    assert ranges([BatchDrafts(size, drafts, 1, (1,), (drafts,), (0, drafts)) for size, drafts in best.items()]) == table


OURS = [row("flash_attn_3", 100.0), row("trtllm-native", 60.0)]


@pytest.mark.parametrize(
    ("engine", "rows", "why"),
    [
        (
            "vllm",
            [row("trtllm-native", 60.0)],
            "default FLASH_ATTN (flash_attn_3, flash_attn_3_vllm here) was not measured at these shapes",
        ),
        ("vllm", [row("flash_attn_3", 60.0), row("cudnn", 30.0)], "no other backend that the engine can name was ok"),
        (
            "vllm",
            [row("flash_attn_3", 60.0), row("cudnn", 30.0), row("trtllm-native", 70.0)],
            "not available in the engine: cudnn",
        ),
        ("vllm", [row("flash_attn_3", 100.0), row("trtllm-native", 99.0)], "1.0% less time, which is within noise (2.0%)"),
        (
            "vllm",
            [row("flash_attn_3", 60.0), row("trtllm-native", 100.0)],
            "the next best, FLASHINFER (use_trtllm_attention true), takes 66.7% more",
        ),
        (
            "vllm",
            [row("flash_attn_3", None, "failed", "boom"), OURS[1]],
            "default FLASH_ATTN is failed at all of these shapes (boom)",
        ),
        *(
            (
                "vllm",
                [OURS[0], row("trtllm-native", None, status, "x")],
                f"not a choice: FLASHINFER (use_trtllm_attention true): {status} at batch 8",
            )
            for status in ("mismatch", "failed", "timeout", "oom")
        ),
        ("vllm", [*OURS, row("flash_attn_3", 100.0, s_qo=4)], "verify not measured at 1 of 1 shapes"),
        (
            "vllm",
            [*OURS, row("flash_attn_3", 90.0, batch_size=1), row("trtllm-native", None, "unsupported", "no", batch_size=1)],
            "decode unsupported at 1 of 2 shapes (no)",
        ),
        (
            "vllm",
            [row("fa2", 60.0, routine="mla", compute_capability="8.0")],
            "this project does not have the backend",
        ),
        ("vllm", OURS, "no draft table: these rows have no verify (s_qo above 1) shapes; leave s_qo out of where"),
        (
            "vllm",
            [*OURS, *(row(b, 150.0, s_qo=4) for b in ("flash_attn_3", "trtllm-native"))],
            "no draft table: it needs the time of a whole step",
        ),
        (
            "sglang",
            [*OURS, *(row(b, 60.0, s_qo=4) for b in ("flash_attn_3_unplanned", "trtllm-native"))],
            "no draft table: SGLang takes one number",
        ),
        ("sglang", [row("flash_attn_3_unplanned", 60.0, s_qo=4)], "and no row is of decode (s_qo 1)"),
        (
            "sglang",
            [row("flash_attn_3", 100.0, page_size=8), row("trtllm-native", 60.0, page_size=8)],
            "pages of 8 tokens; the engine takes 16",
        ),
    ],
)
def test_what_the_data_do_not_support_is_said_and_gets_no_flag(engine: Engine, rows: list[Record], why: str):
    printed = text(engine, *rows)

    assert why in printed
    kept = {"--attention-config", "--decode-attention-backend"} if "draft table" in why else set()
    assert {line.split()[0] for line in flags(printed)} - {"--page-size"} <= kept


def test_a_mean_that_one_shape_makes_is_no_choice():
    rows = [row("flash_attn_3", 100.0, batch_size=b) for b in (1, 2, 4, 8)]
    rows += [row("trtllm-native", us, batch_size=b) for b, us in ((1, 10.0), (2, 101.0), (4, 101.0), (8, 101.0))]
    printed = text("vllm", *rows)

    assert "ahead by more than noise at only 1 of 4 shapes" in printed and flags(printed) == []


def test_a_choice_that_is_much_slower_somewhere_says_where():
    kept = [row("flash_attn_3", us, batch_size=b) for b, us in ((1, 30.0), (2, 100.0), (4, 100.0))]
    kept += [row("trtllm-native", us, batch_size=b) for b, us in ((1, 10.0), (2, 110.0), (4, 110.0))]
    taken = [row("flash_attn_3", 100.0, batch_size=b) for b in (1, 2, 4)]
    taken += [row("trtllm-native", us, batch_size=b) for b, us in ((1, 150.0), (2, 20.0), (4, 20.0))]
    first, second = text("vllm", *kept), text("vllm", *taken)

    assert "keep FLASH_ATTN, but at batch 1, s_qo 1, s_kv 8,192 it takes 3.00 times FLASHINFER (use_trtllm" in first
    assert "more than 1.2 times its time at 1 of 3 shapes" in first and "at worst 1.10 times the other's" in first
    assert (
        "take FLASHINFER (use_trtllm_attention true), but at batch 1, s_qo 1, s_kv 8,192 it takes 1.50 times the default" in second
    )
    assert "but at" not in text("vllm", *OURS)


def test_over_an_fp8_cache_each_backend_is_taken_with_the_queries_that_the_engine_gives_it():
    fp8 = {"kv_dtype": "fp8_e4m3"}
    rows = [row("flash_attn_3", 100.0, q_dtype="fp8_e4m3", **fp8), row("trtllm-native", 60.0, **fp8)]
    vllm, sglang = (flags(text(engine, *rows)) for engine in ("vllm", "sglang"))
    (attention, cache) = vllm

    assert json.loads(attention.removeprefix("--attention-config '")[:-1])["disable_flashinfer_q_quantization"] is True
    assert cache == "--kv-cache-dtype fp8_e4m3"
    assert sglang == ["--decode-attention-backend trtllm_mha", "--page-size 64", "--kv-cache-dtype fp8_e4m3"]


def test_over_an_fp8_latent_flash_mla_of_vllm_has_fp8_queries():
    (flag,) = (one for one in FLAGS["vllm"] if one.name == "FLASHMLA")

    assert [flag.calls_in("verify", fp8_cache) for fp8_cache in (False, True)] == [
        [("mla", "flash_mla_vllm", False)],
        [("mla", "flash_mla_vllm", True)],
    ]


def test_layers_with_a_window_and_layers_of_mla_are_kinds_of_their_own():
    window = [row("flash_attn_3", 50.0, window=128), row("trtllm-native", 80.0, window=128)]
    times = {"flash_attn_3": 100.0, "flash_attn_3_unplanned": 100.0, "flash_mla": 70.0, "flash_mla_vllm": 70.0}
    latent = [row(backend, us, routine="mla") for backend, us in times.items()]
    printed = text("vllm", *OURS, *window), text("vllm", *latent), text("sglang", *latent)

    assert (
        '{"full_attention": "FLASHINFER"}' in printed[0]
        and "sliding_window, decode: no line, the default FLASH_ATTN stays" in printed[0]
    )
    assert '{"mla_attention": "FLASHMLA"}' in printed[1]
    assert flags(printed[2]) == ["--decode-attention-backend flashmla", "--page-size 64"]


def test_a_dataset_without_shapes_to_choose_for_is_refused():
    on_a_cpu = row("torch_sdpa", 1.0, compute_capability=None)
    for rows in ([], [on_a_cpu]):
        with pytest.raises(UserError, match="which a flag is chosen for"):
            text("vllm", *rows)


@pytest.mark.parametrize("engine", FLAGS)
def test_every_name_has_its_calls_and_one_default_a_device_and_kind(engine: Engine):
    for major in (8, 9, 10, 12):
        for kind in ("full_attention", "mla_attention"):
            found = flags_of(engine, major, kind)  # type: ignore[arg-type]
            assert all(flag.calls for flag in found)
            assert sum(major in flag.default_on for flag in found) <= 1


@pytest.mark.parametrize("engine", FLAGS)
def test_every_call_of_a_name_is_a_backend_here(engine: Engine):
    named = {call for flag in FLAGS[engine] for calls in flag.calls.values() for call in calls}

    assert len(named) > 10
    assert named - registry.adapters().keys() == set()


def test_the_default_of_the_report_is_the_default_of_the_export():
    """analysis/engines.py says what an engine runs by default; the two must not drift apart."""
    from orchestrator.analysis.engines import DEFAULTS, VLLM

    phases: dict[bool | None, list[Phase]] = {None: ["decode", "verify"], False: ["decode"], True: ["verify"]}
    for default in DEFAULTS:
        if default.trees or default.routine == "ragged_prefill":
            continue
        engine: Engine = "vllm" if default.engine == VLLM else "sglang"
        kind = "mla_attention" if default.routine == "mla" else "full_attention"
        names = flags_of(engine, default.major, kind)  # type: ignore[arg-type]
        (flag,) = [f for f in names if (f.name == default.name if default.fp8_cache else default.major in f.default_on)]
        calls = [call for phase in phases[default.drafts] for call in flag.calls.get(phase, ())]
        routines = [routine for routine, _ in calls]
        assert default.name == flag.name
        assert (default.routine, default.backend) in calls or default.routine not in routines or default.major in (8, 12)


@pytest.mark.parametrize(("engine", "own"), [("vllm", "flash_attn_3_vllm"), ("sglang", "flash_attn_3_sglang")])
def test_an_engine_s_own_build_is_the_default_where_it_was_measured(engine: Engine, own: str):
    (flag,) = [f for f in flags_of(engine, 9, "full_attention") if 9 in f.default_on]
    stand_in = (DECODE, "flash_attn_3", False)
    measured = {name: Measured("ok", "", name, us, us) for name, us in ((own, 120.0), ("flash_attn_3", 100.0))}
    calls = {(DECODE, own, False): measured[own], stand_in: measured["flash_attn_3"]}

    def called(kept: dict[Any, Measured]) -> Measured | None:
        return call_of(flag, Shape("decode", "full_attention", 4, 1, 100, 64, (), False, kept))

    assert called(calls) == measured[own]
    assert called({stand_in: calls[stand_in]}) == measured["flash_attn_3"]


def test_a_tie_of_draft_lengths_takes_the_shorter():
    calls = {(DECODE, "flash_attn_3", False): Measured("ok", "", "flash_attn_3", 100.0, 100.0)}
    shapes = [Shape("decode" if q == 1 else "verify", "full_attention", 4, q, 100, 64, (), False, calls) for q in (1, 2)]
    (flag,) = [f for f in flags_of("vllm", 9, "full_attention") if f.default_on]
    free = Draft(acceptance=0.0, layers=1)

    assert [batch.drafts for batch in best_drafts(shapes, flag, free)] == [0]
    assert choose(shapes, [flag], 9).flag is None


def test_the_docs_show_what_a_committed_dataset_prints(invoke: Invoke, tmp_path: Path):
    file = tmp_path / "flags"
    done = invoke(f"export=sglang:{file}", "results.path=results/h200_main/specdec_long_ctx", "where={kv_dtype: fp8_e4m3, s_qo: 1}")
    page = (ROOT / "docs" / "formats.md").read_text()

    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert flags(file.read_text())[0] == "--decode-attention-backend trtllm_mha"
    assert file.read_text() in page.replace("\n    ", "\n")
