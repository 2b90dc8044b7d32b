"""vLLM's attention_benchmarks configs: what becomes of each key, and what has no counterpart, by line and word."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from kernels import registry
from orchestrator.config.settings import load
from orchestrator.errors import UserError
from orchestrator.formats.import_config import resolve_files
from orchestrator.planning.expand import expand
from orchestrator.point import Point
from tests.helpers.command_line import composed
from tests.helpers.noted import noted

MODEL = "model: {name: any, num_layers: 32, num_q_heads: 32, num_kv_heads: 8, head_dim: 128, block_size: 16}\n"
LATENT = (
    "model: {num_q_heads: 128, num_kv_heads: 1, head_dim: 576, kv_lora_rank: 512, qk_nope_head_dim: 128, qk_rope_head_dim: 64}\n"
)
PROMPTS = f"prefill_backends: [fa3, fa4]\n{LATENT}"
PROMPT_CALLS = ["ragged_prefill/flash_attn_3_vllm", "ragged_prefill/flash_attn_4"]
BACKENDS = "backends: [FLASHINFER]\n"


def points(tmp_path: Path, text: str, *overrides: str, device: str = "h100") -> list[Point]:
    path = tmp_path / "study.yaml"
    path.write_text(text)
    return expand(load(resolve_files(composed(f"import={path}", "mode=plan", f"device={device}", *overrides))))


def refused(tmp_path: Path, text: str) -> str:
    with pytest.raises(UserError) as caught:
        points(tmp_path, text)
    return str(caught.value)


def test_specs_become_decodes_prefills_and_mixed_batches_of_the_model(tmp_path: Path):
    found = points(
        tmp_path, f'description: "serving"\n{MODEL}batch_specs:\n  - "q512"\n  - "8q1s1k"\n  - "2q2k_8q1s1k"  # mixed\n{BACKENDS}'
    )

    assert [(p.problem.routine, p.backend, p.problem.batch_size, p.problem.s_qo, p.problem.s_kv) for p in found] == [
        ("paged_prefill", "auto", 1, 512, 512),
        ("paged_decode", "trtllm-native", 8, 1, 1024),
        ("paged_prefill", "auto", 10, 2048, 2048),
    ]
    assert [p.problem.batch_spec for p in found] == [None, None, "2q2k_8q1s1k"]
    heads = {(p.problem.num_qo_heads, p.problem.num_kv_heads, p.problem.head_dim_qk, p.problem.page_size) for p in found}
    assert heads == {(32, 8, 128, 16)}
    assert {(p.problem.q_dtype, p.problem.kv_dtype) for p in found} == {("bf16", "bf16")}


def test_mla_is_the_model_before_absorption(tmp_path: Path):
    text = f"{LATENT}batch_specs: [16q4s1k_16q1s1k]\nbackend: flashinfer_mla\nkv_cache_dtype: fp8\n"
    (point,) = points(tmp_path, text, device="b200")
    p = point.problem

    assert (p.routine, point.backend, p.batch_spec, p.kv_dtype) == ("mla", "trtllm-native", "16q4s1k_16q1s1k", "fp8_e4m3")
    assert (p.num_qo_heads, p.num_kv_heads, p.head_dim_qk, p.head_dim_vo) == (128, 128, 192, 128)
    assert (p.head_dim_ckv, p.head_dim_kpe) == (512, 64)


@pytest.mark.parametrize("cache", ["auto", "fp8"])
def test_mla_of_its_configs_runs_where_its_own_kernel_does(tmp_path: Path, cache: str):
    """Its benchmark computes in bf16, casts queries to FP8 over an FP8 latent, and takes the first page size of a kernel."""
    model = LATENT.replace("}", ", block_size: 128}")
    (tmp_path / "study.yaml").write_text(f"{model}batch_specs: [16q4s1k]\nbackends: [FLASHINFER_MLA]\nkv_cache_dtype: {cache}\n")
    settings = load(resolve_files(composed(f"import={tmp_path / 'study.yaml'}", "mode=plan", "device=b200")))
    (point,) = expand(settings)
    needs = registry.adapters()["mla", point.backend].needs(point.problem, settings.device)

    assert (point.problem.page_size, point.problem.output_dtype) == (32, "bf16")
    assert [need.sentence for need in needs if not need.met] == []


def test_ranges_are_the_grid_of_their_values_and_batch_sizes_are_counts(tmp_path: Path):
    ranges = (
        "batch_spec_ranges:\n"
        "  - {template: 'q{q}s{kv}k', q: {start: 1, stop: 5, step: 3}, kv: {start: 1, stop: 3, end_inclusive: false}}\n"
        "batch_sizes: [1, 32]\n"
    )
    found = points(tmp_path, f"{MODEL}{ranges}{BACKENDS}")

    assert [(p.problem.batch_size, p.problem.s_qo, p.problem.s_kv) for p in found] == [
        (batch, q, kv) for q in (1, 4) for kv in (1024, 2048) for batch in (1, 32)
    ]


def test_a_name_of_a_template_may_have_one_value_and_stand_twice(tmp_path: Path):
    ranges = "batch_spec_ranges: [{template: 'q{n}s{kv}k_q{n}s{kv}k', n: {start: 1, stop: 2}, kv: 4}]\n"
    found = points(tmp_path, f"{MODEL}{ranges}{BACKENDS}")

    assert [(p.problem.batch_size, p.problem.s_qo, p.problem.s_kv) for p in found] == [(2, 1, 4096), (2, 2, 4096)]


@pytest.mark.parametrize(
    "values",
    [
        "values: [{num_q_heads: 8, num_kv_heads: 1}, {num_q_heads: 8, num_kv_heads: 8}], label_format: x",
        "param_name: num_kv_heads, values: [1, 8]",
    ],
)
def test_a_sweep_of_the_model_is_one_of_head_shapes(tmp_path: Path, values: str):
    found = points(tmp_path, f"{MODEL}model_parameter_sweep: {{{values}}}\nbatch_specs: [8q1s1k]\n{BACKENDS}")

    assert [p.problem.num_kv_heads for p in found] == [1, 8]


def test_our_own_backends_and_routine_may_be_named_for_all_of_its_points(tmp_path: Path):
    text = f"{MODEL}batch_specs: [8q4s1k]\nbackends: [FLASH_ATTN, TRITON_ATTN]\n"
    found = points(tmp_path, text, "+sweep.backend=[fa2_tc,cudnn]", "+sweep.routine=paged_decode")

    assert [(p.problem.routine, p.backend) for p in found] == [("paged_decode", "fa2_tc"), ("paged_decode", "cudnn")]
    assert [p.backend for p in points(tmp_path, text.replace("FLASH_ATTN, TRITON_ATTN", "fa2, fa3"))] == ["fa2", "fa3"]


def test_ignored_keys_are_listed(tmp_path: Path):
    path = tmp_path / "study.yaml"
    path.write_text(f"{MODEL}batch_specs: [q1s1k]\n{BACKENDS}repeats: 5\nbenchmark: {{warmup_iters: 3}}\n")

    assert resolve_files(composed(f"import={path}"))["sweep"]["about"] == (
        f"batch specs ({path}; repeats, benchmark give way to timing= and check=)"
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("mode: decode_vs_prefill\n", "1: mode: decode_vs_prefill has no counterpart here"),
        ("\nparameter_sweep: {param_name: num_kv_splits, values: [1]}\n", "2: parameter_sweep: "),
        ("batch_specs:\n  - q1s1k\n  - 8s1k\n", "3: batch_spec '8s1k': '8s1k' is vLLM's older dialect; type '8q1s1k'"),
        ("batch_specs:\n  - q8s4\n  - q1s1k\n", "2: batch_spec 'q8s4': 'q8s4' has s=4 below q=8"),
        (
            "batch_specs: [q1s1k]\nbackends:\n  - FLASHINFER\n  - ROCM_ATTN\n  - ROCM_ATTN\n",
            "4: 2 lines by which vLLM 0.33.0 runs no kernel of this project for decode: ROCM_ATTN (2)",
        ),
        ("batch_specs: [q1s1k]\nmodel: 3\n", "2: model: 3: allowed: a mapping"),
        ("batch_specs: [q1s1k]\nmodel:\n  head_dim: 64\n  window: 3\n", "4: model.window: window=3: has no counterpart"),
        (
            "batch_specs: [q1s1k]\nmodel_parameter_sweep: {param_name: num_kv_heads, values: [8, 7]}\n",
            "1: num_qo_heads=32 does not divide by num_kv_heads=7",
        ),
        ("batch_specs: [q1s1k]\nkv_cache_dtype: int8\n", "2: kv_cache_dtype: 'int8': allowed: auto, fp8"),
        (
            "batch_specs: [q1s1k]\nmodel_parameter_sweep: {values: [{}, {depth: 3}]}\n",
            "2: model_parameter_sweep.values[1].depth: depth=3: has no counterpart",
        ),
        ("batch_specs: [q1s1k]\nmodel_parameter_sweep: {value: [1]}\n", "2: model_parameter_sweep.value: [1] has no counterpart"),
        ("batch_specs: [q1s2k, 2q1s1k]\nbatch_sizes: [1, 2]\n", "1: batch_specs[1]: '2q1s1k' beside batch_sizes"),
        (
            "batch_specs: [q1s2k]\nbatch_spec_ranges: [{template: 'q{q}s1k'}]\n",
            "2: template 'q{q}s1k': its names are ['q'], the ranges are of []",
        ),
    ],
)
def test_what_has_no_counterpart_is_named_by_line_and_the_rest_is_taken(tmp_path: Path, text: str, words: str):
    found, said = noted(lambda: points(tmp_path, f"{text}{rest_of(text)}{'' if 'batch' in text else 'batch_specs: [q1s1k]'}"))

    assert found
    assert words in said.replace("left out: study.yaml:", "")


def rest_of(text: str) -> str:
    return "" if "backends" in text else BACKENDS


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("batch_specs: [q1s1k]\nmodel: {head_dim: big}\n", "2: model.head_dim: head_dim='big': allowed: a whole number"),
        (
            "batch_specs: [q1s1k]\nmodel_parameter_sweep: {param_name: num_kv_heads, values: 1}\n",
            "2: model_parameter_sweep.values: 1: allowed: a list",
        ),
        (
            "batch_spec_ranges: [{template: 'q{q}s1k', q: {start: 1}}]\n",
            "1: q={'start': 1}: allowed: a value, or {start: 1, stop: 16",
        ),
        ("batch_spec_ranges: [{template: 'q{q}s1k', q: {start: 1, stop: 3, step: 0}}]\n", "a step from 1"),
        ("batch_spec_ranges: [{template: 'q{s1k'}]\n", "1: template 'q{s1k'"),
        ("batch_spec_ranges: [q1]\n", "1: 'q1': allowed: a mapping with a template"),
        ("backends: [FLASHINFER]\n", "1: batch_specs: none that can be read"),
        ("batch_specs: [q1s1k]\nbackends: []\n", "backends: none given"),
    ],
)
def test_a_file_of_which_nothing_is_left_is_refused_with_the_reasons(tmp_path: Path, text: str, words: str):
    message = refused(tmp_path, f"{text}{rest_of(text)}")

    assert words in message
    assert "study.yaml was taken" in message


@pytest.mark.parametrize(
    ("text", "device", "calls"),
    [
        ("backends: [FLASH_ATTN]", "h100", ["paged_decode/flash_attn_3_vllm"]),
        ("backends: [FLASH_ATTN]", "a100", ["paged_decode/flash_attn_2_vllm"]),
        ("backends: [FLASHINFER]\ncuda_graphs: true\nwarmup_ms: 100", "h100", ["paged_decode/trtllm-native"]),
        ("batch_specs: [8q4s1k]\nbackends: [TRITON_ATTN, fa2]", "h100", ["paged_decode/vllm_triton", "paged_prefill/fa2"]),
        (f"backends: [FLASH_ATTN_MLA, FLASHMLA]\n{LATENT}", "h100", ["mla/flash_attn_3", "mla/flash_mla_vllm"]),
        (
            f"batch_specs: [2q1k]\nbackend: FLASHMLA\n{PROMPTS}",
            "h100",
            ["ragged_prefill/flash_attn_3_vllm", "ragged_prefill/flash_attn_4"],
        ),
        (
            f"batch_specs: [2q1k]\nbackend: FLASHMLA\n{PROMPTS}",
            "b200",
            ["ragged_prefill/flash_attn_3_vllm", "ragged_prefill/flash_attn_4"],
        ),
        (f"backends: [FLASHINFER_MLA]\nparameter_sweep: {{values: [1, 8]}}\n{LATENT}", "h100", ["mla/trtllm-native"]),
    ],
)
def test_a_name_of_vllm_is_what_its_newest_release_runs_by_it(tmp_path: Path, text: str, device: str, calls: list[str]):
    found = points(tmp_path, text if "batch" in text else f"batch_specs: [8q1s1k]\n{text}", device=device)

    assert [f"{p.problem.routine}/{p.backend}" for p in found] == calls


def test_without_a_device_a_name_is_all_that_vllm_runs_by_it(tmp_path: Path):
    path = tmp_path / "study.yaml"
    path.write_text(f"{MODEL}batch_specs: [8q1s1k]\nbackends: [FLASH_ATTN]\n")
    rules = resolve_files(composed(f"import={path}"))["sweep"]["include"]

    assert [name for rule in rules for name in rule["backend"]] == ["flash_attn_2_vllm", "flash_attn_3_vllm", "flash_attn_4"]


def test_prompts_of_mla_are_calls_of_their_own_and_chunks_over_a_cache_are_counted(tmp_path: Path):
    text = f"{LATENT}batch_specs:\n- 2q1k_8q1s1k\n- q512s4k\n- q256s4k_4q1s1k\n- q1k_q1s0\nbackends: [FLASHMLA]\n"
    found, said = noted(lambda: points(tmp_path, text))

    assert [(p.problem.routine, p.problem.batch_size, p.problem.s_qo, p.problem.head_dim_qk) for p in found] == [
        ("ragged_prefill", 2, 1024, 192),
        ("mla", 8, 1, 192),
        ("mla", 4, 1, 192),
        ("ragged_prefill", 1, 1024, 192),
    ]
    assert "1 line with requests without keys alone beside its prompts: q1s0" in said
    assert "2 lines with chunks of prompts over cached tokens, which MLA runs as two calls and a merge: q512s4k, q256s4k" in said


def test_both_sides_of_a_threshold_are_decoded_whatever_their_queries(tmp_path: Path):
    text = f"{LATENT}mode: decode_vs_prefill\nbatch_specs: [q1s1k, q512s1k]\nbackends: [FLASH_ATTN_MLA]\n"

    assert [(p.problem.routine, p.problem.s_qo) for p in points(tmp_path, text)] == [("mla", 1), ("mla", 512)]


@pytest.mark.parametrize("more", [[], ["+sweep.backend=[flash_mla_vllm]"]])
def test_backends_that_attend_to_chosen_keys_give_points_of_that_routine(tmp_path: Path, more: list[str]):
    text = f"{LATENT}batch_specs: [32q1s32k, q512s4k]\nbackends: [FLASHMLA_SPARSE]\nkv_cache_dtype: fp8\n"
    found, said = noted(lambda: points(tmp_path, text, *more))

    assert [(p.problem.routine, p.backend, p.problem.s_qo, p.problem.axis("top_k")) for p in found] == [
        ("sparse_mla", "flash_mla_vllm", 1, 2048),
        ("sparse_mla", "flash_mla_vllm", 512, 2048),
    ]
    assert {(p.problem.q_dtype, p.problem.kv_dtype) for p in found} == {("bf16", "fp8_ds_mla")} and not said


def test_a_config_of_sparse_and_dense_backends_gives_points_of_both(tmp_path: Path):
    text = f"{LATENT}batch_specs: [32q1s32k]\nbackends: [FLASH_ATTN_MLA, FLASH_ATTN_MLA_SPARSE]\n"

    assert [(p.problem.routine, p.backend) for p in points(tmp_path, text)] == [
        ("mla", "flash_attn_3"),
        ("sparse_mla", "flash_attn_3_unplanned"),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [("a: [1\n", "study.yaml:2: not YAML"), ("- 1\n", "study.yaml:1: no mapping"), ("", "no mapping"), ("a: \x07\n", "not YAML")],
)
def test_a_file_that_is_no_config_says_so(tmp_path: Path, text: str, words: str):
    assert words in refused(tmp_path, text)


ON_GPU = "device: 'cuda:0'\nprofile_memory: true\n"
DEEPSEEK = f"{LATENT.rstrip()[:-1]}, name: deepseek-v3, num_layers: 60, v_head_dim: 128, block_size: 128}}\n{ON_GPU}"
GLM = DEEPSEEK.replace("nope_head_dim: 128", "nope_head_dim: 192").replace("v_head_dim: 128", "v_head_dim: 256")
PLAIN = f"{MODEL}backends: [FLASH_ATTN, TRITON_ATTN, FLASHINFER]\n{ON_GPU}"
HEADS = "model_parameter_sweep: {param_name: num_q_heads, values: [128, 64], label_format: '{backend}_{value}h'}\n"
SHARES = "model_parameter_sweep: {values: [{num_q_heads: 32, num_kv_heads: 1}, {num_q_heads: 8, num_kv_heads: 2, head_dim: 64}]}\n"
DENSE = "backends: [CUTLASS_MLA, FLASHINFER_MLA, FLASH_ATTN_MLA, FLASHMLA]\n"
SPARSE = "backends: [FLASHMLA_SPARSE, FLASHINFER_MLA_SPARSE]\n"
VARIANTS = "mode: mha_vs_mqa\nsparse_mla_topk_pattern: random\n"
ALL_PROMPTS = "decode_backends: [CUTLASS_MLA]\nprefill_backends: [fa2, fa3, fa4, flashinfer, cudnn, trtllm, tokenspeed]\n"
FP8_OUTPUT = "decode_backends: [CUTLASS_MLA]\nfp8_output_scale: 0.1\nfuse_quant_op: [false, true]\nrepeats: 50\nwarmup_iters: 10\n"
DECODE_KEYS = "CUTLASS_MLA: {num_kv_splits: auto}\nFLASHMLA: {reorder_batch_threshold: 1}\n"
MASKED = "sparse_mla_masked_mha_max_seq_len: 8192\nsparse_mla_mha_variants: [dense_mha, masked_mha, mqa]\n"
CROSSOVER = (
    "model: {num_layers: 10, head_dim: 576, num_q_heads: 128, num_kv_heads: 1, block_size: 128}\nbackend: FLASH_ATTN_MLA\n"
    "mode: decode_vs_prefill\nbatch_sizes: [1, 256]\noutput: {csv: a.csv}\nbatch_spec_ranges:\n"
    "- {template: 'q{q_len}s1k', q_len: {start: 1, stop: 16, step: 5, end_inclusive: false}}\n"
    "- {template: 'q{q_len}s1k', q_len: {start: 16, stop: 64, step: 16, end_inclusive: true}}\n"
)
THRESHOLDS = "parameter_sweep: {param_name: reorder_batch_threshold, values: [1, 512], include_auto: false}\n"
CONFIGS = {  # the keys of the 14 of vLLM 0.33.0, with few of their specs: what each gives, and what is said to be left out
    "mla_decode": (
        f"{DEEPSEEK}{HEADS}{DENSE.replace(']', ', TOKENSPEED_MLA]')}{DECODE_KEYS}batch_specs: [q1s1k, 64q1s4k]\n",
        {"mla": 16},
        ["TOKENSPEED_MLA", "CUTLASS_MLA: {'num", "FLASHMLA: {'re"],
    ),
    "mla_fa4_fp8_output": (
        f"{DEEPSEEK}{FP8_OUTPUT}batch_specs: [q512, 2q4k]\n", {"ragged_prefill": 2}, ["fp8_output_scale", "fuse_quant_op"]
    ),
    "mla_mixed_batch": (
        f"{DEEPSEEK}{DENSE}chunked_prefill: {{test_workspace_sizes: [4096]}}\nbatch_specs: [q1k, 2q2k_32q1s1k, 2q1ks2k_16q1s1k]\n",
        {"mla": 8, "ragged_prefill": 2},
        ["2q1ks2k", "chunked_prefill"],
    ),
    "mla_prefill": (
        f"{DEEPSEEK}{ALL_PROMPTS}batch_specs: [q512, q512s4k]\n", {"ragged_prefill": 4}, ["q512s4k", "fa2, trtllm, tokenspeed"]
    ),
    "mla_sparse_decode": (
        f"{DEEPSEEK}{HEADS}{SPARSE}batch_specs: [q1s4k, 32q1s32k]\n", {"sparse_mla": 4}, ["FLASHINFER_MLA_SPARSE"]
    ),
    "mla_sparse_masked_mha_vs_mqa": (
        f"{DEEPSEEK}{VARIANTS}{MASKED}{SPARSE}batch_specs: [q512s4k, q8k]\n",
        {"sparse_mla": 2},
        ["mode: mha_vs_mqa", "masked_mha_max", "mha_variants", "topk_pattern"],
    ),
    "mla_sparse_masked_mha_vs_mqa_glm5": (
        f"{GLM}{HEADS}{VARIANTS}{MASKED}{SPARSE}batch_specs: [q256s2k]\n",
        {"sparse_mla": 2},
        ["mode: mha_vs_mqa", "FLASHINFER_MLA_SPARSE", "mha_variants"],
    ),
    "mla_sparse_mha_vs_mqa": (
        f"{DEEPSEEK.replace('block', 'max_model_len: 2048, block')}{VARIANTS}{SPARSE}batch_specs: [q1s2k]\noutput: {{csv: a}}\n",
        {"sparse_mla": 1},
        ["mode: mha_vs_mqa", "topk_pattern"],
    ),
    "mla_sparse_prefill": (
        f"{DEEPSEEK}{HEADS}{SPARSE}batch_specs: [q512, q1k]\n", {"sparse_mla": 4}, ["FLASHINFER_MLA_SPARSE"]
    ),
    "reorder_threshold": (CROSSOVER, {"mla": 14}, ["mode: decode_vs_prefill"]),
    "speculative_decode": (
        f"{DEEPSEEK}{THRESHOLDS}backends: [FLASH_ATTN_MLA, FLASHMLA]\nbatch_specs: [q4s1k, 8q8s2k_24q1s2k, 2q1k_16q4s1k_16q1s1k]\n",
        {"mla": 6, "ragged_prefill": 1},
        ["parameter_sweep"],
    ),
    "standard_attention": (
        f"{PLAIN}batch_specs: [q2k, 8q1s1k, 2q2k_8q1s1k]\n", {"paged_prefill": 6, "paged_decode": 3}, []
    ),
    "standard_decode": (f"{PLAIN}{SHARES}batch_specs: [1q1s1k, 256q1s64k]\n", {"paged_decode": 12}, []),
    "standard_prefill": (f"{PLAIN}{SHARES}batch_specs: [q512, 4q4k]\n", {"paged_prefill": 12}, []),
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
def test_each_config_of_vllm_gives_points_and_names_the_rest(tmp_path: Path, name: str):
    text, points_of, left_out = CONFIGS[name]
    found, said = noted(lambda: points(tmp_path, text))

    assert Counter(point.problem.routine for point in found) == points_of
    assert [words for words in left_out if words not in said] == []
    assert bool(said) == bool(left_out)
