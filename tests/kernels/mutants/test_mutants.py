"""Every wrong kernel is caught, and the right ones it wraps pass: at long contexts, in 16 and 8 bits, in every routine."""

from __future__ import annotations

import pytest
import torch

from kernels.adapter import Adapter
from kernels.check import oracle
from kernels.check.judgement import judge_whole
from kernels.inputs.tensors import decoy
from kernels.mutants import catalogue, victims
from kernels.mutants.drawn import OF_LOGITS
from kernels.mutants.faults import donor, victim
from kernels.mutants.mutant import Mutant
from kernels.mutants.reference_case import case_of
from kernels.problem import ROUTINES, Problem
from orchestrator.machines import cpu
from tests.helpers.computed_once import compute_once, drawn

WIDE = {"num_qo_heads": 16, "num_kv_heads": 2, "head_dim_qk": 64, "head_dim_vo": 64, "page_size": 64, "batch_size": 2}
MLA = {**WIDE, "routine": "mla", "num_kv_heads": 16, "head_dim_ckv": 64, "head_dim_kpe": 32}
OF_DECODE = {adapter.name: adapter for adapter in catalogue.ADAPTERS if adapter.routine == "paged_decode"}
LONG = 8192
MARGIN = 1.3  # tolerances, or limits of a key's weight, that the least visible fault must exceed; the widest of any kernel


@pytest.fixture(autouse=True)
def computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compute_once(monkeypatch)


def judged(adapter: Adapter, p: Problem, *, warmed_up: bool = True) -> oracle.Verdict:
    """As a worker does: prepared on other queries and another cache, warmed up, poisoned, run once."""
    x, answer = drawn(p)
    with decoy(x):
        runner = adapter.prepare(x, cpu())
        if warmed_up:
            runner()
    runner.refresh()
    runner.out.fill_(float("nan"))
    runner()
    return judge_whole(runner.out, x, answer, runner.arithmetic)


def caught(p: Problem, names: set[str] | None = None) -> dict[str, float]:
    """Error in tolerances of every mutant that applies, or in limits of a key's weight if that is what gave it away.

    At the longest contexts they are not warmed up, which takes as long as their one run: they keep nothing of it, as the shorter
    contexts prove.
    """
    applying = [
        m for m in catalogue.ADAPTERS if m.routine == p.routine and not m.unmet(p, cpu()) and (not names or m.name in names)
    ]
    return {m.name: max((v := judged(m, p, warmed_up=p.s_kv < LONG)).of_tolerance, v.weight_over_limit or 0.0) for m in applying}


@pytest.mark.parametrize("kv_dtype", ["bf16", "fp8_e4m3"])
@pytest.mark.parametrize("s_qo", [1, 4])
@pytest.mark.parametrize("s_kv", [8192, 32700])
def test_every_wrong_decode_is_caught(s_kv: int, s_qo: int, kv_dtype: str):
    p = Problem.model_validate({**WIDE, "s_kv": s_kv, "s_qo": s_qo, "kv_dtype": kv_dtype})
    errors = caught(p)

    assert min(errors.values()) > MARGIN, {name: error for name, error in errors.items() if error <= MARGIN}
    assert len(errors) >= 15


@pytest.mark.parametrize(("s_qo", "kv_dtype"), [(1, "bf16"), (2, "fp8_e4m3")])
def test_what_hides_at_long_contexts_is_caught(s_qo: int, kv_dtype: str):
    p = Problem.model_validate({**WIDE, "s_kv": 131072, "s_qo": s_qo, "kv_dtype": kv_dtype, "batch_size": 2})
    assert p.kv_lens[victim(p)] == 131072
    hidden = {"full_draft", "mask_one_early", "one_token_short", "first_token_dropped", "split_of_128_dropped", "bf16_sums"}
    errors = caught(p, hidden | {"two_pages_swapped", "page_of_another", "last_page_ignored", "merged_without_weights"})

    assert min(errors.values()) > MARGIN, errors
    assert len(errors) >= 8


@pytest.mark.parametrize(
    "keys",
    [
        {**WIDE, "routine": "paged_prefill", "s_qo": 4, "s_kv": 5000},
        {**WIDE, "routine": "paged_prefill", "batch_spec": "q300_q1s5000"},  # a prompt beside a decode
        {**WIDE, "routine": "ragged_prefill", "s_qo": 300, "s_kv": 2000},
        {**WIDE, "routine": "cascade", "s_qo": 4, "s_kv": 5000, "shared_prefix": 3072},
        {**WIDE, "routine": "cascade", "s_qo": 1, "s_kv": 5000, "shared_prefix": 1024, "batch_size": 5},
        {**WIDE, "routine": "merge_states", "s_qo": 4, "s_kv": 5000, "num_states": 8},
        {**MLA, "s_qo": 2, "s_kv": 8192},
        {**MLA, "s_qo": 2, "s_kv": 8192, "kv_dtype": "fp8_e4m3"},
        {**WIDE, "s_qo": 4, "min_s_qo": 1, "s_kv": 5000, "seq_lens": "random", "batch_size": 4, "seed": 3},
        {**WIDE, "s_qo": 7, "s_kv": 5000, "mask": "binary", "tree": (-1, 0, 0, 1, 1, 2, 2)},
        {**WIDE, "s_qo": 4, "s_kv": 5000, "window": 1000},
        {**WIDE, "s_qo": 4, "s_kv": 5000, "sinks": True},
        {**WIDE, "s_qo": 4, "s_kv": 32700, "sinks": True, "kv_dtype": "fp8_e4m3"},
        {**WIDE, "s_qo": 4, "s_kv": 5000, "window": 1000, "kv_dtype": "fp8_e4m3"},
        {**WIDE, "s_qo": 4, "s_kv": 5000, "q_dtype": "fp8_e4m3", "kv_dtype": "fp8_e4m3"},
        {**WIDE, "s_qo": 4, "s_kv": 5000, "page_size": 1, "num_qo_heads": 8, "num_kv_heads": 1},
        {**WIDE, "s_qo": 4, "s_kv": 5000, "mask": "full"},
    ],
)
def test_every_wrong_kernel_is_caught_in_every_routine_and_mask(keys: dict[str, object]):
    errors = caught(Problem.model_validate(keys))

    assert min(errors.values()) > MARGIN, {name: error for name, error in errors.items() if error <= MARGIN}
    assert len(errors) >= 8


