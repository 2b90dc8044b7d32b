"""Backends of a library in two versions whose kernel module must be compiled: `adapters=[tests.backends.modular]`.

The module names the version that it was compiled for, and so does the kernel that loads it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from kernels.adapter import Module, Runner
from kernels.compile.module_cache import file_in, folder_of
from kernels.contract.toolchain import Toolchain
from kernels.device import Device
from kernels.inputs import Inputs
from kernels.problem import Problem
from tests.backends.faulty import MARKS
from tests.backends.versioned import Versioned


@dataclass(frozen=True)
class FakeToolchain(Toolchain):
    library: str = "ao-fakekernel"


@dataclass(frozen=True)
class Spec:
    """Leaves a file, and a line for each time that it was built and for which version."""

    name: str

    def build(self) -> None:
        import ao_fakekernel

        if self.name == f"fails_in_{ao_fakekernel.VERSION}":
            raise RuntimeError("kernel.cu(7): error: no such thing")
        with (Path(os.environ[MARKS]) / "built").open("a") as mark:
            mark.write(f"{self.name} {ao_fakekernel.VERSION}\n")
        self.get_library_path().write_bytes(f"compiled for {ao_fakekernel.VERSION}".encode())

    def get_library_path(self) -> Path:
        import ao_fakekernel

        return Path(os.environ[MARKS]) / f"{self.name}_{ao_fakekernel.VERSION}.so"


class Modular(Versioned):
    """A right answer behind a module."""

    def modules(self, problem: Problem, device: Device) -> tuple[Module, ...]:
        return (Module("tests.backends.modular:Spec", (self.name,), FakeToolchain()),)

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        loaded = file_in(folder_of(device.arch, FakeToolchain()), self.name).read_text()
        return replace(super().prepare(inputs, device), resolved_backend=loaded)


ADAPTERS = (Modular(name="modular"), Modular(name="fails_in_2.0"))
