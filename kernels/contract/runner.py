"""What `Adapter.prepare` gives: the call, its outputs, and what is known of the kernel. `kernels/adapter.py` has the contract."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from kernels.inputs import Inputs
from kernels.inputs.copies import InputCopy
from kernels.inputs.step_lengths import HostLengths
from kernels.lazy import Tensor, torch
from kernels.problem.arithmetic import Arithmetic

LseBase = Literal["e", "2"]  # of the logarithm
PlanStep = Callable[["HostLengths"], object]


MAX_SAID = 600  # characters


def said(error: BaseException) -> str:
    """The class and the words of an exception on one line, or where it was raised if it has none or cannot be printed."""
    try:
        words = " ".join(str(error).split())
        if not words and (frames := traceback.extract_tb(error.__traceback__)):  # no folders but the last two
            words = f"at {'/'.join(Path(frames[-1].filename).parts[-3:])}:{frames[-1].lineno}: {frames[-1].line}"
    except KeyboardInterrupt:
        raise
    except BaseException:
        words = "it cannot be printed"
    return f"{type(error).__name__}: {words}"[:MAX_SAID]


def nothing_to_plan(_lengths: HostLengths) -> None:
    """The plan of a backend whose call reads lengths and pages on the device: an engine's step does nothing for it on the host."""


@dataclass(frozen=True)
class CallKey:
    """What a launch calls: two launches on the inputs of one problem whose keys are equal make the same call."""

    launch: object
    key: Hashable


@dataclass(frozen=True)
class Restored:
    """Memory of a call's own, `own`, that is a copy of an input whenever the call begins: of `source`, or of these `rows` of it.

    Both are tensors of the inputs themselves; `rows` are numbers along the first dimension. The dtype may be another one.
    """

    own: Tensor
    source: Tensor
    rows: Tensor | None = None

    def bring_back(self) -> None:
        self.own.copy_(self.source if self.rows is None else self.source[self.rows.long()])


@dataclass(frozen=True)
class Runner:
    """A backend planned for one set of inputs. A call launches its kernels on the current stream (see `kernels/adapter.py`)."""

    launch: Callable[[], object]
    out: Tensor  # [query tokens, H, D_vo]; the same tensor in every call
    resolved_backend: str  # the kernel that really runs, as far as the library says
    compute_dtype: str  # the narrowest dtype in which the kernel multiplies; the check's tolerance follows it
    caller_scale: float = 1.0  # a factor of `out` that the kernel leaves to its caller; engines fold it into the next weights
    accumulator_dtype: str = "fp32"  # in which the kernel adds up products
    # How often the output so far is rounded and read again, in a chain of merges of partial answers: those between the first merge
    # and the last. Each widens the tolerance.
    rounded_merges: int = 0
    # The log-sum-exp, fp32 [query tokens, H], if the problem asks for it. "returned", if the library makes a new tensor in each
    # call: `launch` returns it, also as [requests, query tokens of each, H]. In a routine with another second output
    # (`Routine.second_output`) that one, in its own shape and dtype.
    lse: Tensor | Literal["returned"] | None = None
    lse_base: LseBase = "e"
    kernel_config: str = ""  # what the library chose beside the kernel, such as "num_splits=12", as far as it says
    # What the call reads in the place of inputs: copies in another layout, or the states that `merge_states` merges. The project
    # makes them, untimed, whenever the inputs have changed.
    copies: tuple[InputCopy, ...] = ()
    # Where each row of the problem lies in `out`, [query tokens]; a slice, if all that differs is that padded requests lie behind
    # them. None: where it lies in the queries.
    rows: Tensor | slice | None = None
    # For a backend whose wrapper lives on between batches: plans it for another batch, as an engine does before each step, and
    # gives the call on that one. What the library cannot plan again gets a new wrapper.
    plan_again: Callable[[Inputs], Runner] | None = None
    # What an engine does for this backend once a step, on wrappers that exist: plans it for other KV lengths of the same batch.
    # They and their pages are in the inputs' own tensors by then, and the plan gets the lengths on the host as well. After it the
    # same call, also a captured one, reads the new lengths. `nothing_to_plan`: it does so without a plan. None: not stated.
    plan_step: PlanStep | None = None
    # What the call overwrites and reads, such as a recurrent state. The project copies it before every launch, untimed and before
    # the caches are brought into their state.
    restore: tuple[Restored, ...] = ()
    # What `launch` calls (`kernels/libraries/same_call.py`). None: not stated.
    call_key: CallKey | None = None
    _returned: list[object] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if callable(self.restore):
            raise TypeError("Runner.restore is a function, which nobody times; give a tuple of kernels.contract.runner.Restored")
        if callable(self.lse):
            raise TypeError(
                "Runner.lse is a function, which would compute when it is looked at; give the tensor that the launch writes, "
                "or lse='returned' and return the log-sum-exp from launch"
            )
        _require_plain("Runner.out", self.out)
        if self.lse is not None and not isinstance(self.lse, str):
            _require_plain("Runner.lse", self.lse)

    def __call__(self) -> None:
        found = self.launch()
        if isinstance(self.lse, str):
            self._returned[:] = [found]

    @property
    def call(self) -> Hashable | None:
        """What this runner calls. None if that is not stated, also if it was stated of another launch than this one."""
        return self.call_key.key if self.call_key is not None and self.call_key.launch is self.launch else None

    @property
    def arithmetic(self) -> Arithmetic:
        """What the check depends on."""
        return Arithmetic(self.compute_dtype, self.caller_scale, self.accumulator_dtype, self.lse_base, self.rounded_merges)

    def ready(self) -> None:
        """Brings back what the last call has overwritten, if it overwrites what it reads. To be done before each call."""
        for one in self.restore:
            one.bring_back()

    def written_lse(self) -> Tensor | None:
        """The log-sum-exp that the last call wrote; None if the backend gives none, or returns it and was not called yet."""
        if not isinstance(self.lse, str):
            return self.lse
        return _require_plain("what launch returns as the log-sum-exp", self._returned[0]) if self._returned else None

    def refresh(self) -> None:
        """Brings copies of the inputs up to date, if the call reads any."""
        for copy in self.copies:
            copy.refresh()

    def as_asked(self, out: Tensor) -> Tensor:
        """An output of this backend with its rows in the problem's order."""
        return out if self.rows is None else out[self.rows]

    def without_padding(self, written: Tensor) -> Tensor:
        """An output or log-sum-exp of this backend without the rows of padded requests, in the same order."""
        if written is not self.out and written.dim() == 3:
            written = written.flatten(0, 1)
        return written[self.rows] if isinstance(self.rows, slice) else written


def _require_plain(name: str, found: Any) -> Tensor:
    """The tensor. Raises TypeError if it is another object, or of a subclass: that may compute when somebody reads it."""
    if type(found) is not torch.Tensor:
        raise TypeError(f"{name} is {type(found).__module__}.{type(found).__name__}; it must be a plain torch.Tensor")
    return found


def without_padding(runner: Runner, inputs: Inputs) -> Runner:
    """A call on `inputs.padded` as one on `inputs`: what it writes into rows of padded requests is not looked at."""
    again = runner.plan_again
    return replace(
        runner,
        rows=slice(0, inputs.problem.num_q_tokens),
        plan_again=None if again is None else lambda batch: without_padding(again(batch.padded or batch), batch),
    )
