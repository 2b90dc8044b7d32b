"""benchmarks/unused_slots.py tells a kernel that leaves unused slots out from one that multiplies them by 0."""

from __future__ import annotations

import csv
import math

import pytest

from benchmarks.unused_slots import PROBLEMS, answer_with, problem, spelled
from kernels import registry
from kernels.inputs.generate import UNUSED_SLOT
from orchestrator import ROOT
from orchestrator.machines import cpu, known_devices

ON_H200 = list(csv.DictReader((ROOT / "benchmarks" / "data" / "h200_unused_slots.csv").open()))
H200 = known_devices()["h200"]
BY_NAME = {spelled(keys): keys for keys in PROBLEMS}


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


@pytest.mark.parametrize("backend", ["flash_attn_3", "flash_attn_3_unplanned", "flash_attn_3_32_splits"])
def test_flash_attention_3_never_declares_what_an_h200_refuted(backend: str):
    """One kernel serves all three; the H200 ran `flash_attn_3`."""
    declared: dict[str, set[str]] = {"right": set(), "not finite": set()}
    for row in ON_H200:
        p = problem(row["routine"], BY_NAME[row["problem"]])
        found = "right" if row["with NaN"] == "right" else "not finite"
        declared[found].add(f"{row['problem']}: {registry.get(row['routine'], backend).skips_unused_in(p)}")

    assert declared["not finite"] == {f"{name}: False" for name in not_finite()}
    assert {name for name in declared["right"] if name.endswith("False")} == {"s_qo=64: False"}  # the rule is careful there


def not_finite() -> set[str]:
    return {row["problem"] for row in ON_H200 if row["with NaN"].endswith("rows not finite")}


def test_the_facts_are_of_every_problem_and_of_both_kinds():
    for routine in ("paged_decode", "paged_prefill"):
        rows = [row for row in ON_H200 if row["routine"] == routine]
        assert [row["problem"] for row in rows] == list(BY_NAME)
        assert all(
            registry.get(routine, row["backend"]).unmet(problem(routine, BY_NAME[row["problem"]]), H200) == [] for row in rows
        )

    assert {row["with 240"] for row in ON_H200} == {"right"}
    assert len(not_finite()) == 7
