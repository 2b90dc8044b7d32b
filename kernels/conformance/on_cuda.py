"""The checks that only a CUDA device can run: each takes an adapter, a device and a problem that it serves there."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kernels.adapter import Adapter
from kernels.check import oracle
from kernels.check.judgement import judge_whole
from kernels.check.oracle import Verdict, judge, reference
from kernels.conformance.checks import WARMUP, CheckFinding, failed, from_verdict, passed, prepare
from kernels.contract.runner import said
from kernels.device import Device
from kernels.inputs import Inputs
from kernels.inputs.generate import draw
from kernels.inputs.tensors import decoy
from kernels.problem import Problem
from kernels.problem.padded import launched
from kernels.problem.routine import routine_of
from kernels.timing.caches import Caches
from kernels.timing.timers import timer_for

MEMORY_SLACK_BYTES = 64 * 2**20  # what an allocator rounds up, and page tables and masks
MAX_CPU_TENSOR_BYTES = 2**24  # FlashInfer's plan pins 8 MiB for its own tables


def replay(adapter: Adapter, device: Device, inputs: Inputs) -> Verdict:
    """The verdict on what a captured CUDA graph writes into an output full of NaN."""
    with decoy(inputs):
        runner = adapter.prepared(inputs, device)
        timer = timer_for(runner, "graph", WARMUP, Caches())
    runner.refresh()
    runner.out.fill_(math.nan)
    if routine_of(inputs.problem.routine):
        answer = oracle.answer(inputs)
        timer.replay()
        return judge_whole(runner.as_asked(runner.out), inputs, answer, runner.arithmetic, runner.written_lse())
    timer.replay()
    return judge(runner.as_asked(runner.out), reference(inputs), inputs.problem, runner.arithmetic)


def graph(adapter: Adapter, device: Device, problem: Problem) -> CheckFinding:
    """A CUDA graph captures the whole call. A kernel on another stream, or work on the CPU, would leave NaN or old values."""
    return from_verdict(replay(adapter, device, draw(problem, "cuda")), "one replay of the captured call")


def no_sync(adapter: Adapter, device: Device, problem: Problem) -> CheckFinding:
    """A call does not wait for the device, so far as torch sees it."""
    _, runner = prepare(adapter, device, problem)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls this mode a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        runner()
    except RuntimeError as error:
        return failed(f"the call waits for the device: {str(error).splitlines()[0]}")
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return passed("torch saw no call wait for the device")


def memory(adapter: Adapter, device: Device, problem: Problem) -> CheckFinding:
    """Preparation and call take no more device memory than `workspace_bytes` and one output."""
    inputs = draw(problem, "cuda")
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    runner = adapter.prepared(inputs, device)
    runner()
    torch.cuda.synchronize()
    taken = torch.cuda.max_memory_allocated() - before
    planned = adapter.workspace_bytes(launched(problem)) + launched(problem).qo_bytes
    words = f"took {taken / 2**20:.1f} MiB; workspace_bytes and one output are {planned / 2**20:.1f} MiB"
    return passed(words) if taken <= planned + MEMORY_SLACK_BYTES else failed(words)


def no_cpu_copy(adapter: Adapter, device: Device, problem: Problem) -> CheckFinding:
    """No CPU tensor as large as a KV cache exists while the backend is prepared and called.

    Seen on an H200: an operator of vLLM's FlashAttention-3 cannot return its list to a mode that watches.
    """
    inputs = draw(problem, "cuda")
    adapter.prepared(inputs, device)()
    try:
        with largest_cpu_tensor() as seen:
            adapter.prepared(inputs, device)()
    except RuntimeError as error:
        return CheckFinding("not run", f"torch cannot watch its operators: {said(error)}")
    largest = seen[0]
    words = f"the largest CPU tensor has {largest / 2**20:.1f} MiB beside a KV cache of {problem.kv_bytes / 2**20:.0f} MiB"
    return passed(words) if largest <= MAX_CPU_TENSOR_BYTES else failed(words)


@contextmanager
def largest_cpu_tensor() -> Iterator[list[int]]:
    """Bytes of the largest CPU tensor that any operation of torch makes while it lasts, as the one element of a list."""
    seen = [0]

    class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
        supports_higher_order_operators = True

        @classmethod
        def ignore_compile_internals(cls) -> bool:
            """Compiled code stays compiled. Without this torch.compile gives way to a mode, for good in functions it has seen."""
            return True

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            for tensor in out if isinstance(out, tuple | list) else (out,):
                if isinstance(tensor, torch.Tensor) and tensor.device.type == "cpu":
                    seen[0] = max(seen[0], tensor.numel() * tensor.element_size())
            return out

    with Watch():  # type: ignore[no-untyped-call]
        yield seen
