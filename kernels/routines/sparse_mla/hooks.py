"""Where sparse MLA takes the place of attention over all keys: its inputs, and the check, which reads each query token alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from kernels.check import changed_token, judgement, oracle
from kernels.check.answer import Answer
from kernels.check.tolerance import row_tolerances
from kernels.inputs import checksums as sums
from kernels.inputs import copied_tokens as copying
from kernels.inputs import small_inputs as small
from kernels.inputs import tensors
from kernels.inputs.copied_tokens import Copied
from kernels.lazy import Tensor, torch
from kernels.problem.arithmetic import Arithmetic
from kernels.routines.sparse_mla import inputs as own
from kernels.routines.sparse_mla.inputs import RowInputs, SparseInputs, draw, redraw, write_values

__all__ = [
    "answer", "change_tokens", "checksums", "copied_tokens", "draw", "judge_rows", "judge_whole", "judged",
    "other_cache", "redraw", "small_inputs", "write_values",
]  # fmt: skip


def judged(inputs: SparseInputs) -> RowInputs:
    return inputs.rows


def small_inputs(inputs: SparseInputs) -> list[Tensor]:
    """The index sets, and the tables of requests and of rows."""
    stored = [inputs.page_table, inputs.q_lens, inputs.kv_lens, inputs.qo_indptr, inputs.kv_indptr, inputs.kv_indices]
    return [inputs.indices, inputs.rows.positions, inputs.last_page_len, *stored, *small.small_inputs(inputs.rows)]


def _on_rows(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function as it is, which gets the rows in place of the inputs."""

    def call(*args: Any, **keys: Any) -> Any:
        return function(*(one.rows if isinstance(one, SparseInputs) else one for one in args), **keys)

    return call


answer = _on_rows(oracle.answer)
judge_whole, judge_rows = _on_rows(judgement.judge_whole), _on_rows(judgement.judge_rows)
checksums = _on_rows(sums.checksums)


@contextmanager
def other_cache(inputs: SparseInputs) -> Iterator[None]:
    """Other signs, and tokens in other slots: who keeps slots of its preparation is found out too."""
    with tensors.other_cache(inputs.rows), own.moved(inputs):
        yield


@contextmanager
def copied_tokens(inputs: SparseInputs, copied: Sequence[Copied]) -> Iterator[None]:
    """As `kernels.inputs.copied_tokens`; of no tokens: all are turned and moved."""
    with copying.copied_tokens(inputs.rows, copied) if copied else own.moved(inputs, turn=True):
        yield


def change_tokens(inputs: SparseInputs, answer: Answer, how: Arithmetic, coin: random.Random) -> list[changed_token.ChangedTokens]:
    """Tokens that become copies of others, and then one change of all query tokens, which alone says how many show."""
    some = changed_token.change_tokens(inputs.rows, answer, how, coin)
    out = own.reversed_values(inputs.problem, answer.out)
    limits = answer.kept(("limits of rows", how.rounding), lambda: row_tolerances(inputs.rows, answer, how))
    moves = (out - answer.out).norm(dim=-1) > changed_token.VISIBLE * limits * answer.out.norm(dim=-1)
    shown = int((moves.any(1) & own.moved_rows(inputs)).sum())
    rows = torch.arange(len(out), device=out.device)
    whole = changed_token.ChangedTokens((), rows, replace(answer, out=out), shown)
    return [*(replace(one, requests=0) for one in some), whole]
