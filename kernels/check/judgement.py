"""The verdict on an output: its worst row, how often it counts each key, and what this check could not have seen.

A row's error is compared with what rounding may cause (`tolerance.py`). Then `weighing.py` estimates how often each key, block of
keys and (query, draft key) pair was counted, and how large the whole output is. An estimate shows a fault if it is further from
the right one than rounding can move it systematically, plus as many standard errors as chance allows (`significance.py`).
docs/correctness_numbers.md derives the estimates. Those from several inputs together show a fault that one leaves
in the noise of rounding.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from kernels.check.answer import Answer
from kernels.check.changed_token import ChangedTokens
from kernels.check.estimates import KeyWeights, OutputErrors
from kernels.check.log_sum_exp import judge_with_lse
from kernels.check.oracle import Verdict, judge_by, off_by, sizes
from kernels.check.significance import WeightTest
from kernels.check.tolerance import ROUNDING_RMS, excess_of_logits, logit_error, row_tolerances, smallest_weights, sums_error
from kernels.check.weighing import weigh
from kernels.inputs import Inputs
from kernels.inputs.copied_tokens import copied_tokens
from kernels.inputs.tensors import OwnInputs, bits
from kernels.lazy import Tensor
from kernels.problem import Problem
from kernels.problem.arithmetic import Arithmetic
from kernels.problem.dtypes import FP8, UNIT_ROUNDOFF
from kernels.problem.routine import by_routine

SLACK = 0.02  # systematic error of a weight that every kernel may have: its exponential is an approximation
MAX_KEYS = 2**24  # of all KV heads: the sums of a kept estimate take 24 bytes a key


@by_routine
def judge_whole(out: Tensor, inputs: Inputs, answer: Answer, how: Arithmetic, lse: Tensor | None = None) -> Verdict:
    """Compares an output [T, H, D_vo], and with `return_lse` `lse` [T, H], with the right answer; says which faults show."""
    verdict = judge_rows(out, inputs, answer, how)
    if words := impossible(inputs.problem, how):
        verdict = replace(verdict, passed=False, reason=words)
    elif verdict.passed:
        test = weight_test_of(inputs.problem, how, answer=answer)
        for weights in weigh(output_errors(out, inputs, answer, how)):
            test.add(weights)
        verdict = with_estimates(verdict, test)
    return judge_with_lse(verdict, lse, answer, inputs.problem, how)


@by_routine
def judge_rows(out: Tensor, inputs: Inputs, answer: Answer, how: Arithmetic) -> Verdict:
    """Compares the rows of an output alone, each within its own tolerance."""
    limits = answer.kept(("limits of rows", how.rounding), lambda: row_tolerances(inputs, answer, how))
    lengths = answer.kept("sizes of rows", lambda: sizes(answer.out))
    return judge_by(out, answer.out, inputs.problem, how, (limits, lengths))


@by_routine
def judge_changed(out: Tensor, lse: Tensor | None, inputs: Inputs, changed: ChangedTokens, how: Arithmetic) -> Verdict:
    """Compares what a launch left, [T, H, D_vo] and a second output, while tokens were `changed`; the inputs are as before."""
    if isinstance(inputs, OwnInputs):
        with copied_tokens(inputs, changed.copied):
            return judge_whole(out, inputs, changed.answer, how, lse)
    return judge_rows(bits(out)[changed.rows].view(out.dtype), inputs, changed.answer, how)


def output_errors(out: Tensor, inputs: Inputs, answer: Answer, how: Arithmetic) -> OutputErrors:
    """An output's error, and what rounding alone makes of it.

    A row whose logits are so large that rounding them moves weights by more than the limit of an estimate says nothing of keys.
    """
    problem, key = inputs.problem, how.rounding
    unsure = answer.kept(("unsure", key), lambda: excess_of_logits(inputs, answer, how) > bias(problem, how))
    least = answer.kept(("least", key), lambda: smallest_weights(inputs, answer, how, bias(problem, how)))
    error, floor = off_by(out, answer.out, how), ROUNDING_RMS * UNIT_ROUNDOFF[problem.output_dtype]  # least noise of a row
    return OutputErrors(inputs, answer, error, floor, least, unsure, key, in_8_bits=how.compute_dtype in FP8)


def weight_test_of(problem: Problem, how: Arithmetic, inputs: int = 1, answer: Answer | None = None) -> WeightTest:
    """The limits of a problem for estimates from so many inputs. `answer` keeps what all backends of a problem have in common."""
    return WeightTest(problem, bias(problem, how), gain_limit(how.compute_dtype), inputs, answer)


def with_estimates(verdict: Verdict, test: WeightTest) -> Verdict:
    """A verdict on rows that passed, and what the estimates say."""
    excess, fault = test.clearest()
    judged = replace(verdict, passed=not fault, reason=fault, weight_over_limit=excess, inputs_needed=test.inputs_needed())
    return replace(judged, min_tokens=test.min_tokens(), pairs_covered=test.pairs_covered())


def impossible(problem: Problem, how: Arithmetic) -> str:
    """Why a backend cannot compute as it states, in words; empty if it can. A coarser dtype would buy it a wider tolerance."""
    u, stored = UNIT_ROUNDOFF, max((problem.q_dtype, problem.kv_dtype), key=lambda dtype: UNIT_ROUNDOFF[dtype])
    if u[how.compute_dtype] > u[stored]:
        return f"the backend states that it multiplies in {how.compute_dtype}, but no operand is coarser than {stored}"
    if how.accumulator_dtype != "fp32" and not how.accumulator_dtype == how.compute_dtype == "fp16":  # no GPU has other sums
        return f"the backend states that it sums in {how.accumulator_dtype}; allowed: fp32, or fp16 if it multiplies in fp16"
    return ""


def bias(problem: Problem, how: Arithmetic) -> float:
    """The largest systematic relative error of a key's weight: of its probability and its value as rounded, and of its logit."""
    rounded = 2 * UNIT_ROUNDOFF[how.compute_dtype]
    return SLACK + rounded + logit_error(problem, how.compute_dtype) + sums_error(problem, how.accumulator_dtype)


