"""Faults that are drawn at random: what the check promises to catch it does catch, and the same kernel without a fault passes."""

from __future__ import annotations

import random

import pytest

from kernels.check import oracle
from kernels.check.judgement import judge_whole
from kernels.inputs.generate import draw
from kernels.mutants.drawn import KINDS, Fault, Kind, answer_with, draw_fault
from kernels.mutants.faults import victim
from kernels.mutants.reference_case import case_of
from kernels.problem import Problem
from kernels.problem.arithmetic import Arithmetic

GQA = {"num_qo_heads": 16, "num_kv_heads": 2, "head_dim_qk": 64, "head_dim_vo": 64, "page_size": 64, "batch_size": 2, "s_qo": 4}
MLA = {**GQA, "routine": "mla", "num_kv_heads": 16, "head_dim_ckv": 64, "head_dim_kpe": 32}
FP8 = {"q_dtype": "fp8_e4m3", "kv_dtype": "fp8_e4m3"}
FAULTS = 25  # of each problem, 200 in all


@pytest.mark.parametrize(
    "keys",
    [
        {**GQA, "s_kv": 16000},
        {**GQA, "s_kv": 8000, **FP8},
        {**GQA, "s_kv": 5000, "kv_dtype": "fp8_e4m3"},
        {**MLA, "s_kv": 5000},
        {**GQA, "s_kv": 3000, "routine": "ragged_prefill", "s_qo": 100},
        {**GQA, "s_kv": 5000, "s_qo": 7, "mask": "binary", "tree": (-1, 0, 0, 1, 1, 2, 2)},
        {**GQA, "s_kv": 5000, "window": 1000, "routine": "paged_prefill"},
        {**GQA, "s_kv": 5000, "sinks": True, "seq_lens": "random"},
    ],
)
def test_a_fault_that_the_check_promises_to_catch_is_caught(keys: dict[str, object]):
    p = Problem.model_validate(keys)
    x = draw(p, "cpu")
    right, case, how = oracle.answer(x), case_of(x, victim(p)), Arithmetic("fp8_e4m3" if p.q_dtype == "fp8_e4m3" else p.q_dtype)
    rounded = right.out.to(x.empty_output().dtype)
    verdict = judge_whole(rounded, x, right, how)
    missed = []
    for number in range(FAULTS):
        fault, out = draw_fault(p, number), rounded.clone()
        out[x.queries(victim(p))][-len(case.q) :] = answer_with(case, fault).to(out.dtype)
        promised = fault.kind == "pair" or (fault.kind in ("lost", "doubled") and fault.size >= (verdict.min_tokens or p.s_kv))
        if judge_whole(out, x, right, how).passed:
            missed.append((promised, str(fault)))

    assert verdict.passed and verdict.min_tokens is not None and verdict.pairs_covered == 1
    assert [fault for promised, fault in missed if promised] == []
    assert len(missed) <= FAULTS // 3, missed


def test_all_kinds_are_drawn_and_a_number_is_one_fault():
    p = Problem.model_validate({**GQA, "s_kv": 3000})
    faults = [draw_fault(p, number) for number in range(100)]

    assert {fault.kind for fault in faults} == set(KINDS)
    assert faults == [draw_fault(p, number) for number in range(100)]
    assert len(set(faults)) > 90


@pytest.mark.parametrize("kind", ["lost", "doubled"])
@pytest.mark.parametrize("keys", [{}, {"kv_dtype": "fp8_e4m3"}, FP8])
@pytest.mark.parametrize("s_kv", [300, 8000])
def test_what_is_promised_holds_strictly_inside_a_page(s_kv: int, keys: dict[str, object], kind: Kind):
    p = Problem.model_validate({**GQA, **keys, "s_kv": s_kv, "batch_size": 1})
    x, coin = draw(p, "cpu"), random.Random(s_kv)
    right, case, how = oracle.answer(x), case_of(x, 0), Arithmetic("fp8_e4m3" if p.q_dtype == "fp8_e4m3" else p.q_dtype)
    rounded = right.out.to(x.empty_output().dtype)
    least = judge_whole(rounded, x, right, how).min_tokens
    assert least is not None and least <= 16
    for size in (size for size in (1, 4, 16, 62) if size >= least):
        page = coin.randrange((s_kv - p.s_qo) // 64)
        fault = Fault(kind, size, page * 64 + 1 + coin.randrange(63 - size), coin.randrange(2))

        assert not judge_whole(answer_with(case, fault).to(rounded.dtype), x, right, how).passed, str(fault)
