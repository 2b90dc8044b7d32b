"""What keeps the check from calling right kernels wrong, and wrong ones right: each test fails without what it is about."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
import torch

from kernels.check import judgement, mask_pairs, oracle, weighing
from kernels.check import tolerance as tolerances
from kernels.check.answer import Answer
from kernels.check.changed_token import LEFT, After, Change
from kernels.check.estimates import KeyWeights
from kernels.check.judgement import judge_rows, judge_whole, output_errors
from kernels.check.tolerance import (
    ROUNDING_RMS,
    SIGMAS,
    SMALLEST_SUBNORMAL,
    excess_of_logits,
    moved_by_logits,
    relative_error_of_logit,
    row_tolerances,
    smallest_weights,
    tolerance,
)
from kernels.check.weighing import weigh
from kernels.inputs import Inputs, sentinel_keys
from kernels.inputs.copied_tokens import Copied, copied_tokens
from kernels.inputs.generate import draw
from kernels.inputs.sentinel_logit import keys_at
from kernels.inputs.shifted_logits import constant_at
from kernels.inputs.tensors import write
from kernels.mutants.drawn import Fault, Kind, answer_with
from kernels.mutants.reference_case import ReferenceCase, case_of
from kernels.problem import Problem
from kernels.problem.arithmetic import Arithmetic
from kernels.problem.dtypes import UNIT_ROUNDOFF
from tests.helpers.right_kernels import RightKernel, Roundings, Schedule
from tests.helpers.right_points import EmulatedPoint
from tests.helpers.visibility import sees

GQA = {"num_qo_heads": 8, "num_kv_heads": 2, "head_dim_qk": 64, "head_dim_vo": 64, "page_size": 64}
NARROWED = {"q_dtype": "bf16", "kv_dtype": "fp8_e4m3"}  # queries that a kernel may round to 8 bits
UNEVEN = math.sqrt(4 / 3 / 1.875)  # of the excess as it was: four roundings counted as if there were many
PLAIN = Schedule(64, splits=1, backwards=False, sums_rounded=False, sink_first=False, partial_dtype="fp32", scale=1.0)


def problem(**keys: object) -> Problem:
    return Problem.model_validate({**GQA, "batch_size": 1, "s_qo": 1, "s_kv": 700, **keys})


def test_a_sink_is_given_and_not_computed_so_it_widens_no_tolerance():
    """Where the sink is the largest logit, the error of the keys' logits is no more than elsewhere."""
    p = problem(sinks=True, **NARROWED)
    x = draw(p, "cpu")
    assert x.sinks is not None
    x.sinks.copy_(oracle.answer(replace(x, sinks=None)).lse[0])  # as much as all keys, so more than the largest of them
    answer = oracle.answer(x)
    sink_is_largest = answer.peak[0] == x.sinks
    allowed = row_tolerances(x, answer, Arithmetic("fp8_e4m3"))[0]
    as_if_all_were_alike = tolerance(p, Arithmetic("fp8_e4m3")) * answer.condition[0].clamp_min(1.0) * 1.001

    assert int(sink_is_largest.sum()) >= p.num_qo_heads - 1  # one row has large logits
    assert (excess_of_logits(x, answer, Arithmetic("fp8_e4m3"))[0][sink_is_largest] < 2e-4).all()  # of sums in fp32
    assert (allowed <= as_if_all_were_alike)[sink_is_largest].all()
    head = int(sink_is_largest.int().argmax())
    wrong = answer.out.clone()
    wrong[0, head] *= 1 + 1.1 * tolerance(p, Arithmetic("fp8_e4m3")) * float(answer.condition[0, head].clamp_min(1.0))
    assert not judge_rows(wrong.bfloat16(), x, answer, Arithmetic("fp8_e4m3")).passed


