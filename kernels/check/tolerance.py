"""How far a right kernel's answer may be from the oracle's: what it rounds on its way, added up.

Derived in docs/correctness_numbers.md.
"""

from __future__ import annotations

import math

from kernels.check.answer import Answer
from kernels.inputs import Inputs
from kernels.inputs.draft_keys import draft_plants
from kernels.inputs.sentinel_logit import planted_logit
from kernels.inputs.shifted_logits import drawn_elements
from kernels.inputs.tensors import drawn_scale
from kernels.lazy import Tensor, torch
from kernels.problem import Problem
from kernels.problem.arithmetic import Arithmetic
from kernels.problem.dtypes import FP8, UNIT_ROUNDOFF

SIGMAS = 4.0  # of a sum of independent roundings: one of 16,000 rows lies beyond
# Root mean square of a relative rounding error, in unit roundoffs: u / m * uniform(-1, 1) of significands m in [1, 2) that are
# uniform in their logarithm, sqrt(E[1 / m^2] / 3) with E[1 / m^2] = 0.375 / ln 2.
ROUNDING_RMS = math.sqrt(0.375 / math.log(2) / 3)
SUMMED_AT_ONCE = 16  # products that a tensor core adds up before it rounds into an fp16 accumulator: 32 bytes of 16-bit operands
RESCALED = 64  # keys after which sums are scaled to the largest logit so far: the fewest of FlashInfer's fa2 in heads of 128
LSE_ROUNDINGS = 8  # of fp32 at the size of a log-sum-exp: scale, maximum and sum, and log2, whose relative error is 2^-22
APPROXIMATE = 2.0**-22  # error of the GPU's exp2, relative, and of its log2 near 1, absolute (PTX ISA, ex2.approx and lg2.approx)

TANH = 2.0**-11  # relative error of the GPU's tanh (PTX ISA, tanh.approx.f32), by which kernels cap logits
# A key that weighs e^-4 of a row's heaviest hardly moves the row. x * (1 - tanh(x)^2) is largest at x = 0.77, where tanh is 0.647.
SHARING, STEEPEST = 4.0, 0.647

MOST = 0.5  # of a row's weight, from which on the rounding of one key's is not lost in those of others
SMALLEST_SUBNORMAL = {"fp8_e4m3": 2.0**-9, "fp8_e5m2": 2.0**-16, "fp16": 2.0**-24}


def tolerance(problem: Problem, how: Arithmetic) -> float:
    """Largest relative error of a row that rounding may cause.

    The unit roundoffs of what is rounded on the way: probabilities to `compute_dtype`, the partial output of a split, the
    output; values where the kernel multiplies in fewer bits than they are stored in; queries and keys likewise, whose error is
    that of a logit; and sums, of a logit's products and over the keys, in `accumulator_dtype`. The inputs as stored are exact for
    the oracle. A chain of merges rounds its output in each, independently: their errors add up in squares, and a row's many
    elements leave little chance to their norm.
    """
    return UNIT_ROUNDOFF[problem.output_dtype] + _error_of_parts(problem, how)


def _error_of_parts(problem: Problem, how: Arithmetic) -> float:
    """The part of `tolerance` that is rounded before everything is added up: probabilities, values, logits, sums, and splits."""
    u, out = UNIT_ROUNDOFF, problem.output_dtype
    compute, partial = u[how.compute_dtype], u["bf16" if out in FP8 else out]
    values = compute if compute > u[problem.kv_dtype] else 0.0
    merges = ROUNDING_RMS * partial * math.sqrt(how.rounded_merges)
    by_key = compute + values + logit_error(problem, how.compute_dtype) + sums_error(problem, how.accumulator_dtype)
    return partial + merges + by_key + 2 * APPROXIMATE  # of a weight, and of the factor between two maxima


def row_tolerances(inputs: Inputs, answer: Answer, how: Arithmetic) -> Tensor:
    """[T, H]: `tolerance`, and more for a row whose values cancel, or that several keys share with logits above a planted one's.

    Independent errors of weights, or of partial outputs, each relative to its own size, move a row by their size times its
    condition: 1 for values that are independent of one another, more if they cancel.
    The error of a logit grows with the logit. It moves a row by as much as other keys share in it (`moved_by_logits`).
    Splits are merged by their log-sum-exps: that of a split and that of all are rounded to fp32 at their size.
    """
    problem, lse, condition = inputs.problem, answer.finite_lse, answer.condition.clamp_min(1.0)
    shared = 1 - (answer.peak - lse).exp()
    if inputs.sinks is not None:  # a row that is the sink's is a sum of small weights, each of which moves it by its whole error
        shared = shared.where(answer.peak > inputs.sinks, 1.0)
    logits = moved_by_logits(shared, excess_of_logits(inputs, answer, how))
    merged = 2 * UNIT_ROUNDOFF["fp32"] * lse.abs()
    widened = (condition - 1) * _error_of_parts(problem, how)
    return tolerance(problem, how) + widened + condition * logits + merged + answer.error


