"""Problems that ask for a log-sum-exp: every wrong kernel is served and caught, also one that is wrong in it alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernels import mutants, registry
from kernels.adapter import Adapter
from kernels.check.judgement import judge_whole
from kernels.check.oracle import Verdict
from kernels.inputs.tensors import decoy
from kernels.mutants.faults import victim
from kernels.mutants.lse import ADAPTERS, LseMutant
from kernels.mutants.mutant import LeavesOutput, ReturnsPreparedAnswer
from kernels.mutants.reference_case import case_of
from kernels.problem import Problem
from orchestrator.machines import cpu
from tests.helpers.computed_once import compute_once, drawn

SMALL = {"num_qo_heads": 8, "num_kv_heads": 2, "head_dim_qk": 64, "head_dim_vo": 64, "page_size": 64, "batch_size": 2}
MLA = {**SMALL, "routine": "mla", "num_kv_heads": 8, "head_dim_ckv": 64, "head_dim_kpe": 32}
ASKED = {"return_lse": True, "s_qo": 2, "s_kv": 3000}
NAMES = {"lse_other_base", "lse_last_page_ignored", "lse_page_lost", "lse_split_forgotten", "lse_left"}


@pytest.fixture(autouse=True)
def computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compute_once(monkeypatch)


def judged(adapter: Adapter, p: Problem) -> Verdict:
    """As a worker does: prepared on other queries and another cache, poisoned, run once."""
    x, answer = drawn(p)
    with decoy(x):
        runner = adapter.prepare(x, cpu())
        runner()
    runner.refresh()
    for output in (runner.out, runner.written_lse()):
        if output is not None:
            output.fill_(float("nan"))
    runner()
    how = runner.arithmetic
    return judge_whole(runner.out, x, answer, how, runner.written_lse())


def of(routine: str) -> list[LseMutant]:
    return [mutant for mutant in ADAPTERS if mutant.routine == routine]


@pytest.mark.parametrize(
    "keys",
    [
        {**SMALL, **ASKED},
        {**SMALL, **ASKED, "s_qo": 1, "s_kv": 32768},
        {**SMALL, **ASKED, "s_qo": 1, "s_kv": 8192, "kv_dtype": "fp8_e4m3"},
        {**SMALL, **ASKED, "q_dtype": "fp8_e4m3", "kv_dtype": "fp8_e4m3"},
        {**SMALL, **ASKED, "routine": "paged_prefill", "s_qo": 70, "mask": "full"},
        {**SMALL, **ASKED, "routine": "cascade", "shared_prefix": 1024},
        {**MLA, **ASKED},
        {**SMALL, **ASKED, "sinks": True},
    ],
    ids=lambda keys: f"{keys.get('routine', 'paged_decode')} {keys.get('kv_dtype', 'bf16')} {keys['s_qo']}",
)
def test_a_wrong_log_sum_exp_beside_a_right_output_is_caught(keys: dict[str, object]):
    p = Problem.model_validate(keys)
    verdicts = {mutant.name: judged(mutant, p) for mutant in of(p.routine) if not mutant.unmet(p, cpu())}

    no_fault = {"lse_last_page_ignored"} if "fp8_e4m3" in (p.q_dtype, p.kv_dtype) else set()
    assert verdicts.keys() == NAMES - no_fault | ({"lse_without_sink"} if p.sinks else set())
    assert {name for name, v in verdicts.items() if v.passed} == set()
    assert all(v.reason.startswith("the log-sum-exp") or "log-sum-exps are NaN" in v.reason for v in verdicts.values()), verdicts
    assert all(v.rel_err <= v.tolerance for v in verdicts.values())
    assert min((v.lse_err or 0.0) / (v.lse_tolerance or 1.0) for v in verdicts.values()) > 1.3


def test_the_other_base_is_told_from_a_lost_page():
    p = Problem.model_validate({**SMALL, **ASKED, "batch_size": 1})
    words = {mutant.name: judged(mutant, p).reason for mutant in of("paged_decode")}

    assert {name for name, reason in words.items() if "right in base 2" in reason} == {"lse_other_base"}


@pytest.mark.parametrize("name", sorted(NAMES))
def test_they_are_made_of_a_backend_that_gives_one_too(name: str):
    p = Problem.model_validate({**SMALL, **ASKED})
    chunks, sdpa = (registry.get("paged_decode", backend) for backend in ("torch_chunks", "torch_sdpa"))
    (made,) = (m for m in mutants.adapters_from(chunks) if m.name == f"{name}@torch_chunks")
    (cannot,) = (m for m in mutants.adapters_from(sdpa) if m.name == f"{name}@torch_sdpa")

    assert made.unmet(p, cpu()) == []
    verdict = judged(made, p)
    assert not verdict.passed and verdict.rel_err <= verdict.tolerance and "log-sum-exp" in verdict.reason
    assert cannot.unmet(p, cpu()) == ["what torch_sdpa serves"]


def test_without_a_log_sum_exp_they_are_no_mutants():
    p = Problem.model_validate({**SMALL, "s_qo": 2, "s_kv": 3000})

    assert {sentence for m in of("paged_decode") for sentence in m.unmet(p, cpu())} == {
        "a log-sum-exp as a second output (return_lse: true)",
        "attention sinks",
    }


@pytest.mark.parametrize("sinks", [False, True])
def test_what_is_written_out_is_the_log_sum_exp(sinks: bool):
    p = Problem.model_validate({**SMALL, **ASKED, "sinks": sinks})
    x, right = drawn(p)
    one = victim(p)

    torch.testing.assert_close(case_of(x, one).lse(), right.lse[x.queries(one)], rtol=1e-5, atol=1e-5)


def test_wrong_outputs_keep_a_right_log_sum_exp_and_are_caught_by_the_output_alone():
    p = Problem.model_validate({**SMALL, **ASKED})
    found = [m for m in mutants.ADAPTERS if m.routine == "paged_decode" and not isinstance(m, LseMutant) and not m.unmet(p, cpu())]
    verdicts = {m.name: judged(m, p) for m in found}

    assert len(verdicts) >= 15
    assert {name for name, v in verdicts.items() if v.passed} == set()
    unwritten = {m.name for m in found if isinstance(m, LeavesOutput)}
    assert {name for name, v in verdicts.items() if "log-sum-exp" in v.reason} == unwritten
    assert any(isinstance(m, ReturnsPreparedAnswer) for m in found)
    right = replace(found[0], wrong=lambda case: case.answer())
    assert judged(right, p).passed
