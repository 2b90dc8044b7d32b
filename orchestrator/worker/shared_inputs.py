"""The inputs that all points on one problem share, and the check whether a backend changed them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace

from kernels.adapter import Adapter
from kernels.check import oracle
from kernels.check.answer import Answer
from kernels.inputs import Inputs
from kernels.inputs.checksums import checksums
from kernels.inputs.copied_tokens import Copied, copied_tokens
from kernels.inputs.generate import draw_other_values, redraw
from kernels.inputs.small_inputs import SmallInputs
from kernels.inputs.unused_slots import UnusedSlots
from kernels.lazy import Tensor, torch
from orchestrator.errors import WroteInputs
from orchestrator.worker.shared_step import SharedStep

WROTE_INPUTS = "it wrote to the inputs, which it may only read"
WROTE_UNUSED = "it wrote to slots of the cache that hold no token"
WROTE_OUTSIDE = "it wrote outside its output"
WROTE_REFERENCE = "it wrote to the reference, by which every backend is judged"


@dataclass
class SharedInputs:
    """Inputs and right answer of a problem. Without an answer nothing is checked."""

    inputs: Inputs
    answer: Answer | None
    device_bytes: int
    step: SharedStep | None = None  # with timing.context=step
    _right_sums: Tensor | None = field(default=None, init=False)
    _other_answers: dict[int, Answer] = field(default_factory=dict, init=False, repr=False)
    _sums_of_answers: list[tuple[Answer, Tensor]] = field(default_factory=list, init=False, repr=False)  # as they were computed
    _unused: UnusedSlots = field(init=False, repr=False)
    _small: SmallInputs = field(init=False, repr=False)
    _small_changed: Tensor | bool = field(default=False, init=False)  # since that was asked last

    def __post_init__(self) -> None:
        self._unused, self._small = UnusedSlots(self._of_layers), SmallInputs(self._of_layers)
        if self.answer is not None:
            self._right_sums = self.sums()
            self._note(self.answer)

    @property
    def right_sums(self) -> Tensor:
        return self.sums() if self._right_sums is None else self._right_sums

    def restore_small(self, wait: bool = False) -> None:
        """Puts page tables, lengths and masks back before anybody else reads them, and notes a change without waiting."""
        if self.answer is not None:
            self._small_changed = self._small_changed | self._restore_small(wait)

    def blame(self) -> WroteInputs | None:
        """After the turn of one backend, when the device is done: an error if it changed small inputs, which are then put back."""
        self.restore_small(wait=True)
        return WroteInputs(WROTE_INPUTS) if self._changed_small(bool(self._small_changed)) else None

    def _changed_small(self, changed: bool) -> bool:
        """Forgets that small inputs changed. What the check has kept may follow from the damaged ones, and goes."""
        self._small_changed = False
        if changed:
            self.forget_kept()
        return changed

    def fill_unused(self, adapter: Adapter | None = None) -> None:
        """Fills slots without a token, with NaN if this backend skips them; notes what was written there since the last filling."""
        self.restore_small()
        self._unused.fill(nan=adapter is not None and adapter.skips_unused_in(self.inputs.problem))

    def restore_if_changed(self, outputs_intact: Tensor | bool = True) -> str:
        """What a backend wrote to that it may not, also around its outputs (`outputs_intact`). Damaged inputs are drawn again."""
        if self._right_sums is None:
            return ""
        self.restore_small(wait=True)
        same = (self.sums() == self._right_sums).all()  # this has looked at the slots without a token, and has filled them again
        judged = torch.stack([answer.checksum() == right for answer, right in self._sums_of_answers]).all()
        flags = (same, self._unused.were_intact(), judged, outputs_intact, self._small_changed)
        found = torch.stack([torch.as_tensor(one, device=same.device) for one in flags]).tolist()  # one wait for the device
        same_on_host, intact, judged_on_host, outside, small = found
        self._changed_small(small)
        if not same_on_host:
            self.draw_again()
            if self.step is not None:
                self.step.refill()
        if not judged_on_host:
            self._answer_again()
        return in_words(same_on_host and not small, intact, judged_on_host, outside)

    def _note(self, answer: Answer) -> None:
        """Notes the checksum of an answer that was just computed."""
        self._sums_of_answers.append((answer, answer.checksum()))

    def _answer_again(self) -> None:
        answer, new = self.answer, oracle.answer(self.inputs)
        assert answer is not None  # or nothing is checked
        for one in fields(answer):
            if isinstance(mine := getattr(answer, one.name), torch.Tensor):
                mine.copy_(getattr(new, one.name))
        self.forget_kept()
        self._other_answers.clear()
        del self._sums_of_answers[1:]

    def with_other_values(self, number: int) -> Answer:
        """Draws other values into the inputs, and gives their right answer. `draw_again` brings back the values of before.

        The answer is computed for the first backend that needs it: it takes as long as 30 checksums of a large cache. What is not
        drawn is put back first, so it is the same for the next backend. Nothing is kept in it from one backend to the next, since
        nobody looks at these inputs after a launch.
        """
        self.restore_small()
        self._unused.look()
        draw_other_values(self.inputs, number)
        self._unused.drawn_again()
        if number not in self._other_answers:
            self._other_answers[number] = oracle.answer(self.inputs)
            self._note(self._other_answers[number])
        return replace(self._other_answers[number])

    @contextmanager
    def copied_tokens(self, copied: Sequence[Copied]) -> Iterator[None]:
        """Tokens of the cache are copies of others while it lasts, where the backend reads them."""
        self.restore_small()
        with copied_tokens(self.inputs, copied):
            yield

    def draw_again(self) -> None:
        """Draws the inputs as they were at first. What was kept of damaged ones goes."""
        self.forget_kept()
        self.restore_small()
        self._unused.look()
        redraw(self.inputs)
        self._unused.drawn_again()

    def forget_kept(self) -> None:
        """Forgets what the check keeps for all backends of the problem."""
        if self.answer is not None:
            self.answer.forget()

    def _restore_small(self, wait: bool) -> Tensor | bool:
        """Puts small inputs back where they lie. Whether somebody had changed them."""
        return self._small.restore(wait)

    @property
    def _of_layers(self) -> list[Inputs]:
        """The inputs, and those of a step's further layers."""
        return [self.inputs, *(self.step.further_inputs if self.step else [])]

    def sums(self) -> Tensor:
        """Checksums of all inputs, with a number in the slots that hold no token."""
        self._unused.fill(nan=False)
        return torch.cat([checksums(inputs) for inputs in self._of_layers])


def in_words(same: bool, intact: bool, judged: bool, outside: bool) -> str:
    """What a backend wrote to that it may not: inputs whose checksums are not the same, slots without a token that are not intact,
    the answers by which backends are judged, or memory outside its outputs.
    """
    wrote = ((same, WROTE_INPUTS), (intact, WROTE_UNUSED), (judged, WROTE_REFERENCE), (outside, WROTE_OUTSIDE))
    return "; ".join(words for is_right, words in wrote if not is_right)
