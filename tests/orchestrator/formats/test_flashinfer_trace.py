"""flashinfer-trace: workloads as points with real or even lengths, rows as traces, and damaged files in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kernels.problem import Problem
from orchestrator import ROOT
from orchestrator.analysis.connection import Record
from orchestrator.config.settings import load
from orchestrator.errors import UserError
from orchestrator.formats.flashinfer_trace import reader, writer
from orchestrator.formats.flashinfer_trace.safetensors import read_vector, with_vectors
from orchestrator.formats.import_config import resolve_files
from orchestrator.formats.results_csv import problem_of
from orchestrator.machines import known_devices
from orchestrator.planning.expand import expand
from orchestrator.storage import parquet
from tests.helpers.command_line import Invoke, composed
from tests.helpers.noted import noted

PAGED, RAGGED = "gqa_paged_decode_h32_kv8_d128_ps1", "gqa_ragged_prefill_causal_h32_kv4_d128"
CHUNKS, LATENT = "gqa_paged_prefill_causal_h16_kv2_d128_ps64", "mla_paged_decode_h16_ckv512_kpe64_ps64"
BLOB = "./blob/workloads/lengths.safetensors"


def workload(
    definition: str = PAGED, axes: dict[str, Any] | None = None, tensors: tuple[str, ...] = (), **inputs: Any
) -> dict[str, Any]:
    """A line as the data set has it. `tensors` are inputs that lie in a safetensors file."""
    given = axes or {"batch_size": 16, "num_pages": 2708, "len_indptr": 17, "num_kv_indices": 2681}
    stored = {name: {"type": "safetensors", "path": BLOB, "tensor_key": name} for name in tensors}
    inputs = {"q": {"type": "random"}, **stored, "sm_scale": {"type": "scalar", "value": 0.08838834764831843}, **inputs}
    found = {"uuid": "39ca5ed6", "axes": given, "inputs": inputs}
    return {"definition": definition, "solution": None, "workload": found, "evaluation": None}


def written(tmp_path: Path, *lines: object, **vectors: list[int]) -> str:
    """A trace set with these workloads, and with the vectors where their inputs say."""
    path = tmp_path / "set" / "workloads" / "gqa_paged" / "a.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    if vectors:
        blob = tmp_path / "set" / BLOB
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(with_vectors(vectors))
    return str(path)


def problems(path: str) -> list[Problem]:
    return [Problem.model_validate(rule) for rule in reader.read(path)[0]]


def test_without_tensors_the_sums_are_split_evenly_and_the_sweep_says_so(tmp_path: Path):
    path = written(tmp_path, workload())
    (rule,), about = reader.read(path)
    problem = Problem.model_validate(rule)

    assert (problem.routine, problem.num_qo_heads, problem.num_kv_heads, problem.page_size) == ("paged_decode", 32, 8, 1)
    assert (problem.batch_size, problem.num_kv_tokens, problem.kv_layout) == (16, 2681, "NHD")
    assert set(problem.kv_lens) == {167, 168}
    assert "1 of 1 workloads without their tensors, whose lengths are split evenly" in about


def test_with_tensors_every_request_has_its_own_length_and_the_pages_their_order(tmp_path: Path):
    line = workload(axes={"batch_size": 3, "num_kv_indices": 12}, tensors=("kv_indptr", "kv_indices"))
    scattered = [0, 1, 2, 3, 4, 9, 8, 7, 6, 5, 10, 11]
    in_order, drawn = ([0, *range(1, 12)], "sequential"), (scattered, "random")
    for indices, order in (in_order, drawn):
        path = written(tmp_path, line, kv_indptr=[0, 5, 10, 12], kv_indices=indices)
        (problem,) = problems(path)
        assert problem.kv_lens == (5, 5, 2) and set(problem.q_lens) == {1}
        assert problem.page_order == order
        assert "split evenly" not in reader.read(path)[1]


def test_pages_of_several_tokens_end_where_their_last_page_does(tmp_path: Path):
    axes = {"len_indptr": 3, "total_q": 5, "num_kv_indices": 4, "num_pages": 9}
    tensors = ("qo_indptr", "kv_indptr", "kv_last_page_len")
    path = written(tmp_path, workload(CHUNKS, axes, tensors), qo_indptr=[0, 4, 5], kv_indptr=[0, 3, 4], kv_last_page_len=[10, 64])
    (problem,) = problems(path)

    assert (problem.routine, problem.q_lens, problem.kv_lens) == ("paged_prefill", (4, 1), (2 * 64 + 10, 64))


def test_ragged_caches_and_mla_have_their_own_keys(tmp_path: Path):
    ragged = workload(RAGGED, {"len_indptr": 4, "total_q": 172, "total_kv": 172})
    scale = {"type": "scalar", "value": 192**-0.5}
    latent = workload(LATENT, {"batch_size": 2, "num_kv_indices": 6}, sm_scale=scale)
    a, b = problems(written(tmp_path, ragged, latent))

    assert (a.routine, a.q_lens, a.kv_lens) == ("ragged_prefill", (58, 57, 57), (58, 57, 57))
    assert (b.routine, b.num_qo_heads, b.head_dim_ckv, b.head_dim_qk, b.s_kv) == ("mla", 16, 512, 192, 192)


def test_a_definition_at_hand_says_the_dtypes_and_equal_workloads_are_one_point(tmp_path: Path):
    path = written(tmp_path, workload(), workload())
    definition = tmp_path / "set" / "definitions" / "gqa_paged" / f"{PAGED}.json"
    definition.parent.mkdir(parents=True)
    axes = {"num_qo_heads": 32, "num_kv_heads": 8, "head_dim": 128, "page_size": 1}
    constants = {name: {"type": "const", "value": value} for name, value in axes.items()}
    inputs = {"q": {"dtype": "float16"}, "k_cache": {"dtype": "float8_e4m3fn"}}
    definition.write_text(json.dumps({"axes": constants, "inputs": inputs}))
    (problem,) = problems(path)

    assert (problem.q_dtype, problem.kv_dtype) == ("fp16", "fp8_e4m3")
    for content, words in (
        ("[]", "is no definition with the axes"),
        (json.dumps({"axes": constants, "inputs": {"q": {"dtype": "int8"}}}), "q has the dtype 'int8'"),
        (json.dumps({"axes": {**constants, "page_size": {"value": "a"}}, "inputs": {}}), "no whole number above 0"),
    ):
        definition.write_text(content)
        with pytest.raises(UserError, match=words):
            problems(path)


def test_a_captured_scale_is_the_points_own(tmp_path: Path):
    """DeepSeek's with YaRN: (0.1 ln 40 + 1)² / sqrt(192)."""
    latent = workload(LATENT, {"batch_size": 2, "num_kv_indices": 6}, sm_scale={"type": "scalar", "value": 0.1352337788608801})
    (problem,) = problems(written(tmp_path, latent))

    assert (problem.routine, problem.softmax_scale) == ("mla", pytest.approx(0.1352337788608801))


