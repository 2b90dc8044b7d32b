"""What does an FP8 kernel lose that rounds probabilities without a scale? Emulates FlashMLA's for FP8 latents, on a CPU.

    python -m benchmarks.small_probabilities                                    # about 5 minutes on a core; prints the table
    python -m benchmarks.small_probabilities 16:65536:1:128 --requests 8        # heads:tokens:query tokens:batch, each

The kernel (vllm-project/FlashMLA, `csrc/extension/sm90/dense_fp8`, commit 46d64a8) reads a split from its last tile of 64 keys to
its first, rounds exp(x - running maximum) to fp8_e4m3 as it is, and adds up the sum below the fraction before this rounding. A
number below 2^-10 becomes 0, and one below 2^-6 keeps fewer digits. FlashAttention-3 multiplies by 256 before it rounds. Splits
follow the kernel's plan for the whole batch on 132 processors. Of a large batch a few requests alone are emulated, as a batch of
their own: they have the lengths, the sentinel keys and the splits of some of the large one, and other random numbers.
"""

from __future__ import annotations

import argparse
import itertools
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from benchmarks.right_kernels import RightKernel, Roundings, Schedule
from kernels.check import oracle
from kernels.check.tolerance import row_tolerances
from kernels.inputs import Inputs, generate
from kernels.problem import Problem
from orchestrator import ROOT, tables
from orchestrator.tables import Grid

DATASET = ROOT / "results" / "h100_mla" / "mla_engines.parquet"
TILE, OVERHEAD, PROCESSORS = 64, 5, 132  # rows and keys of a tile, tiles that a request costs in the plan, of an H100
EIGHT_BITS = Roundings("fp8_e4m3", "fp8_e4m3", "fp8_e4m3")
SCHEDULE = Schedule(TILE, 1, backwards=True, sums_rounded=False, sink_first=False, partial_dtype="fp32", scale=1.0)
GOLDEN = (5**0.5 - 1) / 2  # multiples of it lie evenly between 0 and 1, and in no step with the plan
Parts = list[range]  # of the keys of a request


