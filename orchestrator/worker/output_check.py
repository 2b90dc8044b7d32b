"""The check of one backend's outputs: of the first, of what its timed launches leave, and of more launches after them."""

# T = query tokens of all requests, H = num_qo_heads

from __future__ import annotations

import random
import time
from dataclasses import dataclass, replace

from kernels.adapter import Adapter
from kernels.check.answer import KEPT_ELEMENTS, Answer
from kernels.check.changed_token import ChangedTokens, change_tokens
from kernels.check.judgement import MAX_KEYS, Pooled, judge_changed, judge_whole
from kernels.check.oracle import Verdict
from kernels.inputs.tensors import judged
from kernels.lazy import Tensor, torch
from kernels.problem.arithmetic import Arithmetic
from kernels.timed_call import LaunchComparison, Outputs
from kernels.timing.timers import Timer
from orchestrator.worker.shared_inputs import SharedInputs

LAUNCHES = 72  # a fault of one launch in 16 is among so many with probability 0.99
LAUNCH_SECONDS = 0.015  # for launches that are checked and not timed, so that long calls do not cost more than their measurement
# However long they take, those that timed blocks have left among them. At least one follows the last block, on an output full of
# NaN. Blocks launch on answers, and so do the launches after tokens have changed.
MIN_LAUNCHES = 4
AFTER_CHANGE = "wrong after tokens of the cache had changed between two launches"


@dataclass(frozen=True)
class JudgedCall:
    """A call and the right answer for its `outputs`, which may lie in an environment's process: what came from there is judged."""

    shared: SharedInputs
    answer: Answer
    adapter: Adapter
    timer: Timer
    outputs: Outputs

    def launch(self, poisoned: bool, fill: bool = True, wait: bool = False) -> None:
        """Does once exactly what is timed. With `fill`, slots that hold no token are filled first."""
        if fill:
            self.shared.fill_unused(self.adapter)
        if poisoned:
            self.outputs.poison()
        self.outputs.launch(wait)

    def judge(self, out: Tensor, lse: Tensor | None) -> Verdict:
        """The verdict on an output [T, H, D_vo] and log-sum-exp [T, H], and on where the backend has written so far."""
        return self.unless_it_wrote_elsewhere(self.judge_outputs(out, lse))

    def judge_outputs(self, out: Tensor, lse: Tensor | None) -> Verdict:
        """The verdict without checksums of inputs (a pass over the cache); equal bits have one verdict, as kernels are shared."""
        self.shared.restore_small()
        judged: list[tuple[Tensor, Tensor | None, Verdict]] = self.answer.kept(("judged", self.arithmetic), list)
        for of_out, of_lse, verdict in judged:
            if equal_bits(of_out, out) and equal_bits(of_lse, lse):
                return verdict
        verdict = judge_whole(out, self.shared.inputs, self.answer, self.arithmetic, lse)
        if out.numel() + (0 if lse is None else lse.numel()) <= KEPT_ELEMENTS:
            judged.append((out.clone(), None if lse is None else lse.clone(), verdict))
        return verdict

    @property
    def arithmetic(self) -> Arithmetic:
        """How the backend says that it computes."""
        return self.timer.runner.arithmetic

    def unless_it_wrote_elsewhere(self, verdict: Verdict) -> Verdict:
        """The verdict, unless the backend wrote where it may not. Damaged inputs are drawn again."""
        wrote = self.shared.restore_if_changed(self.outputs.are_intact())
        return replace(verdict, passed=False, reason=wrote) if wrote else verdict


def equal_bits(a: Tensor | None, b: Tensor | None) -> bool:
    """Whether both are nothing, or equal in shape, dtype and all bits. NaN has bits too."""
    if a is None or b is None:
        return a is b
    if (a.shape, a.dtype) != (b.shape, b.dtype):
        return False
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def start_check(shared: SharedInputs, adapter: Adapter, timer: Timer, outputs: Outputs, coin: random.Random) -> OutputCheck | None:
    """Checks the first outputs of a call; None if nothing is checked. `coin` decides which later ones are poisoned."""
    if shared.answer is None:
        return None
    return OutputCheck.start(JudgedCall(shared, shared.answer, adapter, timer, outputs), coin)