@pytest.mark.parametrize("dtype", ["bf16", "fp8_e4m3", "nvfp4"])
@pytest.mark.parametrize("kv_heads", [16, 8, 4])
def test_a_wrong_softmax_is_caught_at_one_query_token_of_one_two_and_four_heads(kv_heads: int, dtype: str):
    p = Problem.model_validate({**WIDE, "num_kv_heads": kv_heads, "s_qo": 1, "s_kv": 4096, "kv_dtype": dtype})
    errors = caught(p, {*OF_LOGITS})

    assert errors.keys() == {*OF_LOGITS} - (set() if dtype == "bf16" else {"bf16_logits"})
    assert min(errors.values()) > MARGIN, errors


@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_wrong_softmax_is_caught_where_a_request_has_a_single_row(batch_size: int):
    keys = {**WIDE, "num_qo_heads": 1, "num_kv_heads": 1, "batch_size": batch_size, "s_qo": 1, "s_kv": 4096}
    errors = caught(p := Problem.model_validate(keys), {*OF_LOGITS})

    assert {"maximum_not_subtracted", "bf16_logits"} <= errors.keys()
    assert ({"1_zero_keys_counted", "127_zero_keys_counted", "maximum_from_0"} <= errors.keys()) == (victim(p) % 2 == 0)
    assert min(errors.values()) > MARGIN, errors


@pytest.mark.parametrize("kv_dtype", ["bf16", "fp8_e4m3"])
@pytest.mark.parametrize("routine", ROUTINES)
def test_what_is_written_out_is_attention_and_passes(routine: str, kv_dtype: str):
    """The unmutated answer, by the same code: else every mutant would be caught for nothing."""
    keys = {**(MLA if routine == "mla" else WIDE), "routine": routine, "s_qo": 4, "s_kv": 3000, "kv_dtype": kv_dtype}
    keys |= {"cascade": {"shared_prefix": 1024}, "merge_states": {"num_states": 4}}.get(routine, {})
    p = Problem.model_validate(keys)
    x, right = drawn(p)
    one = victim(p)
    answer = case_of(x, one).answer()

    torch.testing.assert_close(answer, right.out[x.queries(one)], rtol=1e-4, atol=1e-5)
    as_it_is = Mutant(routine=routine, name="right", about="", wrong=lambda case: case.answer(), applies=victims.always)
    assert judged(as_it_is, p).passed


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("s_kv", [9, 300])
def test_where_lengths_differ_a_kernel_that_applies_is_wrong_whoever_the_victim_is(s_kv: int, seed: int):
    """Victims of one token, of no context, and longer than all others: there some faults change nothing."""
    keys = {"s_qo": 4, "min_s_qo": 1, "s_kv": s_kv, "seq_lens": "random", "batch_size": 3, "seed": seed, "page_size": 16}
    errors = caught(Problem.model_validate({**WIDE, **keys, "kv_dtype": "fp8_e4m3"}))

    assert min(errors.values()) > MARGIN, {name: error for name, error in errors.items() if error <= MARGIN}


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("tree_as_chain", {"s_qo": 4, "mask": "t", "tree": (-1, 0, 1, 2)}),
        ("window_ignored", {"s_qo": 4, "window": 9000}),
        ("full_draft", {"s_qo": 4, "min_s_qo": 1, "batch_size": 4, "seed": 2}),
        ("pages_of_another", {"s_qo": 1, "batch_size": 1}),
        ("mask_of_request_0", {"s_qo": 4}),
    ],
)
def test_what_would_change_nothing_is_no_mutant(name: str, keys: dict[str, object]):
    p = Problem.model_validate({**WIDE, "s_kv": 8192, **keys})
    if name == "full_draft":
        assert p.q_lens[victim(p)] == 1

    assert OF_DECODE[name].unmet(p, cpu())


def test_the_victim_is_drawn_from_the_seed_and_the_donor_is_another_request_as_long():
    batches = [
        Problem.model_validate({**WIDE, "s_qo": 1, "s_kv": 999, "batch_size": 5, "seed": s, "seq_lens": "random"})
        for s in range(30)
    ]

    assert {victim(p) for p in batches} == set(range(5))
    for p in batches:
        longer = {r for r, length in enumerate(p.kv_lens) if r != victim(p) and length >= p.kv_lens[victim(p)]}
        assert donor(p) in (longer or {None})


def test_there_are_enough_of_them_and_each_says_what_is_wrong_and_where_it_does_not_apply():
    assert len(OF_DECODE) >= 24
    assert all(adapter.about and adapter.name == adapter.name.lower() for adapter in OF_DECODE.values())
    plain = Problem.model_validate({**WIDE, "s_qo": 1, "s_kv": 8192, "batch_size": 1})
    assert OF_DECODE["row_copied"].unmet(plain, cpu()) == ["a victim with a causal draft of two tokens or more"]
    assert OF_DECODE["k_scale_missing"].unmet(plain, cpu()) == ["8-bit keys and values"]
    assert OF_DECODE["last_page_to_its_end"].unmet(plain, cpu()) == ["a last page that is partly used"]
