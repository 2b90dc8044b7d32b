"""OperatorX's attention lists: production shapes as points, and what is left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kernels.problem import Problem
from orchestrator.config.settings import load
from orchestrator.errors import UserError
from orchestrator.formats import operatorx
from orchestrator.formats.import_config import resolve_files
from orchestrator.planning.expand import expand
from tests.helpers.command_line import composed
from tests.helpers.noted import noted

BF16 = dict.fromkeys(("dtype_q", "dtype_k", "dtype_v", "dtype_o"), "bf16")
MHA = {
    "batch_size": 4,
    "seq_len_q": 1,
    "seq_len_kv": 1536,
    "num_heads": 8,
    "num_heads_kv": 1,
    "head_dim": 64,
    "causal": True,
    **BF16,
}
MLA = {
    "batch_size": 9, "seq_len_q": 2, "seq_len_kv": 8704, "num_heads": 16, "head_dim_qk_nope": 128, "head_dim_qk_rope": 64,
    "head_dim_v": 128, "kv_lora_rank": 512, "dtype_q": "nvfp4", "dtype_kv": "fp8", "dtype_o": "bf16", "rope": True, "causal": True,
}  # fmt: skip


def written(tmp_path: Path, *entries: object) -> str:
    path = tmp_path / "attention.json"
    path.write_text(json.dumps(entries))
    return str(path)


def mha(**change: Any) -> dict[str, Any]:
    return {"type": "attention_mha", "args": {**MHA, **change}, "name": "model"}


def mla(**change: Any) -> dict[str, Any]:
    return {"type": "attention_mla", "args": {**MLA, **change}, "name": "model"}


@pytest.mark.parametrize(
    ("entry", "keys"),
    [
        (mha(), {"routine": "paged_decode", "s_qo": 1, "s_kv": 1536, "num_kv_heads": 1, "page_size": 64}),
        (mha(sliding_window=128), {"window": 128}),
        (mha(dtype_k="fp8", dtype_v="fp8"), {"q_dtype": "bf16", "kv_dtype": "fp8_e4m3"}),
        (mha(seq_len_q=1536, causal=False), {"routine": "ragged_prefill", "mask": "full"}),
        (mha(seq_len_q=512), {"routine": "paged_prefill"}),
        (mla(), {"routine": "mla", "num_kv_heads": 16, "head_dim_qk": 192, "head_dim_ckv": 512}),
        (mla(), {"q_dtype": "fp8_e4m3", "kv_dtype": "fp8_e4m3", "output_dtype": "bf16"}),
        (mha(dtype_q="nvfp4", dtype_k="fp8", dtype_v="fp8"), {"q_dtype": "bf16", "kv_dtype": "fp8_e4m3"}),
        (mla(dtype_q="fp8"), {"q_dtype": "fp8_e4m3", "output_dtype": "bf16"}),
        (mla(seq_len_q=8704), {"routine": "ragged_prefill", "head_dim_vo": 128, "kv_dtype": "bf16", "head_dim_ckv": None}),
    ],
)  # fmt: skip
def test_an_operation_is_a_problem(tmp_path: Path, entry: object, keys: dict[str, object]):
    (rule,), _ = operatorx.read(written(tmp_path, entry))
    problem = Problem.model_validate(rule)

    assert {key: getattr(problem, key) for key in keys} == keys


def test_equal_operations_are_one_point_and_others_are_counted(tmp_path: Path):
    path = written(tmp_path, mha(), mha(), mla(), {"type": "gemm", "args": {}}, {"type": "gemm"}, 3, mla(dtype_kv="int4"))
    (rules, about), said = noted(lambda: operatorx.read(path))

    assert len(rules) == 2
    assert "2 different operations" in about and "left out, whole or in part: 5 operations" in about
    assert "4: 3 operations of other types: gemm (2), None" in said
    assert "7: args.dtype_k='int4': allowed: bf16, fp16, fp8" in said
    assert "1 operation with queries of 4 bits, as no kernel has them; taken as those of the output, in MLA of the" in said


def test_the_command_names_the_backends(tmp_path: Path):
    path = written(tmp_path, mha(), mla())
    found = expand(load(resolve_files(composed(f"import={path}", "mode=plan", "device=h100", "+sweep.backend=[flash_attn_3]"))))

    assert [(p.problem.routine, p.backend) for p in found] == [("paged_decode", "flash_attn_3"), ("mla", "flash_attn_3")]
    with pytest.raises(UserError, match="a workload names no backend; type"):
        resolve_files(composed(f"import={path}"))


def test_each_backend_of_the_command_goes_where_its_routine_has_it(tmp_path: Path):
    path = written(tmp_path, mha(), mla(), mla(seq_len_q=8704))
    command = (f"import={path}", "mode=plan", "device=h100", "+sweep.backend=[fa2_tc,flash_mla_vllm]")
    found, said = noted(lambda: expand(load(resolve_files(composed(*command)))))

    assert [(p.problem.routine, p.backend) for p in found] == [("paged_decode", "fa2_tc"), ("mla", "flash_mla_vllm")]
    assert "1 workloads of ragged_prefill, which has none of +sweep.backend=[fa2_tc,flash_mla_vllm]" in said
    with pytest.raises(UserError, match="has no backend 'nope'"):
        expand(load(resolve_files(composed(*command[:3], "+sweep.backend=[fa2_tc,nope]"))))


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (mha(head_dim="64"), "args.head_dim='64': allowed: a whole number"),
        (mha(alibi=True), "args.alibi has no counterpart here"),
        (mha(dtype_v="fp8"), "args.dtype_v='fp8': allowed: that of the keys, 'bf16'"),
        (mha(num_heads_kv=3), "num_qo_heads=8 does not divide by num_kv_heads=3"),
        ({"type": "attention_mha", "args": 3}, "args=3: allowed: a mapping"),
        ({"type": "attention_mla", "args": MHA}, "args: head_dim_qk_nope is missing"),
        ({"type": ["attention_mla"]}, "1 operation of other types"),
    ],
)
def test_an_operation_without_a_counterpart_is_named(tmp_path: Path, entry: object, words: str):
    with pytest.raises(UserError) as caught:
        operatorx.read(written(tmp_path, entry))

    assert words in str(caught.value)


@pytest.mark.parametrize("text", ["{}", "[]"])
def test_another_json_is_no_list_of_operations(tmp_path: Path, text: str):
    path = tmp_path / "attention.json"
    path.write_text(text)
    with pytest.raises(UserError, match="give an attention list of OperatorX"):
        operatorx.read(str(path))
