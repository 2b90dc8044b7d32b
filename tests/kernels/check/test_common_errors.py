"""Errors that all rows of a KV head have in common: tensor cores that multiply in 8 bits cut sums or products off towards zero."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, lru_cache

import pytest
import torch

from kernels.check import common_errors, oracle
from kernels.check.estimates import OutputErrors, Rows
from kernels.check.judgement import judge_whole
from kernels.inputs import Inputs
from kernels.inputs.generate import draw
from kernels.mutants.drawn import Fault, Kind, answer_with
from kernels.mutants.reference_case import case_of
from kernels.problem import Problem
from kernels.problem.arithmetic import Arithmetic

SUMMED_AT_ONCE = 32  # keys whose products a tensor core adds up before it cuts its sum off
# Digits of a sum behind its first. An H200's figures at 65,536 keys are those of 16 to 17; so few keys need fewer to show as much.
DIGITS = 10
DIGITS_OF_PRODUCTS = 9  # of the largest product or sum, behind its first
SCALE_8_BITS = 448.0  # kernels scale probabilities before they round them to 8 bits
HOW = Arithmetic("fp8_e4m3")


def problem(seed: int, **keys: object) -> Problem:
    """512 rows a KV head, as with 64 drafts of Llama 3.1 70B."""
    shape = {"num_qo_heads": 8, "num_kv_heads": 1, "head_dim_qk": 128, "head_dim_vo": 128, "page_size": 64}
    drafts = {"batch_size": 1, "s_qo": 64, "s_kv": 4096, "kv_dtype": "fp8_e4m3", "seed": seed}
    return Problem.model_validate(shape | drafts | keys)


def nothing_cut(errors: OutputErrors, rows: Rows) -> tuple[Rows, torch.Tensor]:
    return rows, torch.zeros_like(rows.right.size[:, 0])


def cut_off(sums: torch.Tensor) -> torch.Tensor:
    unit = torch.exp2(sums.abs().clamp_min(1e-30).log2().floor() - DIGITS)
    return (sums / unit).trunc() * unit


def sum_cut_off(sums: torch.Tensor, weights: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """The sum of before and of these products [K, rows, D], with `DIGITS` of it."""
    return cut_off(sums + weights @ values)


def products_cut_off(sums: torch.Tensor, weights: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """The sum of before and of these products, each with the digits that are left beside the largest."""
    products = weights[..., None] * values[:, None]  # [K, rows, keys, D]
    largest = torch.maximum(products.abs().amax(2), sums.abs())
    unit = torch.exp2(largest.clamp_min(1e-30).log2().floor() - DIGITS_OF_PRODUCTS)
    return ((products / unit[:, :, None]).trunc().sum(2) + (sums / unit).trunc()) * unit


Added = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def computed(x: Inputs, added: Added) -> torch.Tensor:
    """What a kernel gives that rounds queries and probabilities to fp8_e4m3, and adds up products so."""
    case = case_of(x, 0)
    scores = replace(case, q=case.q.to(torch.float8_e4m3fn).float()).scores()
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    narrow = (weights * SCALE_8_BITS).to(torch.float8_e4m3fn).float().flatten(1, 2)  # [K, rows, keys]
    sums = torch.zeros(*narrow.shape[:2], x.problem.value_dim)
    for at in range(0, narrow.shape[2], SUMMED_AT_ONCE):
        part = slice(at, at + SUMMED_AT_ONCE)
        sums = added(sums, narrow[..., part], case.v[part].transpose(0, 1))
    out = sums.view(*weights.shape[:3], -1) / SCALE_8_BITS / weights.sum(-1, keepdim=True)
    return out.permute(2, 0, 1, 3).flatten(1, 2).bfloat16()


@lru_cache(maxsize=3)  # both kinds of sums take turns in the tests of promises
def drawn(seed: int, added: Added = sum_cut_off) -> tuple[Inputs, oracle.Answer, torch.Tensor]:
    keys = {"q_dtype": "fp8_e4m3", "out_dtype": "bf16"} if added is products_cut_off else {}
    x = draw(problem(seed, **keys), "cpu")
    return x, oracle.answer(x), computed(x, added)


def judged(seed: int, out: torch.Tensor | None = None, added: Added = sum_cut_off) -> oracle.Verdict:
    x, answer, right = drawn(seed, added)
    answer.forget()
    return judge_whole(right if out is None else out, x, answer, HOW)


@cache
def min_tokens_of(added: Added) -> int:
    """The fewest lost keys that are promised to be caught in the first draw; 0 if none are."""
    return judged(0, added=added).min_tokens or 0


@pytest.mark.parametrize("seed", [0, 1])
def test_a_kernel_that_sums_towards_zero_passes(seed: int, monkeypatch: pytest.MonkeyPatch):
    verdict = judged(seed)
    monkeypatch.setattr(common_errors, "without_gain", lambda rows, whole: rows)
    monkeypatch.setattr(common_errors, "without_cut_products", nothing_cut)
    monkeypatch.setattr(common_errors, "BESIDE_GAIN", 0.0)
    as_if_rows_were_independent = judged(seed)

    assert verdict.passed, verdict.reason
    assert (verdict.weight_over_limit or 1.0) < 0.8 and (verdict.min_tokens or 4096) <= 128
    assert "count" in as_if_rows_were_independent.reason


def test_a_kernel_that_cuts_off_each_product_passes(monkeypatch: pytest.MonkeyPatch):
    verdict = judged(0, added=products_cut_off)
    monkeypatch.setattr(common_errors, "without_cut_products", nothing_cut)
    as_if_nothing_were_cut = judged(0, added=products_cut_off)

    assert verdict.passed, verdict.reason
    assert (verdict.weight_over_limit or 1.0) < 0.8 and (verdict.min_tokens or 4096) <= 8
    assert "count" in as_if_nothing_were_cut.reason


@pytest.mark.parametrize("added", [sum_cut_off, products_cut_off])
@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("kind", ["lost", "doubled"])
def test_what_such_a_kernel_s_row_promises_to_catch_is_caught(kind: Kind, aligned: bool, added: Added):
    x, answer, right = drawn(0, added)
    n = min_tokens_of(added) or x.problem.s_kv
    fault = Fault(kind, n, 2048 if aligned else 2048 + n // 3, 0)
    wrong = (right.float() + answer_with(case_of(x, 0), fault) - answer.out).to(right.dtype)

    assert not judged(0, wrong, added).passed


@pytest.mark.parametrize("size", ["N", "2N", "4N", "half"])
@pytest.mark.parametrize("kind", ["lost", "doubled"])
def test_blocks_whose_values_lean_most_along_cut_products_are_caught(kind: Kind, size: str):
    """What such products lose lies along t, and is taken out of the errors; a block that leans there loses most of its effect."""
    x, answer, right = drawn(0, products_cut_off)
    n = min_tokens_of(products_cut_off)
    keys = {"N": n, "2N": 2 * n, "4N": 4 * n, "half": x.problem.s_kv // 2}[size]
    values = x.tokens(0, 0, x.problem.s_kv)[1].float()[:, 0]  # of one KV head
    t = values.sign().sum(0)
    sums = values.view(-1, keys, values.shape[-1]).sum(1)
    at = int(((sums @ t).square() / sums.square().sum(-1)).argmax()) * keys
    wrong = (right.float() + answer_with(case_of(x, 0), Fault(kind, keys, at, 0)) - answer.out).to(right.dtype)

    assert not judged(0, wrong, products_cut_off).passed