def moved_by_logits(shared: Tensor, error: Tensor) -> Tensor:
    """By how much of its length a row is moved by an error in each logit. `shared` is the weight of all keys but its heaviest.

    Two keys of weights w and s = 1 - w give w v + s v'. Independent errors of d in both logits multiply s / w by
    exp(sqrt(2) d), and s becomes s'. That moves the row by (s' - s) |v - v'|, where |v - v'| is sqrt(2) of a value's length:
    by 2 d s for a small d, and by the whole row if s' becomes w. Many keys move a row by d at most. A sink only takes from
    what the others share.
    """
    shared = shared.clamp(0.0, 1.0)
    grown = (shared.logit() + math.sqrt(2) * error).sigmoid()
    return ((2 * shared).clamp_max(1.0) * error).maximum(math.sqrt(2) * (grown - shared))


def excess_of_logits(inputs: Inputs, answer: Answer, how: Arithmetic) -> Tensor:
    """[T, H]: by how much the error of a row's largest logit exceeds that of a planted one, which `tolerance` holds.

    A sink is given and not computed, so 0 if the largest logit is the sink's, but for the shift of those of all keys beside it.
    """
    problem = inputs.problem
    error = logit_error(problem, how.compute_dtype) + _error_within_logit(problem, how.accumulator_dtype)
    excess = error * (_in_planted_logits(problem, answer) - 1) + TANH * (problem.soft_cap is not None) * answer.peak.abs()
    if inputs.sinks is not None:
        excess *= answer.peak > inputs.sinks
    return excess + _drift_of_weights(problem, answer) / math.sqrt(12) + _error_of_shift(problem, answer, how)


def _drift_of_weights(problem: Problem, answer: Answer) -> Tensor:
    """[T, H]: how much heavier or lighter a row's first keys may be beside its last. Sums are scaled by exp2(m c - m' c), for the
    maximum m before some keys and m' with them. A fused multiply-add rounds one product alone, at the size of the largest logit. So
    while the maximum stays, each factor is off from 1 by the same error.
    """
    return UNIT_ROUNDOFF["fp32"] * min(problem.s_kv, problem.window or problem.s_kv) / RESCALED * answer.peak.abs()


def _in_planted_logits(problem: Problem, answer: Answer) -> Tensor:
    """[T, H]: the size of a row's largest logit without its shift, in planted logits, and at least 1."""
    return (_size(problem, answer.peak - answer.shift) / _logit(problem)).clamp_min(1.0)


def _error_of_shift(problem: Problem, answer: Answer, how: Arithmetic) -> Tensor:
    """[T, H]: no dtype rounds the elements that shift a row's logits, but a sum that holds them is rounded at their size.

    That is the last rounding of a tensor core, which multiplies these elements last. Others may begin with them.
    """
    roundings = 1 if how.accumulator_dtype == "fp16" else problem.key_dim
    return SIGMAS * ROUNDING_RMS * UNIT_ROUNDOFF[how.accumulator_dtype] * math.sqrt(roundings) * torch.as_tensor(answer.shift).abs()


def _size(problem: Problem, logit: Tensor) -> Tensor:
    """The size of logits by which a relative error of q.k moves them: their own, and under a soft cap x (1 - tanh(x)^2) caps.

    That is the largest of those within SHARING of a logit, x = atanh(logit / cap) being what the cap was applied to, in caps.
    """
    if problem.soft_cap is None:
        return logit.abs()
    cap = problem.soft_cap
    share = logit.abs().minimum((logit.abs() - SHARING).clamp_min(STEEPEST * cap)) / cap
    return share.clamp_max(1 - 2**-20).atanh() * (1 - share.square()) * cap


def smallest_weights(inputs: Inputs, answer: Answer, how: Arithmetic, bias: float) -> Tensor:
    """[T, H]: the smallest probability of a key that its row says anything about. Three roundings leave nothing of a smaller one.

    `how.compute_dtype` rounds a weight to 0 that is below its smallest subnormal number beside the row's largest.
    The other is that of the output, in a row that one key holds but for a share s. It is o = v + s (v' - v), where the output's
    dtype holds the key's value v itself. If s is below the unit roundoff u, |s (v' - v)| is near half a digit of v or below. So o
    is rounded back to v in most elements: the error is -s (v' - v), as if the light keys were lost, and no noise that is spread.
    The third is of a weight w that is most of its row. It moves the row along its output, as a light key of weight p that counted
    u w^2 / p times more. A key for which that exceeds `bias` is left out, but in MLA, where what lies along outputs is taken out.
    A sink has no value, so a row that it holds is no such row.
    """
    share = answer.peak - answer.finite_lse  # of the largest logit, its logarithm
    u = UNIT_ROUNDOFF[inputs.problem.output_dtype]
    too_small = share.exp() * SMALLEST_SUBNORMAL.get(how.compute_dtype, 0.0)
    if inputs.sinks is not None:
        share = share.where(answer.peak > inputs.sinks, -torch.inf)
    moves = (2 * share).exp() * (UNIT_ROUNDOFF[how.compute_dtype] / bias) * ((share > math.log(MOST)) & (not inputs.problem.latent))
    return torch.where(-torch.expm1(share) < u, too_small.clamp_min(u), too_small).maximum(moves)


