"""A long prompt: some of its rows are weighed, and a fault in all rows still shows."""

from __future__ import annotations

import pytest
import torch

from kernels.check import estimates, oracle
from kernels.check.estimates import ROWS_AT_ONCE, weighed_parts
from kernels.check.judgement import output_errors, weight_test_of
from kernels.check.significance import WeightTest
from kernels.check.weighing import weigh
from kernels.inputs.generate import draw
from kernels.problem import Problem
from kernels.problem.arithmetic import Arithmetic

PROMPT = Problem.model_validate(
    {
        "routine": "paged_prefill",
        "num_qo_heads": 4,
        "num_kv_heads": 1,
        "head_dim_qk": 64,
        "head_dim_vo": 64,
        "page_size": 64,
        "batch_size": 1,
        "s_qo": 1000,
        "s_kv": 1024,
    }
)


@pytest.mark.parametrize(("q_len", "count"), [(1, 1), (64, 1), (65, 2), (2048, 32), (2049, 32), (16384, 32)])
def test_so_many_parts_are_weighed_and_the_last_64_tokens_among_them(q_len: int, count: int):
    parts = weighed_parts(PROMPT, q_len)

    assert len(parts) == len(set(parts)) == count
    assert parts == sorted(parts, key=lambda part: part.start)
    assert parts[-1] == range(max(0, q_len - ROWS_AT_ONCE), q_len)
    assert sum(map(len, parts)) == min(q_len, 2048)


def test_under_a_window_all_tokens_are_weighed():
    parts = weighed_parts(replaced(window=128), 16384)

    assert [token for part in parts for token in part] == list(range(16384))


def test_other_seeds_draw_other_parts():
    assert weighed_parts(PROMPT, 16384) == weighed_parts(PROMPT, 16384) != weighed_parts(replaced(seed=2), 16384)


def replaced(**keys: int) -> Problem:
    return PROMPT.model_validate({**PROMPT.model_dump(), **keys})


def estimated(problem: Problem, lost: range, tokens: int, monkeypatch: pytest.MonkeyPatch) -> WeightTest:
    """Of a kernel that does not read some keys in any row: the estimates alone, since its rows are off too."""
    monkeypatch.setattr(estimates, "WEIGHED_TOKENS", tokens)
    x = draw(problem, "cpu")
    k, v = (one[0, :, 0].float() for one in x.tokens_of((0,), 0, problem.s_kv))
    scores = torch.einsum("thd,kd->htk", x.q.float(), k) * x.sm_scale
    behind = torch.arange(problem.s_kv) - (torch.arange(problem.s_qo) + problem.s_kv - problem.s_qo)[:, None]  # of a query
    hidden = (behind > 0) | (behind <= -(problem.window or problem.s_kv))
    hidden[:, lost.start : lost.stop] = True
    out = torch.einsum("htk,kd->thd", scores.masked_fill(hidden, -torch.inf).softmax(-1), v)
    found = weight_test_of(problem, Arithmetic("bf16"))
    for weights in weigh(output_errors(out.to(torch.bfloat16), x, oracle.answer(x), Arithmetic("bf16"))):
        found.add(weights)
    return found


@pytest.mark.parametrize(("window", "tokens"), [(None, 2048), (None, 256), (128, 256)])
def test_a_lost_page_shows_in_some_rows_as_in_all(window: int | None, tokens: int, monkeypatch: pytest.MonkeyPatch):
    problem = replaced(window=window) if window else PROMPT
    right = estimated(problem, range(0), tokens, monkeypatch)

    assert right.clearest()[1] == ""
    assert (right.min_tokens() or 65) <= 64
    for start in (4, 512 + 17, 960):
        assert "instead of once" in estimated(problem, range(start, start + 64), tokens, monkeypatch).clearest()[1]
