"""Backends of which some make the same call as others, or say so: `adapters=[tests.backends.alike]`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kernels.adapter import Adapter, Need, QueryLengths, Runner
from kernels.adapters.torch_sdpa import TorchSdpa
from kernels.contract.runner import CallKey
from kernels.device import Device
from kernels.inputs import Inputs
from kernels.problem import Problem

CALLS_BEFORE_IT_SPOILS = 4  # no fewer than its preparation and its first check make


@dataclass(frozen=True, kw_only=True)
class Alike(Adapter):
    """A right answer, by a kernel called `kernel` in a call with the key `key`."""

    kernel: str
    key: str | None = None
    factor: float = 1.0  # of its answer
    spoils: bool = False
    routine: str = "paged_decode"
    query_lengths: QueryLengths = "uniform"

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        return ()

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        right, calls = TorchSdpa(routine="paged_decode").prepare(inputs, device), []

        def launch() -> None:
            right.refresh()
            right()
            calls.append(1)
            right.out.mul_(3.0 if self.spoils and len(calls) > CALLS_BEFORE_IT_SPOILS else self.factor)

        key = None if self.key is None else CallKey(launch, self.key)
        return replace(right, launch=launch, copies=(), resolved_backend=self.kernel, call_key=key)


ADAPTERS = (
    Alike(name="own", kernel="own", key="one call"),
    Alike(name="picks_own", kernel="own", key="one call"),
    Alike(name="says_it_is_own", kernel="own", key="one call", factor=1.004),
    Alike(name="slow", kernel="slow"),
    Alike(name="spoils", kernel="spoils", key="a call that spoils", spoils=True),
    Alike(name="picks_spoils", kernel="spoils", key="a call that spoils"),
)
