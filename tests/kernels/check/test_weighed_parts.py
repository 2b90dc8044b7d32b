"""A long prompt: some of its rows are weighed, and a fault in all rows still shows."""

from __future__ import annotations

import pytest
import torch

from kernels.check import estimates, oracle
from kernels.check.estimates import ROWS_AT_ONCE, OutputErrors, rows_of, weighed_parts
from kernels.check.judgement import output_errors, weight_test_of
from kernels.check.significance import WeightTest
from kernels.check.weighing import _of_blocks, weigh
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


def test_a_block_that_holds_half_of_a_row_is_left_out_by_that_row_s_part_alone():
    problem = replaced(s_qo=192, s_kv=256)
    x, last = draw(problem, "cpu"), problem.s_kv - ROWS_AT_ONCE
    right = oracle.answer(x)
    noise = 2e-3 * torch.randn(right.out.shape, generator=torch.Generator().manual_seed(0)) * right.out.norm(dim=-1, keepdim=True)
    errors = OutputErrors(x, right, noise / problem.value_dim**0.5, 1e-3)
    parts = [rows_of(errors, (0,), part) for part in weighed_parts(problem, problem.s_qo)]
    whole, *by_part = (next(_of_blocks(x, rows, torch.full((1, 1), 3.0))) for rows in (parts, *([part] for part in parts)))
    by_part_b, by_part_a = (torch.stack([getattr(found, what) for found in by_part]) for what in ("b", "a"))
    seen = torch.cat([torch.arange(count) * size + size <= last for size, count in whole.levels])  # by rows of the last part
    left_out = (by_part_b[-1] == 0) & (whole.b > 0) & seen

    assert left_out.any()
    assert (by_part_a[by_part_b == 0] == 0).all()
    torch.testing.assert_close(whole.a, by_part_a.sum(0), rtol=1e-5, atol=1.0)
    torch.testing.assert_close(whole.b, by_part_b.sum(0), rtol=1e-5, atol=1.0)


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
