"""The contract of a backend: a support rule, the modules it compiles, and the call. One file in `kernels/adapters` each."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from kernels.dtypes import DTYPES, torch_dtype

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.device import Device
    from kernels.inputs import Inputs
    from kernels.problem import Problem

QueryLengths = Literal["single", "uniform", "varlen"]


@dataclass(frozen=True)
class Module:
    """A kernel module that must be compiled before a point may run: a function that makes its build spec, and its arguments.

    Arguments that are names of dtypes are given to the function as torch dtypes.
    """

    generator: str  # "package.module:function"
    args: tuple[str | int | bool, ...]

    def __str__(self) -> str:
        return f"{self.generator.rpartition(':')[2].strip('_')}({', '.join(map(str, self.args))})"

    def spec(self) -> Any:
        """The library's build specification, with `.name`, `.build()` and `.is_compiled`; imports the library."""
        where, _, function = self.generator.partition(":")
        args = [torch_dtype(a) if isinstance(a, str) and a in (*DTYPES, "int32") else a for a in self.args]
        return getattr(importlib.import_module(where), function)(*args)


@dataclass(frozen=True)
class Runner:
    """A backend planned for one set of inputs. Calling it launches the kernels on the current stream and writes `out`.

    Everything that happens once a model step rather than once a layer (planning, page tables, masks) is done before.
    """

    launch: Callable[[], object]
    out: Tensor
    resolved_backend: str  # what really runs, as far as the library tells
    compute_dtype: str  # the narrowest dtype in which the kernel multiplies; the check's tolerance follows it
    caller_scale: float = 1.0  # what the kernel leaves to its caller to multiply `out` with; engines fold it into the next weights
    sum_dtype: str = "fp32"  # of its accumulators

    def __call__(self) -> None:
        self.launch()


class Adapter(ABC):
    """One backend of one routine. Everything but `prepare` is pure: no CUDA, no torch, no import of a kernel library.

    What every backend must answer is declared, not written into its rule: which query lengths it serves (one token a request,
    the same number for all, or any), whether it takes a sliding window, and whether attention sinks.
    """

    routine: ClassVar[str]
    name: str
    query_lengths: QueryLengths
    takes_window: ClassVar[bool] = False
    takes_sinks: ClassVar[bool] = False

    @property
    def skips_unused(self) -> bool:
        """Whether slots without a token never enter its arithmetic: NaN there does no harm, and the check puts it there."""
        return False

    @abstractmethod
    def needs(self, problem: Problem, device: Device) -> dict[str, bool]:
        """The support rule: a sentence beside its truth. The unmet sentences are the reason in the row."""

    @abstractmethod
    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        """Plans the kernel for these inputs on this device. Any exception becomes the point's `failed` row."""

    def modules(self, problem: Problem, device: Device) -> tuple[Module, ...]:
        """What must be compiled before `prepare` may load it."""
        return ()

    def extra_bytes(self, problem: Problem) -> int:
        """Device memory beyond the inputs and one output."""
        return 0

    def unmet(self, problem: Problem, device: Device) -> list[str]:
        """What this problem on this device lacks; empty where it is supported."""
        return [sentence for sentence, holds in {**self._declared(problem), **self.needs(problem, device)}.items() if not holds]

    def _declared(self, problem: Problem) -> dict[str, bool]:
        return {
            "one query token a request": self.query_lengths != "single" or problem.s_qo == 1,
            "the same number of query tokens for every request": self.query_lengths == "varlen" or problem.min_s_qo is None,
            "no sliding window": self.takes_window or problem.window is None,
            "no attention sinks": self.takes_sinks or not problem.sinks,
        }
