"""benchmarks/unused_slots.py tells a kernel that leaves unused slots out from one that multiplies them by 0."""

from __future__ import annotations

import math

from benchmarks.unused_slots import PROBLEMS, answer_with, problem
from kernels import registry
from kernels.inputs.generate import UNUSED_SLOT
from orchestrator.machines import cpu


def test_nan_shows_in_the_answer_of_a_kernel_that_reads_it():
    found = {}
    for backend in ("torch_sdpa", "flex_attention"):
        p = problem("paged_decode", {"s_qo": 4, "num_qo_heads": 2, "num_kv_heads": 1, "head_dim": 16, "s_kv": 100, "batch_size": 2})
        adapter = registry.get("paged_decode", backend)
        assert adapter.unmet(p, cpu()) == []
        found[backend] = [answer_with(adapter, cpu(), p, value) for value in (UNUSED_SLOT, math.nan)]

    assert found == {"torch_sdpa": ["right", "right"], "flex_attention": ["right", "8 of 8 rows not finite"]}


def test_every_problem_has_slots_that_hold_no_token():
    for keys in PROBLEMS:
        p = problem("paged_prefill", keys)
        assert p.s_kv % p.page_size, keys
