"""FlashInfer's test lists: what a line means here, and which lines and words have no counterpart."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kernels.problem import Problem
from orchestrator.config.settings import load
from orchestrator.errors import UserError
from orchestrator.formats.flashinfer import BenchmarkCase, drawn
from orchestrator.formats.import_config import resolve_files
from orchestrator.planning.expand import expand
from orchestrator.point import Point
from tests.helpers.command_line import composed
from tests.helpers.noted import noted

HEADS = "--num_qo_heads 64 --num_kv_heads 8 --head_dim_qk 128"
DECODE = f"--routine BatchDecodeWithPagedKVCacheWrapper --page_size 16 --batch_size 4 --s_kv 1024 {HEADS}"
PREFILL = f"--routine BatchPrefillWithPagedKVCacheWrapper --page_size 16 --batch_size 16 --s_qo 1024 --s_kv 1024 {HEADS}"
RAGGED = f"-R BatchPrefillWithRaggedKVCacheWrapper --batch_size 2 --s_qo 64 --s_kv 256 {HEADS} --head_dim_vo 128"
MLA = (
    "--routine BatchMLAPagedAttentionWrapper --page_size 32 --batch_size 2 --s_kv 512 "
    "--num_qo_heads 128 --num_kv_heads 1 --head_dim_ckv 512 --head_dim_kpe 64"
)


def points(tmp_path: Path, text: str, *overrides: str) -> list[Point]:
    path = tmp_path / "cases.txt"
    path.write_text(text)
    return expand(load(resolve_files(composed(f"import={path}", *overrides))))


def one(tmp_path: Path, line: str) -> Problem:
    (point,) = points(tmp_path, line)
    return point.problem


def test_a_list_becomes_its_cases_over_their_backends_in_its_order(tmp_path: Path):
    backends = "--backends fa2 fa2_tc trtllm-gen trtllm-gen-native"
    text = f"## Decode\n{DECODE} {backends} -vv --refcheck --case_tag 'a model'\n\n   # more\n{PREFILL} --causal\n"
    found = points(tmp_path, text)

    assert [(p.problem.routine, p.backend) for p in found] == [
        ("paged_decode", "fa2"),
        ("paged_decode", "fa2_tc"),
        ("paged_decode", "trtllm-gen"),  # the wrapper's path, there and here
        ("paged_decode", "trtllm-native"),
        ("paged_prefill", "fa2"),
    ]
    assert {p.problem.model for p in found} == {"custom"}


def test_each_flag_is_a_key_of_the_problem(tmp_path: Path):
    p = one(
        tmp_path,
        f"{DECODE} --s_qo 4 --spec_dec_mask full --q_dtype float16 --kv_dtype fp8_e4m3 --out_dtype=float16 --backends cudnn",
    )

    assert (p.batch_size, p.s_qo, p.s_kv, p.page_size, p.mask) == (4, 4, 1024, 16, "full")
    assert (p.num_qo_heads, p.num_kv_heads, p.head_dim_qk, p.head_dim_vo) == (64, 8, 128, 128)
    assert (p.q_dtype, p.kv_dtype, p.out_dtype) == ("fp16", "fp8_e4m3", None)


@pytest.mark.parametrize(
    ("line", "mask"),
    [(DECODE, "causal"), (f"{DECODE} --s_qo 2", "causal"), (PREFILL, "full"), (f"{PREFILL} --causal", "causal"), (MLA, "causal")],
)
def test_a_mask_is_the_one_that_the_routine_applies(tmp_path: Path, line: str, mask: str):
    assert one(tmp_path, line).mask == mask


def test_an_output_follows_an_8_bit_query_as_it_does_there(tmp_path: Path):
    assert one(tmp_path, f"{DECODE} --q_dtype fp8_e4m3 --kv_dtype fp8_e4m3").output_dtype == "fp8_e4m3"


def test_mla_is_the_model_before_absorption(tmp_path: Path):
    p = one(tmp_path, f"{MLA} --mla-qk-nope-head-dim 96")

    assert (p.head_dim_qk, p.head_dim_vo, p.head_dim_ckv, p.head_dim_kpe) == (160, 128, 512, 64)
    assert one(tmp_path, f"{MLA} --mla-q-lengths 1,4 --mla-kv-lengths 512,100 --causal").batch_spec == "q1s512_q4s100"


def test_random_lengths_of_a_prefill_are_those_that_torch_draws_there(tmp_path: Path):
    case = BenchmarkCase("BatchPrefillWithPagedKVCacheWrapper", 16, 5000, 64, s_qo=1000, random_seed=7)
    torch.manual_seed(7)
    q = torch.randint(1, 1001, (16, 1, 1, 1), dtype=torch.int32).flatten()
    kv = torch.maximum(torch.randint(1, 5001, (16, 1, 1, 1), dtype=torch.int32).flatten(), q)
    p = one(tmp_path, f"{PREFILL} --random_actual_seq_len")

    assert drawn(case) == list(zip(q.tolist(), kv.tolist(), strict=True))
    assert (
        p.q_lens == p.kv_lens == (103, 436, 861, 271, 107, 72, 701, 21, 615, 122, 467, 215, 331, 459, 88, 373)
    )  # as its README shows


def test_random_lengths_of_a_decode_are_drawn_here(tmp_path: Path):
    p = one(tmp_path, f"{DECODE} --random_actual_seq_len")

    assert (p.seq_lens, p.s_kv, p.batch_spec) == ("random", 1024, None)


def test_ignored_flags_are_listed(tmp_path: Path):
    path = tmp_path / "cases.txt"
    path.write_text(f"{DECODE} -vv --num_iters 100 -d 3 --random_seed 1\n")
    config = resolve_files(composed(f"import={path}"))

    assert config["sweep"]["about"] == (
        f"the 1 cases of {path}; --dry_run_iters, --num_iters, --random_seed, --verbose give way to timing= and check="
    )


def test_a_key_of_a_sweep_replaces_that_of_every_case(tmp_path: Path):
    found = points(tmp_path, f"{DECODE} --backends prims-ts\n", "+sweep.backend=[fa2,cudnn]", "+sweep.page_size=32")

    assert [(p.backend, p.problem.page_size) for p in found] == [("fa2", 32), ("cudnn", 32)]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--routine mm_fp4 --m 3", "2: 1 line of other routines: mm_fp4"),
        ("--routine bmm_fp8\n--routine mm_fp4\n--routine bmm_fp8", "2: 3 lines of other routines: bmm_fp8 (2), mm_fp4"),
        ("--backends fa2", "2: 1 line of other routines: no --routine"),
        (f"{DECODE} --backends prims-ts", "2: 1 line with backends that paged_decode has not here: prims-ts"),
        (
            f"{RAGGED} --backends trtllm-native",
            "with backends that ragged_prefill has not here: trtllm-native (",
        ),
        (f"{DECODE} --backends", "2: argument --backends: expected at least one argument"),
        (f"{DECODE} stray", "2: 'stray' has no counterpart here"),
        (f"{MLA} --mla-use-sinks", "2: '--mla-use-sinks' has no counterpart here"),
        (f"{MLA} --mla-q-lengths 1 --mla-kv-lengths 1,2", "2: batch_size=2: there are 1 query and 2 KV lengths"),
        (f"{MLA} --mla-q-lengths 1,2", "2: --mla-q-lengths and --mla-kv-lengths: allowed: both or neither"),
        (DECODE.replace("--batch_size 4", "--batch_size x"), "2: argument --batch_size: invalid int value: 'x'"),
        (DECODE.replace("--s_kv 1024", ""), "2: the following arguments are required: --s_kv"),
        (DECODE.replace("--page_size 16", ""), "2: page_size=0: a routine over pages needs one"),
        (DECODE.replace("--head_dim_qk 128", ""), "2: BatchDecodeWithPagedKVCacheWrapper needs --num_kv_heads and --head_dim_qk"),
        (MLA.replace("--head_dim_kpe 64", ""), "2: BatchMLAPagedAttentionWrapper needs --head_dim_ckv and --head_dim_kpe"),
        (f"{DECODE} --kv_dtype float8", "2: argument --kv_dtype: 'float8' is no dtype of the benchmark"),
        (f"{DECODE} --spec_dec_mask tree", "2: argument --spec_dec_mask: invalid choice: 'tree'"),
        (f"{DECODE} --s_qo 2000", "2: s_qo=2000 is greater than s_kv=1024"),
        (DECODE.replace("--num_kv_heads 8", "--num_kv_heads 7"), "2: num_qo_heads=64 does not divide by num_kv_heads=7"),
        (f"{DECODE} --case_tag 'open", "2: No closing quotation"),
    ],
)
def test_a_line_that_cannot_be_mapped_is_named_with_its_word_and_the_others_are_taken(tmp_path: Path, line: str, words: str):
    found, said = noted(lambda: points(tmp_path, f"# a comment\n{line}\n{DECODE} --case_tag last\n"))

    assert len({point.problem for point in found}) == 1
    assert words in said
    with pytest.raises(UserError, match="nothing of"):
        points(tmp_path, line)


def test_of_a_line_the_known_backends_are_taken_and_options_of_kernels_are_named(tmp_path: Path):
    """The lines of f6.txt in FlashInfer's newest sample list, and its autotuner."""
    text = f"{PREFILL} --causal --backends fa2 fa3 trtllm-gen\n{RAGGED} --backends fa2 fa3\n{MLA} --autotune --backends fa3\n"
    found, said = noted(lambda: points(tmp_path, text))

    assert [p.backend for p in found] == ["fa2", "fa3", "fa2", "fa3", "fa3"]
    assert "1 line with backends that paged_prefill has not here: trtllm-gen" in said
    assert "3: 1 line with options that kernels choose here by themselves: --autotune" in said


def test_every_reason_is_named_at_once_up_to_twenty(tmp_path: Path):
    with pytest.raises(UserError) as caught:
        points(tmp_path, "".join(f"{DECODE} --x{i}\n" for i in range(25)))

    said = str(caught.value).splitlines()
    assert len(said) == 22
    assert said[20] == "and 5 more"


@pytest.mark.parametrize(
    "program",
    [
        "python3 flashinfer_benchmark.py",  # as the column repro_command has it
        "CUDA_VISIBLE_DEVICES=0 python3 -u benchmarks/flashinfer_benchmark.py --enable_pdl",
        "nsys profile -o a python -m benchmarks.flashinfer_benchmark",
    ],
)
def test_a_pasted_command_and_the_axis_of_pdl_are_taken(tmp_path: Path, program: str):
    assert one(tmp_path, f"{program} {DECODE} --enable_pdl") == one(tmp_path, DECODE).model_copy(update={"enable_pdl": True})


def test_a_list_without_a_case_is_none(tmp_path: Path):
    with pytest.raises(UserError, match="no case in it"):
        points(tmp_path, "# nothing\n")
