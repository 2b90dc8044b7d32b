"""Backends that fail in every way a kernel can, beside a right one: `adapters=[tests.backends.faulty]`."""

from __future__ import annotations

import ctypes
import os
import re
import resource
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import kernels
from kernels.adapter import Adapter, Module, Need, QueryLengths, Runner
from kernels.adapters.torch_sdpa import TorchSdpa
from kernels.device import Device
from kernels.inputs import Inputs
from kernels.inputs.tensors import token_major
from kernels.problem import Problem

if TYPE_CHECKING:
    from torch import Tensor

MARKS = "FAULTY_MARKS"  # a folder where backends note that they were here, for faults that happen once
HELD = "FAULTY_HELD"  # such a folder of the machines on which no point of `held` ends


@dataclass(frozen=True, kw_only=True)
class Faulty(Adapter):
    """A right answer, after `fault` has had its way with it."""

    fault: Callable[[Inputs, Runner], None]
    module: str = ""
    accumulator_dtype: str = "fp32"
    routine: str = "paged_decode"
    query_lengths: QueryLengths = "uniform"
    copies_cache: bool = True

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        return ()

    def modules(self, problem: Problem, device: Device) -> tuple[Module, ...]:
        return (Module("tests.helpers.build_spec:spec", (self.module,)),) if self.module else ()

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        right = TorchSdpa(routine="paged_decode").prepare(inputs, device)

        def launch() -> None:
            right()
            self.fault(inputs, right)

        return replace(right, launch=launch, resolved_backend=kernels.__file__, accumulator_dtype=self.accumulator_dtype)


class WritesOnce(Faulty):
    """Writes while it warms up and never again, as a kernel that a graph did not capture."""

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        right, calls = TorchSdpa(routine="paged_decode").prepare(inputs, device), []

        def launch() -> None:
            calls.append(1)
            if len(calls) == 1:
                right()

        return replace(right, launch=launch, resolved_backend="writes_once")


def nothing(inputs: Inputs, right: Runner) -> None:
    """Right, and says in `resolved_backend` which `kernels` package a worker imported."""


def raises(inputs: Inputs, right: Runner) -> None:
    raise RuntimeError("no kernel for a group of 8 on\nthis day")


def wrong(inputs: Inputs, right: Runner) -> None:
    right.out.view(-1)[:128] += 1


def nan(inputs: Inputs, right: Runner) -> None:
    right.out[-1, -1, -1] = float("nan")


def unwritten(inputs: Inputs, right: Runner) -> None:
    right.out[0] = float("nan")


def out_of_memory(inputs: Inputs, right: Runner) -> None:
    import torch

    raise torch.OutOfMemoryError("tried to allocate 20 GiB")


def dies(inputs: Inputs, right: Runner) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dies_once(inputs: Inputs, right: Runner) -> None:
    mark = Path(os.environ[MARKS]) / f"dies_once-{inputs.problem.batch_size}-{inputs.problem.s_qo}"
    if not mark.exists():
        mark.touch()
        dies(inputs, right)


def exits(inputs: Inputs, right: Runner) -> None:
    os._exit(3)


def segfaults(inputs: Inputs, right: Runner) -> None:
    ctypes.string_at(0)


def dies_measured(inputs: Inputs, right: Runner) -> None:
    """Passes its check, and kills the process once it is measured beside others."""
    _calls[id(right)] = calls = [*_calls.get(id(right), []), 1]
    if len(calls) == 8:
        dies(inputs, right)


def hangs(inputs: Inputs, right: Runner) -> None:
    _sign()
    time.sleep(1e6)


def spins(inputs: Inputs, right: Runner) -> None:
    """Never leaves C, and never lets go of the interpreter."""
    _sign()
    re.fullmatch(r"(a|a)*b", "a" * 100)


def stops(inputs: Inputs, right: Runner) -> None:
    """Answers nobody any more, and hears nobody who asks it to end."""
    _sign()
    os.kill(os.getpid(), signal.SIGSTOP)


def finds_nobody(inputs: Inputs, right: Runner) -> None:
    """Right, unless a process that signed before it hung is still there."""
    for mark in Path(os.environ[MARKS]).glob("process-*"):
        pid = int(mark.name.removeprefix("process-"))
        if pid != os.getpid() and alive(pid):
            raise RuntimeError(f"process {pid} is still there")


