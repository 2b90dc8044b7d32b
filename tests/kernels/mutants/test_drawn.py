"""Faults that are drawn at random: what the check promises to catch it does catch, and the same kernel without a fault passes."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from kernels.check import oracle
from kernels.check.judgement import judge_whole
from kernels.inputs.generate import draw
from kernels.mutants.drawn import DRAWS, FIRST_KINDS, KINDS, LATER_DRAWS, Fault, Kind, answer_with, draw_fault
from kernels.mutants.faults import victim
from kernels.mutants.reference_case import case_of
from kernels.problem import Problem
from kernels.problem.arithmetic import Arithmetic

GQA = {"num_qo_heads": 16, "num_kv_heads": 2, "head_dim_qk": 64, "head_dim_vo": 64, "page_size": 64, "batch_size": 2, "s_qo": 4}
MLA = {**GQA, "routine": "mla", "num_kv_heads": 16, "head_dim_ckv": 64, "head_dim_kpe": 32}
FP8 = {"q_dtype": "fp8_e4m3", "kv_dtype": "fp8_e4m3"}
FAULTS, LATER = 25, 25  # of each problem, 200 in all of the first kinds, and 200 of the later ones


@pytest.mark.parametrize(
    "keys",
    [
        {**GQA, "s_kv": 8000},
        {**GQA, "s_kv": 4000, **FP8},
        {**GQA, "s_kv": 2500, "kv_dtype": "fp8_e4m3"},
        {**MLA, "s_kv": 2500},
        {**GQA, "s_kv": 2000, "routine": "ragged_prefill", "s_qo": 50},
        {**GQA, "s_kv": 300, "routine": "ragged_prefill", "s_qo": 250},
        {**GQA, "s_kv": 2500, "s_qo": 7, "mask": "binary", "tree": (-1, 0, 0, 1, 1, 2, 2)},
        {**GQA, "s_kv": 2500, "window": 1000, "routine": "paged_prefill"},
        {**GQA, "s_kv": 2500, "sinks": True, "seq_lens": "random"},
    ],
)
def test_a_fault_that_the_check_promises_to_catch_is_caught(keys: dict[str, object]):
    p = Problem.model_validate(keys)
    x = draw(p, "cpu")
    right, how = oracle.answer(x), Arithmetic("fp8_e4m3" if p.q_dtype == "fp8_e4m3" else p.q_dtype)
    rounded, parts = right.out.to(x.empty_output().dtype), [*case_of(x, victim(p)).parts()]
    verdict = judge_whole(rounded, x, right, how)
    missed = []
    for number in (*range(FAULTS), *range(DRAWS, DRAWS + LATER)):
        fault, out = draw_fault(p, number), rounded.clone()
        out[x.queries(victim(p))] = torch.cat([answer_with(case, fault) for case in parts]).to(out.dtype)
        promised = fault.kind == "pair" or (fault.kind in ("lost", "doubled") and fault.size >= (verdict.min_tokens or p.s_kv))
        if judge_whole(out, x, right, how).passed:
            missed.append((promised and fault.heads is None and fault.tokens is None, number, str(fault)))

    assert verdict.passed and verdict.min_tokens is not None and verdict.pairs_covered == 1
    assert [fault for promised, _, fault in missed if promised] == []
    assert sum(number < DRAWS for _, number, _ in missed) <= FAULTS // 3, missed
    assert sum(number >= DRAWS for _, number, _ in missed) <= LATER // 2, missed


def test_all_kinds_are_drawn_and_a_number_is_one_fault():
    p = Problem.model_validate({**GQA, "s_kv": 3000})
    numbers = (*range(100), *range(DRAWS, DRAWS + LATER_DRAWS))
    faults = [draw_fault(p, number) for number in numbers]
    later = faults[100:]

    assert {fault.kind for fault in faults[:100]} == set(FIRST_KINDS)
    assert {fault.kind for fault in later if fault.heads is None and fault.tokens is None} == set(KINDS) - set(FIRST_KINDS)
    assert {fault.kind for fault in later if fault.heads or fault.tokens} == set(KINDS)
    assert {fault.of for fault in later if fault.kind == "scaled"} == {"keys", "values"}
    assert faults == [draw_fault(p, number) for number in numbers]
    assert len(set(faults)) > 190


def test_the_first_numbers_draw_what_they_drew_before_later_kinds_came():
    p = Problem.model_validate({**GQA, "s_kv": 3000})

    assert [str(draw_fault(p, number)) for number in (0, 1, 2, 3, 50, 199)] == [
        "doubled 32: keys 2720 to 2751 of KV head 0",
        "doubled 32: keys 1883 to 1914 of KV head 0",
        "pair: query 0, key 2999",
        "doubled 16: keys 2959 to 2974 of KV head 0",
        "lost 16: keys 2400 to 2415 of KV head 0",
        "pair: query 1, key 2999",
    ]


@pytest.mark.parametrize("keys", [{"s_qo": 1, "num_qo_heads": 2}, {"window": 100}, {"s_kv": 12}, {"sinks": True}])
def test_keys_that_are_exchanged_are_apart_and_all_queries_see_them(keys: dict[str, object]):
    p = Problem.model_validate({**GQA, "s_kv": 3000, **keys})
    context = p.kv_lens[victim(p)] - p.q_lens[victim(p)]
    faults = [fault for number in range(DRAWS, DRAWS + LATER_DRAWS) if (fault := draw_fault(p, number)).kind == "swapped"]

    assert len(faults) > 20
    for fault in faults:
        assert abs(fault.start - fault.other) >= fault.size
        assert max(0, p.kv_lens[victim(p)] - (p.window or p.s_kv)) <= min(fault.start, fault.other)
        assert max(fault.start, fault.other) + fault.size <= context


def test_a_fault_in_some_rows_leaves_the_others_right():
    x = draw(Problem.model_validate({**GQA, "s_kv": 300, "batch_size": 1}), "cpu")
    case = case_of(x, 0)
    in_heads = Fault("lost", 64, 64, 1, heads=(2, 3))
    in_tokens = Fault("scaled", 64, 64, 1, factor=2.0, of="keys", tokens=(0, 1))
    off = [(answer_with(case, fault) - case.answer()).norm(dim=-1) > 1e-4 for fault in (in_heads, in_tokens)]

    assert off[0].any(0).nonzero().flatten().tolist() == [10, 11]
    assert off[1].any(1).nonzero().flatten().tolist() == [0, 1]
    assert off[1].any(0).nonzero().flatten().tolist() == list(range(8, 16))
    assert str(in_heads) == "lost 64 in some rows: keys 64 to 127 of KV head 1, query heads 2 to 3 of its group"
    assert str(in_tokens) == "scaled 64 in some rows: keys times 2 of keys 64 to 127 of KV head 1, queries 0 to 1"


def test_exchanged_values_are_those_of_the_other_keys():
    x = draw(Problem.model_validate({**GQA, "s_kv": 300, "batch_size": 1}), "cpu")
    case, order = case_of(x, 0), torch.arange(300)
    order[64:128], order[192:256] = torch.arange(192, 256), torch.arange(64, 128)
    by_hand = replace(case, v=case.v[order]).answer()
    found = answer_with(case, Fault("swapped", 64, 64, 1, other=192))

    assert torch.equal(found[:, 8:], by_hand[:, 8:])
    assert torch.equal(found[:, :8], case.answer()[:, :8])


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
