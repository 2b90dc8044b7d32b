"""Estimates from several inputs together: they show a fault that one input leaves in the noise of rounding."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kernels.check.answer import Answer
from kernels.check.judgement import judge_rows, output_errors, weight_test_of, with_estimates
from kernels.check.log_sum_exp import judge_with_lse
from kernels.check.oracle import Verdict
from kernels.check.weighing import weigh
from kernels.problem.arithmetic import Arithmetic

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.check.estimates import KeyWeights
    from kernels.inputs import Inputs
    from kernels.problem import Problem

MAX_KEYS = 2**24  # of all KV heads: the sums of a kept estimate take 24 bytes a key


@dataclass
class Pooled:
    """Outputs of one backend for several inputs of one problem.

    Rounding errors of different inputs are independent, and a fault is the same. So the sums that c = a / b is made of, and their
    variances, are added up over the inputs: the standard error of c falls as 1 / sqrt(inputs).
    """

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
        new = list(weigh(output_errors(out, inputs, answer, self.how)))
        both = zip(self._sums, new, strict=True) if self._sums else ()
        self._sums = [_added(one, other) for one, other in both] or new

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
    """The estimates of two inputs together."""
    of_fault = None if one.of_fault is None or other.of_fault is None else one.of_fault + other.of_fault
    return replace(one, a=one.a + other.a, b=one.b + other.b, variance=one.variance + other.variance, of_fault=of_fault)