def alive(pid: int) -> bool:
    """Whether a process is there with what it holds: one that only waits for its parent to notice is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _sign() -> None:
    (Path(os.environ[MARKS]) / f"process-{os.getpid()}").touch()


def never_ends(inputs: Inputs, right: Runner) -> None:
    """A kernel that holds the GPU for an hour."""
    import torch

    _sign()
    for _ in range(3600):
        torch.cuda._sleep(2 * 10**9)


def fills_the_device(inputs: Inputs, right: Runner) -> None:
    import torch

    torch.empty(2**42, dtype=torch.uint8, device=inputs.device)


def out_of_host_memory(inputs: Inputs, right: Runner) -> None:
    """What the system refuses to a process."""
    import torch

    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (2**35, before[1]))
    try:
        torch.empty(2**36, dtype=torch.uint8)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def eats_memory(inputs: Inputs, right: Runner) -> None:
    """Takes host memory until the system ends it, or until it has as much as would hurt others."""
    taken = [b"\xff" * 2**26 for _ in range(int(os.environ["FAULTY_EATS_MIB"]) // 64)]
    raise RuntimeError(f"nobody stopped it at {len(taken) * 64} MiB")


def slow(inputs: Inputs, right: Runner) -> None:
    time.sleep(0.05)


def held(inputs: Inputs, right: Runner) -> None:
    """Right, and ends at once, except on machines that are to be lost while it runs there."""
    if HELD in os.environ:
        (Path(os.environ[HELD]) / str(os.getpid())).touch()
        time.sleep(1e6)


def lost_device(inputs: Inputs, right: Runner) -> None:
    """An index far outside, which on a GPU makes every later CUDA call of the process fail."""
    import torch

    size = 2**20
    table = torch.zeros(16, device=inputs.device)
    table[torch.full((size,), 2**30, device=inputs.device)] += 1


def raises_later(inputs: Inputs, right: Runner) -> None:
    """Fine in its check, and not while it is measured."""
    calls = _calls.setdefault(id(right), [])
    calls.append(1)
    if len(calls) == 8:
        raise RuntimeError("it ran 8 times")


def reads_unused(inputs: Inputs, right: Runner) -> None:
    """A thousandth of what lies in the first unused slot: nothing where that is a value like any other."""
    _add_unused(inputs, right, 0.001)


def multiplies_unused(inputs: Inputs, right: Runner) -> None:
    """By nought, which leaves a number alone and spreads NaN."""
    _add_unused(inputs, right, 0.0)


def _add_unused(inputs: Inputs, right: Runner, share: float) -> None:
    n = inputs.problem.slots_per_page
    page = inputs.page_table[0, (int(inputs.kv_lens[0]) - 1) // n].long()
    value = token_major(inputs.problem, inputs.kv[1])[page, int(inputs.last_page_len[0]) % n].float().mean()
    right.out.add_(value * share)


def a_little_off(inputs: Inputs, right: Runner) -> None:
    """By three thousandths: more than fp16 explains, and less than sums in fp16 do."""
    right.out.mul_(1.003)


def spoils_later(inputs: Inputs, right: Runner) -> None:
    """Right in its check and for a while, as a kernel that does not put its counters back."""
    calls = _calls.setdefault(id(right), [])
    calls.append(1)
    if len(calls) > 8:
        wrong(inputs, right)


def remembers(inputs: Inputs, right: Runner) -> None:
    """Computes at its first launch and gives that answer ever after."""
    kept = _kept.setdefault(id(right), right.out.clone())
    right.out.copy_(kept)


_calls: dict[int, list[int]] = {}
_kept: dict[int, Tensor] = {}

FAULTS = (
    raises_later,
    reads_unused,
    multiplies_unused,
    a_little_off,
    spoils_later,
    remembers,
    nothing,
    raises,
    wrong,
    nan,
    unwritten,
    out_of_memory,
    dies,
    dies_once,
    exits,
    segfaults,
    dies_measured,
    hangs,
    spins,
    stops,
    finds_nobody,
    never_ends,
    fills_the_device,
    out_of_host_memory,
    eats_memory,
    slow,
    held,
    lost_device,
)
ADAPTERS = (
    *(Faulty(name=fault.__name__, fault=fault) for fault in FAULTS),
    Faulty(name="half_sums", fault=a_little_off, accumulator_dtype="fp16"),
    Faulty(name="skips_unused", fault=nothing, skips_unused=True),
    Faulty(name="skips_unused_it_says", fault=multiplies_unused, skips_unused=True),
    WritesOnce(name="writes_once", fault=nothing),
)
