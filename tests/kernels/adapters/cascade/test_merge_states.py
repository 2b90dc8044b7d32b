"""The merge alone: its bytes and FLOPs, the states that it is given, FlashInfer's calls, and wrong merges that are called wrong."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from pydantic import ValidationError
from torch import Tensor

from kernels import registry
from kernels.adapter import Adapter
from kernels.adapters.merge_states import TorchMerge
from kernels.check import oracle
from kernels.check.judgement import judge_whole
from kernels.check.oracle import Verdict
from kernels.device import Device
from kernels.inputs.generate import draw
from kernels.inputs.states import ranges
from kernels.inputs.tensors import decoy
from kernels.problem import Problem
from kernels.problem.arithmetic import Arithmetic
from kernels.step import size
from kernels.timing.config import Timing
from orchestrator.config.settings import Settings
from orchestrator.machines import cpu, known_devices
from orchestrator.planning.cost import estimate
from orchestrator.planning.decide import make_plan
from orchestrator.planning.expand import expand
from orchestrator.point import Point
from orchestrator.storage.row import Row
from orchestrator.worker.messages import Task, WorkerConfig
from orchestrator.worker.point_runner import PointRunner
from tests.backends import merging
from tests.helpers import fake_flashinfer

H200 = known_devices()["h200"]
HEADS = {"num_qo_heads": 8, "num_kv_heads": 2, "head_dim_qk": 64, "head_dim_vo": 64, "page_size": 16}
MERGE = {**HEADS, "routine": "merge_states", "batch_size": 3, "s_qo": 2, "s_kv": 300, "num_states": 4, "return_lse": True}
ONE_CALL, CHAIN = (registry.get("merge_states", name) for name in ("merge_states", "merge_state_chain"))


def make(**keys: object) -> Problem:
    listed = ("batch_size", "s_qo", "s_kv") if "batch_spec" in keys else ()
    return Problem.model_validate({**{key: value for key, value in MERGE.items() if key not in listed}, **keys})


def verdict_of(adapter: Adapter, p: Problem, device: Device = H200) -> Verdict:
    """Prepared and called on other queries and another cache, as a worker does; then the states are made anew."""
    x = draw(p, "cpu")
    with decoy(x):
        runner = adapter.prepare(x, device)
        runner()
    runner.refresh()
    runner.out.fill_(math.nan)
    runner()
    how = runner.arithmetic
    return judge_whole(runner.out, x, oracle.answer(x), how, runner.written_lse())


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"num_states": None}, "routine=merge_states needs it"),
        ({"routine": "paged_decode"}, "allowed only with routine=merge_states"),
        ({"num_states": 1}, "greater than or equal to 2"),
        ({"num_states": 301}, "at most s_kv=300"),
        ({"graph_batch": 8}, "not merge_states"),
    ],
)
def test_what_no_merge_can_be_is_refused_in_words(keys: dict[str, object], words: str):
    with pytest.raises(ValidationError, match=words):
        make(**keys)


def test_old_point_ids_do_not_know_the_new_field():
    plain = Problem.model_validate({**MERGE, "routine": "paged_decode", "num_states": None})

    assert "num_states" not in plain.model_dump(exclude_defaults=True)
    assert plain.bytes == plain.unshared_bytes == plain.attention_bytes
    assert plain.flops == plain.attention_flops


@pytest.mark.parametrize(("keys", "size_of_one"), [({}, 2), ({"q_dtype": "fp32"}, 4), ({"kv_dtype": "fp8_e4m3"}, 2)])
@pytest.mark.parametrize("n", [2, 8])
def test_bytes_and_flops_are_those_of_the_merge(keys: dict[str, object], size_of_one: int, n: int):
    p, rows = make(num_states=n, **keys), 3 * 2 * 8
    attention = Problem.model_validate({**MERGE, **keys, "routine": "paged_decode", "num_states": None})

    assert p.bytes == rows * ((n + 1) * 64 * size_of_one + 4 * (n + 1))
    assert p.flops == 2 * n * rows * 64
    assert make(num_states=n, **keys, return_lse=False).bytes == p.bytes - 4 * rows
    assert (p.attention_bytes, p.attention_flops, p.input_bytes) == (attention.bytes, attention.flops, attention.input_bytes)


def test_a_plan_counts_the_merge_for_the_call_and_attention_for_the_reference():
    long, short = make(s_kv=65536), make(s_kv=1024)
    of_long, of_short = (estimate(p, 0, H200, Timing()) for p in (long, short))

    assert of_long.point_s == of_short.point_s
    assert of_long.setup_s > 30 * of_short.setup_s
    assert "no states that are given" in " ".join(size.unmet(short))


def test_the_ranges_of_a_request_are_all_its_keys_once():
    p = make(seq_lens="random", s_kv=77, num_states=7)
    parts = [ranges(p, i) for i in range(7)]

    for request, length in enumerate(p.kv_lens):
        assert [key for part in parts for key in part[request]] == list(range(length))
        assert {len(part[request]) for part in parts} <= {length // 7, length // 7 + 1}


SHAPES = [
    {},
    {"s_qo": 1, "num_states": 2},
    {"s_qo": 1, "batch_size": 2, "num_states": 8},  # as many states as tokens or more: the other kernel
    {"num_states": 16},
    {"s_qo": 64, "s_kv": 70, "num_states": 8},  # the first queries see no key of most ranges
    {"s_qo": 5, "window": 9},  # nor any query of the first ones
    {"seq_lens": "random", "batch_size": 4, "s_qo": 1, "s_kv": 40, "num_states": 16},  # fewer keys than states
    {"batch_spec": "q40s300_2q1s77_q3s50"},
    {"s_qo": 4, "mask": "fork", "tree": (-1, 0, 0, 2)},
    {"kv_dtype": "fp8_e4m3"},
    {"q_dtype": "fp16", "kv_dtype": "fp16", "kv_layout": "NHD"},
    {"return_lse": False},
    {"head_dim_qk": 128, "head_dim_vo": 128, "num_qo_heads": 64, "num_kv_heads": 8},
]


@pytest.mark.parametrize("adapter", [ONE_CALL, CHAIN], ids=lambda adapter: adapter.name)
@pytest.mark.parametrize("keys", SHAPES, ids=str)
def test_what_flashinfer_merges_is_attention_over_all_keys(
    keys: dict[str, object], adapter: Adapter, monkeypatch: pytest.MonkeyPatch
):
    fake_flashinfer.put_in_place(monkeypatch)
    p = make(**keys)
    verdict = verdict_of(adapter, p)

    assert adapter.unmet(p, H200) == []
    assert verdict.passed, verdict.reason
    assert (verdict.lse_err is not None) == p.return_lse


@pytest.mark.parametrize("keys", [*SHAPES, {"q_dtype": "fp32", "kv_dtype": "fp32"}, {"kv_dtype": "nvfp4"}], ids=str)
def test_what_torch_merges_is_attention_over_all_keys(keys: dict[str, object]):
    verdict = verdict_of(TorchMerge(), make(**keys), cpu())

    assert verdict.passed, verdict.reason


def natural(merge: Callable[..., None]) -> Callable[..., None]:
    """A library whose log-sum-exps are natural, which the adapter takes for one of base 2."""

    def of_base_e(v: Tensor, s: Tensor, *others: Tensor) -> None:
        merge(v, s / math.log(2), *others)
        others[-1].mul_(math.log(2))

    return of_base_e


def test_a_library_of_the_other_base_is_wrong(monkeypatch: pytest.MonkeyPatch):
    fake_flashinfer.put_in_place(monkeypatch)
    monkeypatch.setattr(fake_flashinfer.MODULE, "merge_states", natural(fake_flashinfer.merge_states))

    assert not verdict_of(ONE_CALL, make()).passed


def test_the_order_of_states_and_tokens_in_memory_is_the_librarys(monkeypatch: pytest.MonkeyPatch):
    """FlashInfer reads [T, n, H, D]; with as many tokens as states a wrong order would have the same shape."""
    fake_flashinfer.put_in_place(monkeypatch)
    p = make(batch_size=2, num_states=4)
    right = fake_flashinfer.merge_states
    other = lambda v, s, *out: right(v.transpose(0, 1).contiguous(), s.transpose(0, 1).contiguous(), *out)  # noqa: E731

    assert verdict_of(ONE_CALL, p).passed
    monkeypatch.setattr(fake_flashinfer.MODULE, "merge_states", other)
    assert not verdict_of(ONE_CALL, p).passed


@pytest.mark.parametrize(
    ("keys", "resolved"),
    [
        ({"num_states": 5}, ("MergeStates", "MergeState + 3 MergeStateInPlace")),
        ({"num_states": 6}, ("MergeStatesLargeNumIndexSets", "MergeState + 4 MergeStateInPlace")),
        ({"num_states": 2}, ("MergeStates", "MergeState")),
    ],
)
def test_a_row_names_the_kernels_that_ran(keys: dict[str, object], resolved: tuple[str, str], monkeypatch: pytest.MonkeyPatch):
    fake_flashinfer.put_in_place(monkeypatch)
    x = draw(make(**keys), "cpu")

    assert (ONE_CALL.prepare(x, H200).resolved_backend, CHAIN.prepare(x, H200).resolved_backend) == resolved


def test_the_rules_follow_the_blocks_of_the_kernels():
    wide = {"num_qo_heads": 128, "num_kv_heads": 8, "head_dim_qk": 128, "head_dim_vo": 128}
    words = "up to 128 heads of 64, 64 of 128 or 32 of 256 and 512"

    assert ONE_CALL.unmet(make(**wide), H200) == [f"{words}, or no fewer states than query tokens"]
    assert ONE_CALL.unmet(make(**wide, num_states=6), H200) == []
    assert CHAIN.unmet(make(**wide, num_states=6), H200) == [f"{words}, whose merge is one block"]
    assert ONE_CALL.unmet(make(head_dim_vo=80), H200) == ["head_dim 64, 128, 256 or 512 of the values"]
    assert ONE_CALL.unmet(make(q_dtype="fp32"), H200) == ["fp16 or bf16 output"]


@pytest.mark.parametrize("adapter", merging.MERGE_WRONG, ids=lambda adapter: adapter.name)
@pytest.mark.parametrize(
    "keys", [{}, {"s_qo": 1, "batch_size": 1, "num_states": 8, "s_kv": 4000}, {"kv_dtype": "fp8_e4m3"}], ids=str
)
def test_a_wrong_merge_is_off(adapter: Adapter, keys: dict[str, object]):
    verdict = verdict_of(adapter, make(**keys), cpu())

    assert not verdict.passed
    assert verdict.of_tolerance > 1.5 or math.isinf(verdict.rel_err)


def test_a_forgotten_state_is_off_also_without_a_log_sum_exp():
    for adapter in merging.MERGE_WRONG:
        assert not verdict_of(adapter, make(return_lse=False), cpu()).passed, adapter.name


def test_a_right_output_with_the_log_sum_exp_of_one_state_does_not_pass():
    verdict = verdict_of(merging.MERGE_LSE_WRONG, make(num_states=2), cpu())

    assert verdict.of_tolerance < 1
    assert not verdict.passed and "log-sum-exp" in verdict.reason


def test_two_empty_states_need_a_guard_and_a_window_shows_it():
    """A window leaves the first ranges without keys, and their difference is one of infinities."""
    assert not verdict_of(merging.MERGE_UNGUARDED, make(s_qo=5, window=9), cpu()).passed
    assert verdict_of(merging.MERGE_UNGUARDED, make(), cpu()).passed


def test_states_that_are_not_made_anew_are_found():
    x = draw(make(), "cpu")
    with decoy(x):
        runner = TorchMerge().prepare(x, cpu())
    stale = replace(runner, copies=())
    stale.refresh()
    stale()

    assert not judge_whole(stale.out, x, oracle.answer(x), Arithmetic(stale.compute_dtype), stale.written_lse()).passed


def row_of(p: Problem, backend: str) -> Row:
    config = WorkerConfig(Timing(min_samples=10, max_samples=12), True, ("tests.backends.merging",), {"run_id": "r"})
    worker = PointRunner.create(config, cpu())
    (row,) = worker.prepare(Task(Point(p, backend, "how"), "replay")).rows or worker.measure().rows
    return row


def test_states_that_are_merged_where_they_are_made_are_refused():
    row = row_of(make(), "merges_untimed")

    assert row["status"] == "failed"
    assert "MergedStates is no class of kernels.inputs.copies, and the project makes all copies" in row["reason"]


def test_a_row_has_the_bytes_of_the_merge_and_a_wrong_one_no_time():
    right, forgets, wrong_base = (row_of(make(), name) for name in ("torch_merge", "last_forgotten", "in_base_2"))

    assert (right["status"], right["reason"], right["num_states"]) == ("ok", "", 4)
    assert right["bytes"] == make().bytes and (right["median_us"] or 0) > 0
    assert right["tb_per_sec"] == pytest.approx(make().bytes / (right["median_us"] or 1.0) / 1e6)
    for wrong in (forgets, wrong_base):
        assert (wrong["status"], wrong["median_us"]) == ("mismatch", None)


def test_the_sweep_asks_for_what_it_says(settings: Callable[..., Settings]):
    asked = settings("+sweep=merge_states", "model=llama_3_1_70b")
    plan = make_plan(expand(asked), [H200], asked)
    problems = {d.point.problem for d in plan.decisions}

    assert {d.kind for d in plan.decisions} == {"run"} and len(plan.decisions) == 36
    assert {(p.num_q_tokens, p.num_states) for p in problems} == {(t, n) for t in (8, 64, 512, 4096) for n in (2, 4, 8)}
    assert {(p.num_qo_heads, p.head_dim_vo, p.return_lse) for p in problems} == {(64, 128, True)}
    assert {p.state_dtype for p in problems} == {"bf16"}
