"""Which faults of a few keys strictly inside one page does the check find? Draws them into emulated kernels on a CPU.

    python -m benchmarks.inside_pages                       # contexts of 200, 1,000 and 8,192 keys; a minute or two
    python -m benchmarks.inside_pages --keys 32768 --draws 2

The right part of an output is that of an emulated kernel with its roundings (`right_kernels.py`), for 8 query heads, 2 KV heads and
4 query tokens. A fault is in one page of 64 keys of one KV head, and leaves out the first and the last key of the page.
"""

from __future__ import annotations

import argparse
import random
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.console import Console

from benchmarks.right_kernels import RightKernel, Roundings, Schedule
from kernels.check import oracle
from kernels.check.judgement import judge_whole
from kernels.inputs.generate import draw
from kernels.inputs.rounding import rounded
from kernels.mutants.fault import Fault, answer_with
from kernels.mutants.reference_case import ReferenceCase, case_of
from kernels.problem import Problem
from orchestrator import tables
from orchestrator.tables import Grid

if TYPE_CHECKING:
    from torch import Tensor

PAGE, QUERIES = 64, 4
SIZES = (1, 4, 16, PAGE - 2)
SHAPE = {"batch_size": 1, "s_qo": QUERIES, "num_qo_heads": 8, "num_kv_heads": 2, "head_dim_qk": 128, "head_dim_vo": 128}
ARITHMETICS = (
    Roundings("bf16", "bf16", "bf16"),
    Roundings("bf16", "fp8_e4m3", "bf16"),
    Roundings("fp8_e4m3", "fp8_e4m3", "fp8_e4m3"),
)
# shifted: each key meets the value of the key before it. next: keys and values are those of the slot behind. reversed: the values
# of some slots are in reverse order.
KINDS = ("lost", "doubled", "shifted", "next", "reversed")


def wrong_answer(case: ReferenceCase, kind: str, keys: range, head: int) -> Tensor:
    """The answer of a kernel that gets these keys of one KV head wrong."""
    if kind in ("lost", "doubled", "shifted"):
        return answer_with(case, Fault(kind, len(keys), keys.start, head))  # type: ignore[arg-type]
    k, v, here = case.k.clone(), case.v.clone(), slice(keys.start, keys.stop)
    if kind == "next":
        behind = slice(keys.start + 1, keys.stop + 1)
        k[here], v[here] = case.k[behind], case.v[behind]
    else:
        v[here] = case.v[here].flip(0)
    out, group = case.answer(), case.problem.group_size
    heads = slice(head * group, (head + 1) * group)
    out[:, heads] = replace(case, k=k, v=v).answer()[:, heads]
    return out


def caught(how: Roundings, length: int, seed: int, draws: int) -> tuple[int | None, dict[tuple[str, int], list[bool]]]:
    """The least number of lost keys that the check promises to find here, and which drawn faults it found."""
    import torch

    keys = {"s_kv": length, "page_size": PAGE, "q_dtype": how.q_dtype, "kv_dtype": how.kv_dtype, "seed": seed}
    problem, coin = Problem.model_validate({**SHAPE, **keys}), random.Random(seed)
    torch.manual_seed(seed)
    kernel, inputs = RightKernel(how, Schedule.draw(problem, how, coin)), draw(problem, "cpu")
    arithmetic, answer, case = kernel.arithmetic(problem), oracle.answer(inputs), case_of(inputs, 0)
    (out, _), right = kernel(inputs), case.answer()
    found: dict[tuple[str, int], list[bool]] = {}
    for kind, size in ((kind, size) for kind in KINDS for size in SIZES if (kind, size) != ("reversed", 1)):
        for _ in range(draws):
            start = PAGE * coin.randrange((length - QUERIES) // PAGE) + 1 + coin.randrange(PAGE - 1 - size)
            wrong = wrong_answer(case, kind, range(start, start + size), coin.randrange(2))
            verdict = judge_whole(rounded(out.float() + wrong - right, out.dtype), inputs, answer, arithmetic)
            found.setdefault((kind, size), []).append(not verdict.passed)
    return judge_whole(out, inputs, answer, arithmetic).min_tokens, found


def table(lengths: list[int], seeds: int, draws: int) -> Grid:
    """By arithmetic, context and kind."""
    cells = []
    for how in ARITHMETICS:
        for length in lengths:
            of_seeds = [caught(how, length, seed, draws) for seed in range(seeds)]
            promised = ", ".join(sorted({str(least) for least, _ in of_seeds}, key=lambda text: (len(text), text)))
            for kind in KINDS:
                parts = ([hit for _, found in of_seeds for hit in found.get((kind, size), [])] for size in SIZES)
                counts = (f"{sum(part)} of {len(part)}" if part else "–" for part in parts)
                cells.append((str(how), f"{length:,}", promised, kind, *counts))
    return Grid("", ("kernel", "keys", "N", "fault", *(f"{size} keys" if size > 1 else "1 key" for size in SIZES)), tuple(cells))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, nargs="+", default=[200, 1000, 8192], help="lengths of contexts (200 1000 8192)")
    parser.add_argument("--seeds", type=int, default=3, help="problems of each length (3)")
    parser.add_argument("--draws", type=int, default=6, help="faults of each kind and size in each (6)")
    given = parser.parse_args()
    tables.draw(Console(width=160), [table(given.keys, given.seeds, given.draws)])
    return 0


if __name__ == "__main__":
    sys.exit(main())
