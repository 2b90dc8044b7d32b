"""What the check says of a right kernel whose tensor cores cut off each product in 8 bits, with many rows and a long context.

    python -m benchmarks.cut_products [S_QO ...]

The emulation is `cut="products"` of benchmarks/right_kernels.py, for one KV head of Llama-3.1-70B over 65,536 keys, in fp8_e4m3. It
prints the table of docs/weighing.md; with 64 query tokens it takes five minutes on one core.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from unittest.mock import patch

from benchmarks.right_kernels import RightKernel, Roundings, Schedule
from kernels.check import cut_products, oracle, weighing
from kernels.check.judgement import judge_whole, output_errors
from kernels.inputs.generate import draw
from kernels.problem import Problem
from orchestrator.tables import Grid, markdown

if TYPE_CHECKING:
    import torch

    from kernels.check.estimates import OutputErrors, Rows
    from kernels.check.oracle import Verdict
    from kernels.inputs import Inputs

E4M3 = "fp8_e4m3"
HEADER = (
    "rows of a KV head",
    "largest error, in tolerances",
    "share of the error along its main direction",
    "t explains of that direction",
    "largest estimate in limits, before",
    "now",
    "`check_min_tokens` before",
    "now",
)


def problem(s_qo: int) -> Problem:
    """One KV head of Llama-3.1-70B over 65,536 keys."""
    heads = {"num_qo_heads": 8, "num_kv_heads": 1, "head_dim_qk": 128, "head_dim_vo": 128}
    dtypes = {"q_dtype": E4M3, "kv_dtype": E4M3, "out_dtype": "bf16"}
    return Problem.model_validate({**heads, **dtypes, "batch_size": 1, "s_qo": s_qo, "s_kv": 65_536, "page_size": 64})


def line(s_qo: int) -> tuple[str, ...]:
    """A line of the table."""
    schedule = Schedule(128, 1, True, False, False, "fp32", 256.0)
    kernel, x = RightKernel(Roundings(E4M3, E4M3, E4M3, cut="products"), schedule), draw(problem(s_qo), "cpu")
    how, answer, (out, _) = kernel.arithmetic(x.problem), oracle.answer(x), kernel(x)
    share, explained = directions(x, out, output_errors(out, x, answer, how))
    now = judge_whole(out, x, answer, how)
    with as_before():
        before = judge_whole(out, x, answer, how)
    of_tolerance = f"{now.rel_err / now.tolerance:.2f}"
    return (str(8 * s_qo), of_tolerance, f"{share:.0%}", f"{explained:.0%}", *_limits(before, now), *_tokens(before, now))


def directions(x: Inputs, out: torch.Tensor, errors: OutputErrors) -> tuple[float, float]:
    """The share of the rows' errors along their main direction, each row at its own size, and what t has of that direction."""
    import torch

    error = errors.error.flatten(0, 1)
    _, singular, main = torch.linalg.svd(error / error.norm(dim=-1, keepdim=True).clamp_min(1e-9), full_matrices=False)
    signs = x.tokens(0, 0, x.problem.s_kv)[1].float().sign().sum((0, 1))  # of one KV head
    t = signs / signs.norm()
    return float(singular[0].square() / singular.square().sum()), float((main[0] @ t).square())


@contextmanager
def as_before() -> Iterator[None]:
    """The check as it was before it knew of cut products."""

    def nothing(errors: OutputErrors, rows: Rows) -> tuple[Rows, torch.Tensor]:
        return rows, cut_products.without_cut_products(errors, rows)[1] * 0

    with patch.object(weighing, "without_cut_products", nothing):
        yield


def _limits(*verdicts: Verdict) -> Iterator[str]:
    return (f"{one.weight_over_limit:.2f}" for one in verdicts)


def _tokens(*verdicts: Verdict) -> Iterator[str]:
    return (str(one.min_tokens) for one in verdicts)


if __name__ == "__main__":
    print(markdown([Grid("", HEADER, tuple(line(int(s_qo)) for s_qo in sys.argv[1:] or ("32", "64")))]))
