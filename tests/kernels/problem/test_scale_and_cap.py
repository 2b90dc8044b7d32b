"""Another softmax scale than 1/sqrt(head_dim_qk), and a soft cap of logits: the problem, its answer, and who gets it wrong."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from kernels import registry
from kernels.check import oracle
from kernels.check.judgement import judge_whole
from kernels.inputs import Inputs, states
from kernels.inputs.generate import draw
from kernels.inputs.masks import hidden
from kernels.mutants import catalogue
from kernels.problem import Problem
from orchestrator.config.settings import load
from orchestrator.machines import cpu, known_devices
from orchestrator.planning.expand import expand
from tests.helpers.command_line import composed

SHAPE: dict[str, Any] = {
    "batch_size": 2, "s_qo": 4, "s_kv": 1000, "num_qo_heads": 8, "num_kv_heads": 2, "head_dim_qk": 64, "head_dim_vo": 64,
    "page_size": 16,
}  # fmt: skip
MLA = {"routine": "mla", "num_kv_heads": 8, "head_dim_ckv": 64, "head_dim_kpe": 32}
FP8 = {"kv_dtype": "fp8_e4m3"}
FP16 = {"q_dtype": "fp16", "kv_dtype": "fp16"}
NAMES = {"softmax_scale_missing", "softmax_scale_usual", "soft_cap_ignored", "soft_cap_before_scale", "soft_cap_doubled"}
CASES: list[tuple[dict[str, Any], set[str]]] = [  # and the wrong kernels that are none there
    ({"soft_cap": 50.0}, {"softmax_scale_usual"}),
    ({"soft_cap": 50.0, "s_qo": 1, **FP16}, {"softmax_scale_usual"}),
    ({"soft_cap": 50.0, **FP8}, {"softmax_scale_usual"}),
    ({"soft_cap": 100.0, **FP8}, NAMES - {"softmax_scale_missing"}),
    ({"soft_cap": 5.0, "mask": "full", "sinks": True}, {"softmax_scale_usual"}),
    ({"soft_cap": 30.0, "softmax_scale": 1.0}, {"softmax_scale_missing", "soft_cap_before_scale"}),
    ({"softmax_scale": 1 / 64}, NAMES - {"softmax_scale_missing", "softmax_scale_usual"}),
    ({"softmax_scale": 0.25, **FP8}, NAMES - {"softmax_scale_missing", "softmax_scale_usual"}),
]
IDS = [str(keys) for keys, _ in CASES]


def problem(**keys: Any) -> Problem:
    return Problem.model_validate({**SHAPE, **keys})


def test_the_usual_scale_and_no_cap_are_the_problem_of_before():
    plain = problem()

    assert {"softmax_scale", "soft_cap"}.isdisjoint(plain.model_dump(exclude_defaults=True))
    assert problem(softmax_scale=0.125) == problem(softmax_scale=float(torch.tensor(0.125))) == plain
    assert problem(head_dim_qk=128, softmax_scale=0.08838834764831843).softmax_scale is None
    assert problem(soft_cap=50) == problem(soft_cap=50.0) != plain


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"softmax_scale": 0}, "greater than 0"),
        ({"softmax_scale": True}, "valid number"),
        ({"softmax_scale": 100.0}, "allowed: 0.00195 to 8"),
        ({"soft_cap": -50.0}, "greater than 0"),
        ({"soft_cap": math.inf}, "finite number"),
    ],
    ids=str,
)
def test_what_is_no_scale_and_no_cap(keys: dict[str, Any], words: str):
    with pytest.raises(ValidationError, match=words):
        problem(**keys)


@pytest.mark.parametrize("keys", [keys for keys, _ in CASES] + [{**MLA, "softmax_scale": 0.135, "soft_cap": 30.0}], ids=str)
def test_the_reference_is_the_definition(keys: dict[str, Any]):
    x = draw(problem(**keys), "cpu")
    found = oracle.answer(x)
    for request in range(x.problem.batch_size):
        out, lse = by_definition(x, request)
        torch.testing.assert_close(found.out[x.queries(request)].double(), out, rtol=0, atol=1e-5 * float(out.abs().max()))
        torch.testing.assert_close(found.lse[x.queries(request)].double(), lse, rtol=0, atol=1e-4)
    assert x.problem.soft_cap is None or x.sinks is not None or float(found.peak.max()) <= x.problem.soft_cap


def by_definition(x: Inputs, request: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[Q, H, D_vo] and [Q, H] in fp64. A sink's logit has no cap."""
    p, q = x.problem, x.q[x.queries(request)].double()
    k, v = (t.double().repeat_interleave(p.group_size, 1) for t in x.tokens(request, 0, p.kv_lens[request]))
    scores = torch.einsum("qhd,lhd->hql", q, k) * x.k_scale * (p.softmax_scale or 64**-0.5)
    scores = scores if p.soft_cap is None else p.soft_cap * (scores / p.soft_cap).tanh()
    unseen = hidden(p, request, range(len(q)), range(len(k)), "cpu")
    scores = scores if unseen is None else scores.masked_fill(unseen, -torch.inf)
    sinks = [] if x.sinks is None else [x.sinks.double()[:, None, None].expand(-1, len(q), 1)]
    lse = torch.cat((scores, *sinks), -1).logsumexp(-1)
    return torch.einsum("hql,lhd->qhd", (scores - lse[..., None]).exp(), v) * x.v_scale, lse.T


