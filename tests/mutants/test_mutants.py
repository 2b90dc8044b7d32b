"""Every wrong kernel is caught, and the right ones it wraps pass: at long contexts, in 16 and 8 bits, in every routine."""

from __future__ import annotations

from functools import lru_cache

import pytest
import torch

from kernels import mutants, oracle
from kernels.adapter import Adapter
from kernels.drawing import draw
from kernels.inputs import Inputs, decoy
from kernels.problem import ROUTINES, Problem
from kernels.wrong import case_of
from orchestrator.machines import cpu

WIDE = {"num_qo_heads": 16, "num_kv_heads": 2, "head_dim_qk": 64, "head_dim_vo": 64, "page_size": 64, "batch_size": 2}
MLA = {**WIDE, "routine": "mla", "num_kv_heads": 16, "head_dim_ckv": 64, "head_dim_kpe": 32}
OF_DECODE = {adapter.name: adapter for adapter in mutants.ADAPTERS if adapter.routine == "paged_decode"}
MARGIN = 1.3  # tolerances that the least visible fault must exceed; the widest tolerance of any kernel


@lru_cache(maxsize=1)
def drawn(p: Problem) -> tuple[Inputs, torch.Tensor]:
    x = draw(p, "cpu")
    return x, oracle.reference(x)


def judged(adapter: Adapter, p: Problem) -> oracle.Verdict:
    """As a worker does: prepared on decoy queries, warmed up, poisoned, run once."""
    x, reference = drawn(p)
    with decoy(x):
        runner = adapter.prepare(x, cpu())
        runner()
    runner.out.fill_(float("nan"))
    runner()
    return oracle.judge(runner.out, reference, p, runner.compute_dtype, runner.caller_scale)


def caught(p: Problem, names: set[str] | None = None) -> dict[str, float]:
    """Error in tolerances of every mutant that applies."""
    applying = [m for m in mutants.ADAPTERS if m.routine == p.routine and not m.unmet(p, cpu()) and (not names or m.name in names)]
    return {m.name: (v := judged(m, p)).rel_err / v.tolerance for m in applying}


@pytest.mark.parametrize("kv_dtype", ["bf16", "fp8_e4m3"])
@pytest.mark.parametrize("s_qo", [1, 4])
@pytest.mark.parametrize("s_kv", [8192, 10000])
def test_every_wrong_decode_is_caught(s_kv: int, s_qo: int, kv_dtype: str):
    p = Problem.model_validate({**WIDE, "s_kv": s_kv, "s_qo": s_qo, "kv_dtype": kv_dtype})
    errors = caught(p)

    assert min(errors.values()) > MARGIN, {name: error for name, error in errors.items() if error <= MARGIN}
    assert len(errors) >= 15


@pytest.mark.parametrize(("s_qo", "kv_dtype"), [(1, "bf16"), (2, "fp8_e4m3")])
def test_what_hides_at_long_contexts_is_caught(s_qo: int, kv_dtype: str):
    p = Problem.model_validate({**WIDE, "s_kv": 131072, "s_qo": s_qo, "kv_dtype": kv_dtype, "batch_size": 2})
    hidden = {"full_draft", "mask_one_early", "one_token_short", "first_token_dropped", "split_of_128_dropped", "bf16_sums"}
    errors = caught(p, hidden | {"two_pages_swapped", "last_page_ignored", "merged_without_weights"})

    assert min(errors.values()) > MARGIN, errors
    assert len(errors) >= 8


@pytest.mark.parametrize(
    "keys",
    [
        {**WIDE, "routine": "paged_prefill", "s_qo": 4, "s_kv": 5000},
        {**WIDE, "routine": "ragged_prefill", "s_qo": 300, "s_kv": 2000},
        {**MLA, "s_qo": 2, "s_kv": 8192},
        {**MLA, "s_qo": 2, "s_kv": 8192, "kv_dtype": "fp8_e4m3"},
        {**WIDE, "s_qo": 4, "min_s_qo": 1, "s_kv": 5000, "seq_lens": "random", "batch_size": 4, "seed": 3},
        {**WIDE, "s_qo": 7, "s_kv": 5000, "mask": "binary", "tree": (-1, 0, 0, 1, 1, 2, 2)},
        {**WIDE, "s_qo": 4, "s_kv": 5000, "window": 1000},
        {**WIDE, "s_qo": 4, "s_kv": 5000, "sinks": True},
        {**WIDE, "s_qo": 4, "s_kv": 5000, "q_dtype": "fp8_e4m3", "kv_dtype": "fp8_e4m3"},
        {**WIDE, "s_qo": 4, "s_kv": 5000, "page_size": 1, "num_qo_heads": 8, "num_kv_heads": 1},
        {**WIDE, "s_qo": 4, "s_kv": 5000, "mask": "full"},
    ],
)
def test_every_wrong_kernel_is_caught_in_every_routine_and_mask(keys: dict[str, object]):
    errors = caught(Problem.model_validate(keys))

    assert min(errors.values()) > MARGIN, {name: error for name, error in errors.items() if error <= MARGIN}
    assert len(errors) >= 8


@pytest.mark.parametrize("kv_dtype", ["bf16", "fp8_e4m3"])
@pytest.mark.parametrize("routine", ROUTINES)
def test_what_is_written_out_is_attention_and_passes(routine: str, kv_dtype: str):
    """The unmutated answer, by the same code: else every mutant would be caught for nothing."""
    keys = {**(MLA if routine == "mla" else WIDE), "routine": routine, "s_qo": 4, "s_kv": 3000, "kv_dtype": kv_dtype}
    p = Problem.model_validate(keys)
    x, reference = drawn(p)
    answer = case_of(x, p.batch_size - 1).answer()

    torch.testing.assert_close(answer, reference[x.queries(p.batch_size - 1)], rtol=1e-4, atol=1e-5)
    assert judged(mutants.Mutant.of(routine, "right", lambda case: case.answer()), p).passed


def test_there_are_enough_of_them_and_each_says_what_is_wrong_and_where_it_does_not_apply():
    assert len(OF_DECODE) >= 24
    assert all(adapter.about and adapter.name == adapter.name.lower() for adapter in OF_DECODE.values())
    plain = Problem.model_validate({**WIDE, "s_qo": 1, "s_kv": 8192, "batch_size": 1})
    assert OF_DECODE["row_copied"].unmet(plain, cpu()) == ["a causal draft of two tokens or more"]
    assert OF_DECODE["k_scale_missing"].unmet(plain, cpu()) == ["8-bit keys and values"]
    assert OF_DECODE["last_page_to_its_end"].unmet(plain, cpu()) == ["a last page that is partly used"]
