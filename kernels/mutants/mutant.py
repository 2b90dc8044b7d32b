"""A wrong kernel as a backend: it wraps a right one and gives one request of the batch a wrong answer.

The victim is drawn from the seed. Its query tokens are computed again in fp32 with one thing wrong (`faults.py`); all else is what
the wrapped kernel wrote.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Self

from kernels import registry
from kernels.adapter import Adapter, Device, EngineMaximum, Inputs, Module, Need, Problem, QueryLengths, Runner
from kernels.check import oracle
from kernels.contract.releases import Versions
from kernels.inputs.copies import InputCopy
from kernels.inputs.sentinel_logit import PLANTED, narrowest
from kernels.inputs.tensors import bits, judged, rounded
from kernels.lazy import Tensor, torch
from kernels.mutants.faults import victim
from kernels.mutants.reference_case import ReferenceCase, case_of
from kernels.mutants.victims import Applies
from kernels.problem.routine import parts

Wrong = Callable[[ReferenceCase], "Tensor"]

WRAPPED = ("fa2_tc", "fa2", "trtllm-native", "torch_sdpa")  # the first that serves the problem; the oracle where none does


@dataclass(frozen=True, kw_only=True)
class Mutant(Adapter):
    """One way to be wrong, in a sentence, and where it is wrong at all."""

    about: str
    wrong: Wrong
    applies: Applies
    wraps: Adapter | None = None  # None: the first of `WRAPPED` that serves the problem
    query_lengths: QueryLengths = "varlen"
    takes_window: bool = True
    takes_two_sided_window: bool = True
    takes_prefix_mask: bool = True
    takes_more_queries: bool = True
    takes_sinks: bool = True
    takes_soft_cap: bool = True
    gives_lse: bool = True  # the right one: the output alone shows the fault
    max_seq_len: EngineMaximum = "passed"  # as far as what it wraps takes it
    takes_pdl: bool = True
    takes_empty: bool = True
    takes_no_keys: bool = True
    gets_padding: bool = False  # the backend that it is made of gets it
    distributions: tuple[str, ...] = ("torch",)

    def reads_copy(self, copy: InputCopy, problem: Problem) -> bool:
        """As what it wraps, which was asked if none is named: that depends on the problem."""
        return self.wraps is None or self.wraps.reads_copy(copy, problem)

    @property
    def all_distributions(self) -> tuple[str, ...]:
        """Those of what it wraps too, whose call it makes first."""
        return self._with_wrapped(self.wraps.all_distributions if self.wraps else ())

    def distributions_for(self, problem: Problem) -> tuple[str, ...]:
        return self._with_wrapped(self.wraps.distributions_for(problem) if self.wraps else ())

    def _with_wrapped(self, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.distributions, *names)))

    def to_install(self, names: Sequence[str]) -> tuple[str, ...]:
        return super().to_install(names) if self.wraps is None else self.wraps.to_install(names)

    def for_versions(self, versions: Versions) -> Self:
        return self if self.wraps is None else replace(self, wraps=self.wraps.for_versions(versions))

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        own = tuple(Need(*pair) for pair in self.applies(problem.judged).items())
        if self.wraps is None:
            return own
        return (*own, Need(f"what {self.wraps.name} serves", not self.wraps.unmet(problem, device)))

    def modules(self, problem: Problem, device: Device) -> tuple[Module, ...]:
        base = self._base(problem, device)
        return base.modules(problem, device) if base else ()

    def reorders(self, problem: Problem) -> bool:
        return self.wraps is not None and self.wraps.reorders(problem)

    def workspace_bytes(self, problem: Problem) -> int:
        rows = problem.group_size * problem.stored_kv_heads * min(problem.s_qo, PLANTED)
        wrapped = self.wraps.workspace_bytes(problem) if self.wraps else 0
        return wrapped + 4 * problem.s_kv * (3 * problem.kv_token_elements + 3 * rows)

    def _base(self, problem: Problem, device: Device) -> Adapter | None:
        if self.wraps is not None:
            return self.wraps
        known = registry.adapters()
        right = (known.get((self.routine, name)) for name in WRAPPED)
        return next((adapter for adapter in right if adapter and not adapter.unmet(problem, device)), None)

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        right, request, rows_of = self.prepare_right(inputs, device)

        def launch() -> None:
            right()
            for case in case_of(judged(inputs), request).parts():
                answer = self.wrong(case) / right.caller_scale
                right.out[rows_of(case)] = rounded(answer, right.out.dtype)

        return self._runner(launch, right, inputs.problem)

    def prepare_right(self, inputs: Inputs, device: Device) -> tuple[Runner, int, Callable[[ReferenceCase], slice | Tensor]]:
        """The wrapped kernel, the victim, and where the rows of some of its query tokens lie in the outputs."""
        base = self._base(inputs.problem, device)
        right = base.prepared(inputs, device) if base else _of_oracle(inputs)
        request = victim(inputs.problem.judged)
        first = judged(inputs).queries(request).start

        return right, request, lambda case: rows_in(right, slice(first + case.tokens.start, first + case.tokens.stop))

    def _runner(self, launch: Callable[[], object], right: Runner, problem: Problem) -> Runner:
        """Judged at the tolerance of the backend that it was made of, or at the widest that any has for these dtypes."""
        compute = "fp8_e4m3" if narrowest(problem) == "nvfp4" else narrowest(problem)
        sums = "fp16" if problem.q_dtype == problem.kv_dtype == "fp16" and "prefill" in problem.routine else "fp32"  # FMHAv2's
        if self.wraps is not None:
            compute, sums = right.compute_dtype, right.accumulator_dtype
        name = f"mutant of {right.resolved_backend}"

        def call() -> Tensor | None:
            launch()
            return right.written_lse()

        own = replace(right, launch=call, resolved_backend=name, compute_dtype=compute, accumulator_dtype=sums)
        return replace(own, kernel_config="", plan_again=None)


def rows_in(right: Runner, queries: slice) -> slice | Tensor:
    """Where these query tokens lie in its output: in the order that it has; only padded requests lie behind a slice."""
    return queries if right.rows is None or isinstance(right.rows, slice) else right.rows[queries]


class LeavesOutput(Mutant):
    """Writes nothing."""

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        return self._runner(lambda: None, _of_oracle(inputs), inputs.problem)


@dataclass(frozen=True, kw_only=True)
class WithoutKeys(Mutant):
    """Writes these numbers into the rows of the first request without keys; None leaves what is right."""

    out: float | None = None
    lse: float | None = None

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        right, _, _ = self.prepare_right(inputs, device)
        rows = inputs.queries(inputs.problem.kv_lens.index(0))
        at = rows if right.rows is None or isinstance(right.rows, slice) else right.rows[rows]

        def launch() -> None:
            right()
            for written, wrong in ((right.out, self.out), (right.written_lse(), self.lse)):
                if written is not None and wrong is not None:
                    bits(written)[at] = bits(rounded(torch.tensor(wrong, device=written.device), written.dtype))

        return self._runner(launch, right, inputs.problem)


class ReturnsPreparedAnswer(Mutant):
    """Computes while it is prepared and gives that answer ever after."""

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        right = _of_oracle(inputs)
        right()
        kept = right.out.clone()

        def launch() -> None:
            if right.lse is not None:
                right()  # for its log-sum-exp
            right.out.copy_(kept)

        return self._runner(launch, right, inputs.problem)


def _of_oracle(inputs: Inputs) -> Runner:
    out, lse = inputs.empty_output(), inputs.empty_lse()

    def launch() -> None:
        if lse is None:
            out.copy_(oracle.reference(inputs))
        else:
            right = oracle.answer(inputs)
            out.copy_(right.out)
            lse.copy_(right.lse)

    return Runner(launch, out, "oracle", inputs.problem.output_dtype, lse=lse)


def of_folders(name: str) -> tuple[Adapter, ...]:
    """The wrong kernels of routines in folders: `ADAPTERS` or `DRAWN` of each `kernels/routines/NAME/mutants.py`."""
    modules = (importlib.import_module(module) for module in parts("mutants"))
    return tuple(one for module in modules for one in getattr(module, name))


def made_of(adapter: Adapter, mutants: Iterable[Mutant]) -> tuple[Mutant, ...]:
    """Those of the adapter's routine, each made of this backend and called `<fault>@<backend>`."""
    known = (mutant for mutant in mutants if mutant.routine == adapter.routine)
    return tuple(replace(mutant, name=f"{mutant.name}@{adapter.name}", wraps=adapter) for mutant in known)
