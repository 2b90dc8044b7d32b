"""The backend of two calls: its rule, its inputs, its answers on a CPU, and wrong ones that the check catches."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from unittest.mock import Mock

import pytest
import torch

from kernels import registry
from kernels.adapter import Adapter
from kernels.adapters.torch_sdpa import TorchSdpa
from kernels.check.judgement import judge_whole
from kernels.check.oracle import answer
from kernels.conformance.suite import Trial, conformance, execute
from kernels.inputs import Inputs
from kernels.inputs.generate import UNUSED_ENTRY, draw
from kernels.mutants.faults import victim
from kernels.problem import Problem
from kernels.split import Split
from kernels.split.adapter import PartInputs, ordered
from kernels.split.batch import Halves, halves_of
from kernels.timing.config import Timing
from orchestrator.machines import cpu, known_devices
from orchestrator.point import Point
from orchestrator.storage.row import Row
from orchestrator.worker.messages import Task, WorkerConfig
from orchestrator.worker.point_runner import PointRunner
from orchestrator.worker.shared_step import SharedStep
from tests.helpers.planned import Planned
from tests.helpers.problems import HEADS
from tests.helpers.recorded_calls import recording

PAGED = {"routine": "paged_decode", "page_size": 16, **HEADS}
LATENT = {"routine": "mla", "page_size": 16, **HEADS, "head_dim_ckv": 32, "head_dim_kpe": 16}
LLAMA = {"routine": "paged_decode", "num_qo_heads": 64, "num_kv_heads": 8, "head_dim_qk": 128, "head_dim_vo": 128}
WRONG = "tests.backends.splitting"
IN_ORDER, OUT_OF_ORDER = "4q4s100_q9s150", "2q4s100_q9s150_2q4s100"


def make(spec: str, **keys: object) -> Problem:
    return Problem.model_validate({**PAGED, "batch_spec": spec, **keys})


def row_of(backend: str, problem: Problem) -> Row:
    """The row of a point on one worker in this process."""
    timing = Timing(min_samples=10, max_samples=10)
    worker = PointRunner.create(WorkerConfig(timing, True, (WRONG,), {"run_id": "r", "sweep": "s", "cluster": "c"}), cpu())
    result = worker.prepare(Task(Point(problem, backend, "how"), "replay"))
    (row,) = result.rows or worker.measure().rows
    return row


@pytest.mark.parametrize(
    "problem",
    [
        make(IN_ORDER),
        make(OUT_OF_ORDER),
        make("q9s150_4q4s100", kv_layout="NHD", q_dtype="fp16", kv_dtype="fp16"),
        make("3q4s100_q1s100", window=9),
        make("3q4s100_q2s64", mask="full"),
        make("3q7s100_q3s100", mask="binary", tree=(-1, 0, 0, 1, 1, 2, 2)),
        Problem.model_validate({**LATENT, "batch_spec": "q9s100_3q4s100"}),
    ],
    ids=lambda p: f"{p.routine} {p.batch_spec} {p.mask}",
)
def test_a_mixed_batch_in_two_calls_is_right(problem: Problem):
    row = row_of("torch_sdpa+torch_sdpa", problem)

    assert (row["status"], row["reason"], row["check"]) == ("ok", "", "passed")
    assert row["resolved_backend"] == f"torch_sdpa_cpu+torch_sdpa_cpu@{_halves(problem).decode.s_qo}"
    assert (row["batch_size"], row["num_samples"]) == (problem.batch_size, 10)


def test_a_row_says_how_the_batch_was_split():
    row = row_of("torch_sdpa+torch_sdpa@4", make(IN_ORDER))

    assert row["kernel_config"] == "decode_requests=4 decode_q_tokens=16 prefill_requests=1 prefill_q_tokens=9"


@pytest.mark.parametrize("shape", [PAGED, LATENT], ids=["paged_decode", "mla"])
@pytest.mark.parametrize("threshold", ["", "@1", "@4"])
def test_ragged_drafts_in_two_calls_are_right(shape: dict[str, object], threshold: str):
    """Their requests come in any order, with any KV length, and the prefill call has several query lengths."""
    drawn = {"batch_size": 9, "s_qo": 8, "min_s_qo": 1, "s_kv": 90, "seq_lens": "random"}
    ragged = Problem.model_validate({**shape, **drawn})
    halves = _halves(ragged, int(threshold[1:]) if threshold else None)
    assert len({*halves.prefill.q_lens}) > 2 and list(halves.order) != list(range(9))

    assert row_of(f"by_oracle+by_oracle{threshold}", ragged)["status"] == "ok"


@pytest.mark.parametrize(
    ("backend", "spec", "words"),
    [
        ("decode_lengths", IN_ORDER, "rows are off by more than"),
        ("last_forgotten", IN_ORDER, "rows hold NaN, infinity or unwritten values"),
        ("pages_of_the_first", "4q4s100_q9s100", "rows are off by more than"),
        ("exchanged", IN_ORDER, "rows are off by more than"),
        ("queries_copied", IN_ORDER, "rows are off by more than"),
        ("unordered", OUT_OF_ORDER, "rows are off by more than"),
        ("first_call_alone", IN_ORDER, "rows hold NaN, infinity or unwritten values"),
    ],
)
def test_a_wrong_split_is_caught(backend: str, spec: str, words: str):
    row = row_of(backend, make(spec))

    assert row["status"] == "mismatch" and words in row["reason"], row["reason"]
    assert row_of("right_parts", make(spec))["status"] == "ok"


def _halves(problem: Problem, threshold: int | None = None) -> Halves:
    found = halves_of(problem, threshold)
    assert found is not None
    return found


def parts(problem: Problem) -> tuple[Inputs, tuple[PartInputs, PartInputs], Halves]:
    inputs, halves = draw(problem, "cpu"), _halves(problem)
    adapter = registry.get(problem.routine, "torch_sdpa+torch_sdpa")
    assert isinstance(adapter, Split)
    return inputs, adapter.parts(inputs, halves, ordered(inputs, halves.order)), halves


@pytest.mark.parametrize("spec", [IN_ORDER, OUT_OF_ORDER, "2q4s100_q9s15_3q4s7_q1s33"])
@pytest.mark.parametrize("keys", [{}, {"kv_dtype": "nvfp4"}])
def test_each_call_reads_the_pages_of_its_requests_in_the_same_cache(spec: str, keys: dict[str, object]):
    inputs, calls, halves = parts(make(spec, **keys))

    for call, requests in zip(calls, (halves.decode_requests, halves.prefill_requests), strict=True):
        assert [cache.data_ptr() for cache in call.kv] == [cache.data_ptr() for cache in inputs.kv]
        for number, request in enumerate(requests):
            length = inputs.problem.kv_lens[request]
            for mine, theirs in zip(call.tokens(number, 0, length), inputs.tokens(request, 0, length), strict=True):
                assert torch.equal(mine, theirs)
            assert torch.equal(call.q[call.queries(number)], inputs.q[inputs.queries(request)])
            pages = call.kv_indices[call.kv_indptr[number] : call.kv_indptr[number + 1]]
            assert torch.equal(pages, inputs.page_table[request, : len(pages)])
            assert (call.page_table[number, len(pages) :] == UNUSED_ENTRY).all()
        assert call.qo_indptr.tolist() == [0, *torch.tensor(call.problem.q_lens).cumsum(0).tolist()]
        assert call.kv_lens.tolist() == list(call.problem.kv_lens)
        assert call.last_page_len.tolist() == [(length - 1) % 16 + 1 for length in call.problem.kv_lens]
        assert all(tensor.dtype == torch.int32 for tensor in (call.qo_indptr, call.kv_indptr, call.kv_indices, call.page_table))
        assert call.unused_slots[0].numel() == sum(-length % 16 for length in call.problem.kv_lens)


def test_requests_that_come_in_order_are_views_of_the_batch_s_queries_and_output():
    inputs, (decode, prefill), _ = parts(make(IN_ORDER))

    assert decode.q.data_ptr() == inputs.q.data_ptr()
    assert prefill.q.data_ptr() == inputs.q[16].data_ptr()
    assert prefill.empty_output().data_ptr() == decode.empty_output().data_ptr() + decode.empty_output().nbytes


def test_a_scale_that_only_one_call_leaves_to_the_caller_is_applied_in_the_call():
    part, leaves = (registry.get("paged_prefill", name, (WRONG,)) for name in ("torch_sdpa", "leaves_scale"))
    decode = registry.get("paged_decode", "torch_sdpa")
    for prefill, scale in ((part, 1.0), (leaves, 1.0), (replace(leaves, name="both"), 4.0)):
        first = replace(leaves, routine="paged_decode") if scale != 1.0 else decode
        problem = make(IN_ORDER, q_dtype="fp32", kv_dtype="fp32")
        inputs = draw(problem, "cpu")
        runner = Split.from_parts("paged_decode", "x", first, prefill, None).prepare(inputs, cpu())
        runner()
        assert runner.caller_scale == scale
        right = registry.get("paged_decode", "torch_sdpa+torch_sdpa").prepare(inputs, cpu())
        right()
        torch.testing.assert_close(runner.out * scale, right.out)


def test_a_step_refuses_a_batch_whose_requests_change_places():
    runner = registry.get("paged_decode", "torch_sdpa+torch_sdpa").prepare(draw(make(OUT_OF_ORDER), "cpu"), cpu())

    with pytest.raises(RuntimeError, match="needs the requests of the decode call first in batch_spec"):
        SharedStep.prepare(Mock(), Mock(), runner, cpu())


def of(backend: str, routine: str = "paged_decode") -> Adapter:
    return registry.get(routine, backend, (WRONG,))


H200 = known_devices()["h200"]


@pytest.mark.parametrize(
    ("backend", "keys", "sentences"),
    [
        ("fa2_tc+fa2@4", {"batch_spec": "15q4s8k_q1s8k"}, []),
        ("fa2_tc+fa2@4", {"batch_size": 16, "min_s_qo": 1, "s_qo": 8, "s_kv": 8192}, []),
        ("trtllm-native+fa3@4", {"batch_spec": "15q4s8k_q512s8k"}, []),
        (
            "fa2_tc+fa2@3",
            {"batch_spec": "15q4s8k_q512s8k"},
            ["requests for both calls: some of a query length up to 3, and some of another"],
        ),
        ("fa2_tc+fa2", {"batch_size": 16, "s_qo": 4, "s_kv": 8192}, ["requests of two query lengths or more"]),
        ("fa2+fa2", {"batch_spec": "15q4s8k_q1s8k"}, ["fa2 for decode: one query token a request"]),
        ("fa2+fa2@1", {"batch_spec": "15q4s8k_q1s8k"}, []),
        (
            "fa2_tc+fa3@4",
            {"batch_spec": "15q4s8k_q1s8k", "kv_dtype": "fp8_e4m3"},
            ["fa3 for prefill: queries, keys and values of one dtype"],
        ),
        (
            "trtllm-native+fa2@4",
            {"batch_spec": "15q4s8k_q1s8k", "page_size": 8, "mask": "full"},
            ["trtllm-native for decode: page_size 16, 32, 64 or 128"],
        ),
        ("trtllm-native+fa2@4", {"batch_spec": "15q4s8k_q1s8k", "max_seq_len": 131072, "enable_pdl": True}, []),
        (
            "fa2_tc+fa3@4",
            {"batch_spec": "15q4s8k_q1s8k", "max_seq_len": 131072, "enable_pdl": False},
            ["fa3 for prefill: enable_pdl left to the library (null)"],
        ),
        (
            "cudnn+fa2@4",
            {"batch_spec": "15q4s8k_q1s8k", "enable_pdl": True},
            ["cudnn for decode: enable_pdl left to the library (null)"],
        ),
        (
            "cute-dsl+fa2@4",
            {"batch_spec": "15q4s8k_q1s8k", "max_seq_len": 131072},
            ["cute-dsl for decode: max_seq_len left to the batch (null)", "cute-dsl for decode: the SM100 family (10.0 or 10.3)"],
        ),
        (
            "torch_sdpa+torch_sdpa",
            {"batch_spec": "3q4s8k_q1s8k_q2s4k", "out_dtype": "fp8_e4m3"},
            [
                "an output that is not FP8 (each call would have a scale of its own)",
                "torch_sdpa for decode: keys, values and output of the query's dtype",
                "torch_sdpa for prefill: the same number of query tokens for every request",
                "torch_sdpa for prefill: keys, values and output of the query's dtype",
                "torch_sdpa for prefill: the same KV length for every request",
            ],
        ),
    ],
)
def test_the_rule_is_that_of_both_parts_on_their_requests(backend: str, keys: dict[str, object], sentences: list[str]):
    assert of(backend).unmet(Problem.model_validate({**LLAMA, **keys}), H200) == sentences


@pytest.mark.parametrize(
    ("backend", "keys", "lacks"),
    [
        ("fa2_tc+fa2@4", {"max_seq_len": 131072, "enable_pdl": True}, False),
        ("fa2_tc+fa3@4", {"enable_pdl": True}, True),
        ("cudnn+fa2@4", {"enable_pdl": False}, True),
        ("cute-dsl+fa2@4", {"max_seq_len": 131072}, True),
        ("fa2_tc+fa2@3", {"enable_pdl": True}, False),  # no split at all, whatever is asked
    ],
)
def test_a_split_lacks_a_choice_that_either_call_lacks(backend: str, keys: dict[str, object], lacks: bool):
    p = Problem.model_validate({**LLAMA, "batch_spec": "15q4s8k_q512s8k", **keys})

    assert of(backend).lacks_choice(p, H200) == lacks
    assert of(backend).takes_pdl_in(p, H200) == (not lacks or "enable_pdl" not in keys)
    assert not of(backend).lacks_choice(Problem.model_validate({**LLAMA, "batch_spec": "15q4s8k_q512s8k"}), H200)


def test_both_calls_get_the_engine_s_maximum_and_the_wish_for_dependent_launch():
    wide = make(OUT_OF_ORDER, max_seq_len=4096)
    inputs, calls, _ = parts(wide)

    assert {call.problem.longest for call in calls} == {4096}
    assert {call.page_table.shape[1] for call in calls} == {inputs.page_table.shape[1]} == {256}
    assert row_of("torch_sdpa+torch_sdpa@4", make(IN_ORDER, max_seq_len=4096))["kernel_config"] == (
        "decode_requests=4 decode_q_tokens=16 (max_seq_len=unread) prefill_requests=1 prefill_q_tokens=9 (max_seq_len=unread)"
    )
    assert {call.problem.enable_pdl for call in parts(make(IN_ORDER, enable_pdl=False))[1]} == {False}


def test_an_old_gpu_is_refused_dependent_launch_in_the_words_of_each_call():
    p = Problem.model_validate({**LLAMA, "batch_spec": "15q4s8k_q1s8k", "enable_pdl": True})

    assert of("fa2_tc+fa2@4").unmet(p, known_devices()["a100"]) == [
        "fa2_tc for decode: SM90 or later for enable_pdl=true",
        "fa2 for prefill: SM90 or later for enable_pdl=true",
    ]


def test_modules_memory_and_libraries_are_those_of_both_parts():
    p = Problem.model_validate({**LLAMA, "batch_spec": "15q4s8k_q512s8k"})
    both, decode, prefill = of("trtllm-native+fa2@4"), of("trtllm-native"), of("fa2", "paged_prefill")
    halves = _halves(p, 4)

    assert set(both.modules(p, H200)) == {*decode.modules(halves.decode, H200), *prefill.modules(halves.prefill, H200)}
    assert next(str(m) for m in both.modules(p, H200)) == "gen_xqa_module(bf16, bf16, 64, 128, 8, False, bf16, 4, False)"
    parts_need = decode.workspace_bytes(halves.decode) + prefill.workspace_bytes(halves.prefill)
    assert both.workspace_bytes(p) == parts_need + 2 * p.num_q_tokens * 64 * 128  # and the queries in the engine's order
    alike = Problem.model_validate({**LLAMA, "batch_size": 16, "s_qo": 4, "s_kv": 8192})
    assert (both.modules(alike, H200), both.workspace_bytes(alike)) == ((), 0)
    library = of("flash_attn_3+fa2@4")
    assert (library.distributions, library.extra) == (("tokenspeed-fa3", "flashinfer-python"), "fa3")


def test_unused_slots_are_poisoned_with_nan_if_both_parts_skip_them():
    p = Problem.model_validate({**LLAMA, "batch_spec": "15q4s8k_q1s8k"})

    assert of("fa2_tc+fa2@4").skips_unused_in(p)
    assert not of("trtllm-native+fa2@4").skips_unused_in(p)
    assert not of("fa2_tc+cudnn@4").skips_unused_in(p)


@pytest.mark.parametrize("routine", ["paged_decode", "mla"])
def test_a_split_keeps_the_contract_of_a_backend(routine: str):
    adapter = of("torch_sdpa+torch_sdpa@4", routine)
    results = list(conformance(adapter, cpu(), list(known_devices().values()), "", partial(execute, adapter)))

    assert {result.check: result.words for result in results if result.verdict in ("failed", "too strict")} == {}
    passed = {result.check for result in results if result.verdict == "passed"}
    assert {"answers: page sizes", "other queries after prepare", "unused slots are skipped", "right after many calls"} <= passed


@pytest.mark.parametrize(
    ("decode", "prefill", "verdict", "words"),
    [
        (Planned(), Planned(), "passed", "right after 2 other plans"),
        (Planned(), TorchSdpa(routine="paged_prefill"), "passed", "right after 2 other plans"),  # one call is prepared anew
        (Planned(lengths=False), Planned(), "failed", "planned again: "),
        (Planned(), Planned(lengths=False), "failed", "planned again: "),
        (TorchSdpa(routine="paged_decode"), TorchSdpa(routine="paged_prefill"), "not run", "Runner.plan_again"),
    ],
)
@pytest.mark.parametrize("spec", [IN_ORDER, OUT_OF_ORDER])
def test_the_wrappers_of_both_calls_are_planned_again(decode: Adapter, prefill: Adapter, verdict: str, words: str, spec: str):
    split = Split.from_parts("paged_decode", "both", replace(decode, routine="paged_decode"), prefill, None)
    finding = execute(split, Trial("planned again", make(spec), cpu()))

    assert (finding.verdict, words in finding.words) == (verdict, True), finding


@pytest.mark.parametrize(
    ("routine", "backend", "keys"),
    [("paged_decode", "fa2_tc+fa2", PAGED), ("paged_decode", "fa2_tc+fa2@4", PAGED), ("mla", "fa2+fa3@4", LATENT)],
)
def test_both_wrappers_of_a_library_live_on_for_other_lengths_alone(routine: str, backend: str, keys: dict[str, object]):
    """They get the lengths and pages of their own requests; another number of query tokens gets new wrappers."""
    first, other, longer_draft = (
        draw(Problem.model_validate({**keys, "batch_spec": spec}), "cpu")
        for spec in (OUT_OF_ORDER, "q4s90_q4s30_q9s20_2q4s50", "2q4s100_q8s150_2q4s100")
    )
    halves = _halves(other.problem)
    with recording() as log:
        runner = registry.get(routine, backend).prepare(first, H200)
        made = [call["wrapper"] for name, call in log if name.endswith(".plan")]
        begin = len(log)
        assert runner.plan_again is not None
        again = runner.plan_again(other)
        planned = log[begin:]
        begin = len(log)
        runner.plan_again(longer_draft)

    assert [name for name, _ in planned if name.endswith("__init__")] == []
    assert [call["wrapper"] for _, call in planned] == made and again.plan_again is None
    for (_, call), part in zip(planned, (halves.decode, halves.prefill), strict=True):
        given = next(call[name] for name in ("indptr", "paged_kv_indptr", "metadata") if name in call)
        assert int(getattr(given, "kv_indptr", given)[-1]) == sum(-(-length // 16) for length in part.kv_lens)
    assert [name for name, _ in log[begin:] if name.endswith("__init__")]
    assert again.kernel_config.startswith(f"decode_requests=4 decode_q_tokens={halves.decode.num_q_tokens}")


@pytest.mark.parametrize(
    ("routine", "backend", "words"),
    [
        ("paged_decode", "fa2_tcc+fa2", "paged_decode has no backend 'fa2_tcc'; did you mean 'fa2_tc'?"),
        ("paged_decode", "fa2_tc+fa33", "paged_prefill has no backend 'fa33'; did you mean 'fa3'?"),
        ("paged_decode", "fa2_tc+fa2@0", "are written DECODE\\+PREFILL or DECODE\\+PREFILL@THRESHOLD, such as fa2_tc\\+fa2@4"),
        ("mla", "fa2+fa2_tc", "mla has no backend 'fa2_tc'"),
        ("ragged_prefill", "fa2+fa2", "ragged_prefill has no backend 'fa2\\+fa2'"),
    ],
)
def test_a_name_of_no_backend_is_refused_in_words(routine: str, backend: str, words: str):
    with pytest.raises(registry.UnknownBackend, match=words):
        registry.get(routine, backend)


def test_a_split_belongs_to_the_plugin_of_either_part():
    assert registry.module_of("paged_decode", "fa2_tc+leaves_scale", (WRONG,)) == WRONG
    assert registry.module_of("paged_decode", "fa2_tc+fa2", (WRONG,)) == "kernels.adapters.flashinfer_decode"
    with pytest.raises(registry.UnknownBackend, match=r"two plugins, tests\.backends\.faulty and tests\.backends\.splitting"):
        registry.get("paged_decode", "nothing+leaves_scale", ("tests.backends.faulty", WRONG))


@pytest.mark.parametrize("fault", ["one_token_short", "row_copied", "softmax_scale_missing"])
def test_a_fault_in_a_split_batch_is_made_where_its_request_lies_and_is_caught(fault: str):
    problem, backend = make(OUT_OF_ORDER), f"{fault}@torch_sdpa+torch_sdpa@4"
    mutant = registry.get("paged_decode", backend, ("kernels.mutants",))
    inputs = draw(problem, "cpu")
    runner, right = (one.prepare(inputs, cpu()) for one in (mutant, of("torch_sdpa+torch_sdpa@4")))
    runner()
    right()
    how = runner.arithmetic

    assert not judge_whole(runner.as_asked(runner.out), inputs, answer(inputs), how).passed
    differs = (runner.as_asked(runner.out) != right.as_asked(right.out)).flatten(1).any(1).nonzero().flatten().tolist()
    rows = inputs.queries(victim(problem))
    assert differs and set(differs) <= set(range(rows.start, rows.stop))
    with pytest.raises(registry.UnknownBackend, match=f"has no backend '{fault}@torch_sdpa"):
        registry.get("paged_decode", backend)


def test_the_pairs_of_a_name_are_found_for_each_routine_that_has_both():
    found = registry.splits(["fa2+fa2", "fa2_tc+fa2@4", "fa2", "x+fa2"])

    assert list(found) == [("paged_decode", "fa2+fa2"), ("paged_decode", "fa2_tc+fa2@4"), ("mla", "fa2+fa2")]