@pytest.mark.parametrize(
    ("definition", "axes", "keys"),
    [
        (
            "gqa_paged_prefill_h32_kv8_d128_ps16",
            {"len_indptr": 3, "total_q": 8, "num_kv_indices": 8},
            ("paged_prefill", 4, 64, "NHD"),
        ),
        ("gqa_ragged_h32_kv8_d128", {"len_indptr": 3, "total_q": 8, "total_kv": 64}, ("ragged_prefill", 4, 32, "HND")),
        (
            "trtllm_batch_decode_h32_kv8_d128_ps16",
            {"batch_size": 2, "num_tokens": 8, "max_pages_per_seq": 4},
            ("paged_decode", 4, 64, "HND"),
        ),
        (
            "xqa_batch_decode_h32_kv8_d128_ps16",
            {"batch_size": 2, "num_tokens": 2, "max_pages_per_seq": 4},
            ("paged_decode", 1, 64, "HND"),
        ),
        (
            "trtllm_batch_decode_mla_dense_h128_d_qk576_ckv512_kpe64_nope512_ps64",
            {"batch_size": 2, "q_len_per_request": 4, "max_pages_per_seq": 2},
            ("mla", 4, 128, "HND"),
        ),
        (
            "trtllm_batch_context_h32_kv8_d128_ps16",
            {"batch_size": 2, "num_tokens": 8, "max_pages_per_seq": 2},
            ("paged_prefill", 4, 32, "HND"),
        ),
    ],
)
def test_names_that_flashinfer_writes_by_itself_are_known(
    tmp_path: Path, definition: str, axes: dict[str, int], keys: tuple[str, int, int, str]
):
    (p,) = problems(written(tmp_path, workload(definition, axes, sm_scale={"type": "scalar", "value": None})))

    assert (p.routine, p.s_qo, p.s_kv, p.kv_layout) == keys


