"""What takes the place of attention's functions: inputs without a cache, the answer, and how an output is judged."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernels.check.answer import Answer
from kernels.check.oracle import Verdict
from kernels.check.oracle import judge as compared
from kernels.inputs.tensors import OwnInputs
from kernels.problem import Problem
from kernels.problem.dtypes import torch_dtype


@dataclass(frozen=True)
class Queries(OwnInputs):
    problem: Problem
    q: Tensor


def draw(problem: Problem, device: str) -> Queries:
    shape = (problem.num_q_tokens, problem.num_qo_heads, problem.head_dim_qk)
    inputs = Queries(problem, torch.empty(shape, dtype=torch_dtype(problem.q_dtype), device=device))
    redraw(inputs)
    return inputs


def redraw(inputs: Queries) -> None:
    inputs.q.normal_(generator=torch.Generator().manual_seed(inputs.problem.seed))


@contextmanager
def other_queries(inputs: Queries) -> Iterator[None]:
    inputs.q.neg_()
    yield
    inputs.q.neg_()


@contextmanager
def other_cache(inputs: Queries) -> Iterator[None]:
    yield


def answer(inputs: Queries) -> Answer:
    out = inputs.problem.axis("times") * inputs.q.float()
    rows = out.new_zeros(out.shape[:2])
    return Answer(out, rows, rows, rows)


def judge_whole(out: Tensor, inputs: Queries, answer: Answer, how: Any, lse: Tensor | None = None) -> Verdict:
    return compared(out, answer.out, inputs.problem, how)


def change_tokens(*_: object) -> list[Any]:
    return []
