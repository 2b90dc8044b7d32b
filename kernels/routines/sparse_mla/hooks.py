"""Where sparse MLA takes the place of attention over all keys: its inputs, and the check, which reads each query token alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kernels.check import changed_token, judgement, oracle
from kernels.inputs import checksums as sums
from kernels.inputs import copied_tokens as copying
from kernels.inputs import small_inputs as small
from kernels.routines.sparse_mla.inputs import RowInputs, SparseInputs, draw, redraw, write_values

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "answer", "change_tokens", "checksums", "copied_tokens", "draw", "judge_rows", "judge_whole", "judged", "redraw",
    "small_inputs", "write_values",
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
change_tokens = _on_rows(changed_token.change_tokens)
copied_tokens, checksums = _on_rows(copying.copied_tokens), _on_rows(sums.checksums)
