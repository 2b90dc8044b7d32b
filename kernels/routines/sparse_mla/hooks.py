"""Where sparse MLA takes the place of attention over all keys: its inputs, and the check, which reads each query token alone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from kernels.routines.sparse_mla.inputs import RowInputs, SparseInputs, draw, draw_other_values, redraw

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.check.answer import Answer
    from kernels.check.changed_token import ChangedTokens
    from kernels.check.oracle import Verdict
    from kernels.inputs.copied_tokens import Copied
    from kernels.problem.arithmetic import Arithmetic

__all__ = [
    "answer", "change_tokens", "checksums", "copied_tokens", "draw", "draw_other_values", "judge_rows", "judge_whole", "judged",
    "redraw", "small_inputs",
]  # fmt: skip


def judged(inputs: SparseInputs) -> RowInputs:
    return inputs.rows


def answer(inputs: SparseInputs) -> Answer:
    from kernels.check import oracle

    return oracle.answer(inputs.rows)


def judge_whole(out: Tensor, inputs: SparseInputs, answer: Answer, how: Arithmetic, lse: Tensor | None = None) -> Verdict:
    from kernels.check import judgement

    return judgement.judge_whole(out, inputs.rows, answer, how, lse)


def judge_rows(out: Tensor, inputs: SparseInputs, answer: Answer, how: Arithmetic) -> Verdict:
    from kernels.check import judgement

    return judgement.judge_rows(out, inputs.rows, answer, how)


def change_tokens(inputs: SparseInputs, answer: Answer, how: Arithmetic, coin: random.Random) -> list[ChangedTokens]:
    from kernels.check import changed_token

    return changed_token.change_tokens(inputs.rows, answer, how, coin)


def copied_tokens(inputs: SparseInputs, copied: Sequence[Copied]) -> AbstractContextManager[None]:
    from kernels.inputs import copied_tokens as copying

    return copying.copied_tokens(inputs.rows, copied)


def checksums(inputs: SparseInputs) -> Tensor:
    from kernels.inputs import checksums as sums

    return sums.checksums(inputs.rows)


def small_inputs(inputs: SparseInputs) -> list[Tensor]:
    """The index sets, and the tables of requests and of rows."""
    from kernels.inputs import small_inputs as small

    stored = [inputs.page_table, inputs.q_lens, inputs.kv_lens, inputs.qo_indptr, inputs.kv_indptr, inputs.kv_indices]
    return [inputs.indices, inputs.rows.positions, inputs.last_page_len, *stored, *small.small_inputs(inputs.rows)]
