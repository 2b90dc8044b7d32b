"""Gated delta nets: the reference against the paper's formula, rounding, wrong kernels, and the calls of libraries."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
import pytest
import torch
from pydantic import ValidationError

from kernels.check import oracle
from kernels.check.changed_token import change_tokens
from kernels.check.judgement import judge_changed
from kernels.conformance import checks
from kernels.conformance.problems import changed
from kernels.contract.runner import Runner
from kernels.inputs import generate
from kernels.inputs.checksums import checksums
from kernels.inputs.copied_tokens import copied_tokens
from kernels.problem import Problem
from kernels.problem.arithmetic import Arithmetic
from kernels.routines.gated_delta import hooks, mutants, reference
from kernels.routines.gated_delta.adapters import ADAPTERS, Delta
from kernels.timing.timers import WallClock
from orchestrator.machines import known_devices
from tests.helpers.command_line import Invoke
from tests.helpers.delta_chunks import in_chunks

DIMS = {"head_dim_qk": 32, "head_dim_vo": 32}
KEYS = {"routine": "gated_delta", "batch_size": 3, "s_qo": 1, "num_qo_heads": 2, "num_kv_heads": 4, "kv_dtype": "fp32", **DIMS}
WIDE = {"head_dim_qk": 128, "head_dim_vo": 128}
MODES = {"decode": {}, "drafts": {"s_qo": 3, "states": "each"}, "prompt": {"s_qo": 130, "batch_size": 2}}
CPU = known_devices()["cpu"]
BACKENDS = {adapter.name: adapter for adapter in ADAPTERS}
H200 = known_devices()["h200"]


def make(**keys: object) -> Problem:
    return Problem.model_validate({**KEYS, **keys})


def by_formula(inputs: Any, request: int, head: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Equation 10 in fp64: S (1 - beta k k^T) alpha + beta v k^T, as matrices."""
    p = inputs.problem
    group = p.num_kv_heads // p.num_qo_heads
    state, outs, states = inputs.pool[inputs.slots[request], head].double(), [], []
    for t in range(p.s_qo):
        row = request * p.s_qo + t
        q, k = (x[row, head // group].double() for x in (inputs.q, inputs.k))
        q, k = q / (q @ q + 1e-6).sqrt() / p.head_dim_qk**0.5, k / (k @ k + 1e-6).sqrt()
        alpha = torch.exp(
            -inputs.a_log[head].double().exp() * torch.log1p((inputs.a[row, head].double() + inputs.dt_bias[head]).exp())
        )
        beta = 1 / (1 + torch.exp(-inputs.b[row, head].double()))
        state = alpha * state @ (torch.eye(p.head_dim_qk, dtype=torch.double) - beta * torch.outer(k, k))
        state = state + beta * torch.outer(inputs.v[row, head].double(), k)
        outs.append(state @ q)
        states.append(state)
    return torch.stack(outs), torch.stack(states)


@pytest.mark.parametrize(
    "keys", [*MODES.values(), {"s_qo": 5, "num_kv_heads": 2, "kv_dtype": "bf16"}, {"head_dim_vo": 16, "s_qo": 2}]
)
def test_the_reference_and_torch_are_the_formula(keys: dict[str, Any]) -> None:
    inputs = generate.draw(make(**keys), "cpu")
    answer = oracle.answer(inputs)
    out, states = by_formula(inputs, 1, 2 % inputs.problem.num_kv_heads)

    torch.testing.assert_close(
        inputs.by_request(answer.out)[1, :, 2 % inputs.problem.num_kv_heads].double(), out, rtol=1e-4, atol=1e-6
    )
    kept = answer.states[1, :, 2 % inputs.problem.num_kv_heads].double()
    torch.testing.assert_close(kept, states[-len(kept) :], rtol=1e-4, atol=1e-4)
    assert checks.answer(BACKENDS["torch_delta"], CPU, inputs.problem).verdict == "passed"


@pytest.mark.parametrize("tokens", [1, 4, 300])
def test_a_kernel_in_chunks_that_rounds_every_factor_to_bf16_is_within_a_third_of_the_tolerance(tokens: int) -> None:
    inputs = generate.draw(make(s_qo=tokens, **WIDE, batch_size=2), "cpu")
    answer, limit = oracle.answer(inputs), reference.tolerance(inputs.problem, "bf16", Arithmetic("bf16"))

    out, states = in_chunks(inputs, inputs.pool[inputs.slots.long()].float(), 64, lambda x: x.bfloat16().float())

    pairs = ((out.flatten(0, 1).bfloat16().float(), answer.out), (states[:, -1], answer.states[:, 0]))
    worst = max(float(((found - right).norm(dim=-1) / right.norm(dim=-1)).max()) for found, right in pairs)
    assert 0 < worst < limit / 3


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_every_wrong_kernel_shows_where_it_is_wrong(mode: str, dtype: str) -> None:
    problem = make(**MODES[mode], kv_dtype=dtype)
    wrong = [one for one in mutants.ADAPTERS if not one.unmet(problem, CPU)]
    passed = [one.name for one in wrong if checks.answer(one, CPU, problem).verdict == "passed"]

    assert len(wrong) >= 18
    assert passed == []


@pytest.mark.parametrize("mode", MODES)
def test_every_drawn_fault_shows_and_a_right_output_passes(mode: str) -> None:
    problem = make(**MODES[mode])
    faults = [one for one in mutants.DRAWN[:24] if one.drawn(problem)[0] != "kept"]
    passed = [one.drawn(problem) for one in faults if checks.answer(one, CPU, problem).verdict == "passed"]

    assert {one.drawn(problem)[0] for one in faults} == set(mutants.KINDS) - {"kept"}
    assert passed == []
    assert checks.answer(mutants.DRAWN[-1], CPU, problem).verdict == "passed"


@pytest.mark.parametrize("mode", MODES)
def test_each_change_moves_every_answer_and_its_right_answer_is_known(mode: str) -> None:
    inputs = generate.draw(make(**MODES[mode]), "cpu")
    answer, how, sums = oracle.answer(inputs), Arithmetic("bf16"), checksums(inputs)

    changes = change_tokens(inputs, answer, how, random.Random(1))
    stale = answer.out.to(torch.bfloat16), answer.states[:, 0] if mode != "drafts" else answer.states
    for change in changes:
        with copied_tokens(inputs, change.copied):
            again = oracle.answer(inputs)

        torch.testing.assert_close(again.out, change.answer.out)
        torch.testing.assert_close(again.states, change.answer.states)
        assert not judge_changed(*stale, inputs, change, how).passed
        assert not judge_changed(again.out.to(torch.bfloat16), stale[1], inputs, change, how).passed

    assert sum(change.requests for change in changes) == inputs.problem.batch_size
    assert torch.equal(checksums(inputs), sums)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"s_kv": 4096}, "s_kv=4096: routine=gated_delta has none, since the state is as large after any context"),
        ({"window": 64}, "window=64: routine=gated_delta has no window"),
        ({"return_lse": True}, "return_lse=True: routine=gated_delta has no return_lse"),
        ({"seq_lens": "random"}, "seq_lens='random': routine=gated_delta has no seq_lens"),
        ({"num_kv_heads": 3}, "num_kv_heads=3 does not divide by num_qo_heads=2"),
        ({"kv_dtype": "fp8_e4m3"}, "kv_dtype=fp8_e4m3: allowed with routine=gated_delta: fp32, bf16, fp16"),
        ({"states": "all"}, "states='all': allowed with routine=gated_delta: last, each"),
    ],
)
def test_what_it_does_not_have_is_refused_by_name(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said.replace("(", r"\(")):
        make(**keys)