def test_requests_of_a_page_table_have_the_lengths_beside_it(tmp_path: Path):
    line = workload(
        "trtllm_batch_context_h32_kv8_d128_ps16", {"batch_size": 2, "num_tokens": 5}, tensors=("seq_lens", "cum_seq_lens_q")
    )
    (p,) = problems(written(tmp_path, line, seq_lens=[20, 7], cum_seq_lens_q=[0, 4, 5]))

    assert (p.q_lens, p.kv_lens) == ((4, 1), (20, 7))


def evaluated(status: str = "PASSED", **of: Any) -> dict[str, Any]:
    correctness = {"max_relative_error": 0.001, "max_absolute_error": 0.001}
    found = {
        "status": status,
        "environment": {"hardware": "NVIDIA_H100", "libs": {"torch": "2.11", "flashinfer": "0.7.2"}},
        "correctness": correctness,
        "performance": {"latency_ms": 0.02, "reference_latency_ms": 1.0},
    }
    return {**workload(), "solution": "fi_x", "evaluation": {**found, **of}}


def test_an_evaluation_is_a_row(tmp_path: Path, invoke: Invoke):
    path = written(tmp_path, evaluated(), {**evaluated("RUNTIME_ERROR", performance=None), "solution": "other"}, workload())
    done = invoke(f"import={path}", f"results.path={tmp_path / 'out'}")
    rows = {row["backend"]: row for row in parquet.read(tmp_path / "out").to_pylist()}

    assert done.returncode == 0 and "3: no evaluation" in done.stderr
    assert {name: row["status"] for name, row in rows.items()} == {"fi_x": "ok", "other": "failed"}
    row = rows["fi_x"]
    assert (row["device_name"], row["median_us"], row["torch_version"]) == ("NVIDIA H100 80GB HBM3", pytest.approx(20), "2.11")
    assert (row["libraries"], row["orchestrator_version"], row["batch_size"]) == ("flashinfer 0.7.2", "flashinfer_trace", 16)
    assert "lengths split evenly" in row["reason"] and "max_relative_error is 0.001" in row["check"]


