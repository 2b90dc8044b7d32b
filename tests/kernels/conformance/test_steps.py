"""The check of plans of once a step, on backends whose plan is right, wrong or missing."""

from __future__ import annotations

import pytest

from kernels import registry
from kernels.conformance.checks import shorter_lengths, with_lengths
from kernels.conformance.suite import Trial, execute
from kernels.problem import Problem
from orchestrator.machines import cpu

PLUGINS = ("tests.backends.planning",)
SHAPE = {"batch_size": 2, "s_qo": 2, "num_qo_heads": 4, "num_kv_heads": 2, "head_dim_qk": 16, "head_dim_vo": 16}
PROBLEM = Problem.model_validate({**SHAPE, "s_kv": 100})


@pytest.mark.parametrize(
    ("backend", "verdict", "words"),
    [
        ("planned", "passed", "right after plans for two steps"),
        ("without_plan", "passed", "right after plans for two steps"),
        ("ignores", "failed", "shorter: "),
        ("wrongly_without_plan", "failed", "shorter: "),
        ("keeps_the_shortest", "failed", "planned for its first lengths again: "),
        ("raises_in_plan", "failed", "the plan found no room"),
        ("says_nothing", "not run", "Runner.plan_step"),
    ],
)
def test_a_plan_must_bring_the_call_to_the_new_lengths_and_back(backend: str, verdict: str, words: str):
    finding = execute(registry.get("paged_decode", backend, PLUGINS), Trial("planned for a step", PROBLEM, cpu()))

    assert (finding.verdict, words in finding.words) == (verdict, True), finding


def test_requests_that_cannot_become_shorter_are_not_run():
    prompt = Problem.model_validate({**SHAPE, "s_kv": 2})
    finding = execute(registry.get("paged_decode", "planned", PLUGINS), Trial("planned for a step", prompt, cpu()))

    assert (finding.verdict, "cannot become shorter" in finding.words) == ("not run", True), finding


def test_shorter_lengths_differ_and_are_those_of_the_problem():
    assert shorter_lengths(PROBLEM) == (66, 65)
    assert with_lengths(PROBLEM, (66, 65)).kv_lens == (66, 65)
    assert with_lengths(PROBLEM, (66, 65)).q_lens == PROBLEM.q_lens