def gain_limit(compute_dtype: str) -> float:
    """The largest systematic relative error of a whole output: half of a probability's rounding error."""
    return (SLACK + UNIT_ROUNDOFF[compute_dtype]) / 2


@dataclass
class Pooled:
    """Outputs of a backend for several inputs: the sums of which c = a / b is made add up; its error falls as 1 / sqrt(inputs)."""

    problem: Problem
    how: Arithmetic
    inputs: int = 0
    _verdicts: list[Verdict] = field(default_factory=list)
    _sums: list[KeyWeights] = field(default_factory=list)

    def add(self, out: Tensor, inputs: Inputs, answer: Answer, lse: Tensor | None = None) -> None:
        """Takes an output [T, H, D_vo], its log-sum-exp [T, H] if the problem asks for one, and the right answer to its inputs."""
        self.inputs += 1
        verdict = judge_rows(out, inputs, answer, self.how)
        self._verdicts.append(judge_with_lse(verdict, lse, answer, self.problem, self.how))
        groups = dict.fromkeys(one.requests for one in self._sums)  # those of the first input: other memory is free now
        new = weigh(output_errors(out, inputs, answer, self.how), groups)
        self._sums = [_added(*pair) for pair in zip(self._sums, new, strict=True)] if self._sums else list(new)

    def verdict(self) -> Verdict:
        """The worst row of all inputs decides if it or its log-sum-exp is off by more than the tolerance.

        Otherwise the estimates together do, and the log-sum-exp is that of the input where it is nearest to its limit.
        """
        worst = max(self._verdicts, key=lambda verdict: (not verdict.passed, verdict.rel_err))
        if not worst.passed:
            return worst
        test = weight_test_of(self.problem, self.how, self.inputs)
        for weights in self._sums:
            test.add(weights)
        lse = max(self._verdicts, key=lambda verdict: (verdict.lse_err or 0.0) / (verdict.lse_tolerance or 1.0))
        return with_estimates(replace(worst, lse_err=lse.lse_err, lse_tolerance=lse.lse_tolerance), test)


def _added(one: KeyWeights, other: KeyWeights) -> KeyWeights:
    of_fault = None if one.of_fault is None or other.of_fault is None else one.of_fault + other.of_fault
    return replace(one, a=one.a + other.a, b=one.b + other.b, variance=one.variance + other.variance, of_fault=of_fault)
