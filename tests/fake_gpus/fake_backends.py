"""Backends that run on fake GPUs and take their time, of which one wants a Hopper: `adapters=[fake_backends]`."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from pathlib import Path

import kernels
from kernels.adapter import Adapter, Module, Need, QueryLengths, Runner
from kernels.adapters.torch_sdpa import TorchSdpa
from kernels.device import Device
from kernels.inputs import Inputs
from kernels.problem import Problem

HOLD = "FAKE_HOLD"  # names a file: while it exists, no call ends


@dataclass(frozen=True, kw_only=True)
class Slow(Adapter):
    """A right answer after a while. `resolved_backend` says which GPU Ray gave it and where its code came from."""

    majors: tuple[int, ...]
    routine: str = "paged_decode"
    query_lengths: QueryLengths = "uniform"
    copies_cache: bool = True

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        return (Need(f"compute capability {' or '.join(map(str, self.majors))}", device.major in self.majors),)

    def modules(self, problem: Problem, device: Device) -> tuple[Module, ...]:
        return ()

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        right = TorchSdpa(routine="paged_decode").prepare(inputs, device)

        def launch() -> None:
            right()
            time.sleep(0.02)
            while Path(os.environ.get(HOLD) or "/no/file").exists():
                time.sleep(0.1)

        where = f"{os.environ.get('CUDA_VISIBLE_DEVICES')} {kernels.__file__}"
        return replace(right, launch=launch, resolved_backend=where)


ADAPTERS = (Slow(name="everywhere", majors=(8, 9)), Slow(name="hopper", majors=(9,)))