@dataclass
class OutputCheck:
    """The check of one backend's outputs from the first on: `after_block` of each timed one, and `judge_all` at the end."""

    call: JudgedCall
    first: Verdict
    launches: LaunchComparison
    _coin: random.Random
    inputs: int = 1  # how many were judged
    stale_covered: float | None = None  # the share of requests in which an answer of before would have been found, once it is known
    same_bits: bool | None = None  # whether all launches left the same output, once that is known
    inputs_were_damaged: bool = False  # while it was timed, by itself or another: what it left then says nothing

    @classmethod
    def start(cls, call: JudgedCall, coin: random.Random) -> OutputCheck:
        """Runs once exactly what is timed, on an output full of NaN, and judges it. `coin` decides what is poisoned later."""
        call.launch(poisoned=True)
        return cls(call, call.judge(*call.outputs.now()), call.outputs.compare_launches(), coin)

    def after_block(self) -> None:
        """Compares what the last timed launch left with the first output, then poisons the output before every other block."""
        self.launches.compare()
        if self._coin.random() < 0.5:
            self.call.outputs.poison()

    def judge_all(self) -> Verdict:
        """Launches more, one poisoned, one not, then by chance, and judges the output that differs most from the first."""
        call = self.call
        call.shared.fill_unused(call.adapter)
        if self.inputs_were_damaged:
            call.launch(poisoned=True, fill=False)
            # Others are compared with this one: if it were the wrong one, the most different from it would be right.
            self.first = call.judge(*call.outputs.now())
            if not self.first.passed:
                return self.first
            self.launches.restart()
        began = time.perf_counter()
        call.launch(poisoned=True, fill=False, wait=True)  # the next one then finds an answer, whatever the last block has left
        more = self._launches_after(time.perf_counter() - began)
        self.launches.compare()
        for number in range(more):
            call.launch(poisoned=number > 0 and self._coin.random() < 0.5, fill=False)
            self.launches.compare()
        call.shared.restore_small()
        verdict, (out, lse) = self.first, self.launches.most_different()
        self.same_bits = out is None and lse is None
        if out is not None or lse is not None:
            out_now, lse_now = call.outputs.now()  # if all are equal, that of now is the first one
            verdict = call.judge_outputs(out_now if out is None else out, lse_now if lse is None else lse)
        return call.unless_it_wrote_elsewhere(self._judge_after_change(verdict) if verdict.passed else verdict)

    def _launches_after(self, seconds: float) -> int:
        """How many launches follow the first one after the last block, if one takes so many seconds."""
        in_blocks = self.launches.count - 1  # the first one is none
        if_short = min(int(LAUNCH_SECONDS / seconds), max(MIN_LAUNCHES, LAUNCHES - 1 - in_blocks))
        return max(MIN_LAUNCHES - in_blocks, if_short, 1) - 1

    def _judge_after_change(self, verdict: Verdict) -> Verdict:
        """The verdict; wrong if cached tokens change unseen, by a backend that returns early or answers from what it kept."""
        inputs, answer, how = self.call.shared.inputs, self.call.answer, self.call.arithmetic
        coin = random.Random(f"changed tokens {inputs.problem.seed}")
        changes = answer.kept(("changes", how.rounding), lambda: change_tokens(inputs, answer, how, coin))
        judged = inputs.problem.judged
        self.stale_covered = sum(one.requests for one in changes) / (judged.batch_size - judged.kv_lens.count(0))
        try:
            for changed in changes:
                verdict = self._judge_changed(verdict, changed) if verdict.passed else verdict
        finally:
            self.call.timer.runner.refresh()
        return verdict

    def _judge_changed(self, verdict: Verdict, changed: ChangedTokens) -> Verdict:
        call, shared, runner = self.call, self.call.shared, self.call.timer.runner
        with shared.copied_tokens(changed.copied):
            runner.refresh()
            call.outputs.launch(wait=False)
            out, lse = call.outputs.now()
        shared.restore_small()
        found = judge_changed(out, lse, shared.inputs, changed, call.arithmetic)
        if found.passed:
            return verdict
        reason = f"{AFTER_CHANGE}: {found.reason}"
        return replace(verdict, passed=False, rel_err=found.rel_err, max_abs_err=found.max_abs_err, reason=reason)

    def judge_more_inputs(self, most: int) -> Verdict | None:
        """Judges outputs for several inputs together, if the first alone could not show a lost page and at most so many can.

        If not even so many can, they are used if the first alone shows no loss of any size. None if it is not done. It costs a
        draw, a reference and a launch for each input.
        """
        call, shared, runner = self.call, self.call.shared, self.call.timer.runner
        inputs, needed = judged(shared.inputs), self.first.inputs_needed
        problem = inputs.problem
        if (needed is None or needed > most) and self.first.shows_no_loss:
            needed = most
        if needed is None or not 1 < needed <= most or problem.num_kv_tokens * problem.stored_kv_heads > MAX_KEYS:
            return None
        pooled = Pooled(problem, call.arithmetic)
        try:
            for number in range(needed):
                answer = shared.with_other_values(number) if number else call.answer
                runner.refresh()
                call.launch(poisoned=True)
                out, lse = call.outputs.now()
                shared.restore_small()
                pooled.add(out, inputs, answer, lse)
        finally:
            shared.draw_again()
            runner.refresh()
        self.inputs = pooled.inputs
        return call.unless_it_wrote_elsewhere(pooled.verdict())
