"""Backends whose kernel modules take their time to compile, or do not: `adapters=[tests.backends.compiling]`."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from kernels.adapter import Module
from kernels.device import Device
from kernels.problem import Problem
from tests.backends.faulty import MARKS, Faulty, nothing

SLOW_SECONDS = 6.0
LONG_SECONDS = 5
NVCC_LOG = "[1/2] nvcc -Werror all-warnings mha.cu\nFAILED: mha.o\nmha.cu(7): error: no such thing\n  1 error detected"


@dataclass(frozen=True)
class Spec:
    """A build specification that does what its name says."""

    name: str

    def build(self) -> None:
        if self.name == "slow":
            time.sleep(SLOW_SECONDS)
        if self.name == "dies":
            os._exit(1)
        if self.name == "broken":
            raise RuntimeError(f"Ninja build failed. Ninja output:\n{NVCC_LOG}")


@dataclass(frozen=True)
class File:
    """A build specification that leaves a file, as FlashInfer's do, and a line for each time that it was built and where."""

    name: str
    seconds: int

    def build(self) -> None:
        with (Path(os.environ[MARKS]) / f"built-{self.name}").open("a") as mark:
            mark.write(f"{os.environ['XDG_CACHE_HOME']}\n")
        time.sleep(self.seconds)
        self.get_library_path().write_bytes(f"the object of {self.name}".encode())

    def get_library_path(self) -> Path:
        return Path(os.environ[MARKS]) / f"{self.name}.so"


def module(name: str) -> Module:
    return Module("tests.backends.compiling:Spec", (name,))


def file(name: str, seconds: int = 0) -> Module:
    return Module("tests.backends.compiling:File", (name, seconds))


class Compiled(Faulty):
    """A right answer behind modules: batch size 1, which is the shorter group, waits for the slow one too."""

    def modules(self, problem: Problem, device: Device) -> tuple[Module, ...]:
        needed = ("quick", "slow") if problem.batch_size == 1 else ("quick",)
        return tuple(module(name) for name in (*needed, *(("broken",) if self.name == "broken" else ())))


class Filed(Faulty):
    """A right answer behind a module that takes long."""

    def modules(self, problem: Problem, device: Device) -> tuple[Module, ...]:
        return (file("long", LONG_SECONDS),)


ADAPTERS = (Compiled(name="compiled", fault=nothing), Compiled(name="broken", fault=nothing), Filed(name="filed", fault=nothing))
