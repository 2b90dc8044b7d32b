"""Backends that cheat, or damage what they share: each is named, and nobody else suffers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from kernels.adapter import Adapter
from kernels.problem import Problem
from kernels.timing.config import Timing
from orchestrator.machines import cpu
from orchestrator.point import Point
from orchestrator.storage.row import Row
from orchestrator.worker import output_check
from orchestrator.worker.messages import Task, WorkerConfig
from orchestrator.worker.point_runner import PointRunner
from tests.backends.cheating import SHAPES, STALE

FEW_ROWS = {"num_qo_heads": 2, "num_kv_heads": 1, "head_dim_qk": 128, "head_dim_vo": 128, "batch_size": 1, "s_qo": 1}
LONG = 1000  # most tokens lie within pages, and the last page has slots without a token
CULPRITS = {
    "lazy": "off by more than",
    "races": "off by more than",
    "copies_cache": "off by more than",
    "remembers_queries": "off by more than",
    "keeps_output": "wrong after tokens of the cache had changed",
    "samples_cache": "wrong after tokens of the cache had changed",
    "watches_sentinels": "wrong after tokens of the cache had changed",
    "one_request_kept": "wrong after tokens of the cache had changed",
    "overruns": "it wrote outside its output",
    "states_8_bits": "states that it multiplies in fp8_e4m3, but no operand is coarser than bf16",
    "corrupts": "it wrote to the inputs, which it may only read",
    "damages_reference": "it wrote to the reference, by which every backend is judged",
    "writes_unused": "it wrote to slots of the cache that hold no token",
    "writes_unused_later": "it wrote to slots of the cache that hold no token",
    "corrupts_later": "it wrote to the inputs, which it may only read",
    "reorders_queries": "it wrote to the inputs, which it may only read",
}


REFUSED = {
    "answers_untimed": "Answers is no class of kernels.inputs.copies, and the project makes all copies",
    "copies_more_than_new_tokens": "a copy of inputs that it does not declare: CopiedCache needs copies_cache=True",
    "restores_untimed": "Runner.restore is a function, which nobody times",
    "restores_an_answer": "restores from a tensor that is no input",
    "gathers": "got an unexpected keyword argument 'gather'",
    "reads_reordered": "sets Runner.rows and does not declare `reorders`",
    "lazy_lse": "Runner.lse is a function, which would compute when it is looked at",
    "lazy_lse_tensor": "what launch returns as the log-sum-exp is tests.backends.cheating.Lazy; it must be a plain torch.Tensor",
    "lazy_tensor": "Runner.out is tests.backends.cheating.Lazy; it must be a plain torch.Tensor",
}


@pytest.fixture(autouse=True)
def _as_many_launches_as_on_a_quiet_machine(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(output_check, "LAUNCH_SECONDS", 60.0)


CONFIG = WorkerConfig(Timing(min_samples=30, max_samples=60), True, ("tests.backends.cheating",), {"run_id": "r"})


def rows_of(problem: Problem, backends: list[str], config: WorkerConfig = CONFIG) -> dict[str, Row]:
    """A group of backends on one problem, measured together."""
    worker = PointRunner.create(config, cpu())
    rows = [row for name in backends for row in worker.prepare(Task(Point(problem, name, "how"), "replay")).rows]
    return {row["backend"]: row for row in (*rows, *worker.measure().rows)}


@pytest.mark.parametrize(("backend", "words"), CULPRITS.items())
def test_a_cheat_is_named_beside_honest_backends(backend: str, words: str, problem: Callable[..., Problem]):
    rows = rows_of(problem(s_kv=LONG, page_size=64), ["torch_sdpa", backend, "honest"])

    assert rows[backend]["status"] == "mismatch"
    assert words in rows[backend]["reason"]
    assert [rows[name]["status"] for name in ("torch_sdpa", "honest")] == ["ok", "ok"]
    assert rows["honest"]["launches_checked"] == output_check.LAUNCHES


@pytest.mark.parametrize("backend", ["writes_unused_later", "corrupts_later", "corrupts_once"])
def test_a_lone_backend_is_blamed_for_what_is_found_after_its_samples(backend: str, problem: Callable[..., Problem]):
    row = rows_of(problem(s_kv=LONG, page_size=64), [backend])[backend]

    assert row["status"] == "mismatch"
    assert CULPRITS.get(backend, CULPRITS["corrupts"]) in row["reason"]


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_a_row_says_whether_launches_and_batches_give_the_same_bits(batch: int, problem: Callable[..., Problem]):
    asked = replace(CONFIG, batch_invariance=True)
    rows = rows_of(problem(s_kv=LONG, page_size=64, batch_size=batch), ["honest", "last_bit", "batch_bit"], asked)
    told = [(row["status"], row["same_bits"], row["batch_invariant"]) for row in rows.values()]

    several = batch > 1
    assert told[0] == ("ok", True, True if several else None) and told[2] == ("ok", True, False if several else None)
    assert told[1][:2] == ("ok", False)
    assert rows_of(problem(batch_size=2), ["honest"])["honest"]["batch_invariant"] is None


@pytest.mark.parametrize(("spec", "same"), [("q1s0_2q1s200_q1s0", True), ("q3s0_q3s80", None)])
def test_requests_without_keys_have_no_answer_to_keep_and_no_batch_of_their_own(spec: str, same: bool | None):
    p = Problem(num_qo_heads=4, num_kv_heads=2, head_dim_qk=32, head_dim_vo=32, page_size=16, batch_spec=spec)
    row = rows_of(p, ["torch_chunks"], replace(CONFIG, batch_invariance=True))["torch_chunks"]

    assert (row["status"], row["check_stale_covered"], row["batch_invariant"]) == ("ok", 1.0, same)


@pytest.mark.parametrize(("backend", "words"), REFUSED.items())
def test_what_could_compute_untimed_is_refused(backend: str, words: str, problem: Callable[..., Problem]):
    row = rows_of(problem(s_kv=64, return_lse="lse" in backend), [backend])[backend]

    assert row["status"] == "failed"
    assert words in row["reason"]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("batch", [2, 5])
def test_the_answer_of_any_one_request_that_is_kept_is_found(seed: int, batch: int, problem: Callable[..., Problem]):
    row = rows_of(problem(s_kv=256, batch_size=batch, seed=seed), ["one_request_kept"])["one_request_kept"]

    assert row["status"] == "mismatch" and CULPRITS["keeps_output"] in row["reason"]
    assert row["check_stale_covered"] == 1


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("s_qo", [160, 400])
def test_an_answer_that_is_kept_for_half_of_a_prompt_is_found(s_qo: int, batch: int, problem: Callable[..., Problem]):
    prompt = problem(mask="causal", s_qo=s_qo, s_kv=s_qo + 20, batch_size=batch)
    rows = rows_of(prompt, ["honest", "half_prompt_kept"])

    assert CULPRITS["keeps_output"] in rows["half_prompt_kept"]["reason"]
    assert [row["status"] for row in rows.values()] == ["ok", "mismatch"]


@pytest.mark.parametrize("backend", STALE, ids=lambda one: one.name)
def test_whatever_of_another_routines_inputs_or_outputs_is_kept_is_found(backend: Adapter):
    problem = Problem.model_validate({"routine": backend.routine, "batch_size": 2, **SHAPES[backend.routine]})
    rows = rows_of(problem, [backend.name, backend.of])

    assert rows[backend.name]["status"] == "mismatch" and rows[backend.of]["status"] == "ok"
    assert "prepare" in backend.name or CULPRITS["keeps_output"] in rows[backend.name]["reason"]
    assert rows[backend.of]["check_stale_covered"] == 1


HEADS = {"num_qo_heads": 16, "num_kv_heads": 16, "head_dim_qk": 192, "head_dim_vo": 128}
MLA = {"routine": "mla", "batch_size": 2, **HEADS, "page_size": 64}


@pytest.mark.parametrize("s_qo", [1, 2])
def test_an_answer_is_found_stale_where_its_arithmetic_hides_one_token(s_qo: int):
    latent = {"head_dim_ckv": 512, "head_dim_kpe": 64, "kv_dtype": "fp8_e4m3"}
    p = Problem.model_validate({**MLA, **latent, "s_qo": s_qo, "s_kv": 4096})
    row = rows_of(p, ["lazy_8"])["lazy_8"]

    assert row["status"] == "mismatch" and CULPRITS["keeps_output"] in row["reason"]


def test_a_row_says_in_how_many_requests_an_answer_of_before_would_show():
    shape = {key: value for key, value in MLA.items() if key != "batch_size"}
    p = Problem.model_validate({**shape, "head_dim_ckv": 64, "head_dim_kpe": 32, "batch_spec": "q1s1_q1s200"})

    assert rows_of(p, ["torch_chunks"])["torch_chunks"]["check_stale_covered"] == 0.5  # of one key every answer is its value


def test_who_comes_first_or_last_makes_no_difference(problem: Callable[..., Problem]):
    names = ["honest", *CULPRITS]
    there, back = (rows_of(problem(s_kv=LONG, page_size=64), order) for order in (names, names[::-1]))

    assert {name: row["status"] for name, row in there.items()} == {name: row["status"] for name, row in back.items()}
    assert [name for name, row in there.items() if row["status"] == "ok"] == ["honest"]


def test_faults_that_one_input_does_not_show_are_found_on_several(monkeypatch: pytest.MonkeyPatch):
    """Faults of 4 to 8 keys among 30,000, in a KV head with two rows: with one input no promise can be made."""
    monkeypatch.setattr(output_check, "LAUNCH_SECONDS", 0.0)
    p = Problem.model_validate({**FEW_ROWS, "s_kv": 30000})
    config = WorkerConfig(Timing(min_samples=10, max_samples=10), True, ("kernels.mutants.drawn",), {}, max_inputs=4)

    def measured(*backends: str, **keys: int) -> tuple[set[str], dict[str, Row]]:
        """Backends that the first input caught, and all rows."""
        worker = PointRunner.create(replace(config, **keys), cpu())
        caught = [row for name in backends for row in worker.prepare(Task(Point(p, name, "how"), "replay")).rows]
        return {row["backend"] for row in caught}, {row["backend"]: row for row in (*caught, *worker.measure().rows)}

    _, alone = measured("torch_sdpa", max_inputs=1)
    caught, rows = measured("torch_sdpa", "drawn_103", "drawn_112")
    one, several = alone["torch_sdpa"], rows["torch_sdpa"]
    hidden = {"drawn_103", "drawn_112"} - caught

    assert (one["inputs_checked"], one["check_min_tokens"]) == (1, None)
    assert several["status"] == "ok" and several["inputs_checked"] > 1 and several["check_min_tokens"] <= 64
    assert hidden
    assert all(rows[name]["status"] == "mismatch" and "count" in rows[name]["reason"] for name in hidden)


@pytest.mark.parametrize("wrong", [False, True])
def test_the_log_sum_exp_of_further_inputs_is_judged_too(wrong: bool, problem: Callable[..., Problem]):
    """A wrong one comes from a kernel that adds to it whenever its queries are not the first ones."""
    worker = PointRunner.create(WorkerConfig(Timing(min_samples=10, max_samples=10), True, (), {}), cpu())
    worker.prepare(Task(Point(problem(return_lse=True), "torch_chunks", "how"), "replay"))
    (one,) = worker._prepared
    outputs, first_queries = one.output_check, one.shared.inputs.q.clone()
    assert outputs is not None and outputs.first.lse_err is not None
    timer = outputs.call.timer
    replay, lse = timer.replay, timer.runner.lse
    assert isinstance(lse, torch.Tensor)

    def launch(wait: bool = True) -> None:
        replay()
        if wrong and not torch.equal(one.shared.inputs.q, first_queries):
            lse.add_(0.5)

    timer.replay = launch  # type: ignore[method-assign]
    outputs.first = replace(outputs.first, inputs_needed=3)
    verdict = outputs.judge_more_inputs(4)

    assert verdict is not None and outputs.inputs == 3
    assert verdict.passed != wrong
    assert ("log-sum-exp" in verdict.reason) == wrong
    assert verdict.lse_err is not None and verdict.lse_err >= (0.4 if wrong else outputs.first.lse_err)


@pytest.mark.parametrize(
    ("needed", "alone", "drawn"), [(3, 128, 3), (3, None, 3), (7, 128, None), (7, None, 4), (None, 128, None), (None, None, 4)]
)
def test_if_too_many_inputs_would_be_needed_some_are_drawn_only_if_one_shows_nothing(
    needed: int | None, alone: int | None, drawn: int | None, problem: Callable[..., Problem]
):
    worker = PointRunner.create(WorkerConfig(Timing(min_samples=10, max_samples=10), True, (), {}), cpu())
    worker.prepare(Task(Point(problem(), "torch_sdpa", "how"), "replay"))
    check = worker._prepared[0].output_check
    assert check is not None and check.first.weight_over_limit is not None
    check.first = replace(check.first, inputs_needed=needed, min_tokens=alone)
    verdict = check.judge_more_inputs(4)

    assert (verdict is not None, check.inputs) == (drawn is not None, drawn or 1)


def of_a_long_call(problem: Problem, seed: int, in_blocks: int, monkeypatch: pytest.MonkeyPatch) -> output_check.OutputCheck:
    """The check of a call that has no time for further launches, with as many compared ones of timed blocks."""
    monkeypatch.setattr(output_check, "LAUNCH_SECONDS", -1.0)
    worker = PointRunner.create(WorkerConfig(Timing(min_samples=10, max_samples=10), True, (), {}), cpu())
    worker.prepare(Task(Point(problem, "torch_sdpa", "how"), "replay"))
    check = worker._prepared[0].output_check
    assert check is not None
    check._coin.seed(seed)
    for _ in range(in_blocks):
        check.launches.compare()
    return check


@pytest.mark.parametrize(("in_blocks", "at_end"), [(0, 4), (1, 3), (2, 2), (20, 1)])
@pytest.mark.parametrize("seed", range(4))
def test_a_long_call_is_launched_over_nan_and_over_an_answer(
    in_blocks: int, at_end: int, seed: int, problem: Callable[..., Problem], monkeypatch: pytest.MonkeyPatch
):
    """After many blocks, which launch on answers, the launches after a change are those over an answer."""
    check = of_a_long_call(problem(), seed, in_blocks, monkeypatch)
    launched: list[bool] = []
    monkeypatch.setattr(output_check.JudgedCall, "launch", lambda call, poisoned, **_: launched.append(poisoned))

    assert check.judge_all().passed
    assert len(launched) == at_end
    assert launched[:2] == [True, False][:at_end]


@pytest.mark.parametrize("seed", range(4))
def test_one_of_two_launches_at_the_end_finds_an_answer_also_after_a_block_that_left_nan(
    seed: int, problem: Callable[..., Problem], monkeypatch: pytest.MonkeyPatch
):
    check = of_a_long_call(problem(), seed, 20, monkeypatch)
    timer, found = check.call.timer, list[bool]()
    replay = timer.replay

    def launch(wait: bool = True) -> None:
        found.append(bool(timer.runner.out.isnan().all()))
        replay()

    timer.replay = launch  # type: ignore[method-assign]
    check.call.outputs.poison()

    assert check.judge_all().passed
    assert found[:2] == [True, False]


def test_outputs_of_equal_bits_have_one_verdict(problem: Callable[..., Problem], monkeypatch: pytest.MonkeyPatch):
    worker = PointRunner.create(WorkerConfig(Timing(min_samples=10, max_samples=10), True, (), {}), cpu())
    worker.prepare(Task(Point(problem(), "torch_sdpa", "how"), "replay"))
    check = worker._prepared[0].output_check
    assert check is not None
    out, lse = check.call.outputs.now()
    other, judged = out.clone(), list[torch.Tensor]()
    other.view(torch.uint8).view(-1)[7] ^= 1
    monkeypatch.setattr(output_check, "judge_whole", lambda out, *_: judged.append(out) or check.first)

    assert check.call.judge_outputs(out.clone(), lse) is check.first
    assert not judged
    for _ in range(2):
        check.call.judge_outputs(other, lse)
    assert len(judged) == 1
    check.call.shared.forget_kept()
    check.call.judge_outputs(out, lse)
    assert len(judged) == 2