@dataclass(frozen=True)
class Shape:
    """A point of the dataset."""

    heads: int
    tokens: int
    s_qo: int
    batch: int

    @classmethod
    def read(cls, text: str) -> Shape:
        return cls(*(int(part) for part in text.split(":")))

    def problem(self, requests: int) -> Problem:
        """Of so many requests, all if the batch has no more."""
        dims = {"head_dim_qk": 192, "head_dim_vo": 128, "head_dim_ckv": 512, "head_dim_kpe": 64}
        heads = {"num_qo_heads": self.heads, "num_kv_heads": self.heads, "page_size": TILE}
        dtypes = {"q_dtype": "fp8_e4m3", "kv_dtype": "fp8_e4m3", "out_dtype": "bf16"}
        lengths = {"batch_size": min(requests, self.batch), "s_kv": self.tokens, "s_qo": self.s_qo}
        return Problem.model_validate({"routine": "mla", **dims, **heads, **dtypes, **lengths})

    def plan(self) -> list[Parts]:
        """The splits of each request, as `get_mla_metadata_kernel` makes them."""
        processors = PROCESSORS // -(-self.s_qo * self.heads // TILE)
        blocks = -(-self.tokens // TILE)
        payload = -(-self.batch * (blocks + OVERHEAD) // processors) + OVERHEAD
        cuts: list[list[int]] = [[0] for _ in range(self.batch)]
        request = 0
        for _ in range(processors):
            left = payload
            while request < self.batch and left >= blocks - cuts[request][-1] + OVERHEAD:
                left -= blocks - cuts[request][-1] + OVERHEAD
                cuts[request].append(blocks)
                request += 1
            if request < self.batch and left > OVERHEAD:
                cuts[request].append(cuts[request][-1] + left - OVERHEAD)
        keys = [[min(self.tokens, TILE * cut) for cut in of_request] for of_request in cuts]
        return [[range(*pair) for pair in itertools.pairwise(of_request)] for of_request in keys]


@dataclass(frozen=True)
class PlannedKernel(RightKernel):
    """The kernel over one request, with the splits that the plan gives it."""

    parts: tuple[range, ...] = ()

    def bounds(self, length: int) -> Parts:
        return list(self.parts)


def outputs(inputs: Inputs, plan: list[Parts], how: Roundings = EIGHT_BITS, schedule: Schedule = SCHEDULE) -> Tensor:
    """[T, H, D_vo] in bf16. Requests have the splits of some of the plan."""
    count = inputs.problem.batch_size
    numbers = range(count) if count == len(plan) else [int(len(plan) * (GOLDEN * request % 1)) for request in range(count)]
    kernels = [PlannedKernel(how, schedule, tuple(plan[number])) for number in numbers]
    found = [kernel.of_request(inputs, request)[0] for request, kernel in enumerate(kernels)]
    return torch.cat(found).to(torch.bfloat16)


@dataclass(frozen=True)
class Loss:
    """How wrong the rows of an output are."""

    rows: int
    over_tolerance: float  # share of rows
    worst: float  # row, of its tolerance
    rel_err: float  # of the worst row
    median: float  # error
    cosine: float  # of the worst row with the reference
    length: float  # of the worst row, over the reference's

    @classmethod
    def of(cls, out: Tensor, inputs: Inputs) -> Loss:
        answer, how = oracle.answer(inputs), RightKernel(EIGHT_BITS, SCHEDULE).arithmetic(inputs.problem)
        got, right, limits = out.float().flatten(0, 1), answer.out.flatten(0, 1), row_tolerances(inputs, answer, how).flatten()
        errors = (got - right).norm(dim=-1) / right.norm(dim=-1)
        ratios = errors / limits
        at = int(ratios.argmax())
        cosine = torch.nn.functional.cosine_similarity(got[at], right[at], dim=0)
        figures = (ratios > 1).float().mean(), ratios[at], errors[at], errors.median(), cosine, got[at].norm() / right[at].norm()
        return cls(len(got), *(round(float(figure), 4) for figure in figures))


KERNELS = {
    "as it is": (EIGHT_BITS, SCHEDULE),
    "and sums cut off": (replace(EIGHT_BITS, cut="sums"), SCHEDULE),  # as tensor cores do that multiply in 8 bits
    "times 256": (EIGHT_BITS, replace(SCHEDULE, scale=256.0)),
}
PLAIN = "random keys alone"
CASES = (
    *(("as it is", f"16:8192:{rest}") for rest in ("1:1", "1:128", "4:128")),
    *(("as it is", f"16:65536:{rest}") for rest in ("1:1", "1:4", "1:32", "1:64", "1:128", "4:128")),
    *((kernel, "16:65536:4:128") for kernel in ("times 256", PLAIN)),
    ("and sums cut off", "16:65536:1:128"),
    *(("as it is", f"128:{rest}") for rest in ("8192:4:32", "65536:1:128")),
)
REQUESTS = {16: 16, 128: 4}  # by heads


def emulated(kernel: str, shape: Shape, requests: int) -> Loss:
    plant = generate.plant
    torch.manual_seed(0)
    try:
        if kernel == PLAIN:
            generate.plant = lambda inputs: None
        inputs = generate.draw(shape.problem(requests), "cpu")
    finally:
        generate.plant = plant
    return Loss.of(outputs(inputs, shape.plan(), *KERNELS.get(kernel, KERNELS["as it is"])), inputs)


def measured(shape: Shape) -> tuple[float, float]:
    """`err_over_tolerance`, and the share of rows that `reason` says are over it."""
    rows = pd.read_parquet(DATASET)
    keys = {"num_qo_heads": shape.heads, "s_kv": shape.tokens, "s_qo": shape.s_qo, "batch_size": shape.batch}
    chosen = (rows["backend"] == "flash_mla_vllm") & (rows["q_dtype"] == "fp8_e4m3")
    for key, value in keys.items():
        chosen &= rows[key] == value
    (row,) = rows[chosen].to_dict("records")
    counts = re.match(r"(\d+) of (\d+) rows are off", row["reason"] or "")
    return row["err_over_tolerance"], int(counts[1]) / int(counts[2]) if counts else 0.0


def lines(cases: Iterator[tuple[str, str]], requests: int | None) -> Iterator[dict[str, Any]]:
    for kernel, text in cases:
        shape = Shape.read(text)
        worst, share = measured(shape)
        loss = emulated(kernel, shape, requests or REQUESTS[shape.heads])
        yield {"kernel": kernel, **asdict(shape), "measured": round(worst, 4), "measured_over": round(share, 4), **asdict(loss)}


def cells(line: dict[str, Any]) -> tuple[str, ...]:
    """A line of the table. Only the kernel as it is was measured."""
    shape = (line["heads"], f"{line['tokens']:,}", line["s_qo"], line["batch"])
    real = (f"{line['measured']:.2f}", f"{line['measured_over']:.0%}")
    if line["kernel"] not in ("as it is", "and sums cut off"):
        real = ("", "")
    worst = (f"{line['worst']:.2f}", f"{line['over_tolerance']:.0%}", f"{line['rel_err']:.3f}")
    return line["kernel"], *map(str, shape), *real, *worst, *(f"{line[key]:.3f}" for key in ("median", "cosine", "length"))


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.small_probabilities")
    parser.add_argument("shapes", nargs="*")
    parser.add_argument("--requests", type=int)
    given = parser.parse_args(words)
    cases = [("as it is", text) for text in given.shapes] or list(CASES)
    found = tuple(cells(line) for line in lines(iter(cases), given.requests))
    real = ("probabilities", "heads", "tokens", "query tokens", "batch", "measured: worst row", "rows over it")
    emulated = ("emulated: worst row", "rows over it", "its error", "median error", "its cosine", "its length")
    print(tables.markdown([Grid("errors of its rows, measured and emulated", (*real, *emulated), found)]))


if __name__ == "__main__":
    main(sys.argv[1:])