@pytest.mark.parametrize(("keys", "no_fault"), CASES, ids=IDS)
def test_a_kernel_that_has_another_scale_or_cap_is_caught(keys: dict[str, Any], no_fault: set[str]):
    p = problem(**keys)
    wrong = [m for m in catalogue.ADAPTERS if m.routine == p.routine and m.name in NAMES and not m.unmet(p, cpu())]
    x = draw(p, "cpu")
    answer = oracle.answer(x)

    assert {m.name for m in wrong} == NAMES - no_fault
    for mutant in wrong:
        runner = mutant.prepare(x, cpu())
        runner()
        assert not judge_whole(runner.out, x, answer, runner.arithmetic).passed, mutant.name


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("keys", [{"soft_cap": 50.0}, {"soft_cap": 15.0, **FP16}, {"soft_cap": 30.0, "return_lse": True}], ids=str)
def test_a_right_kernel_may_take_the_fast_tanh_of_a_gpu(keys: dict[str, Any], seed: int, monkeypatch: pytest.MonkeyPatch):
    noise = torch.Generator().manual_seed(seed)

    def roughly(scores: torch.Tensor, p: Problem) -> torch.Tensor:
        assert p.soft_cap is not None
        error = 2**-11 * (2 * torch.rand(scores.shape, generator=noise) - 1)
        return scores.div_(p.soft_cap).tanh_().mul_(1 + error).mul_(p.soft_cap)

    monkeypatch.setattr(states, "capped", roughly)
    x = draw(problem(seed=seed, **keys), "cpu")
    runner = registry.get("paged_decode", "torch_chunks").prepare(x, cpu())
    runner()
    lse = runner.written_lse() if x.problem.return_lse else None
    verdict = judge_whole(runner.out, x, oracle.answer(x), runner.arithmetic, lse)

    assert verdict.passed, verdict.reason


def test_a_sweep_has_both_axes():
    points = expand(load(composed("+sweep=specdec_long_ctx", "sweep.softmax_scale=[null,0.0625]", "sweep.soft_cap=[null,50.0]")))

    assert {(p.problem.softmax_scale, p.problem.soft_cap) for p in points} == {(s, c) for s in (None, 0.0625) for c in (None, 50.0)}


def test_who_caps_logits_on_an_h200():
    h200 = known_devices()["h200"]
    shape = {"num_qo_heads": 16, "num_kv_heads": 8, "head_dim_qk": 128, "head_dim_vo": 128, "page_size": 64, "soft_cap": 30.0}
    backends = [(key, adapter) for key, adapter in registry.adapters().items() if key[0] in ("paged_decode", "paged_prefill")]
    found = {
        name for (routine, name), adapter in backends if not adapter.unmet(problem(routine=routine, s_qo=1, **shape), h200)
    }  # fmt: skip

    of_engines = {"flash_attn_3_vllm", "flash_attn_3_vllm_32_splits", "flash_attn_3_sglang", "flash_attn_2_vllm", "vllm_triton"}
    others = {"batch_attention", "flash_attn_4", "sglang_triton", "flex_attention", "trtllm-fmha-v2", "torch_chunks"}
    assert found == {"fa2", "fa2_tc", "fa3", "auto", *of_engines, *others}
