"""Checks a kernel's log-sum-exp, by which partial answers are weighted when they are merged."""

from __future__ import annotations

import math
from dataclasses import replace

from kernels.check.answer import Answer
from kernels.check.oracle import Verdict
from kernels.check.tolerance import lse_tolerance
from kernels.lazy import Tensor, torch
from kernels.problem import Problem
from kernels.problem.arithmetic import NATURAL, Arithmetic


def judge_with_lse(verdict: Verdict, lse: Tensor | None, answer: Answer, problem: Problem, how: Arithmetic) -> Verdict:
    """The verdict on an output, and on the log-sum-exp [T, H] that came with it if the problem asks for one: a wrong one fails."""
    if not problem.return_lse:
        return verdict
    if lse is None:
        return verdict.failed("the backend returned no log-sum-exp, and the problem asks for one (return_lse=true)")
    if lse.shape != answer.lse.shape or lse.dtype != torch.float32:
        wanted = f"fp32 {tuple(answer.lse.shape)}"
        return verdict.failed(f"the log-sum-exp is {str(lse.dtype).removeprefix('torch.')} {tuple(lse.shape)}, not {wanted}")
    limits = lse_tolerance(problem, answer, how)
    empty = answer.lse.isneginf()  # rows without keys: nothing but -inf weighs nothing in a merge
    wrong = torch.where(empty, lse != -math.inf, ~lse.isfinite())
    if bad := int(wrong.sum()):
        verdict = replace(verdict, lse_err=math.inf, lse_tolerance=float(limits.min()))
        words = f"{bad} of {lse.numel()} log-sum-exps are NaN, infinite or unwritten"
        if without := int((wrong & empty).sum()):
            words = f"the log-sum-exp of {without} of {int(empty.sum())} rows without keys is not -infinity"
        return verdict.failed(words)
    errors = (lse * NATURAL[how.lse_base] - answer.lse).abs().masked_fill_(empty, 0.0)
    worst = int((errors / limits).argmax())
    error, limit = float(errors.flatten()[worst]), float(limits.flatten()[worst])
    verdict = replace(verdict, lse_err=error, lse_tolerance=limit)
    if error <= limit:
        return verdict
    over = int((errors > limits).sum())
    words = f"the log-sum-exp of {over} of {lse.numel()} rows is off, worst by {error:.3g} where {limit:.2g} is allowed"
    other = "2" if how.lse_base == "e" else "e"
    if bool((((lse * NATURAL[other] - answer.lse).abs() <= limits) | empty).all()):
        words += f"; it is right in base {other}, and the backend states base {how.lse_base}"
    return verdict.failed(words)
