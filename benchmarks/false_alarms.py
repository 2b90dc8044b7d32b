"""How often does the check call a right kernel wrong? Counts it over right kernels that are emulated on a CPU.

    python -m benchmarks.false_alarms 0 300               # seeds 0 to 299; prints a table, and each false alarm with its problem
    python -m benchmarks.false_alarms 0 300 --write       # writes the counts, too, for docs/evidence/correctness.md

One core judges about 20 points a second. A seed draws one point for each arithmetic in each shape: a problem of up to about 1,000
keys and 3 requests, and a kernel (`right_kernels.py` says what is emulated of it and what is not). A point is judged as in a run:
each row, all estimates, the log-sum-exp where it is asked for, more inputs where one cannot show a lost page, and the answer after
a token of the cache has changed. What a run repeats for equal launches is not repeated.

Contexts are short, so few estimates are made at a time, and rows of few keys are many. Nothing is said of real kernels on a GPU.
"""

from __future__ import annotations

import argparse
import csv
import math
import random
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from benchmarks.right_kernels import Arithmetic, RightKernel, Schedule
from kernels.check import oracle
from kernels.check.changed_token import choose_token
from kernels.check.judgement import judge_rows, judge_whole
from kernels.check.pooling import Pooled
from kernels.inputs import Inputs
from kernels.inputs.generate import draw, draw_other_values, redraw
from kernels.inputs.tensors import flip_token
from kernels.problem import Problem
from kernels.problem.trees import Tree
from orchestrator import ROOT, tables
from orchestrator.tables import Grid

DATA = ROOT / "benchmarks" / "data" / "cpu_false_alarms.csv"
MAX_INPUTS = 4  # check.max_inputs
CONFIDENCE = 0.95
MAX_KEYS = 1000
HEADS = ((1, 1), (2, 1), (4, 1), (8, 1), (2, 2), (4, 2), (8, 2), (6, 3), (16, 2))  # query heads and KV heads
DIMS = (16, 32, 64, 128)

ARITHMETICS = (
    Arithmetic("fp32", "fp32", "fp32"),
    Arithmetic("bf16", "bf16", "fp32"),
    Arithmetic("bf16", "bf16", "bf16"),
    Arithmetic("fp16", "fp16", "fp16"),
    Arithmetic("fp16", "fp16", "fp16", accumulator_dtype="fp16"),
    Arithmetic("bf16", "nvfp4", "bf16"),
    Arithmetic("bf16", "fp8_e4m3", "bf16"),
    Arithmetic("fp8_e4m3", "fp8_e4m3", "bf16"),
    Arithmetic("bf16", "fp8_e4m3", "fp8_e4m3"),
    Arithmetic("fp16", "fp8_e4m3", "fp8_e4m3"),
    Arithmetic("fp8_e4m3", "fp8_e4m3", "fp8_e4m3"),
    Arithmetic("fp8_e4m3", "fp8_e4m3", "fp8_e4m3", cut=True),
    Arithmetic("fp8_e4m3", "fp8_e4m3", "fp8_e4m3", out_dtype="fp8_e4m3"),
    Arithmetic("fp8_e5m2", "fp8_e5m2", "fp8_e5m2"),
)
Keys = dict[str, Any]


def _length(coin: random.Random, least: int) -> int:
    """Evenly over the logarithm."""
    return max(least, round(math.exp(coin.uniform(math.log(2), math.log(MAX_KEYS)))))


