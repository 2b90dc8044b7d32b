"""The highest rates that this device reaches, to compare measured times with.

A ceiling is the best of several kernels, each at its median: a reduction in torch reads more slowly than a decode kernel, and
matrix rates depend on the size and on the power that random data draw.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

from pydantic import BaseModel, ConfigDict, PositiveFloat

from kernels.adapter import Runner
from kernels.lazy import Tensor, torch
from kernels.problem.dtypes import torch_dtype
from kernels.timing.caches import Caches
from kernels.timing.graphs import MOST_OVER_US, capture, timed_event
from kernels.timing.nvml import DeviceMonitor
from kernels.timing.timers import Cupti, GraphReplay

SAMPLES, WARMUP = 10, 3
STREAM_BYTES = 4 * 2**30
SIZES = (4096, 8192)  # of square matrices
TRITON_BLOCKS = ((4096, 4), (2048, 8), (4096, 16))  # elements a load, loads a program
CALLS = ((4, 1, 1024), (8, 1, 2048), (1, 8, 4096), (2, 256, 1024))  # batch, query tokens and keys of attention that tells a launch


class Ceilings(BaseModel):
    """Measured on one device. Rates are 1e12 per second.

    `launch_us` is a graph replay of a kernel that does almost nothing: no call is shorter. `call_launch_us` is what the launch of a
    graph adds to a real call, from 0.1 more to 0.9 less than that, and `call_launch_spread_us` how calls differ in it (standard
    deviation); both null if CUPTI does not answer, or if the share is over `MOST_OVER_US`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    tb_per_sec: PositiveFloat  # of reading
    copy_tb_per_sec: PositiveFloat  # bytes read and bytes written
    tflops: dict[str, PositiveFloat]  # by dtype of the operands, fp32 sums
    launch_us: PositiveFloat
    call_launch_us: PositiveFloat | None
    call_launch_spread_us: float | None
    reached_by: dict[str, str]  # the fastest kernel for each rate

    def peak_tflops(self, dtype: str) -> float:
        """Matrix rate for operands of `dtype`, 1e12 per second. fp8_e5m2 has fp8_e4m3's; a dtype not listed has fp32's."""
        return self.tflops.get("fp8_e4m3" if dtype == "fp8_e5m2" else dtype, self.tflops["fp32"])


