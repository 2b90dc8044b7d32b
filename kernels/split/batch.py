"""Which requests of a batch go to which of the two calls, and each call's requests as a problem of their own. Pure, no torch.

The rule is vLLM's `split_decodes_and_prefills(decode_threshold, require_uniform=True)`: the decode call takes requests of up to
`threshold` query tokens that are all equally long, the prefill call takes the rest, short ones of another length included. vLLM
takes the length of the batch's first request, which the order of arrival decides. Here it is the length that most requests have.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

from kernels.problem import Problem, batch_spec

# The routine whose backends make the prefill call, by the routine of the whole batch.
PREFILL_ROUTINE = {"paged_decode": "paged_prefill", "mla": "mla"}
NAME = re.compile(r"(?P<decode>[^+@]+)\+(?P<prefill>[^+@]+)(?:@(?P<threshold>[1-9][0-9]{0,8}))?")
SPELLING = "DECODE+PREFILL or DECODE+PREFILL@THRESHOLD, such as fa2_tc+fa2@4"


@dataclass(frozen=True)
class Halves:
    """The two calls of a batch: the numbers of their requests, in the order of the batch, and the problem that they are."""

    decode_requests: tuple[int, ...]
    prefill_requests: tuple[int, ...]
    decode: Problem
    prefill: Problem

    @property
    def order(self) -> tuple[int, ...]:
        """All requests as an engine orders them: those of the decode call first."""
        return self.decode_requests + self.prefill_requests


def parsed(name: str) -> tuple[str, str, int | None] | None:
    """The two backends and the threshold in a name such as `fa2_tc+fa2@4`; None for another name."""
    found = NAME.fullmatch(name)
    if not found:
        return None
    return found["decode"], found["prefill"], int(found["threshold"]) if found["threshold"] else None


@lru_cache(maxsize=4096)
def halves_of(problem: Problem, threshold: int | None) -> Halves | None:
    """Both calls of a batch; None if one of them would have no request with keys."""
    counts = Counter(q for q in problem.q_lens if threshold is None or q <= threshold)
    common = max(counts, key=lambda q: (counts[q], q), default=None)  # the longer of two equally common ones
    decode = tuple(i for i, q in enumerate(problem.q_lens) if q == common)
    prefill = tuple(i for i, q in enumerate(problem.q_lens) if q != common)
    if not all(any(problem.kv_lens[i] for i in part) for part in (decode, prefill)):
        return None
    routine = PREFILL_ROUTINE[problem.routine]
    return Halves(decode, prefill, part_problem(problem, decode, problem.routine), part_problem(problem, prefill, routine))


def part_problem(problem: Problem, requests: tuple[int, ...], routine: str) -> Problem:
    """Some requests of a batch as a problem. It is the same but for its lengths, and for a tree that is cut to the longest."""
    keys = batch_spec.keys_of(batch_spec.name([(problem.q_lens[i], problem.kv_lens[i]) for i in requests]))
    kept = problem.model_dump(exclude=set(keys))
    tree = None if problem.tree is None else problem.tree[: max(problem.q_lens[i] for i in requests)]
    return Problem.model_validate({**kept, **keys, "routine": routine, "tree": tree})
