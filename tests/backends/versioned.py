"""Backends of a library that exists in two versions, see tests/helpers/wheels.py: `adapters=[tests.backends.versioned]`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kernels.adapter import Adapter, Need, QueryLengths, Runner
from kernels.adapters.torch_sdpa import TorchSdpa
from kernels.device import Device
from kernels.inputs import Inputs
from kernels.problem import Problem


@dataclass(frozen=True, kw_only=True)
class Versioned(Adapter):
    """A right answer, and then the library has its way with it."""

    routine: str = "paged_decode"
    query_lengths: QueryLengths = "uniform"
    copies_cache: bool = True
    distributions: tuple[str, ...] = ("ao-fakekernel",)
    imports: str = "ao_fakekernel"

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        return ()

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        import ao_fakekernel

        right = TorchSdpa(routine=self.routine).prepare(inputs, device)

        def launch() -> None:
            right()
            ao_fakekernel.run(self.name, right.out)

        return replace(right, launch=launch, resolved_backend=f"kernel_of_{ao_fakekernel.VERSION}")


ADAPTERS = tuple(Versioned(name=name) for name in ("versioned", "turns_wrong", "crashes", "hangs"))