def spread_of_pairs(p: Problem) -> float:
    """The mean of a^2 over its variance, of all pairs of a query and a draft key: 1 or less, if the variance holds."""
    kernel = RightKernel(Roundings(p.q_dtype, p.kv_dtype, p.q_dtype), replace(PLAIN, scale=256.0 if "fp8" in p.q_dtype else 1.0))
    found = []
    for seed in range(12):
        x = draw(p.model_copy(update={"seed": seed}), "cpu")
        errors = output_errors(kernel(x)[0], x, oracle.answer(x), kernel.arithmetic(p))
        found += [_squares(weights) for weights in weigh(errors) if weights.kind == "pair"]
    return float(torch.cat(found).mean())


def _squares(weights: KeyWeights) -> torch.Tensor:
    certain = (weights.b > 1e-9) & weights.b.isfinite()
    return (weights.a.square() / weights.variance)[certain]


@pytest.mark.parametrize("dtype", ["bf16", "fp8_e4m3"])
def test_pairs_of_mla_vary_by_less_than_the_check_allows(dtype: str, monkeypatch: pytest.MonkeyPatch):
    drafts = {"s_qo": 4, "s_kv": 300, "num_qo_heads": 16, "q_dtype": dtype, "kv_dtype": dtype}
    latent = problem(**drafts, routine="mla", num_kv_heads=16, head_dim_ckv=64, head_dim_kpe=32)
    with_mend = spread_of_pairs(latent)
    monkeypatch.setattr(mask_pairs, "OF_KEYS_AS_VALUES", 1.0)

    assert with_mend < 0.8
    assert spread_of_pairs(latent) > 1.3  # as if the errors of a row were spread over all elements


def test_an_error_along_a_row_s_own_output_is_no_wrong_mask(monkeypatch: pytest.MonkeyPatch):
    """Sums of fp16 put logits off, and the error of a row with one heavy key lies along that key's value, and the output."""
    dtypes = {"q_dtype": "fp16", "kv_dtype": "fp16", "head_dim_qk": 128, "head_dim_vo": 128}
    p = problem(routine="paged_prefill", batch_size=2, s_qo=61, s_kv=288, num_qo_heads=2, seed=0, **dtypes)
    kernel = RightKernel(Roundings("fp16", "fp16", "fp16", "fp16"), replace(PLAIN, tile=32, backwards=True, sums_rounded=True))
    x = draw(p, "cpu")
    answer, (out, _) = oracle.answer(x), kernel(x)
    verdict = judge_whole(out, x, answer, kernel.arithmetic(p))
    monkeypatch.setattr(mask_pairs, "MAX_ALONG_OUTPUT", 1.0)
    monkeypatch.setattr(tolerances, "MOST", 1.0)  # or the keys that show it are left out of that row
    answer.forget()
    as_if_it_were_spread = judge_whole(out, x, answer, kernel.arithmetic(p))

    assert verdict.passed, verdict.reason
    assert verdict.pairs_covered is not None and verdict.pairs_covered > 0.96  # sums of fp16 are too coarse for logits of 128
    # Several keys of this row are as far off, and which is the worst depends on how a machine adds up.
    assert "the mask is wrong for KV head 1 of request 1: query 14 and key " in as_if_it_were_spread.reason
    assert verdict.weight_over_limit is not None and verdict.weight_over_limit < 0.9


def test_a_key_that_the_rounding_of_the_output_takes_back_is_not_lost(monkeypatch: pytest.MonkeyPatch):
    """Two keys share the last row. The lighter one, which no other row sees, has less of it than the output's unit roundoff."""
    shape = {"num_qo_heads": 1, "num_kv_heads": 1, "head_dim_qk": 128, "head_dim_vo": 128, "page_size": 1, "shared_prefix": 205}
    dtypes = {"q_dtype": "fp16", "kv_dtype": "fp16", "seed": 2161}
    x = draw(problem(routine="cascade", batch_size=2, s_qo=4, s_kv=210, **shape, **dtypes), "cpu")
    answer, how = oracle.answer(x), Arithmetic("fp16")
    rounded = answer.out.half()
    verdict = judge_whole(rounded, x, answer, how)
    monkeypatch.setattr(judgement, "smallest_weights", lambda *_: None)
    answer.forget()
    as_if_its_rounding_were_spread = judge_whole(rounded, x, answer, how)

    assert verdict.passed, verdict.reason
    assert verdict.weight_over_limit is not None and verdict.weight_over_limit < 0.8
    assert "key 209 of KV head 0 of request 0 count 0." in as_if_its_rounding_were_spread.reason