def test_planned_again_an_evaluated_workload_is_a_point_and_says_what_is_left_out(tmp_path: Path):
    (rules, _), said = noted(lambda: reader.read(written(tmp_path, evaluated())))

    assert len(rules) == 1
    assert "1 line with an evaluation, which becomes a row without +sweep and mode=plan: fi_x" in said


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (evaluated("WON"), "evaluation.status='WON': allowed: PASSED"),
        (evaluated(performance={"latency_ms": 0}), "latency_ms=0: allowed: a number of milliseconds"),
        (evaluated(environment={"hardware": "NVIDIA_B200"}), "hardware='NVIDIA B200': allowed: NVIDIA H100"),
        (evaluated(environment=3), "hardware='': allowed: NVIDIA H100"),
    ],
)
def test_an_evaluation_without_a_counterpart_is_named(tmp_path: Path, line: object, words: str):
    with pytest.raises(UserError) as caught:
        reader.rows_of(written(tmp_path, line), known_devices()["h100"], "mine")

    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", ":1: no JSON"),
        ("[" * 100_000, ":1: no JSON"),
        ("3", "no JSON object"),
        ('{"input_length": 5}', "type traffic=FILE for lengths of requests"),
        ({**workload(), "definition": "../../etc/passwd"}, "allowed: the name of a definition"),
        ({**workload(), "definition": "gemm_n128_k2048"}, "no operation of this project; allowed: gqa_paged_decode_*"),
        ({**workload(), "definition": PAGED + "_v2"}, "'_v2' is not known at the end of such a name"),
        ({**workload(), "workload": {"axes": {}}}, "axes and inputs are needed"),
        (workload(axes={"num_kv_indices": 5}), "batch_size or len_indptr is needed"),
        (workload(axes={"batch_size": 0, "num_kv_indices": 5}), "a batch of 0 requests"),
        (workload(axes={"batch_size": 10**9, "num_kv_indices": 5}), "a batch of 1000000000 requests"),
        (workload(axes={"batch_size": "8", "num_kv_indices": 5}), "axes.batch_size='8'"),
        (workload(axes={"batch_size": 8, "num_kv_indices": 5}), "a request with 1 query and 0 KV tokens"),
        (workload(sm_scale={"type": "scalar", "value": "1"}), "softmax_scale='1'"),
        (
            workload(CHUNKS.replace("ps64", "ps1"), {"len_indptr": 2, "total_q": 34, "num_kv_indices": 1}),
            "34 query tokens over 1 KV tokens",
        ),
        (workload(kv_indptr={"type": "safetensors", "path": "../../x", "tensor_key": "k"}), "leads out of set/"),
        (workload(kv_indptr={"type": "safetensors", "path": 3}), "needs path and tensor_key"),
    ],
)
def test_a_line_without_a_counterpart_is_named(tmp_path: Path, line: object, words: str):
    with pytest.raises(UserError) as caught:
        problems(written(tmp_path, line))

    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("vectors", "words"),
    [
        ({"kv_indptr": [0, 5, 3, 12]}, "the offsets fall"),
        ({"kv_indptr": [1, 5]}, "offsets from 0 on"),
        ({"kv_indptr": [0, 5, 11]}, "kv_indptr ends at 11 and the axes say 12"),
        ({"other": [0]}, "it has no tensor 'kv_indptr'"),
    ],
)
def test_wrong_tensors_are_named(tmp_path: Path, vectors: dict[str, list[int]], words: str):
    path = written(tmp_path, workload(axes={"batch_size": 3, "num_kv_indices": 12}, tensors=("kv_indptr",)), **vectors)
    with pytest.raises(UserError, match=words):
        problems(path)


def test_a_request_without_keys_is_one_where_the_tensors_say_so(tmp_path: Path):
    path = written(
        tmp_path, workload(axes={"batch_size": 3, "num_kv_indices": 12}, tensors=("kv_indptr",)), kv_indptr=[0, 0, 4, 12]
    )

    assert [problem.kv_lens for problem in problems(path)] == [(0, 4, 8)]


def test_a_damaged_safetensors_file_is_named_in_words(tmp_path: Path):
    path = tmp_path / "a.safetensors"
    path.write_bytes(with_vectors({"a": [1, 2, 3]}))
    whole = path.read_bytes()
    header = {"a": {"dtype": "I32", "shape": [3], "data_offsets": [0, 12]}}

    assert read_vector(path, "a") == [1, 2, 3]
    for content, words in (
        (b"", "no safetensors file, or not a whole one"),
        (b"\xff" * 8 + b"{}", "no safetensors file, or not a whole one"),
        (whole[:-4], "is cut off"),
        (_file("x"), r"its header is wrong \(no JSON\)"),
        (_file("[1]"), "no JSON object"),
        (_file(json.dumps({"a": {**header["a"], "dtype": "BF16"}})), "no vector of whole numbers"),
        (_file(json.dumps({"a": {**header["a"], "shape": [3, 1]}})), "no vector of whole numbers"),
        (_file(json.dumps({"a": {**header["a"], "data_offsets": [-4, 8]}})), "is cut off"),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=words):
            read_vector(path, "a")


def _file(header: str) -> bytes:
    return len(header).to_bytes(8, "little") + header.encode() + bytes(12)


def test_a_workload_names_no_backend_so_the_command_must(tmp_path: Path, invoke: Invoke):
    path = written(tmp_path, workload())
    done = invoke(f"import={path}")
    named = load(resolve_files(composed(f"import={path}", "+sweep.backend=[fa2_tc]")))

    assert done.returncode == 2 and "type +sweep.backend=[" in done.stderr
    assert [point.backend for point in expand(named)] == ["fa2_tc"]
    assert "split evenly" in named.sweep.about