def test_bytes_and_flops_are_those_of_states_and_tokens() -> None:
    p, each = make(**WIDE, s_qo=4), make(**WIDE, s_qo=4, states="each")
    state, rows = 4 * 4 * 128 * 128, 3 * 4

    assert (p.kv_bytes, each.kv_bytes) == (2 * 3 * state, 5 * 3 * state)
    assert p.qo_bytes == 2 * rows * (2 * 2 * 128 + 2 * 4 * 128 + 2 * 4)
    assert p.flops == 7 * rows * 4 * 128 * 128
    assert p.bytes == p.kv_bytes + p.qo_bytes
    assert make(states="each") == make()  # a single token has one state


class InPlace(Delta):
    """Overwrites the state that it reads, as engines' kernels do."""

    def needs(self, problem: Any, device: Any) -> tuple[()]:
        return ()

    def prepare(self, inputs: Any, device: Any) -> Runner:
        out, kept = inputs.empty_output(), inputs.own_states()
        pool = kept.own

        def launch() -> None:
            slots = inputs.slots.long()
            found, states = in_chunks(inputs, pool[slots].float(), 64)
            out.copy_(found.flatten(0, 1))
            pool[slots] = states[:, -1].to(pool.dtype)

        return Runner(launch, out, self.name, "fp32", lse=pool, restore=() if self.name == "never_restored" else (kept,))