def measure() -> Ceilings:
    """Measures the current CUDA device in a few seconds. Takes 9 GB of its memory, less if less is free."""
    free, _ = torch.cuda.mem_get_info()
    size = min(STREAM_BYTES, free // 4) // 2**20 * 2**20
    (read_by, read), (copy_by, copy) = _memory_rates(size)
    torch.cuda.empty_cache()
    rates: dict[str, float] = {}
    reached_by = {"read": read_by, "copy": copy_by}
    for dtype in ("fp32", "fp16", "bf16", "fp8_e4m3"):
        calls = {f"{n} x {n} x {n}": (call, 2 * n**3) for n in SIZES if (call := _product(dtype, n))}
        if calls:
            reached_by[dtype], rates[dtype] = _best(calls)
    torch.cuda.empty_cache()
    empty = _launch_us()
    real, spread = next((found for _ in range(3) if (found := call_launch(empty))[0]), (None, None))
    return Ceilings(
        tb_per_sec=read,
        copy_tb_per_sec=copy,
        tflops=rates,
        launch_us=empty,
        reached_by=reached_by,
        call_launch_us=real,
        call_launch_spread_us=spread,
    )


def _memory_rates(size: int) -> tuple[tuple[str, float], tuple[str, float]]:
    """Name and rate of the best reader, and of the best copy, of `size` bytes."""
    data = torch.empty(size // 4, dtype=torch.float32, device="cuda").normal_()
    target = torch.empty_like(data)
    whole, rows = data.view(torch.int64), data.view(-1, 2**15)
    # They read all of it once and write next to nothing, as a decode does.
    readers = {"torch.amax": whole.amax, "torch.sum of rows": lambda: rows.sum(1), **_triton_readers(data)}
    read = _best({name: (call, size) for name, call in readers.items()})
    return read, _best({"torch.copy_": (lambda: target.copy_(data), 2 * size)})


def _best(calls: dict[str, tuple[Callable[[], object], int]]) -> tuple[str, float]:
    """Name and rate (1e12 per second) of the fastest of `calls`, each given with its bytes or operations."""
    found = {name: work / _median_us(call) / 1e6 for name, (call, work) in calls.items()}
    name = max(found, key=lambda name: found[name])
    return name, found[name]


def _median_us(call: Callable[[], object]) -> float:
    for _ in range(WARMUP):
        call()
    pairs = [(timed_event(), timed_event()) for _ in range(SAMPLES)]
    for start, end in pairs:
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return float(statistics.median(start.elapsed_time(end) for start, end in pairs)) * 1e3


def _triton_readers(data: Tensor) -> dict[str, Callable[[], object]]:
    """A plain streaming loop; empty if Triton or its compiler is missing."""
    words, sums = data.view(torch.int32), torch.empty(2**22, dtype=torch.int32, device=data.device)
    readers: dict[str, Callable[[], object]] = {}
    try:
        from kernels.timing.triton_kernels import read_sum

        for block, loads in TRITON_BLOCKS:

            def call(block: int = block, loads: int = loads) -> Any:
                return read_sum[(words.numel() // (block * loads),)](words, sums, block, loads, num_warps=8)

            call()
            readers[f"triton stream of {block} x {loads}"] = call
    except Exception:  # no triton, no C compiler, an unknown driver: torch's own kernels remain
        pass
    return readers


def _product(dtype: str, n: int) -> Callable[[], object] | None:
    """A square matrix product on random values, or None if this device or torch has none for the dtype."""
    a, b = (torch.randn(n, n, device="cuda").to(torch_dtype(dtype)) for _ in range(2))
    one = torch.ones((), device="cuda")

    def call() -> object:
        if dtype == "fp8_e4m3":
            return torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16)
        return torch.matmul(a, b)

    try:
        call()
        torch.cuda.synchronize()
    except RuntimeError:
        return None
    return call


def _launch_us() -> float:
    """Microseconds between events around a graph of one kernel on one element. A spin before it takes the place of the flush."""
    one = torch.zeros(1, device="cuda")
    one.add_(1)
    graph = capture(lambda: one.add_(1))

    def sample() -> float:
        start, end = timed_event(), timed_event()
        torch.cuda._sleep(100_000)  # type: ignore[no-untyped-call]  # the CPU issues the rest meanwhile
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(end)) * 1e3

    return min(sample() for _ in range(5 * SAMPLES))


def call_launch(empty_us: float) -> tuple[float | None, float | None]:
    """What CUDA events around a graph of attention span beyond its kernels by CUPTI, µs: mean and standard deviation over `CALLS`.

    (None, None) if CUPTI does not answer, or without a share that is a launch: one of an empty graph takes `empty_us`.
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel

    shares = []
    for batch, s_qo, s_kv in CALLS:
        q, k, v = (torch.randn(batch, 8, tokens, 128, device="cuda", dtype=torch.bfloat16) for tokens in (s_qo, s_kv, s_kv))
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            runner = Runner(partial(torch.nn.functional.scaled_dot_product_attention, q, k, v), q, "flash", "bf16")
            timers = [kind(runner, WARMUP, Caches()) for kind in (GraphReplay, Cupti)]
        try:
            events, kernels = (statistics.median(timer.block(2 * SAMPLES, DeviceMonitor()).us) for timer in timers)
        except RuntimeError:
            return None, None
        shares.append(events - kernels)
    mean = statistics.fmean(shares)
    return (mean, statistics.stdev(shares)) if 0 < mean <= empty_us + MOST_OVER_US else (None, None)
