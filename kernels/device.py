"""What support rules and plans know about a device. Data only, so that a laptop can plan for a GPU it does not have."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from kernels.data import Data


class Device(Data):
    """A kind of device, as `conf/device/*.yaml` describes it. Memory is in bytes, rates are 1e12 per second.

    `tb_per_sec` and `tflops` come from the vendor's datasheet (dense rates). Those of the CPU are cautious estimates. Measured
    ceilings are elsewhere (`kernels/timing/ceilings.py`).
    """

    name: str
    kind: Literal["cuda", "cpu"] = "cuda"
    compute_capability: tuple[NonNegativeInt, NonNegativeInt] | None = None
    memory_bytes: PositiveInt
    tb_per_sec: PositiveFloat
    tflops: dict[str, PositiveFloat]
    source: str = ""
    match: Annotated[tuple[str, ...], Field(description="names the driver gives this device")] = ()

    @property
    def major(self) -> int:
        """Major compute capability; 0 for a CPU."""
        return self.compute_capability[0] if self.compute_capability else 0

    @property
    def arch(self) -> str:
        """The architecture that modules are compiled for, as the CUDA compiler names it, such as `9.0a`, or `cpu`."""
        if self.compute_capability is None:
            return "cpu"
        major, minor = self.compute_capability
        return f"{major}.{minor}{'a' if major >= 9 else ''}"

    def is_sm(self, *families: int) -> bool:
        """Whether this is a CUDA device with a major compute capability in `families`."""
        return self.kind == "cuda" and self.major in families

    def peak_tflops(self, dtype: str) -> float:
        """Matrix rate for operands of `dtype`, 1e12 per second. fp8_e5m2 has fp8_e4m3's; a dtype not listed has fp32's."""
        key = "fp8_e4m3" if dtype == "fp8_e5m2" else dtype
        return self.tflops.get(key, self.tflops["fp32"])
