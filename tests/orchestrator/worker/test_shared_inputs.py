"""What is kept for all backends of a problem: made once, and never from inputs that one of them had damaged."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from kernels.check import answer, oracle
from kernels.check.judgement import judge_whole
from kernels.inputs.generate import draw
from kernels.problem import Problem
from kernels.problem.arithmetic import Arithmetic
from orchestrator.worker.shared_inputs import WROTE_INPUTS, SharedInputs

BF16 = Arithmetic("bf16")


@pytest.fixture
def shared(problem: Callable[..., Problem]) -> SharedInputs:
    x = draw(problem(s_kv=200, s_qo=2, q_dtype="bf16", kv_dtype="bf16"), "cpu")
    return SharedInputs(x, oracle.answer(x), 0)


def right_output(shared: SharedInputs) -> torch.Tensor:
    assert shared.answer is not None
    return shared.answer.out.bfloat16()


def test_nothing_is_kept_of_inputs_that_a_backend_had_damaged(shared: SharedInputs):
    x, out, right = shared.inputs, right_output(shared), shared.answer
    assert right is not None
    untouched = judge_whole(out, x, oracle.answer(x), BF16)
    x.q.copy_(x.q.flip(0))
    x.kv[1].mul_(2)
    damaged = judge_whole(out, x, right, BF16)

    assert damaged.min_tokens != untouched.min_tokens or damaged.weight_over_limit != untouched.weight_over_limit
    assert WROTE_INPUTS in shared.restore_if_changed()
    assert judge_whole(out, x, right, BF16) == untouched


def test_what_is_kept_changes_no_verdict(shared: SharedInputs):
    x, out, right = shared.inputs, right_output(shared), shared.answer
    assert right is not None
    verdicts = [judge_whole(one, x, kept, BF16) for kept in (right, oracle.answer(x)) for one in (out, out * 1.01, out)]

    assert verdicts[:3] == verdicts[3:] and verdicts[0] == verdicts[2] != verdicts[1]


def test_the_answer_to_other_values_is_computed_once(shared: SharedInputs, monkeypatch: pytest.MonkeyPatch):
    computed, compute = list[int](), oracle.answer
    monkeypatch.setattr(oracle, "answer", lambda inputs: (computed.append(1), compute(inputs))[1])
    first = shared.with_other_values(1)
    first.kept("something", lambda: 1)
    shared.draw_again()
    again, other = shared.with_other_values(1), shared.with_other_values(2)

    assert len(computed) == 2
    assert torch.equal(first.out, again.out) and not torch.equal(first.out, other.out)
    assert again.kept("something", lambda: 2) == 2  # made for the first backend, after its launch
    assert torch.equal(shared.with_other_values(1).out, compute(shared.inputs).out)


def test_it_is_right_if_a_backend_wrote_to_what_is_not_drawn_again(shared: SharedInputs):
    right = shared.with_other_values(1)
    for number in (1, 3):
        shared.draw_again()
        shared.inputs.page_table[0] = shared.inputs.page_table[0].flip(0)
        found = shared.with_other_values(number)

        assert torch.equal(found.out, oracle.answer(shared.inputs).out)
    assert torch.equal(shared.with_other_values(1).out, right.out)


def test_something_large_is_not_kept(shared: SharedInputs, monkeypatch: pytest.MonkeyPatch):
    assert shared.answer is not None
    assert [shared.answer.kept("small", lambda number=number: number) for number in (1, 2)] == [1, 1]
    monkeypatch.setattr(answer, "KEPT_ELEMENTS", 1)
    assert [shared.answer.kept("large", lambda number=number: number) for number in (1, 2)] == [1, 2]