def test_a_light_key_of_a_row_that_another_key_dominates_is_not_lost_by_the_rounding_of_that_one(monkeypatch: pytest.MonkeyPatch):
    """Two heavy keys hold the last row; the one that no other row sees has 0.3% of it. What rounds their weights scales the row."""
    point = EmulatedPoint("sinks", Roundings("bf16", "fp8_e4m3", "bf16"), seed=209)
    alarm, verdict = point.alarm()
    monkeypatch.setattr(tolerances, "MOST", 1.0)
    as_if_its_rounding_were_spread, _ = point.alarm()

    assert not alarm
    assert verdict.min_tokens == 16 and verdict.weight_over_limit is not None and verdict.weight_over_limit < 0.5
    assert "key 223 of KV head 0 of request 0 count 0." in as_if_its_rounding_were_spread


@pytest.mark.parametrize("share", [0.5, 1.5])  # of the lighter key, in unit roundoffs
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_a_row_says_nothing_of_weights_below_the_rounding_of_its_output_if_one_key_holds_the_rest(dtype: str, share: float):
    keys = {"num_qo_heads": 1, "num_kv_heads": 1, "s_kv": 64, "q_dtype": dtype, "kv_dtype": dtype}
    u, how = UNIT_ROUNDOFF[dtype], Arithmetic(dtype)
    x, with_sink = (of_two_keys(problem(**keys, sinks=sinks), (40.0, 40.0 + math.log(share * u))) for sinks in (False, True))
    assert with_sink.sinks is not None
    with_sink.sinks.fill_(60.0)  # a sink has no value that the output could be rounded to
    by_keys, by_sink = (float(smallest_weights(one, oracle.answer(one), how, math.inf)) for one in (x, with_sink))

    assert by_keys == (u if share < 1 else pytest.approx(SMALLEST_SUBNORMAL.get(dtype, 0.0), rel=0.01))
    assert by_sink == pytest.approx(SMALLEST_SUBNORMAL.get(dtype, 0.0), rel=0.01)


def test_in_mla_an_error_along_a_row_s_output_is_no_key_that_counts_more_often(monkeypatch: pytest.MonkeyPatch):
    """Values of planted keys lean the same way there, so outputs are long, and what rounds weights scales them."""
    shape = {"num_qo_heads": 1, "num_kv_heads": 1, "head_dim_qk": 26, "head_dim_ckv": 64, "head_dim_kpe": 16, "page_size": 16}
    dtypes = {"q_dtype": "fp8_e5m2", "kv_dtype": "fp8_e5m2"}
    p = problem(routine="mla", batch_size=2, s_qo=8, s_kv=662, seed=11, **shape, **dtypes)
    kernel = RightKernel(Roundings("fp8_e5m2", "fp8_e5m2", "fp8_e5m2"), replace(PLAIN, tile=128, scale=256.0))
    x = draw(p, "cpu")
    answer, (out, _) = oracle.answer(x), kernel(x)
    verdict = judge_whole(out, x, answer, kernel.arithmetic(p))
    monkeypatch.setattr(weighing, "along_outputs", lambda rows, levels: 0.0)
    as_elsewhere = judge_whole(out, x, answer, kernel.arithmetic(p))

    assert verdict.passed, verdict.reason
    assert verdict.weight_over_limit is not None and verdict.weight_over_limit < 0.9
    assert re.match(r"key \d+ of KV head 0 of request 0 count", as_elsewhere.reason)


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize(("kind", "c"), [("lost", -1.0), ("doubled", 1.0)])
def test_in_mla_lost_and_doubled_keys_are_estimated_as_such(kind: Kind, c: float, size: int):
    p = problem(routine="mla", num_qo_heads=16, num_kv_heads=16, head_dim_ckv=64, head_dim_kpe=32, s_qo=2, s_kv=300)
    x, start = draw(p, "cpu"), 148
    errors = output_errors(answer_with(case_of(x, 0), Fault(kind, size, start, 0)), x, oracle.answer(x), Arithmetic("bf16"))
    blocks = next(weights for weights in weigh(errors) if weights.kind == "block")
    at = start if size == 1 else p.s_kv + start // size  # blocks stand behind single keys

    assert float(blocks.a[0, at] / blocks.b[0, at]) == pytest.approx(c, abs=0.15)


