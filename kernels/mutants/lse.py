"""Kernels with a right output and a wrong log-sum-exp, as backends of their own: the check must judge both outputs.

Like the others (`catalogue.py`), but the victim's output stays as the wrapped kernel wrote it, and its log-sum-exp is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from kernels.adapter import Device, Inputs, LseBase, Problem, Runner
from kernels.inputs.sentinel_keys import context_positions
from kernels.inputs.tensors import judged
from kernels.lazy import Tensor
from kernels.mutants import victims
from kernels.mutants.faults import victim
from kernels.mutants.mutant import Mutant
from kernels.mutants.reference_case import ReferenceCase, case_of
from kernels.mutants.victims import Applies, Needs
from kernels.problem.arithmetic import NATURAL
from kernels.problem.fields import attending

# From the case as it should be, and the base that the runner states, to a log-sum-exp [Q, H] in that base.
WrongLse = Callable[[ReferenceCase, LseBase], "Tensor"]
SHORT = 32768  # of 131,072 tokens the last page moves the log-sum-exp by no more than 1.1 times what rounding may, with one query


@dataclass(frozen=True, kw_only=True)
class LseMutant(Mutant):
    """One way to give a wrong log-sum-exp beside a right output."""

    wrong_lse: WrongLse

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        right, request, rows_of = self.prepare_right(inputs, device)

        def launch() -> None:
            right()
            lse = right.written_lse()
            assert lse is not None  # the rule asks for a problem that has one
            for case in case_of(judged(inputs), request).parts():
                lse[rows_of(case)] = self.wrong_lse(case, right.lse_base)

        return self._runner(launch, right, inputs.problem)


def page_missing(case: ReferenceCase, base: LseBase) -> Tensor:
    """A page in the middle that holds a planted key. One of random keys alone may change it by less than rounding does."""
    n, planted = case.problem.slots_per_page, context_positions(case.problem, case.problem.q_lens[case.request], case.length)
    missing = planted[len(planted) // 2] // n
    return _over(case, case.key // n != missing, base)


def _over(case: ReferenceCase, keys: Tensor, base: LseBase) -> Tensor:
    return case.sees(case.seen & keys).lse() / NATURAL[base]


def _if_lse_is_asked(applies: Applies) -> Applies:
    def needs(p: Problem) -> Needs:
        return applies(p) | {"a log-sum-exp as a second output (return_lse: true)": p.return_lse}

    return needs


def _one_page(p: Problem) -> Needs:
    """A log-sum-exp is judged row by row. The last page, most of whose keys are random, must weigh more than rounding does."""
    return victims.pages(p) | victims.in_16_bits(p) | {f"a victim of up to {SHORT} tokens": p.kv_lens[victim(p)] <= SHORT}


WRONG: tuple[tuple[str, str, WrongLse, Applies], ...] = (
    ("lse_other_base", "the log-sum-exp has the base that the runner does not state",
     lambda case, base: case.lse() / NATURAL["2" if base == "e" else "e"], victims.context),
    ("lse_last_page_ignored", "the last page is missing in the log-sum-exp alone",
     lambda c, base: _over(c, c.key < (c.length - 1) // c.problem.slots_per_page * c.problem.slots_per_page, base), _one_page),
    ("lse_page_lost", "a planted page is missing in the log-sum-exp alone", page_missing, victims.pages),
    ("lse_split_forgotten", "the log-sum-exp is that of the second half of the keys",
     lambda case, base: _over(case, case.key >= case.length // 2, base), victims.context),
    ("lse_without_sink", "the log-sum-exp leaves the sink out",
     lambda case, base: replace(case, sinks=None).lse() / NATURAL[base], lambda p: {"attention sinks": p.sinks}),
    ("lse_left", "the log-sum-exp is left as it was", lambda case, base: case.lse() * float("nan"), victims.context),
)  # fmt: skip
ADAPTERS = tuple(
    LseMutant(routine=routine, name=name, about=about, wrong=ReferenceCase.answer, applies=_if_lse_is_asked(applies), wrong_lse=how)
    for routine in attending()
    for name, about, how, applies in WRONG
)