@pytest.fixture(scope="module")
def rows() -> list[Record]:
    """Ragged prompts, decodes and drafts of committed datasets, with a copy that failed in each way."""
    found: list[Record] = []
    for name, keep in (
        ("h200_main/specdec_long_ctx", {"s_kv": 8192, "batch_size": 8, "kv_dtype": "bf16"}),
        ("h200_drafts/mixed_q_len", {"s_kv": 8192}),
    ):
        table = parquet.read(ROOT / "results" / name).to_pandas()
        for key, value in keep.items():
            table = table[table[key] == value]
        found += table.to_dict("records")
    return found


def test_a_row_is_a_trace_that_its_schema_takes(rows: list[Record]):
    found, left_out = writer.to_traces(rows)
    decode = found["gqa_paged_decode_h64_kv8_d128_ps64"]
    (own,) = [trace for trace in decode if "flash_attn_3_gqa" in trace["solution"]]
    (row,) = [r for r in rows if (r["backend"], r["s_qo"]) == ("flash_attn_3", 1)]
    evaluation = own["evaluation"]

    assert own["workload"]["axes"] == {"len_indptr": 9, "batch_size": 8, "num_pages": 1024, "num_kv_indices": 1024}
    assert evaluation["status"] == "PASSED" and evaluation["environment"]["hardware"] == "NVIDIA_H200"
    assert evaluation["performance"]["latency_ms"] == row["median_us"] / 1000
    assert evaluation["performance"]["reference_latency_ms"] > evaluation["performance"]["latency_ms"]
    assert evaluation["correctness"]["max_relative_error"] == row["rel_err"]
    assert sum(left_out.values()) + sum(map(len, found.values())) == len(rows)
    assert len({trace["workload"]["uuid"] for trace in decode}) == 1


@pytest.mark.parametrize(
    ("status", "theirs"),
    [("mismatch", "INCORRECT_NUMERICAL"), ("failed", "RUNTIME_ERROR"), ("oom", "RUNTIME_ERROR"), ("timeout", "TIMEOUT")],
)
def test_a_row_without_a_time_is_a_trace_without_performance(rows: list[Record], status: str, theirs: str):
    (row,) = [r for r in rows if (r["backend"], r["s_qo"]) == ("flash_attn_3", 1)]
    found, _ = writer.to_traces([{**row, "status": status, "rel_err": float("inf"), "max_abs_err": None}])
    (trace,) = found["gqa_paged_decode_h64_kv8_d128_ps64"]

    assert (trace["evaluation"]["status"], trace["evaluation"]["performance"]) == (theirs, None)
    wrong = {"max_relative_error": "Infinity", "max_absolute_error": "NaN"}
    has = trace["evaluation"]["correctness"]
    assert (has is None) == (status != "mismatch") and (has is None or wrong.items() <= has.items())


def test_traces_come_back_as_the_problems_that_they_were_written_from(tmp_path: Path, rows: list[Record]):
    found, _ = writer.to_traces(rows)
    files = writer.save(found, str(tmp_path))
    back = {
        (p.routine == "ragged_prefill", p.q_lens, p.kv_lens, p.page_size) for file in files for p in problems(str(tmp_path / file))
    }
    ran = [r for r in rows if r["status"] == "ok" and (r["q_dtype"], r["kv_dtype"]) == ("bf16", "bf16") and r["mask"] == "causal"]
    asked = {(p.routine == "ragged_prefill", p.q_lens, p.kv_lens, p.page_size) for p in map(problem_of, ran)}

    assert asked and asked <= back
    assert any(len(set(q)) > 1 for _, q, _, _ in asked)


def test_nothing_to_write_and_nowhere_to_write_it_end_in_words(tmp_path: Path, rows: list[Record]):
    found, _ = writer.to_traces(rows)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="no row of the dataset fits its schema"):
        writer.save({}, str(tmp_path / "out"))
    with pytest.raises(UserError, match="cannot be written"):
        writer.save(found, str(tmp_path / "file"))
