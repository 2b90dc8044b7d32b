"""Backends that write wrong numbers into small inputs, and an honest one that follows all of these, as kernels do.

For `adapters=[tests.backends.indexing]`. A culprit's name says which input it changes, when, and whether by a huge number or by a
negative one. It does so once, so that nobody can find it by running it again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import count

from kernels.adapter import Adapter, Need, QueryLengths, Runner
from kernels.adapters.torch_sdpa import TorchSdpa
from kernels.device import Device
from kernels.inputs import Inputs
from kernels.problem import Problem

WRONG = {"huge": 2**30, "negative": -(2**30)}
LENGTHS = ("q_lens", "qo_indptr", "kv_lens", "kv_indptr", "last_page_len")
SMALL = ("page_table", "kv_indices", "visible", "unused_pages", "unused_slots", *LENGTHS)
# On a CPU: a launch to warm up, one with the right queries, the first check, as many as `TIMED` in blocks, and those at the end.
TIMED = 30
LAUNCH = {"prepare": 0, "first": 1, "checked": 3, "timed": 20, "raises": 20, "end": 3 + TIMED + 1}
PLACES = (*LAUNCH, "last")  # last: when a token has changed, after which nobody launches it again
# "planned": when its plan is timed, with timing.host


@dataclass(frozen=True, kw_only=True)
class Following(Adapter):
    """A right answer in each launch, after all small inputs were followed. A culprit then changes one of them."""

    small: str = ""
    place: str = ""
    wrong: int = 0
    routine: str = "paged_decode"
    query_lengths: QueryLengths = "uniform"

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        return ()

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        import torch

        right, number, key = TorchSdpa(routine="paged_decode").prepare(inputs, device), count(1), inputs.kv[0]
        at_first = key.clone()

        def launch() -> None:
            follow(inputs)
            right.refresh()
            right()
            if (now := next(number)) == LAUNCH["checked"]:
                at_first.copy_(key)
            elif now > LAUNCH["checked"] and self.place == "last" and not torch.equal(key, at_first):
                damage(inputs, self.small, self.wrong)
            if now == LAUNCH.get(self.place):
                damage(inputs, self.small, self.wrong)
                if self.place == "raises":
                    raise RuntimeError("an error of its own")

        if self.place == "prepare":
            damage(inputs, self.small, self.wrong)
        plan = (lambda _lengths: damage(inputs, self.small, self.wrong)) if self.place == "planned" else None
        return replace(right, launch=launch, copies=(), plan_step=plan)


def damage(inputs: Inputs, small: str, wrong: int) -> None:
    """Writes a wrong number into a small input that all backends share."""
    if small == "visible":
        inputs.visible.logical_not_()
    elif small == "unused_pages":
        inputs.unused_slots[0].fill_(wrong)
    elif small == "unused_slots":
        inputs.unused_slots[1].fill_(wrong)
    else:
        getattr(inputs, small).fill_(wrong)


def follow(inputs: Inputs) -> None:
    """Reads queries and cache where each small input says. Raises IndexError if that is outside of them."""
    n, (key, _) = inputs.problem.slots_per_page, inputs.kv
    last = (inputs.kv_lens.long() - 1) // n
    in_table = inputs.page_table[range(len(last)), last]
    in_list = inputs.kv_indices[inputs.kv_indptr[1:].long() - 1]
    for pages in (in_table, in_list):
        key[pages.long(), :, inputs.last_page_len.long() - 1]
    inputs.q[inputs.qo_indptr[1:].long() - inputs.q_lens.long()]
    inputs.q[inputs.q_lens.long() - 1]
    if not inputs.visible.diagonal().all():
        raise IndexError("a query sees nothing")


def name_of(small: str, place: str, sign: str) -> str:
    return f"{small}_{place}_{sign}"


def culprits(place: str) -> list[str]:
    return [name_of(small, place, sign) for small in SMALL for sign in WRONG]


def culprit(small: str, place: str, sign: str) -> Following:
    return Following(name=name_of(small, place, sign), small=small, place=place, wrong=WRONG[sign])


ADAPTERS = (
    Following(name="follows"),
    Following(name="follows_too"),
    *(culprit(small, place, sign) for place in (*PLACES, "planned") for small in SMALL for sign in WRONG),
)
