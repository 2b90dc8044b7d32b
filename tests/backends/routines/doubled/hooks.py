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
from kernels.problem import Problem
from kernels.problem.dtypes import torch_dtype


@dataclass(frozen=True)
class Queries:
    problem: Problem
    q: Tensor
    padded: None = None

    @property
    def device(self) -> torch.device:
        return self.q.device

    @property
    def unused_slots(self) -> tuple[Tensor]:
        return (self.q.new_empty(0),)


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


def small_inputs(inputs: Queries) -> list[Tensor]:
    return [torch.zeros(1)]


def checksums(inputs: Queries) -> Tensor:
    return inputs.q.view(torch.int16).sum(dtype=torch.int64)[None]


def answer(inputs: Queries) -> Answer:
    out = inputs.problem.axis("times") * inputs.q.float()
    rows = out.new_zeros(out.shape[:2])
    return Answer(out, rows, rows, rows)


def judge_whole(out: Tensor, inputs: Queries, answer: Answer, how: Any, lse: Tensor | None = None) -> Verdict:
    return compared(out, answer.out, inputs.problem, how)


def change_tokens(*_: object) -> list[Any]:
    return []