@pytest.mark.parametrize(("name", "verdict"), [("in_place", "passed"), ("never_restored", "failed")])
def test_a_state_that_a_call_overwrites_is_brought_back_before_each_launch(name: str, verdict: str) -> None:
    problem, adapter = make(s_qo=2), InPlace(name=name, query_lengths="uniform")
    inputs = generate.draw(problem, "cpu")
    timer = WallClock(adapter.prepare(inputs, CPU))
    for _ in range(3):
        timer.replay()

    right = hooks.judge_whole(timer.runner.out, inputs, oracle.answer(inputs), timer.runner.arithmetic, timer.runner.written_lse())
    assert (right.passed, checks.many_calls(adapter, CPU, problem).verdict) == (verdict == "passed", verdict)


def fused(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, state: torch.Tensor, alpha: torch.Tensor, beta: torch.Tensor) -> Any:
    """Outputs and states [B, T, ...] of rows [B, T, H, ...], as a stand-in of a library computes them."""
    group = v.shape[2] // q.shape[2]
    q, k = (reference.normalised(x).repeat_interleave(group, 2) for x in (q, k))
    terms = reference.Terms(state.float(), q * q.shape[-1] ** -0.5, k, v.float(), alpha, beta)
    return reference.run(terms, q.shape[1])


