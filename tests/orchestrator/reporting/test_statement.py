"""The statement of the check: its numbers, what tests each clause, and when one does not hold."""

from __future__ import annotations

import pandas as pd
import pytest

from kernels.problem.routine import found
from orchestrator.reporting import statement

COMMON = {"device_name": "cpu", "kv_dtype": "bf16", "batch_size": 1, "s_kv": 8192, "seed": 0, "weight_over_limit": 0.4}
PROMISES = {"check_min_tokens": 16, "check_pairs_covered": 1.0, "check_stale_covered": 1.0, "check_max_error": 0.005}


def wrong(fault: str, status: str = "mismatch", backend: str = "drawn_000", **keys: object) -> dict[str, object]:
    name = f"mutant of fa2: {fault}" if fault else "mutant of fa2"
    return {**COMMON, "resolved_backend": name, "backend": backend, "status": status, "check_stale_covered": 1.0, **keys}


def right(status: str = "ok", **keys: object) -> dict[str, object]:
    return {**COMMON, **PROMISES, "resolved_backend": "right output of fa2", "backend": "no_fault", "status": status, **keys}


LOST, SMALL, PAIR = "lost 64: keys 0 to 63 of KV head 1", "lost 8: keys 0 to 7 of KV head 1", "pair: query 0, key 9"
ALL = [
    right(),
    wrong(LOST),
    wrong(PAIR),
    wrong("", backend="127_zero_keys_counted"),
    wrong("", backend="answer_kept"),
    wrong("", backend="head_off"),
    wrong(SMALL, "ok"),
]


def test_each_clause_has_its_number_and_what_tested_it():
    (grid,) = statement.grids(pd.DataFrame(ALL))

    assert [cells[1:] for cells in grid.cells] == [
        ("N = 16, at most 16", "1 of 1 drawn faults", "yes"),  # the smaller one was missed, as it may be
        ("100.00% of the pairs, at least 100.00%", "1 of 1 drawn pairs", "yes"),
        ("up to ±128", "1 of 1 kernels wrong in their softmax", "yes"),
        ("0.005 to 0.005", "1 of 1 heads that are", "yes"),
        ("could be found in 100.0% of the requests", "1 of 1 stored answers", "yes"),
        ("at most 95.00% (95%)", "1 of 1 right outputs passed", "yes"),
        ("docs/correctness.md", "", "–"),
    ]
    assert statement.broken(pd.DataFrame(ALL)) == []


def test_a_routine_of_a_folder_that_is_attention_makes_the_promises_of_attention():
    rows = [{**row, "routine": "sparse_mla"} for row in ALL]
    (grid,) = statement.grids(pd.DataFrame(rows))

    assert [cells[2] for cells in grid.cells][:2] == [
        "1 of 1 drawn faults",
        "not tested; type mode=check_power check.draws=20 sweep.batch_size=[1]",
    ]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (wrong(LOST, "ok"), "N neighbouring keys"),
        (wrong("stale 64: keys 0 to 63 of KV head 1", "ok"), "N neighbouring keys"),
        (wrong(PAIR, "ok"), "any query token"),
        (wrong("", "ok", backend="bf16_logits"), "sign and size"),
        (wrong("", "ok", backend="answer_kept"), "the row says so"),
        (wrong("", "ok", backend="head_off"), "root mean square"),
        (right("mismatch", seed=1), "less than once in 10,000"),
    ],
)
def test_a_kernel_that_speaks_against_a_clause_breaks_it_alone(row: dict[str, object], words: str):
    (clause,) = statement.broken(pd.DataFrame([*ALL, row]))

    assert words in clause


@pytest.mark.parametrize(
    "row",
    [
        wrong(LOST, "ok", s_kv=131072),  # a problem of which nothing is promised
        wrong(PAIR, "ok", batch_size=2),  # wrong in one request of two
        wrong("", "ok", backend="answer_kept", check_stale_covered=0.5),  # the row says so
    ],
)
def test_what_is_not_promised_breaks_no_clause(row: dict[str, object]):
    assert statement.broken(pd.DataFrame([*ALL, row])) == []


OWN = [(name, kind) for name, routine in found().items() for kind in routine.promises]


@pytest.mark.parametrize(("name", "kind"), OWN)
def test_each_clause_of_another_routine_is_broken_by_a_fault_of_its_kind_alone(name: str, kind: str):
    caught = [wrong(f"{one} 1: somewhere", routine=of) for of, one in OWN]
    (clause,) = statement.broken(pd.DataFrame([*caught, right(routine=name), wrong(f"{kind} 1: here", "ok", routine=name)]))

    assert clause == f"{name}: {found()[name].promises[kind]}"


def test_one_missed_of_hundreds_is_what_a_probability_of_99_percent_allows():
    assert statement.broken(pd.DataFrame([*ALL, *[wrong(LOST)] * 199, wrong(LOST, "ok")])) == []


def test_of_pairs_that_nothing_looks_at_none_is_promised():
    """The row of a right output says which share was looked at: one of two missed breaks 99% of all, and not of half."""
    prompt = [right(seed=1, check_pairs_covered=0.5), wrong(PAIR, seed=1), wrong(PAIR, "ok", seed=1)]

    assert statement.clauses(pd.DataFrame([*ALL, *prompt]))[1].cells[2:] == ("2 of 3 drawn pairs", "yes")
    assert len(statement.broken(pd.DataFrame([*ALL, *prompt, *[wrong(PAIR, "ok", seed=1)] * 9]))) == 1


def test_clauses_that_nothing_tested_say_what_to_type():
    (grid,) = statement.grids(pd.DataFrame([wrong("", backend="full_draft")]))

    assert "not tested; type mode=check_power check.draws=20" in grid.cells[0]
    assert "not tested; type mode=check_power check.draws=20 sweep.batch_size=[1]" in grid.cells[1]
    assert statement.grids(pd.DataFrame([{**COMMON, "resolved_backend": "fa2", "backend": "fa2", "status": "ok"}])) == []