def _of(coin: random.Random, s_qo: int, **keys: Any) -> Keys:
    """Lengths and whatever else; in one of three draws the pages of all requests are full."""
    size, length = coin.choice((1, 16, 64)), _length(coin, s_qo + 1)
    if coin.random() < 1 / 3:
        length = -(-length // size) * size
    return {"s_qo": s_qo, "s_kv": length, "page_size": size, "batch_size": coin.randint(1, 3), **keys}


def _decode(coin: random.Random) -> Keys:
    return _of(coin, 1, return_lse=coin.random() < 0.5)


def _drafts(coin: random.Random) -> Keys:
    return _of(coin, coin.randint(2, 16), mask=coin.choice(("causal", "causal", "full")), return_lse=coin.random() < 0.5)


def _tree(coin: random.Random) -> Keys:
    s_qo = coin.randint(3, 16)
    return _of(coin, s_qo, mask="drawn", tree=Tree(top_k=coin.randint(1, 4)).parents(s_qo))


def _window(coin: random.Random) -> Keys:
    keys = _of(coin, coin.randint(1, 8))
    return keys | {"window": coin.randint(1, keys["s_kv"])}


def _sinks(coin: random.Random) -> Keys:
    keys = _of(coin, coin.choice((1, 1, coin.randint(2, 8))), sinks=True)
    return keys | ({"window": coin.randint(1, keys["s_kv"])} if coin.random() < 1 / 3 else {})


def _ragged(coin: random.Random) -> Keys:
    s_qo = coin.randint(2, 8)
    return _of(coin, s_qo, min_s_qo=1, seq_lens="random", batch_size=coin.randint(2, 3))


def _prompts(coin: random.Random) -> Keys:
    s_qo, routine = coin.randint(2, 100), coin.choice(("paged_prefill", "ragged_prefill"))
    context = coin.choice((0, coin.randint(1, 300)))
    return _of(coin, s_qo, routine=routine, batch_size=coin.randint(1, 2)) | {"s_kv": s_qo + context}


def _mla(coin: random.Random) -> Keys:
    """The softmax scale is that of a head of a third of the latent, as in DeepSeek's models."""
    ckv, kpe = coin.choice((32, 64, 128)), coin.choice((16, 32))
    dims = {"head_dim_ckv": ckv, "head_dim_kpe": kpe, "head_dim_qk": (ckv + kpe) // 3}
    return _of(coin, coin.choice((1, coin.randint(2, 8))), routine="mla", **dims)


def _cascade(coin: random.Random) -> Keys:
    keys = _of(coin, coin.randint(1, 4), routine="cascade", batch_size=coin.randint(2, 3))
    shared = keys["page_size"] * coin.randint(1, max(1, 256 // keys["page_size"]))
    return keys | {"shared_prefix": shared, "s_kv": shared + keys["s_kv"]}


def _merge(coin: random.Random) -> Keys:
    keys = _of(coin, coin.randint(1, 4), routine="merge_states", return_lse=coin.random() < 0.5)
    return keys | {"s_kv": (length := max(8, keys["s_kv"])), "num_states": coin.randint(2, min(8, length))}


SHAPES: dict[str, Callable[[random.Random], Keys]] = {
    "decode": _decode,
    "drafts": _drafts,
    "tree": _tree,
    "window": _window,
    "sinks": _sinks,
    "ragged lengths": _ragged,
    "prompts": _prompts,
    "MLA": _mla,
    "shared prefix": _cascade,
    "merge of states": _merge,
}


def fits(shape: str, how: Arithmetic) -> bool:
    """MLA has no 4-bit cache and no kernel that sums in fp16, and a merge is done in fp32."""
    if shape == "MLA":
        return how.kv_dtype != "nvfp4" and how.accumulator_dtype == "fp32"
    return shape != "merge of states" or how.compute_dtype == "fp32"


@dataclass(frozen=True)
class Point:
    """A problem and a right kernel, the same for the same seed, shape and arithmetic."""

    shape: str
    how: Arithmetic
    seed: int

    @property
    def number(self) -> int:
        return zlib.crc32(f"{self.shape} {self.how} {self.seed}".encode())

    def problem(self, coin: random.Random) -> Problem:
        heads, dim = coin.choice(HEADS), coin.choice(DIMS)
        shape = {"num_qo_heads": heads[0], "num_kv_heads": heads[1], "head_dim_qk": dim, "head_dim_vo": dim}
        dtypes = {"q_dtype": self.how.q_dtype, "kv_dtype": self.how.kv_dtype, "out_dtype": self.how.out_dtype}
        return Problem.model_validate({**shape, **dtypes, **SHAPES[self.shape](coin), "seed": self.number})

    def alarm(self) -> tuple[str, oracle.Verdict]:
        """Why the check calls this kernel wrong, empty if it does not, and the verdict on the first input."""
        import torch

        coin = random.Random(self.number)
        problem = self.problem(coin)
        torch.manual_seed(self.number)
        kernel = RightKernel(self.how, Schedule.draw(problem, self.how, coin))
        inputs = draw(problem, "cpu")
        answer = oracle.answer(inputs)
        verdict = judge_whole(*_swapped(kernel, inputs, answer))
        reasons = (verdict.reason, _after_change(kernel, inputs, answer, verdict, coin), _on_more(kernel, inputs, verdict))
        return "; ".join(filter(None, reasons)), verdict


def _swapped(kernel: RightKernel, inputs: Inputs, answer: oracle.Answer) -> tuple[Any, ...]:
    """What `judge_whole` takes."""
    out, lse = kernel(inputs)
    return out, inputs, answer, kernel.precision(inputs.problem), lse if inputs.problem.return_lse else None


def _after_change(kernel: RightKernel, inputs: Inputs, answer: oracle.Answer, first: oracle.Verdict, coin: random.Random) -> str:
    changed = choose_token(inputs, answer, first.tolerance, coin)
    if changed is None:
        return ""
    flip_token(inputs, changed.request, changed.position)
    out, _ = kernel(inputs)
    flip_token(inputs, changed.request, changed.position)
    found = judge_rows(out[changed.rows], inputs, changed.answer, kernel.precision(inputs.problem))
    return found.reason and f"after a token has changed: {found.reason}"


def _on_more(kernel: RightKernel, inputs: Inputs, first: oracle.Verdict) -> str:
    needed = first.inputs_needed
    if needed is None or not 1 < needed <= MAX_INPUTS:
        return ""
    pooled = Pooled(inputs.problem, kernel.precision(inputs.problem))
    for number in range(needed):
        if number:
            draw_other_values(inputs, number)
        out, lse = kernel(inputs)
        pooled.add(out, inputs, oracle.answer(inputs), lse if inputs.problem.return_lse else None)
    redraw(inputs)
    reason = pooled.verdict().reason
    return reason and f"on {needed} inputs: {reason}"


@dataclass
class Count:
    """Points of one kind: how many there were, how many were called wrong, and how near the right ones came to it."""

    points: int = 0
    alarms: int = 0
    of_tolerance: float = 0.0
    weight_over_limit: float = 0.0

    def add(self, other: Count) -> None:
        self.points += other.points
        self.alarms += other.alarms
        self.of_tolerance = max(self.of_tolerance, other.of_tolerance)
        self.weight_over_limit = max(self.weight_over_limit, other.weight_over_limit)


def points(seeds: Sequence[int]) -> Iterator[Point]:
    """All points of these seeds, seed by seed."""
    return (Point(shape, how, seed) for seed in seeds for shape in SHAPES for how in ARITHMETICS if fits(shape, how))


def upper_bound(alarms: int, count: int) -> float:
    """The rate of which so few alarms, or fewer, would come in 5 of 100 counts: Clopper and Pearson's one-sided bound."""
    if alarms >= count:
        return 1.0
    low, high = alarms / count, 1.0
    for _ in range(60):
        rate = (low + high) / 2
        low, high = (rate, high) if _at_most(alarms, count, rate) > 1 - CONFIDENCE else (low, rate)
    return high


def _at_most(alarms: int, count: int, rate: float) -> float:
    """The probability of so many alarms or fewer."""

    def log_of(k: int) -> float:
        choices = math.lgamma(count + 1) - math.lgamma(k + 1) - math.lgamma(count - k + 1)
        return choices + k * math.log(rate) + (count - k) * math.log1p(-rate)

    return math.fsum(math.exp(log_of(k)) for k in range(alarms + 1))


def table() -> Grid:
    """The committed counts: by arithmetic, by shape, and all together."""
    with DATA.open() as file:
        rows = list(csv.DictReader(file))
    return _grid({(row["shape"], row["arithmetic"]): _read(row) for row in rows})


def _read(row: dict[str, str]) -> Count:
    return Count(int(row["points"]), int(row["alarms"]), float(row["of_tolerance"]), float(row["weight_over_limit"]))


def _grid(counts: dict[tuple[str, str], Count]) -> Grid:
    """By arithmetic, by shape, and all together: each point is in one line of the first kind and in one of the second."""
    lines: dict[str, Count] = {}
    for which in (1, 0):
        for key, count in counts.items():
            lines.setdefault(key[which], Count()).add(count)
    whole = Count()
    for count in counts.values():
        whole.add(count)
    cells = tuple(_cells(name, count) for name, count in (*lines.items(), ("all", whole)))
    header = ("kind", "points", "false alarms", "rate at most (95%)", "largest error, in tolerances", "largest `weight_over_limit`")
    return Grid("", header, cells)


def _cells(name: str, count: Count) -> tuple[str, ...]:
    most = f"{upper_bound(count.alarms, count.points):.2g}" if count.points else "–"
    return name, f"{count.points:,}", str(count.alarms), most, f"{count.of_tolerance:.2f}", f"{count.weight_over_limit:.2f}"


def counted(seeds: Sequence[int]) -> Iterator[dict[tuple[str, str], Count]]:
    """The counts so far, after each seed. Prints each false alarm as it comes."""
    counts: dict[tuple[str, str], Count] = {}
    for seed in seeds:
        for point in points([seed]):
            reason, verdict = point.alarm()
            if reason:
                print(f"{point.shape}, {point.how}, seed {seed}: {reason}", flush=True)
            near = min(verdict.of_tolerance, 1.0), min(verdict.weight_over_limit or 0.0, 1.0)
            counts.setdefault((point.shape, str(point.how)), Count()).add(Count(1, int(bool(reason)), *near))
        yield counts


def _write(counts: dict[tuple[str, str], Count]) -> None:
    with DATA.open("w", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(("shape", "arithmetic", "points", "alarms", "of_tolerance", "weight_over_limit"))
        for (shape, how), count in counts.items():
            near = f"{count.of_tolerance:.3f}", f"{count.weight_over_limit:.3f}"
            out.writerow((shape, how, count.points, count.alarms, *near))


def main() -> int:
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", type=int, nargs="?", default=0, help="the first seed (0)")
    parser.add_argument("stop", type=int, nargs="?", default=1, help="the seed before which it stops (1)")
    parser.add_argument("--write", action="store_true", help=f"write the counts to {DATA.relative_to(ROOT)} after each seed")
    given = parser.parse_args()
    if given.stop <= given.first:
        parser.error(f"seeds {given.first} to {given.stop}: allowed: a stop above the first; type {given.first} {given.first + 1}")
    torch.set_num_threads(1)
    counts: dict[tuple[str, str], Count] = {}
    for counts in counted(range(given.first, given.stop)):
        if given.write:
            _write(counts)
    tables.draw(Console(width=160), [_grid(counts)])
    return 0


if __name__ == "__main__":
    sys.exit(main())
