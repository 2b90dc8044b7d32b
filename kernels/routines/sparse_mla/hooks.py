"""Where sparse MLA takes the place of attention over all keys: its inputs, and the check, which reads each query token alone."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from kernels.routines.sparse_mla.inputs import RowInputs, SparseInputs, draw, draw_other_values, redraw

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "answer", "change_tokens", "checksums", "copied_tokens", "draw", "draw_other_values", "judge_rows", "judge_whole", "judged",
    "redraw", "small_inputs",
]  # fmt: skip


def judged(inputs: SparseInputs) -> RowInputs:
    return inputs.rows


def small_inputs(inputs: SparseInputs) -> list[Tensor]:
    """The index sets, and the tables of requests and of rows."""
    stored = [inputs.page_table, inputs.q_lens, inputs.kv_lens, inputs.qo_indptr, inputs.kv_indptr, inputs.kv_indices]
    rows: list[Tensor] = _on_rows("kernels.inputs.small_inputs:small_inputs")(inputs)
    return [inputs.indices, inputs.rows.positions, inputs.last_page_len, *stored, *rows]


def _on_rows(function: str) -> Callable[..., Any]:
    """A function as it is, which gets the rows in place of the inputs."""
    module, _, name = function.partition(":")

    def call(*args: Any, **keys: Any) -> Any:
        rows = [one.rows if isinstance(one, SparseInputs) else one for one in args]
        return getattr(import_module(module), name)(*rows, **keys)

    return call


answer = _on_rows("kernels.check.oracle:answer")
judge_whole, judge_rows = (_on_rows(f"kernels.check.judgement:{name}") for name in ("judge_whole", "judge_rows"))
change_tokens = _on_rows("kernels.check.changed_token:change_tokens")
copied_tokens = _on_rows("kernels.inputs.copied_tokens:copied_tokens")
checksums = _on_rows("kernels.inputs.checksums:checksums")