def one_key_too_many(x: Inputs, request: int) -> torch.Tensor:
    """The right output, but for the last query of a request, which also counts the first key of the next one."""
    case = case_of(x, request)
    k, v = (t.float() for t in x.tokens(request + 1, 0, 1))
    seen = torch.cat((case.seen, case.seen.new_zeros(len(case.q), 1)), dim=1)
    seen[-1, -1] = True
    longer = ReferenceCase(x, request, case.q, *_joined(case, k * x.k_scale, v * x.v_scale), seen, case.sm_scale, case.sinks)
    out = oracle.answer(x).out
    out[x.queries(request)] = longer.answer()
    return out.to(x.empty_output().dtype)


def _joined(case: ReferenceCase, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.cat((case.k, k)), torch.cat((case.v, v))


FULL_PAGES = {"batch_size": 3, "s_qo": 2, "s_kv": 8192}


@pytest.mark.parametrize("planted", [True, False])
def test_a_kernel_that_reads_on_behind_full_pages_is_wrong_because_of_the_planted_key(
    planted: bool, monkeypatch: pytest.MonkeyPatch
):
    if not planted:
        monkeypatch.setattr(sentinel_keys, "heavy_behind", lambda problem, request: [])
    x = draw(problem(**FULL_PAGES), "cpu")
    answer = oracle.answer(x)
    for request in range(2):
        verdict = judge_whole(one_key_too_many(x, request), x, answer, Arithmetic("bf16"))
        heads = {head for head, _ in sentinel_keys.heavy_behind(x.problem, request)}

        assert verdict.passed != planted, verdict
        assert heads == ({0, 1} if planted else set())


@pytest.mark.parametrize(
    ("keys", "rows"),
    [
        ({}, 2),
        ({"s_kv": 8191}, 0),  # an unused slot lies between
        (NARROWED, 2),
        ({"routine": "cascade", "shared_prefix": 1024}, 0),  # the first key of all requests
        ({"s_kv": 64, "s_qo": 64}, 0),  # a draft key
    ],
)
def test_only_a_key_that_costs_no_right_kernel_its_verdict_is_planted_behind_full_pages(keys: dict[str, object], rows: int):
    p = problem(**{**FULL_PAGES, **keys})

    assert len(sentinel_keys.heavy_behind(p, 0)) == rows
    assert sentinel_keys.heavy_behind(p, p.batch_size - 1) == []  # no request is behind the last one


@pytest.mark.parametrize("keys", [{}, {"sinks": True}, {"window": 30, "s_qo": 3}, {"kv_dtype": "fp8_e4m3", "batch_size": 2}])
def test_the_condition_of_a_row_is_as_defined(keys: dict[str, object], monkeypatch: pytest.MonkeyPatch):
    p = problem(s_kv=150, **keys)
    monkeypatch.setattr(oracle, "CHUNK_BYTES", 4 * 2 * 64 * 64)  # chunks of 64 keys
    x = draw(p, "cpu")
    answer = oracle.answer(x)
    for request, (q_len, length) in enumerate(zip(p.q_lens, p.kv_lens, strict=True)):
        k, v = (t.double() for t in x.tokens(request, 0, length))
        for j in range(q_len):
            seen = [t for t in range(length) if sees(p, q_len, length, j, t)]
            for head in range(p.num_qo_heads):
                row = x.queries(request).start + j, head
                logits = k[seen, head // p.group_size] @ x.q[row].double() * (x.k_scale * x.sm_scale)
                weights = (logits - answer.lse[row]).exp()
                values = v[seen, head // p.group_size] * x.v_scale
                moved = (weights.square() @ values.square().sum(-1)).sqrt() / (weights @ values).norm()

                assert float(answer.condition[row]) == pytest.approx(float(moved), rel=1e-3)


def of_two_keys(p: Problem, logits: tuple[float, float], apart: float | None = None) -> Inputs:
    """Inputs whose one row is shared by two keys of these logits. With `apart` their values are opposite but for so much noise."""
    x, generator = draw(p, "cpu"), torch.Generator().manual_seed(p.seed)
    at = x.page_table[0, :1].long().expand(2), torch.tensor([3, 5]), torch.zeros(2, dtype=torch.long)
    x.q[..., constant_at(p)] = 0.0  # nothing shifts its logits
    q, drawn = x.q[0, 0].float(), keys_at(x, at)
    short = torch.tensor(logits) / (x.sm_scale * x.k_scale) - drawn @ q
    write(x, 0, at, drawn + q * short[:, None] / q.square().sum())
    if apart is not None:
        value, noise = torch.randn(2, p.value_dim, generator=generator)
        write(x, 1, at, torch.stack((value, apart * noise - value)))
    return x


def test_a_row_whose_values_cancel_may_be_off_by_more():
    kernel, passed = RightKernel(Roundings("bf16", "bf16", "bf16"), PLAIN), []
    for seed in range(20):
        p = problem(num_qo_heads=1, num_kv_heads=1, s_kv=64, seed=seed)
        x = of_two_keys(p, (15.0, 15.0 - seed / 60), apart=0.1)
        answer, (out, _), how = oracle.answer(x), kernel(x), kernel.arithmetic(p)
        as_if_independent = replace(answer, condition=torch.ones_like(answer.condition))
        passed.append(judge_rows(out, x, as_if_independent, how).passed)

        assert float(answer.condition) > 3
        assert judge_rows(out, x, answer, how).passed
    assert not all(passed)


def test_the_answer_after_a_change_says_how_far_its_own_roundings_put_it_off():
    """In fp32 the weight of a copied key is known to 1e-5 alone in a row that has a logit above 100."""
    p = problem(q_dtype="fp32", kv_dtype="fp32", s_qo=4, s_kv=200)
    kernel, uncertain = RightKernel(Roundings("fp32", "fp32", "fp32"), PLAIN), 0.0
    for seed in range(4):
        x = draw(p.model_copy(update={"seed": seed}), "cpu")
        answer = oracle.answer(x)
        after = After(x, answer, [Change(0, p.s_qo, source, ((7 * source + 3) % p.s_kv,)) for source in range(p.s_kv)])
        left, _ = after.left_and_apart(Arithmetic("fp32"))
        changes = [(after.changes[number], Answer(*after.picked([number])[1:])) for number in range(p.s_kv) if left[number] >= LEFT]
        change, changed = max(changes, key=lambda one: float(one[1].error.max()))
        with copied_tokens(x, [Copied(0, change.source, *change.targets)]):
            out, _ = kernel(x)
            right = oracle.answer(x).out
        off = (right - changed.out).norm(dim=-1) / right.norm(dim=-1)
        uncertain = max(uncertain, float(changed.error.max()))

        assert (off <= changed.error + tolerance(p, Arithmetic("fp32"))).all()
        assert judge_rows(out, x, changed, Arithmetic("fp32")).passed
    assert uncertain > tolerance(p, Arithmetic("fp32"))


def test_few_roundings_of_a_logit_add_up_one_by_one():
    """The sums of 16 products each in fp16: i of n parts of the logit are rounded at i / n of its size."""
    for dim in (16, 64, 128):
        n = dim // 16
        squares = sum((i / n) ** 2 for i in range(1, n + 1))
        term = relative_error_of_logit(problem(head_dim_qk=dim, q_dtype="fp16", kv_dtype="fp16"), "fp16")

        assert term == pytest.approx(SIGMAS * ROUNDING_RMS * 2**-11 * math.sqrt(squares))


@pytest.mark.parametrize("seed", [177, 203])  # of 600, those whose error is more than that
def test_a_row_that_two_keys_share_has_the_errors_of_both_logits(seed: int):
    """Logits near 143 in sums of fp16. Before, a row was held to the error of one of them."""
    kernel = RightKernel(Roundings("fp16", "fp16", "fp16", "fp16"), PLAIN)
    p = problem(num_qo_heads=1, num_kv_heads=1, s_kv=64, q_dtype="fp16", kv_dtype="fp16", seed=seed)
    x = of_two_keys(p, (143.0, 142.4))
    answer, (out, _), how = oracle.answer(x), kernel(x), kernel.arithmetic(p)
    shared = math.sqrt(2) * (1 - (answer.peak - answer.lse).exp())
    of_one = tolerance(p, kernel.arithmetic(p)) + shared * excess_of_logits(x, answer, kernel.arithmetic(p)) * UNEVEN
    off = (out.float() - answer.out).norm(dim=-1) / answer.out.norm(dim=-1)

    assert float(off) > float(of_one)
    assert judge_rows(out, x, answer, how).passed


@pytest.mark.parametrize(
    ("shape", "how", "seed", "mended_by"),
    [
        ("decode", Roundings("bf16", "bf16", "fp32"), 3029, "partial outputs cancel as values do"),
        ("decode", Roundings("bf16", "fp8_e4m3", "fp8_e4m3"), 3266, "an error of logits may exchange the two heaviest keys"),
        ("tree", Roundings("fp16", "fp8_e4m3", "fp8_e4m3"), 24, "the same"),
        ("prompts", Roundings("fp32", "fp32", "fp32"), 3309, "the exponential of a GPU is an approximation"),
        ("sinks", Roundings("bf16", "bf16", "bf16"), 20074, "the output of a row that one key holds is rounded to its value"),
        ("shared prefix", Roundings("fp16", "fp16", "fp16"), 20399, "the same"),
        ("sinks", Roundings("fp16", "fp16", "fp16", "fp16"), 95000, "small weights beside a sink move a row by their whole error"),
        ("MLA", Roundings("fp8_e5m2", "fp8_e5m2", "fp8_e5m2"), 20242, "no fault moves a row of MLA so far along its output"),
        ("sparse MLA", Roundings("bf16", "bf16", "fp32"), 149, "a block that an input leaves out adds nothing to others"),
    ],
)
def test_right_kernels_that_were_called_wrong(shape: str, how: Roundings, seed: int, mended_by: str):
    reason, _ = EmulatedPoint(shape, how, seed).alarm()

    assert reason == "", f"mended by: {mended_by}"


def test_a_small_error_of_logits_moves_a_row_in_proportion_and_a_large_one_may_exchange_two_keys():
    shared = torch.tensor([0.0, 0.01, 0.01, 0.6])

    assert moved_by_logits(shared, torch.tensor([9.0, 1e-3, 9.0, 0.1])).tolist() == pytest.approx([0.0, 2e-5, 1.414, 0.1], rel=0.02)


def test_a_factor_of_all_sums_that_is_rounded_alike_in_every_tile_is_no_fault():
    """FlashInfer's fa2 of fp16 on an H200: 1 of 65,536 rows was off by more than its tolerance, of logits near 136."""
    kernel = RightKernel(Roundings("fp16", "fp16", "fp16"), replace(PLAIN, fused=True))
    p = problem(num_qo_heads=4, num_kv_heads=1, s_qo=2, s_kv=65536, q_dtype="fp16", kv_dtype="fp16", return_lse=True)
    x = draw(p, "cpu")
    answer, how = oracle.answer(x), kernel.arithmetic(p)
    far = (answer.shift.abs() > 100) & ((answer.peak - answer.lse).exp() < 0.5)  # rows of many keys
    (out, lse), (_, exact) = kernel(x), replace(kernel, schedule=PLAIN)(x)

    assert float((lse - exact).abs()[far].max()) * math.log(2) > 2**-11  # alone more than a log-sum-exp of fp16 was granted
    assert judge_whole(out, x, answer, how, lse).passed
