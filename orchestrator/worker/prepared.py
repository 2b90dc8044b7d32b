"""A point between its preparation and its row: the call to time, the check of its outputs, and whether its batch matters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

from kernels.adapter import Adapter, Runner
from kernels.check import oracle
from kernels.check.oracle import Verdict
from kernels.device import Device
from kernels.environment.remote import RemoteTimer
from kernels.lazy import torch
from kernels.problem.routine import routine_of
from kernels.split.adapter import Ordered, part_of
from kernels.split.batch import part_problem
from kernels.timing.series import Series
from orchestrator.storage.row import Row
from orchestrator.worker.messages import Task
from orchestrator.worker.output_check import JudgedCall, OutputCheck
from orchestrator.worker.shared_inputs import SharedInputs
from orchestrator.worker.step_part import StepPart

# Fields of a verdict that have another name as columns, and those that are none.
CALLED = {"max_error": "check_max_error", "min_tokens": "check_min_tokens", "pairs_covered": "check_pairs_covered"}
UNTOLD = frozenset({"passed", "reason", "inputs_needed"})


@dataclass(eq=False)
class PreparedBackend:
    """A backend ready to be timed, checked if it has an `output_check`; `measured_as` is whose time it gets, `rivals` it races."""

    task: Task
    adapter: Adapter
    runner: Runner
    series: Series
    shared: SharedInputs
    output_check: OutputCheck | None
    row: Row
    verdict: Verdict | None = field(default=None, init=False)  # of the last check
    step: StepPart | None = field(default=None, init=False)  # with timing.context=step
    measured_as: PreparedBackend | None = field(default=None, init=False)
    rivals: Sequence[PreparedBackend] = field(default=(), init=False)

    def __post_init__(self) -> None:
        self._note(self.output_check.first if self.output_check else None)

    @property
    def failed_check(self) -> bool:
        return self.verdict is not None and not self.verdict.passed

    @property
    def decided_by(self) -> PreparedBackend | None:
        """The rival that is certainly faster; None if it was measured to full precision."""
        return next((one for one in self.rivals if one.series is self.series.decided_by), None)

    def add_step(self, step: StepPart) -> None:
        """Takes the step that is timed with it, and notes what the first check of that found."""
        self.step = step
        if step.check is not None:
            self._note(step.check.first)

    def check_again(self) -> None:
        """Checks all launches since then: a kernel may be right at first and wrong later, or wrong only in some launches."""
        if self.output_check is not None:
            self._note(self.output_check.judge_all())
        if not self.failed_check and self.step is not None and self.step.check is not None:
            self._note(self.step.check.judge_all())

    def inputs_were_damaged(self) -> None:
        """Tells the checks to ignore outputs that were left while backends were timed."""
        for check in (self.output_check, self.step.check if self.step else None):
            if check is not None:
                check.inputs_were_damaged = True

    def check_more_inputs(self, most: int) -> None:
        """Checks outputs for several inputs together, if that shows what one could not. The row then says what they show."""
        if self.output_check and not self.failed_check and (verdict := self.output_check.judge_more_inputs(most)):
            self._note(verdict, replaces=True)

    def check_batch_mates(self, device: Device) -> None:
        """Notes whether the answer depends on the other requests of the batch. It is right either way."""
        if self.output_check and not self.failed_check:
            self.row["batch_invariant"] = is_batch_invariant(self.output_check.call, device)

    def _note(self, verdict: Verdict | None, replaces: bool = False) -> None:
        """Writes a verdict into the row. One that passed leaves the first there, unless it `replaces` it."""
        if self.output_check is None or verdict is None:
            self.row["check"] = "not_checked: check.enabled is false"
            return
        check = self.output_check
        self.row |= {"launches_checked": check.launches.count, "inputs_checked": check.inputs}
        self.row |= {"check_stale_covered": check.stale_covered, "same_bits": check.same_bits}
        if self.verdict is None or replaces or not verdict.passed:
            self.row |= _columns(verdict) | {"oracle": oracle.name_of(check.call.shared.inputs.problem)}
            self.row["lse_base"] = None if verdict.lse_err is None else self.runner.lse_base
        self.verdict = verdict


def _columns(verdict: Verdict) -> Row:
    told = {CALLED.get(name, name): value for name, value in vars(verdict).items() if name not in UNTOLD}
    told |= {"check": "passed" if verdict.passed else "failed", "err_over_tolerance": verdict.of_tolerance}
    return cast(Row, told)


def is_batch_invariant(call: JudgedCall, device: Device) -> bool | None:
    """Whether the first request alone, and the first half of the batch, get the bits that they have in the whole batch.

    The smaller batches have the same queries, pages and cache, at the same addresses. None if nothing can be said: of one request,
    of requests that share a prefix or are padded, of a merge, of a backend whose rule forbids the smaller batches or that runs in
    another process.
    """
    adapter, inputs, p, same = call.adapter, call.shared.inputs, call.shared.inputs.problem, []
    alone = p.batch_size == 1 or p.prefix_tokens or p.num_states is not None or inputs.padded is not None
    if alone or routine_of(p.routine) or isinstance(call.timer, RemoteTimer):
        return None
    call.launch(poisoned=True)
    out, _ = call.outputs.now()
    for size in dict.fromkeys((1, p.batch_size // 2)):
        if not any(p.kv_lens[:size]):
            continue
        part = part_problem(p, tuple(range(size)), p.routine)
        if adapter.unmet(part, device):
            continue
        runner = adapter.prepared(part_of(inputs, part, range(size), Ordered(inputs.q, inputs.empty_output(), None), 0), device)
        runner.refresh()
        runner()
        ours, theirs = (rows.contiguous().view(torch.uint8) for rows in (runner.as_asked(runner.out), out[: part.num_q_tokens]))
        same.append(torch.equal(ours, theirs))
    return all(same) if same else None