def logit_error(problem: Problem, compute_dtype: str) -> float:
    """Error of a logit, and so the relative error of a weight, if queries or keys are rounded to `compute_dtype`."""
    compute = UNIT_ROUNDOFF[compute_dtype]
    narrowed = sum(compute > UNIT_ROUNDOFF[dtype] for dtype in (problem.q_dtype, problem.kv_dtype))
    return math.sqrt(narrowed) * SIGMAS * ROUNDING_RMS * compute * _logit_gain(problem)


def sums_error(problem: Problem, accumulator_dtype: str) -> float:
    """Error of accumulators that are rounded once for every few products, independently each time.

    Products are summed `SUMMED_AT_ONCE` at a time in fp16, and one by one in fp32. Over L keys an accumulator is rounded
    n = L / at_once times at its full size: sqrt(n), and a row's many elements leave little chance to their norm. A logit t grows
    evenly to its size over n = D / at_once roundings. The squares of i / n add up to (n + 1) (2 n + 1) / 6 n: near n / 3 for many.
    """
    over_keys = math.sqrt(problem.s_kv / _at_once(accumulator_dtype))
    return ROUNDING_RMS * UNIT_ROUNDOFF[accumulator_dtype] * over_keys + _error_within_logit(problem, accumulator_dtype)


def _error_within_logit(problem: Problem, accumulator_dtype: str) -> float:
    """The second part of `sums_error`: that of a planted logit's products, and of the soft cap's tanh."""
    return (relative_error_of_logit(problem, accumulator_dtype) + TANH * (problem.soft_cap is not None)) * _logit(problem)


def relative_error_of_logit(problem: Problem, accumulator_dtype: str) -> float:
    """By how much of its size rounded sums of products may move a logit."""
    n = max(1.0, problem.key_dim / _at_once(accumulator_dtype))
    return SIGMAS * ROUNDING_RMS * UNIT_ROUNDOFF[accumulator_dtype] * math.sqrt((n + 1) * (2 * n + 1) / (6 * n))


def _at_once(accumulator_dtype: str) -> int:
    return SUMMED_AT_ONCE if accumulator_dtype == "fp16" else 1


def lse_tolerance(problem: Problem, answer: Answer, how: Arithmetic) -> Tensor:
    """[T, H]: the largest absolute error of a row's natural log-sum-exp that rounding may cause.

    A weight that is off by a relative error of r moves the logarithm of the sum by at most r. Some kernels add up probabilities
    after rounding them to `compute_dtype` (FlashInfer's fa2, `m16k16_rowsum_f16f16f32`): its unit roundoff. A logit is off as in
    `tolerance`, and a larger one by so much more: a row with large logits has the error of a planted one, times `peak` over it.
    Last, the scale, the maximum and the result are rounded to fp32, each at the size of the largest logit or of the result, and
    the GPU's exp2 and log2 are approximations.
    """
    logit = logit_error(problem, how.compute_dtype) + sums_error(problem, how.accumulator_dtype)
    of_logit = logit * _in_planted_logits(problem, answer) + _error_of_shift(problem, answer, how)
    of_logit += TANH * (problem.soft_cap is not None) * answer.peak.abs() + _drift_of_weights(problem, answer)
    stored = LSE_ROUNDINGS * UNIT_ROUNDOFF["fp32"] * answer.peak.abs().maximum(answer.finite_lse.abs())
    return UNIT_ROUNDOFF[how.compute_dtype] + of_logit + stored + 2 * APPROXIMATE


def _logit_gain(problem: Problem) -> float:
    """Standard deviation of a planted key's logit when each element of q (or k) is off by a relative error of 1.

    The logit is c * sum(q_i k_i) with k = g + b q, g and q of N(0, 1) and b such that the logit is t: the variance of
    c * sum(e_i q_i k_i) is c^2 * D * (1 + 3 b^2), where c * b * D = t. Each further query that a draft key is planted to adds b^2,
    and so does the row of the request before to which a first key is planted.
    """
    further, elements = max(2 * draft_plants(problem), int(problem.batch_size > 1)), drawn_elements(problem)
    return math.sqrt(drawn_scale(problem) ** 2 * elements + (3 + further) * _logit(problem) ** 2 / elements)


def _logit(problem: Problem) -> float:
    """That of a planted key, the largest a row has."""
    return planted_logit(problem, problem.s_kv, drawn_scale(problem))
