"""A batch as a captured CUDA graph runs it: its own requests, and padded ones behind them. Pure Python, no torch.

Engines capture graphs for a few batch sizes and run a batch in the next larger one. What they tell the kernel of the requests that
are missing (`graph_fill`), read from vLLM 0.32.0 and SGLang 0.5.23:

- 0, vLLM (`v1/worker/gpu_model_runner.py`, `v1/worker/gpu/model_runner.py`): `seq_lens` are 0, `query_start_loc` repeats its last
  value, so a padded request has no query token either. Its rows of the block table are the null block 0. The query tensor still has
  their rows, and kernels without query offsets get them.
- 1, SGLang (`decode_cuda_graph_runner.py`, `get_cuda_graph_seq_len_fill_value`): `seq_lens` are 1, and each padded request has the
  query tokens of the others. With drafts the backends add these to the length. Its pages are page 0, which no request owns.
"""

from __future__ import annotations

from functools import cached_property, lru_cache

from kernels.problem.problem import Problem

NULL_PAGE = 0  # the page of every padded request: vLLM's null block, SGLang's padding slot


class PaddedBatch(Problem):
    """A batch whose first requests are `real`, and whose others are padding. Made by `launched`, never by a user.

    `batch_size` is that of the graph. Every request has `s_qo` rows in the query and the output tensor, padded ones too.
    """

    real: Problem

    @property
    def padded_kv_len(self) -> int:
        """KV tokens of a padded request, query tokens included."""
        if self.graph_fill == 0:
            return 0
        return 1 if self.s_qo == 1 else 1 + self.s_qo  # SGLang's verification adds the drafts to `seq_lens`, its decode does not

    @cached_property
    def q_lens(self) -> tuple[int, ...]:
        """Rows of each request in the query and the output tensor. What the kernel gets is in `Inputs.q_lens`."""
        return (self.s_qo,) * self.batch_size

    @cached_property
    def kv_lens(self) -> tuple[int, ...]:
        """KV tokens of each request, query tokens included."""
        return (*self.real.kv_lens, *(self.padded_kv_len,) * (self.batch_size - self.real.batch_size))

    @property
    def num_pages(self) -> int:
        """Pages of the KV cache: those of the real requests, and the null page."""
        return self.real.num_pages + 1


def launched(problem: Problem) -> Problem:
    """The batch that a kernel is called with: this one, or with `graph_batch` this one and the padded requests behind it."""
    return problem if problem.graph_batch is None else _padded(problem)


@lru_cache(maxsize=4096)
def _padded(problem: Problem) -> PaddedBatch:
    own = {"batch_size": problem.graph_batch, "graph_batch": None, "seq_lens": "listed", "real": problem}
    return PaddedBatch.model_construct(**{**{name: getattr(problem, name) for name in type(problem).model_fields}, **own})


def has_empty(batch: Problem) -> bool:
    """Whether a batch that `launched` gave has padded requests without a token, whose query offsets repeat."""
    return type(batch) is PaddedBatch and batch.graph_fill == 0  # a plan asks a million times, and `isinstance` of a model is slow