def stand_ins() -> dict[str, ModuleType]:
    """FlashInfer's and fla's functions with the arguments that the adapters pass, computing what the libraries document."""

    def decode(q, k, v, state, A_log, a, dt_bias, b, output, initial_state, initial_state_indices, backend,
               intermediate_states_buffer=None, disable_state_update=False):  # fmt: skip
        assert state is None and backend == "flashinfer"
        alpha = torch.exp(-A_log.exp() * torch.nn.functional.softplus(a.float() + dt_bias))
        slots = initial_state_indices.long()
        out, states = fused(q, k, v, initial_state[slots], alpha, b.float().sigmoid())
        output.copy_(out)
        if intermediate_states_buffer is not None:
            intermediate_states_buffer.copy_(states)
        if not disable_state_update:
            initial_state[slots] = states[:, -1].to(initial_state.dtype)

    def chunk(q, k, v, g, beta, initial_state, output_final_state, cu_seqlens, use_qk_l2norm_in_kernel, output, output_state,
              state_indices, use_cp, backend, max_seqlen):  # fmt: skip
        assert output_final_state and use_qk_l2norm_in_kernel and backend == "flashinfer" and g.dtype == beta.dtype == torch.float32
        size, slots = len(cu_seqlens) - 1, state_indices.long()
        assert cu_seqlens.tolist() == [max_seqlen * i for i in range(size + 1)]
        rows = (x.view(size, max_seqlen, *x.shape[1:]) for x in (q, k, v))
        out, states = fused(*rows, initial_state[slots], *(x.view(size, max_seqlen, -1) for x in (g, beta)))
        output.copy_(out.flatten(0, 1))
        output_state[slots] = states[:, -1].to(output_state.dtype)

    def fla_chunk(q, k, v, g, beta, initial_state, output_final_state, use_qk_l2norm_in_kernel, state_v_first):
        assert output_final_state and use_qk_l2norm_in_kernel and state_v_first
        out, states = fused(q, k, v, initial_state, g.exp(), beta)
        return out.to(q.dtype), states[:, -1]

    class Kernel:
        def __getitem__(self, grid: tuple[int]) -> Any:
            def launch(q, k, v, g, beta, A_log, dt_bias, o, h0, ht, scale, T, H, HV, K, V, BK, BV, **flags):
                size = len(h0)
                assert grid == (-(-V // BV) * size * HV,) and BK >= K and T * size == len(q)
                assert scale == pytest.approx(K**-0.5)
                assert flags["STATE_V_FIRST"] and flags["USE_QK_L2NORM_IN_KERNEL"] and flags["APPLY_BETA_SIGMOID"]
                alpha = torch.exp(-A_log.exp() * torch.nn.functional.softplus(g.float() + dt_bias))
                gates = (x.view(size, T, HV) for x in (alpha, beta.float().sigmoid()))
                out, states = fused(*(x.view(size, T, *x.shape[1:]) for x in (q, k, v)), h0, *gates)
                o.copy_(out.flatten(0, 1))
                ht.copy_(states[:, -1])

            return launch

    names: dict[str, dict[str, object]] = {
        "flashinfer": {}, "fla": {}, "fla.ops": {},
        "flashinfer.gdn_decode": {"gated_delta_rule_decode_pretranspose": decode},
        "flashinfer.gdn_prefill": {"chunk_gated_delta_rule": chunk},
        "fla.ops.gated_delta_rule": {"chunk_gated_delta_rule": fla_chunk},
        "fla.ops.gated_delta_rule.fused_recurrent": {"fused_recurrent_gated_delta_rule_fwd_kernel": Kernel()},
    }  # fmt: skip
    found = {}
    for name, functions in names.items():
        found[name] = ModuleType(name)
        vars(found[name]).update(functions)
    return found


@pytest.mark.parametrize("name", sorted(set(BACKENDS) - {"torch_delta"}))
@pytest.mark.parametrize("keys", [{}, {"s_qo": 3, "states": "each"}, {"s_qo": 7}, {"kv_dtype": "bf16"}])
def test_adapters_call_their_library_as_it_documents_its_arguments(
    name: str, keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, adapter = make(**WIDE, **keys), BACKENDS[name]
    for module, made in stand_ins().items():
        monkeypatch.setitem(sys.modules, module, made)
    if adapter.unmet(problem, H200):
        assert keys.get("states") == "each" and name != "gdn_decode"
        return

    for check in (checks.answer, checks.same_output, checks.other_queries, checks.many_calls):
        assert check(adapter, CPU, problem).verdict == "passed", check(adapter, CPU, problem).words


@pytest.mark.parametrize(
    ("name", "keys", "sentence"),
    [
        ("gdn_decode", {"head_dim_vo": 64}, "head_dim 128 of keys and values"),
        ("gdn_decode", {"s_qo": 17}, "up to 16 tokens a request"),
        ("gdn_decode", {"q_dtype": "fp16"}, "queries in bf16"),
        ("gdn_decode", {"kv_dtype": "fp16"}, "states in fp32 or bf16"),
        ("gdn_chunk", {"s_qo": 3, "states": "each"}, "the last state alone (states=last)"),
        ("fla_chunk", {"q_dtype": "fp32"}, "queries in fp16 or bf16"),
        ("fla_recurrent", {"head_dim_qk": 512}, "head_dim up to 256 of keys"),
    ],
)
def test_a_rule_names_what_is_not_met(name: str, keys: dict[str, Any], sentence: str) -> None:
    problem = make(**{**WIDE, **keys})

    assert BACKENDS[name].unmet(problem, H200) == [sentence]
    served = changed(problem, {**WIDE, "s_qo": 1, "s_kv": 1, "q_dtype": "bf16", "kv_dtype": "fp32", "routine_axes": "states=last"})
    assert served is not None
    assert BACKENDS[name].unmet(served, H200) == []


def test_a_sweep_goes_from_yaml_to_rows_on_a_cpu_and_a_plan_covers_the_models_own_layers(tmp_path: Path, invoke: Invoke) -> None:
    words = ("+sweep=gated_delta", "model=qwen3_next_80b_a3b", "cluster=inline", f"results.path={tmp_path}", "timing=quick")
    axes = ("sweep.tp=[8]", "sweep.batch_size=[2]", "sweep.backend=[torch_delta]", "sweep.include=[{s_qo: 2, states: each}]")
    done, plan = invoke(*words, *axes), invoke(*words, "mode=plan", "device=h200")
    rows = pd.read_parquet(tmp_path / "rows.parquet")

    assert done.returncode == 0, done.stderr
    assert set(rows["status"]) == {"ok"}
    assert set(rows["routine_axes"]) == {"states=last", "states=each"}
    assert (rows["state_err"] <= rows["state_tolerance"]).all()
    assert set(rows["check_stale_covered"]) == {1.0}
    assert set(rows["num_kv_heads"]) == {4}
    assert plan.returncode == 0, plan.stderr
    assert "not measured: 12 full" in plan.stderr + plan.stdout


def test_other_models_and_sizes_are_refused_in_words(invoke: Invoke) -> None:
    other = invoke("+sweep=gated_delta", "model=llama_3_1_70b", "mode=plan", "device=h200")
    odd = invoke("+sweep=gated_delta", "model=qwen3_next_80b_a3b", "model.tp=[32]", "sweep.tp=[32]", "mode=plan", "device=h200")

    assert other.returncode == odd.returncode == 2
    assert "model llama_3_1_70b has no gated delta nets; type model=qwen3_next_80b_a3b" in other.stderr
    assert "sweep.tp=32: allowed for the gated delta nets of" in odd.stderr
