"""Lengths of steps: what a plan gets on the host, and what stands in the inputs' tensors."""

from __future__ import annotations

import torch

from kernels.inputs import Inputs
from kernels.inputs.generate import draw
from kernels.inputs.step_lengths import StepLengths, host_lengths, of_lengths, steps_before
from kernels.problem import Problem

KEYS = {"num_qo_heads": 2, "num_kv_heads": 1, "head_dim_qk": 16, "head_dim_vo": 16, "page_size": 16}
LENGTHS = ("kv_lens", "kv_indptr", "last_page_len")


def drawn(**keys: object) -> Inputs:
    return draw(Problem.model_validate({**KEYS, "batch_size": 2, "s_qo": 3, "s_kv": 50, **keys}), "cpu")


def last_steps(inputs: Inputs, count: int) -> list[StepLengths]:
    return [steps_before(inputs, back) for back in reversed(range(count))]


def test_steps_grow_by_the_query_tokens_up_to_the_inputs_own():
    steps = last_steps(drawn(), 4)

    assert [step.kv_lens for step in steps] == [(41, 41), (44, 44), (47, 47), (50, 50)]
    assert [step.host.kv_indptr.tolist() for step in steps] == [[0, 3, 6], [0, 3, 6], [0, 3, 6], [0, 4, 8]]
    assert [step.host.last_page_len.tolist() for step in steps] == [[9, 9], [12, 12], [15, 15], [2, 2]]
    assert [step.host.num_pages for step in steps] == [6, 6, 6, 8]
    assert steps[0].host.qo_indptr.tolist() == [0, 3, 6]


def test_no_request_is_shorter_than_its_queries_and_a_prefix_stays_whole():
    assert [step.kv_lens for step in last_steps(drawn(s_kv=7), 4)] == [(3, 3), (3, 3), (4, 4), (7, 7)]
    cascade = drawn(routine="cascade", shared_prefix=32)
    assert last_steps(cascade, 8)[0].kv_lens == (35, 35)


def test_a_request_without_keys_stays_without_and_cross_attention_gets_no_more_keys():
    mixed = draw(Problem.model_validate({**KEYS, "batch_spec": "q2s7_q2s0"}), "cpu")

    assert [step.kv_lens for step in last_steps(mixed, 3)] == [(3, 0), (5, 0), (7, 0)]
    assert last_steps(drawn(s_qo=9, s_kv=4, mask="full"), 2)[0].kv_lens == (4, 4)


def test_without_pages_every_step_has_the_inputs_own_lengths():
    ragged = drawn(routine="ragged_prefill", s_qo=5, s_kv=20)

    assert {step.kv_lens for step in last_steps(ragged, 3)} == {(20, 20)}


def test_the_tensors_keep_their_addresses_and_the_last_step_restores_all():
    inputs = drawn(batch_size=3, seq_lens="random", seed=1)
    tensors = [*(getattr(inputs, name) for name in LENGTHS), inputs.kv_indices]
    before, where = [t.clone() for t in tensors], [t.data_ptr() for t in tensors]
    steps = last_steps(inputs, 8)
    steps[0].write_into(inputs)
    first = [t.clone() for t in tensors]
    own = [steps[0].host.kv_lens, steps[0].host.kv_indptr, steps[0].host.last_page_len]

    assert all(torch.equal(a, b) for a, b in zip(first[:3], own, strict=True))
    assert not torch.equal(first[0], before[0])
    steps[-1].write_into(inputs)
    assert all(torch.equal(a, b) for a, b in zip(tensors, before, strict=True))
    assert [t.data_ptr() for t in tensors] == where


def test_a_step_lists_the_first_pages_of_each_request():
    inputs = drawn()
    step = of_lengths(inputs, (17, 40))

    pages = inputs.page_table
    assert step.kv_indices.tolist() == [*pages[0, :2].tolist(), *pages[1, :3].tolist()]


def test_the_inputs_own_lengths_on_the_host():
    inputs = drawn()
    host = host_lengths(inputs)

    assert all(torch.equal(getattr(host, name), getattr(inputs, name)) for name in (*LENGTHS, "qo_indptr"))
    assert host.num_pages == len(inputs.kv_indices)
