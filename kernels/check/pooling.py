"""Estimates from several inputs together: they show a fault that one input leaves in the noise of rounding."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kernels.check.judgement import Precision, erring, trial_of, with_estimates
from kernels.check.oracle import Answer, Verdict, judge
from kernels.check.weighing import weigh

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.check.estimates import Weights
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
    how: Precision
    inputs: int = 0
    _verdicts: list[Verdict] = field(default_factory=list)
    _sums: list[Weights] = field(default_factory=list)

    def add(self, out: Tensor, inputs: Inputs, answer: Answer) -> None:
        """Takes an output [T, H, D_vo] and the right answer to its inputs."""
        how = self.how
        self.inputs += 1
        self._verdicts.append(judge(out, answer.out, self.problem, how.compute_dtype, how.caller_scale, sum_dtype=how.sum_dtype))
        new = list(weigh(erring(out, inputs, answer, how)))
        both = zip(self._sums, new, strict=True) if self._sums else ()
        self._sums = [replace(s, a=s.a + n.a, b=s.b + n.b, variance=s.variance + n.variance) for s, n in both] or new

    def verdict(self) -> Verdict:
        """The worst row of all inputs decides if it is off by more than its tolerance; otherwise the estimates together do."""
        worst = max(self._verdicts, key=lambda verdict: (not verdict.passed, verdict.rel_err))
        if not worst.passed:
            return worst
        trial = trial_of(self.problem, self.how, self.inputs)
        for weights in self._sums:
            trial.add(weights)
        return with_estimates(worst, trial)
