"""What a point is expected to cost, from its bytes and FLOPs, and its modules to compile, from committed rows. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import NamedTuple

from kernels.adapter import Module
from kernels.check.oracle import SCRATCH_BYTES
from kernels.device import Device
from kernels.engines import start
from kernels.problem import Problem
from kernels.problem.padded import launched
from kernels.step.shapes import LayerShape
from kernels.timing import sustained
from kernels.timing.config import Timing
from orchestrator.config.base import own_table

# Measured on one H200 and one 2-core CPU: drawing the inputs of a point and computing their reference takes about as long
# as 60 reads of its KV cache plus 8 times its FLOPs at the fp32 rate. About 12 calls are made besides the timed ones.
SETUP_READS, SETUP_FLOPS, UNTIMED_CALLS, POINT_OVERHEAD_S = 60, 8, 12, 0.05
ENERGY_S = 1.8  # a block of calls, and a share of the group's block of flushes

# Of the seconds of sampling of backends that race, the share that is left: of four committed runs that were raced again, from 0.35
# to 0.56 (docs/timing.md). No figure of a GPU run.
RACED_SHARE = 0.43
HOST_CORES = 16  # of the hosts whose rows the table is from: the pages of two of these datasets say so, the others say nothing
COMPILE_SECONDS: dict[str, tuple[float, int]] = own_table("compile_seconds")  # seconds and sources, by kind
KERNELS = ("fa2", "fa3")  # a first argument that chooses the code of a module
HOST_S = 0.3  # plans and calls that are timed on the host, and a profile of them


class Cost(NamedTuple):
    """What a point is expected to take, in seconds of wall time and bytes of device memory."""

    setup_s: float  # spent once for all points on the same inputs
    point_s: float
    memory_bytes: int  # at the peak
    own_bytes: int = 0  # of these, what the backend needs beside the shared inputs
    race_saves_s: float = 0.0  # of point_s, on average, if the point races others: which one, nobody knows before
    start_s: float = 0.0  # of an engine, once for all points of the start, and limited apart (limits.start_seconds)

    @property
    def total_s(self) -> float:
        return self.setup_s + self.point_s


def kernel_seconds(problem: Problem, device: Device) -> float:
    """The least time of a call at the device's rates."""
    return max(problem.unshared_bytes / (device.tb_per_sec * 1e12), problem.flops / (device.peak_tflops(problem.q_dtype) * 1e12))


def estimate(problem: Problem, workspace_bytes: int, device: Device, timing: Timing) -> Cost:
    """The cost of a point at the device's rates; `workspace_bytes` is what its backend allocates for itself."""
    bytes_s = device.tb_per_sec * 1e12
    kernel_s = kernel_seconds(problem, device)
    samples = min(max(timing.max_seconds / kernel_s, 2 * timing.block_samples), timing.max_samples)
    reads_s = SETUP_READS * (problem.attention_bytes / bytes_s)
    setup_s = reads_s + SETUP_FLOPS * problem.attention_flops / (device.tflops["fp32"] * 1e12)
    reference_bytes = 2 * 4 * problem.num_q_tokens * problem.num_qo_heads * problem.value_dim
    batch = launched(problem)
    own = workspace_bytes + batch.qo_bytes
    memory = batch.input_bytes + own + reference_bytes + SCRATCH_BYTES
    more_s = (ENERGY_S if timing.energy else 0.0) + (HOST_S if timing.host else 0.0)
    saved_s = (1 - RACED_SHARE) * samples * kernel_s if timing.races else 0.0
    calls_s = sustained.SECONDS if timing.pace == "sustained" else samples * kernel_s
    return Cost(setup_s, POINT_OVERHEAD_S + more_s + calls_s + UNTIMED_CALLS * kernel_s, memory, own, saved_s)


def in_engine(problem: Problem, layer: LayerShape, layers: int, device: Device) -> Cost:
    """The cost of a point in a running engine of so many layers. The start of the engine is shared by all of its points."""
    rates = device.tb_per_sec * 1e12, device.peak_tflops("bf16") * 1e12
    seconds = start.point_seconds(problem, layer, layers, *rates)
    return Cost(0.0, seconds, start.memory_bytes(problem, layer, layers), start_s=start.START_S)


def kind_of(module: Module) -> str:
    """What modules that compile alike have in common: their generator, and its kernel if it makes several."""
    name = str(module).partition("(")[0]
    return f"{name}({module.args[0]})" if module.args and module.args[0] in KERNELS else name


def compile_seconds(modules: Iterable[Module], cores: int) -> float:
    """Wall seconds on `cores` that share all sources (none beats its time on `HOST_CORES`); unknown kinds as the median one."""
    wanted = [kind_of(module) for module in modules]
    if not wanted:
        return 0.0
    core_seconds = {kind: seconds * min(sources, HOST_CORES) for kind, (seconds, sources) in COMPILE_SECONDS.items()}
    usual = median(core_seconds.values())
    longest = max(COMPILE_SECONDS.get(kind, (0.0, 0))[0] for kind in wanted)
    return max(longest, sum(core_seconds.get(kind, usual) for kind in wanted) / cores)


def not_measured(modules: Iterable[Module]) -> int:
    """How many of the modules are of a kind that no committed run has compiled."""
    return sum(kind_of(module) not in COMPILE_SECONDS for module in modules)
