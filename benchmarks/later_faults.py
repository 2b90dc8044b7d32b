"""How many drawn faults of the later kinds the check finds: values exchanged, keys or values scaled, faults in some rows alone.

    python -m benchmarks.later_faults [PROBLEMS]

They are put into emulated right outputs on a CPU, for so many seeds of a problem (8). The statement of docs/correctness.md promises
none of them.
"""

from __future__ import annotations

import sys
from collections import defaultdict

from kernels.check import oracle
from kernels.check.judgement import judge_whole
from kernels.inputs.generate import draw
from kernels.inputs.rounding import rounded
from kernels.mutants.drawn import DRAWS, LATER_DRAWS, draw_fault
from kernels.mutants.fault import answer_with
from kernels.mutants.faults import victim
from kernels.mutants.reference_case import case_of
from kernels.problem import Problem
from kernels.problem.arithmetic import Arithmetic
from orchestrator.tables import Grid, markdown

SHAPE = {"num_qo_heads": 8, "num_kv_heads": 2, "head_dim_qk": 128, "head_dim_vo": 128, "page_size": 64, "batch_size": 1, "s_qo": 4}
DTYPES = ("bf16", "fp8_e4m3")
LENGTHS = (1000, 8192)
SIZES = {"1 to 16 keys": 16, "17 to 64": 64, "more": 1 << 30}


def found(problem: Problem) -> list[tuple[str, int, bool]]:
    """Kind, size and whether the check called it wrong, of each later fault of a problem."""
    inputs, how = draw(problem, "cpu"), Arithmetic(problem.q_dtype)
    answer, case = oracle.answer(inputs), case_of(inputs, victim(problem))
    results = []
    for number in range(DRAWS, DRAWS + LATER_DRAWS):
        fault = draw_fault(problem, number)
        out = answer.out + (answer_with(case, fault) - case.answer())
        verdict = judge_whole(rounded(out, inputs.empty_output().dtype), inputs, answer, how)
        some = fault.heads is not None or fault.tokens is not None
        kind = f"{fault.of} scaled" if fault.kind == "scaled" else fault.kind
        results.append(("any, in some rows" if some else kind, fault.size, not verdict.passed))
    return results


def table(problems: int) -> Grid:
    """How many were found, by dtype, context and kind."""
    counts: dict[tuple[str, int, str], dict[str, list[bool]]] = defaultdict(lambda: defaultdict(list))
    for dtype in DTYPES:
        for s_kv in LENGTHS:
            for seed in range(problems):
                problem = Problem.model_validate({**SHAPE, "s_kv": s_kv, "q_dtype": dtype, "kv_dtype": dtype, "seed": seed})
                for kind, size, caught in found(problem):
                    column = next(name for name, most in SIZES.items() if size <= most)
                    counts[dtype, s_kv, kind][column].append(caught)
    cells = [
        (dtype, f"{s_kv:,}", kind, *(f"{sum(some)} of {len(some)}" if (some := by_size[name]) else "–" for name in SIZES))
        for (dtype, s_kv, kind), by_size in sorted(counts.items())
    ]
    return Grid("faults of later kinds that were found", ("dtype", "keys", "fault", *SIZES), tuple(cells))


if __name__ == "__main__":
    print(markdown([table(int(sys.argv[1]) if len(sys.argv) > 1 else 8)]))
