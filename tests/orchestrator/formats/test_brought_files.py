"""Small files of the kinds that users have, as their programs write them: what each gives, and what is said of the rest.

All numbers in them are made up; the names of keys, columns and flags are those of the programs.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.config.settings import load
from orchestrator.errors import UserError
from orchestrator.formats import results_csv
from orchestrator.formats.flashinfer_trace import reader
from orchestrator.formats.import_config import resolve_files
from orchestrator.machines import known_devices
from orchestrator.planning.expand import expand
from tests.helpers.command_line import composed
from tests.helpers.noted import noted

GQA = "model: {num_q_heads: 32, num_kv_heads: 8, head_dim: 128, block_size: 16}\n"
MLA = (
    "model: {num_q_heads: 128, num_kv_heads: 1, head_dim: 576, kv_lora_rank: 512, qk_nope_head_dim: 128, qk_rope_head_dim: 64, "
    "v_head_dim: 128, block_size: 64}\n"
)
HEADS = "--num_qo_heads 64 --num_kv_heads 8 --head_dim_qk 128"
DECODE = f"--routine BatchDecodeWithPagedKVCacheWrapper --backends fa2 --page_size 16 --batch_size 4 --s_kv 1024 {HEADS}"
PROMPTS = "--batch_size 2 --s_qo 512 --s_kv 512 --head_dim_vo 128 --causal"
TRACE = '{"definition":"%s","solution":%s,"workload":{"uuid":"u1","axes":%s,"inputs":{"q":{"type":"random"}%s}},"evaluation":%s}\n'
YARN = ',"sm_scale":{"type":"scalar","value":0.1352337788608801}'
DECODES = '{"batch_size":2,"num_pages":200,"len_indptr":3,"num_kv_indices":128}'
EVALUATION = (
    '{"status":"PASSED","environment":{"hardware":"NVIDIA H100","libs":{"torch":"2.11"}},"log":"",'
    '"correctness":{"max_relative_error":0.001,"max_absolute_error":0.001},'
    '"performance":{"latency_ms":0.02,"reference_latency_ms":1.0,"speedup_factor":50}}'
)
POINTS = {
    "v1.yaml": (f'{GQA}batch_specs: ["8q1s1k"]\nbackends: [FLASH_ATTN]\n', ["paged_decode/flash_attn_3_vllm"], ""),
    "v2.yaml": (
        f'{MLA}batch_specs: ["8q1s1k"]\nbackends: [FLASH_ATTN_MLA, FLASHMLA]\n',
        ["mla/flash_attn_3", "mla/flash_mla_vllm"],
        "",
    ),
    "v3.yaml": (
        f'{GQA}batch_specs: ["8q1s1k"]\nbackends: [FLASHINFER]\ncuda_graphs: true\nwarmup_ms: 100\n',
        ["paged_decode/trtllm-native"],
        "",
    ),
    "v4.yaml": (
        f'{MLA.replace(", block_size: 64", "")}batch_specs: ["2q1k_8q1s1k"]\nbackends: [FLASHINFER_MLA]\n',
        ["ragged_prefill/flash_attn_3_vllm", "mla/trtllm-native"],
        "",
    ),
    "v5.yaml": (
        f'{MLA}batch_specs: ["q4s1k"]\nbackends: [FLASHINFER_MLA]\n'
        "parameter_sweep: {param_name: reorder_batch_threshold, values: [1, 8]}\n",
        ["mla/trtllm-native"],
        "parameter_sweep: {'param_name': 'reorder_batch_threshold', 'values': [1, 8]} has no counterpart here",
    ),
    "f5.txt": (
        f"{DECODE}\n--routine mm_fp4 --m 256 --n 2048 --k 4096 --out_dtype bfloat16 --backends cudnn\n",
        ["paged_decode/fa2"],
        "1 line of other routines: mm_fp4",
    ),
    "f6.txt": (
        f"--routine BatchPrefillWithPagedKVCacheWrapper --backends fa2 fa3 trtllm-gen --page_size 16 {PROMPTS} {HEADS}\n"
        f"--routine BatchPrefillWithRaggedKVCacheWrapper --backends fa2 fa3 {PROMPTS} "
        "--num_qo_heads 128 --num_kv_heads 128 --head_dim_qk 192\n",
        ["paged_prefill/fa2", "paged_prefill/fa3", "ragged_prefill/fa2", "ragged_prefill/fa3"],
        "1 line with backends that paged_prefill has not here: trtllm-gen",
    ),
    "f7.txt": (f"python3 flashinfer_benchmark.py {DECODE}\n", ["paged_decode/fa2"], ""),
    "gqa.jsonl": (TRACE % ("gqa_paged_decode_h32_kv8_d128_ps16", "null", DECODES, "", "null"), ["paged_decode/auto"], ""),
    "mla.jsonl": (
        TRACE % (
            "mla_paged_decode_h16_ckv512_kpe64_ps64", "null", DECODES, YARN, "null"
        ),
        ["mla/auto"],
        "",
    ),
    "t.jsonl": (
        TRACE % ("gqa_paged_decode_h32_kv8_d128_ps16", '"fi_x"', DECODES, "", EVALUATION),
        ["paged_decode/auto"],
        "1 line with an evaluation, which becomes a row without +sweep and mode=plan: fi_x",
    ),
}  # fmt: skip


def written(tmp_path: Path, name: str, content: str) -> str:
    (tmp_path / name).write_text(content)
    return str(tmp_path / name)


@pytest.mark.parametrize("name", POINTS)
def test_a_file_gives_its_points_and_names_the_rest(tmp_path: Path, name: str):
    content, expected, words = POINTS[name]
    backends = ["+sweep.backend=[auto]"] if name.endswith(".jsonl") else []
    command = (f"import={written(tmp_path, name, content)}", "mode=plan", "device=h100", *backends)
    found, said = noted(lambda: expand(load(resolve_files(composed(*command)))))

    assert [f"{p.problem.routine}/{p.backend}" for p in found] == expected
    assert words in said and bool(words) == bool(said)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        (
            "f4.txt",
            "--routine trtllm_batch_decode_sparse_mla_dsv4 --backends trtllm-gen --page_size 256 --batch_size 2 --s_kv 8192\n",
            "1 line of other routines: trtllm_batch_decode_sparse_mla_dsv4",
        ),
        ("gdn.jsonl", TRACE % ("gdn_decode_qk16_v32_d128_k_last", "null", "{}", "", "null"), "no operation of this project"),
        (
            "dsa.jsonl",
            TRACE % ("dsa_sparse_attention_h16_ckv512_kpe64_topk2048_ps64", "null", "{}", "", "null"),
            "no operation of this project",
        ),
    ],
)
def test_a_file_of_which_nothing_is_known_is_refused_with_the_reason(tmp_path: Path, name: str, content: str, words: str):
    with pytest.raises(UserError, match=words):
        resolve_files(composed(f"import={written(tmp_path, name, content)}", "mode=plan", "device=h100"))


def test_a_result_of_2025_and_an_evaluation_are_rows(tmp_path: Path):
    header = "routine,median_time,std_time,tflops,tb_per_sec,backend,page_size,batch_size,s_qo,s_kv,num_qo_heads,num_kv_heads,"
    line = "BatchDecodeWithPagedKVCacheWrapper,{},0.0001,5.4,0.67,{},16,8,1,8192,64,8,128,128,False,torch.bfloat16,torch.bfloat16\n"
    text = f"{header}head_dim_qk,head_dim_vo,causal,q_dtype,kv_dtype\n{line.format(0.2, 'fa2')}{line.format(0.1, 'trtllm')}"
    rows = results_csv.read(written(tmp_path, "r3.csv", text), known_devices()["h200"], "r3")
    (row,) = reader.rows_of(written(tmp_path, "t.jsonl", POINTS["t.jsonl"][0]), None, "t")

    assert [(row["backend"], row["median_us"]) for row in rows] == [("fa2", 200), ("trtllm", 100)]
    assert (row["backend"], row["status"], row["median_us"], row["device_name"]) == ("fi_x", "ok", 20, "NVIDIA H100 80GB HBM3")


SGLANG = """\
# HELP sglang:prompt_tokens_histogram Histogram of prompt token length.
# TYPE sglang:prompt_tokens_histogram histogram
sglang:prompt_tokens_histogram_bucket{le="1000.0",model_name="m"} 5.0
sglang:prompt_tokens_histogram_bucket{le="+Inf",model_name="m"} 10.0
sglang:generation_tokens_histogram_bucket{le="100.0",model_name="m"} 7.0
sglang:generation_tokens_histogram_bucket{le="+Inf",model_name="m"} 10.0
sglang:num_running_reqs{model_name="m"} 8.0
"""
MOONCAKE = (
    '{"timestamp": 0, "input_length": 1500, "output_length": 400, "hash_ids": [0, 1, 2]}\n'
    '{"timestamp": 20000, "input_length": 900, "output_length": 300, "hash_ids": [0, 13]}\n'
)
SESSION = (
    '{"session_id": "a", "input_length": 1500, "output_length": 400}\n'
    '{"session_id": "a", "delay": 10, "input_length": 2400, "output_length": 300}\n'
)
AIPERF = '{"metrics": {"input_sequence_length": {"value": 550, "unit": "tokens"}, "output_sequence_length": {"value": 16}}}\n'
VLLM_BENCH = '{"backend": "vllm", "num_prompts": 2, "input_lens": [1024, 1024], "output_lens": [128, 128]}'


@pytest.mark.parametrize(
    ("name", "content", "s_kv", "words"),
    [
        ("t_vllm_bench.json", VLLM_BENCH, [1038, 1062, 1088, 1114, 1138], ""),
        ("t_vllm_bench_pretty.json", VLLM_BENCH.replace(", ", ",\n  "), [1038, 1062, 1088, 1114, 1138], ""),
        (
            "t_sgl_metrics.txt",
            SGLANG,
            [514, 540, 793, 1027, 1062],
            "50% of sglang:prompt_tokens_histogram lie above",
        ),
        ("t_aiperf.jsonl", AIPERF, [552, 555, 558, 562, 565], ""),
        ("t_mooncake.jsonl", MOONCAKE, [971, 1111, 1509, 1690, 1829], "1 of 5 blocks of prompts (hash_ids) repeat earlier ones"),
        ("t_mooncake_session.jsonl", SESSION, [1572, 1711, 1921, 2490, 2630], ""),
    ],
)
def test_traffic_of_a_file_is_five_lengths(tmp_path: Path, name: str, content: str, s_kv: list[int], words: str):
    sweep = resolve_files(composed("+sweep=specdec_long_ctx", f"traffic={written(tmp_path, name, content)}", "mode=plan"))["sweep"]

    assert [point["s_kv"] for point in sweep["traffic"]] == s_kv
    assert {point.get("batch_size") for point in sweep["traffic"]} == ({8} if name == "t_sgl_metrics.txt" else {None})
    assert words in sweep["about"]
