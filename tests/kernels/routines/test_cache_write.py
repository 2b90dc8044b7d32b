"""Writes of a paged cache: the reference against the formula, roundings, wrong kernels, and the calls of libraries."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch
from pydantic import ValidationError

from kernels.check import oracle
from kernels.check.changed_token import change_tokens
from kernels.check.judgement import judge_changed
from kernels.conformance import checks
from kernels.inputs import generate
from kernels.inputs.checksums import checksums
from kernels.inputs.copied_tokens import copied_tokens
from kernels.problem import Problem
from kernels.problem.arithmetic import Arithmetic
from kernels.routines.cache_write import hooks, mutants
from kernels.routines.cache_write.adapters import ADAPTERS
from kernels.routines.cache_write.inputs import pairs
from kernels.routines.cache_write.problem import ROUTINE
from orchestrator.config.model import Model
from orchestrator.machines import known_devices
from orchestrator.reporting.quality import drawn_faults
from tests.helpers.command_line import Invoke

SHAPE = {"num_qo_heads": 4, "num_kv_heads": 2, "head_dim_qk": 64, "head_dim_vo": 64, "page_size": 16}
KEYS = {"routine": "cache_write", "batch_size": 3, "s_qo": 3, "s_kv": 77, **SHAPE}
LATENT = {"head_dim_ckv": 512, "head_dim_kpe": 64, "page_size": 64}
FP8 = {"kv_dtype": "fp8_e4m3"}
KINDS: dict[str, dict[str, Any]] = {
    "copied": {}, "copied_fp8": {"q_dtype": "fp8_e4m3", **FP8}, "quantised": FP8, "by_head": {**FP8, "scales": "head"},
    "neox": {**FP8, "rope": "neox"}, "interleaved": {"kv_dtype": "fp8_e5m2", "rope": "interleaved", "kv_layout": "NHD"},
    "rotated_bf16": {"rope": "neox"}, "lengths": {**FP8, "seq_lens": "random", "min_s_qo": 1},
    "prompt": {"s_qo": 77, "kv_layout": "NHD"}, "one": {"batch_size": 1, "s_qo": 1, "page_size": 1},
    "latent": LATENT, "latent_fp8": {**LATENT, **FP8},
    "latent_rope": {**LATENT, **FP8, "rope": "interleaved"},
}  # fmt: skip
CPU, H200 = known_devices()["cpu"], known_devices()["h200"]
BACKENDS = {adapter.name: adapter for adapter in ADAPTERS}


def make(**keys: object) -> Problem:
    return Problem.model_validate({**KEYS, **keys})


@pytest.mark.parametrize("kind", KINDS)
def test_torch_writes_what_the_formula_says_of_each_element(kind: str) -> None:
    inputs = generate.draw(p := make(**KINDS[kind]), "cpu")
    answer, token = oracle.answer(inputs), p.num_q_tokens - 1
    first = (0, 0) if p.head_dim_ckv is None else ()
    row, scale, position = inputs.new[(token, *first)].double(), float(inputs.scale.flatten()[0]), p.kv_lens[-1] - 1
    if p.axis("rope") != "none":
        dim, end = (p.head_dim_kpe or p.head_dim_qk), len(row)
        for i in range(dim // 2):
            one, other = (i, i + dim // 2) if p.axis("rope") == "neox" else (2 * i, 2 * i + 1)
            a, b = row[end - dim + one].clone(), row[end - dim + other].clone()
            turn = torch.tensor(position * 10_000.0 ** (-2 * i / dim), dtype=torch.float64)
            row[end - dim + one], row[end - dim + other] = a * turn.cos() - b * turn.sin(), b * turn.cos() + a * turn.sin()
    largest = torch.finfo(inputs.pool.dtype).max

    torch.testing.assert_close(answer.out[(token, *first)].double(), (row / scale).clamp(-largest, largest), rtol=1e-5, atol=1e-4)
    assert checks.answer(BACKENDS["torch_write"], CPU, p).verdict == "passed"
    assert len(inputs.slot.unique()) == p.num_q_tokens


@pytest.mark.parametrize("kind", KINDS)
def test_every_wrong_kernel_and_every_drawn_fault_shows_where_it_is_wrong(kind: str) -> None:
    problem = make(**KINDS[kind])
    wrong = [one for one in mutants.ADAPTERS if not one.unmet(problem, CPU)]
    drawn = [one for one in mutants.DRAWN[:24] if one.drawn(problem) != "kept"]
    passed = [one.name for one in (*wrong, *drawn) if checks.answer(one, CPU, problem).verdict == "passed"]

    assert len(wrong) >= 10
    assert {one.drawn(problem) for one in drawn} == set(mutants.DRAWN_FAULTS) - {"kept"}
    assert passed == []
    assert checks.answer(mutants.DRAWN[-1], CPU, problem).verdict == "passed"


def test_the_statement_of_check_power_knows_each_drawn_fault() -> None:
    inputs = generate.draw(problem := make(), "cpu")
    ran = pd.DataFrame({"resolved_backend": [one.prepare(inputs, CPU).resolved_backend for one in mutants.DRAWN[:24]]})

    kinds = drawn_faults(ran.assign(backend="drawn", status="mismatch"))["kind"]

    assert kinds.tolist() == [one.drawn(problem) for one in mutants.DRAWN[:24]]
    assert set(kinds) == set(ROUTINE.promises)


def test_every_listed_kernel_is_wrong_somewhere() -> None:
    problems = [make(**keys) for keys in KINDS.values()]

    assert [one.name for one in mutants.ADAPTERS if all(one.unmet(problem, CPU) for problem in problems)] == []


@pytest.mark.parametrize("kind", ["copied", "quantised", "neox", "rotated_bf16"])
def test_an_element_may_be_the_other_rounding_only_where_fp32_cannot_tell(kind: str) -> None:
    inputs = generate.draw(make(**KINDS[kind]), "cpu")
    answer = oracle.answer(inputs)
    between = torch.tensor(1.0625) if inputs.quantises else torch.tensor(1.00390625)  # half between two numbers of the dtype
    near = answer.moved[0].clone().fill_(2e-7)
    found = torch.full_like(answer.out, 1.125 if inputs.quantises else 1.0078125).to(inputs.pool.dtype)

    verdicts = [hooks._judged(found, between.expand_as(answer.out), moved, inputs).passed for moved in (0 * near, near)]

    assert verdicts == [False, True]
    assert bool((answer.moved[0] == 0).all()) == (kind == "copied")


@pytest.mark.parametrize("kind", ["copied", "copied_fp8", "neox", "latent_fp8"])
def test_a_change_of_tokens_moves_every_request_and_its_right_answer_is_known(kind: str) -> None:
    inputs = generate.draw(make(**KINDS[kind]), "cpu")
    answer, how, sums = oracle.answer(inputs), Arithmetic("fp32"), checksums(inputs)
    stale = BACKENDS["torch_write"].prepare(inputs, CPU)
    stale.ready(), stale()

    changes, queries = change_tokens(inputs, answer, how, random.Random(1)), stale.written_lse()

    assert [change.requests for change in changes] == [1, inputs.problem.batch_size - 1, 0]  # one alone, then the others
    assert hooks.judge_whole(stale.out, inputs, answer, how, queries).passed
    for change in changes:
        assert not judge_changed(stale.out, queries, inputs, change, how).passed
        with copied_tokens(inputs, change.copied):
            again = BACKENDS["torch_write"].prepare(inputs, CPU)
            again.ready(), again()
        assert judge_changed(again.out, again.written_lse(), inputs, change, how).passed
    assert torch.equal(checksums(inputs), sums)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"window": 64}, "window=64: routine=cache_write has no window"),
        ({"head_dim_vo": 128}, "keys and values of one head_dim, or head_dim_ckv with head_dim_kpe"),
        ({"kv_dtype": "fp16"}, "a cache in bf16 or FP8, and FP8 keys in their own"),
        ({"q_dtype": "nvfp4", "kv_dtype": "nvfp4"}, "keys in 32, 16 or 8 bits"),
        ({**FP8, "q_dtype": "fp8_e4m3", "rope": "neox"}, "with rope keys in 16 or 32 bits"),
        ({"scales": "head"}, "scales=head for keys that are quantised alone"),
        ({"rope": "llama"}, "rope='llama': allowed with routine=cache_write: none, neox, interleaved"),
        ({"s_qo": 78}, "s_qo=78 is greater than s_kv=77"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        make(**keys)


def test_bytes_and_flops_are_those_of_new_tokens_and_a_context_takes_no_room() -> None:
    p, turned = make(**FP8), make(**FP8, rope="neox")

    assert p.kv_bytes == 9 * 2 * 2 * 64
    assert p.qo_bytes == 2 * p.kv_bytes
    assert turned.qo_bytes == p.qo_bytes + 9 * 4 * 64 * (2 + 1)
    assert (p.flops, turned.flops) == (9 * 256, 9 * (256 + 3 * 64 * 6))
    assert make(**LATENT, **FP8, scales="head") == make(**LATENT, **FP8)  # a latent has one head
    assert make(s_kv=1_000_000).input_bytes <= make(s_kv=77).input_bytes * 2


def test_a_model_gives_its_own_heads() -> None:
    model = Model(name="custom", num_qo_heads=64, num_kv_heads=8, head_dim_qk=128, head_dim_vo=128, page_size=32)
    shared = {"head_dim_qk": 128, "head_dim_vo": 128, "page_size": 32}
    assert ROUTINE.share(model, 16) == {"num_qo_heads": 4, "num_kv_heads": 1, **shared}


# FlashInfer's and vLLM's functions with the arguments that the adapters pass, computing what the libraries document.


def put(cache: torch.Tensor, at: Any, rows: torch.Tensor) -> None:
    kind = {1: torch.uint8, 2: torch.int16}[cache.element_size()]
    cache.view(kind)[at] = rows.to(cache.dtype).contiguous().view(kind)


def place(request, position, indices, indptr, page_size):
    assert request.dtype == position.dtype == indices.dtype == indptr.dtype == torch.int32
    return indices[indptr[request.long()] + position // page_size].long(), (position % page_size).long()


def append(k, v, request, position, caches, indices, indptr, last, layout):
    assert bool((last >= 1).all())
    for cache, rows in zip(caches, (k, v), strict=True):
        by_token = cache if layout == "NHD" else cache.transpose(1, 2)
        assert rows.dtype == cache.dtype
        put(by_token, place(request, position, indices, indptr, by_token.shape[1]), rows)


def append_mla(ckv, kpe, request, position, ckv_cache, kpe_cache, indices, indptr, last):
    for cache, rows in ((ckv_cache, ckv), (kpe_cache, kpe)):
        assert rows.dtype == cache.dtype
        put(cache, place(request, position, indices, indptr, cache.shape[1]), rows)


def limited(rows, scale, dtype):
    largest = torch.finfo(dtype).max
    return (rows.float() * scale).clamp(-largest, largest).to(dtype)


def rotated(rows, angles, is_neox):
    wide, (cos, sin) = rows.float().clone(), angles.view(len(rows), *(1,) * (rows.dim() - 2), -1).chunk(2, -1)
    style = "neox" if is_neox else "interleaved"
    a, b = pairs(rows.float(), style)
    for part, values in zip(pairs(wide, style), (a * cos - b * sin, b * cos + a * sin), strict=True):
        part.copy_(values)
    return wide


def quantise(q_rope, k_rope, q_nope, k_nope, cos_sin_cache, pos_ids, is_neox, quant_scale_q, quant_scale_kv, q_rope_out,
             k_rope_out, q_nope_out, k_nope_out):  # fmt: skip
    angles = cos_sin_cache[pos_ids.long()]
    q_rope_out.copy_(limited(rotated(q_rope, angles, is_neox), quant_scale_q, q_rope_out.dtype))
    k_rope_out.copy_(limited(rotated(k_rope, angles, is_neox), quant_scale_kv, k_rope_out.dtype))
    if q_nope is not None:
        q_nope_out.copy_(limited(q_nope, quant_scale_q, q_nope_out.dtype))
        k_nope_out.copy_(limited(k_nope, quant_scale_kv, k_nope_out.dtype))


def fused(v, paged_kv_cache, kv_indices, kv_indptr, batch_indices, positions, page_size, kv_layout, k_rope, k_nope, q_nope_out,
          quant_scale_kv, **given):  # fmt: skip
    cached = paged_kv_cache[0].dtype
    rope_out, nope_out = (None if one is None else torch.empty_like(one, dtype=cached) for one in (k_rope, k_nope))
    quantise(k_rope=k_rope, k_nope=k_nope, k_rope_out=rope_out, k_nope_out=nope_out, q_nope_out=q_nope_out,
             quant_scale_kv=quant_scale_kv, **given)  # fmt: skip
    where = (batch_indices, positions)
    last = torch.ones(1)
    if v is None:
        append_mla(nope_out, rope_out, *where, *paged_kv_cache, kv_indices, kv_indptr, last)
    else:
        append(rope_out, limited(v, quant_scale_kv, cached), *where, paged_kv_cache, kv_indices, kv_indptr, last, kv_layout)


def reshape(k, v, k_cache, v_cache, slot, kind, k_scale, v_scale):
    assert slot.dtype == torch.int64
    assert k_scale.numel() in (1, k.shape[1])
    for cache, rows, scale in ((k_cache, k, k_scale), (v_cache, v, v_scale)):
        stored = rows if kind == "auto" else limited(rows, (1 / scale)[:, None], torch.float8_e4m3fn).view(cache.dtype)
        put(cache, (slot // cache.shape[1], slot % cache.shape[1]), stored)


def concat(ckv, kpe, cache, slot, kind, scale):
    assert scale.shape == (1,)
    rows = torch.cat((ckv, kpe), -1)
    stored = rows if kind == "auto" else limited(rows, 1 / scale, torch.float8_e4m3fn).view(cache.dtype)
    put(cache, (slot // cache.shape[1], slot % cache.shape[1]), stored)


def stand_ins() -> dict[str, ModuleType]:
    page = {"append_paged_kv_cache": append, "append_paged_mla_kv_cache": append_mla}
    rope = {"rope_quantize_fp8": quantise, "rope_quantize_fp8_append_paged_kv_cache": fused}
    names: dict[str, dict[str, object]] = {
        "flashinfer": {"page": SimpleNamespace(**page), "rope": SimpleNamespace(**rope)}, "vllm": {}, "vllm._C_stable_libtorch": {},
        "vllm.v1.attention.ops.triton_reshape_and_cache_flash": {"triton_reshape_and_cache_flash": reshape},
    }  # fmt: skip
    made = {name: ModuleType(name) for name in names}
    for name, functions in names.items():
        vars(made[name]).update(functions)
    return made


CALLS = {
    "flashinfer_append": ("copied", "copied_fp8", "prompt", "latent"),
    "flashinfer_rope_append": ("neox", "interleaved", "latent_rope"),
    "flashinfer_rope_then_append": ("latent_rope",),
    "vllm_write": ("copied", "quantised", "by_head", "lengths", "prompt", "latent", "latent_fp8"),
    "vllm_triton_write": ("copied", "copied_fp8", "quantised", "lengths", "prompt"),
}


@pytest.mark.parametrize(("name", "kind"), [(name, kind) for name, kinds in CALLS.items() for kind in kinds])
def test_adapters_call_their_library_as_it_documents_its_arguments(name: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problem, adapter = make(**KINDS[kind]), BACKENDS[name]
    for module, made in stand_ins().items():
        monkeypatch.setitem(sys.modules, module, made)
    operators = SimpleNamespace(reshape_and_cache_flash=reshape, concat_and_cache_mla=concat)
    monkeypatch.setattr(torch.ops, "_C_cache_ops", operators, raising=False)

    assert adapter.unmet(problem, H200) == []
    for check in (checks.answer, checks.same_output, checks.other_queries, checks.many_calls):
        assert check(adapter, CPU, problem).verdict == "passed", check(adapter, CPU, problem).words


@pytest.mark.parametrize(
    ("name", "keys", "sentence"),
    [
        ("flashinfer_append", FP8, "new keys of the cache's dtype, in 8 or 16 bits"),
        ("flashinfer_append", {"rope": "neox"}, "keys that are rotated before (rope=none)"),
        ("flashinfer_append", {"head_dim_qk": 80, "head_dim_vo": 80}, "head_dim 64, 128, 256 or 512"),
        ("flashinfer_append", {"num_qo_heads": 256, "num_kv_heads": 256}, "up to 1024 threads for the heads of a token"),
        ("flashinfer_append", {**LATENT, "head_dim_ckv": 256}, "a latent of 512 + 64"),
        ("flashinfer_rope_append", FP8, "rope=neox or interleaved"),
        ("flashinfer_rope_append", {"rope": "neox"}, "keys in fp16 or bf16 into an FP8 cache"),
        (
            "flashinfer_rope_append",
            {**FP8, "rope": "neox", "head_dim_qk": 80, "head_dim_vo": 80},
            "a head_dim that is a multiple of 32",
        ),
        ("flashinfer_rope_then_append", {**FP8, "rope": "neox"}, "a latent, which has no values of its own"),
        ("vllm_write", {"q_dtype": "fp8_e4m3", **FP8}, "new keys in 16 or 32 bits"),
        ("vllm_write", {"kv_dtype": "fp8_e5m2"}, "a cache of the new keys' dtype, or fp8_e4m3"),
        ("vllm_triton_write", {**FP8, "scales": "head"}, "one scale for all heads (scales=tensor)"),
        ("vllm_triton_write", LATENT, "keys and values, not a latent"),
    ],
)
def test_a_rule_names_what_is_not_met(name: str, keys: dict[str, Any], sentence: str) -> None:
    assert BACKENDS[name].unmet(make(**keys), H200) == [sentence]


def test_a_sweep_goes_from_yaml_to_rows_on_a_cpu_and_a_plan_covers_all_backends(tmp_path: Path, invoke: Invoke) -> None:
    words = ("+sweep=cache_write", "cluster=inline", f"results.path={tmp_path}", "timing=quick")
    axes = ("sweep.tp=[8]", "sweep.batch_size=[2]", "sweep.s_kv=[300]", "sweep.s_qo=[4]", "sweep.backend=[torch_write]")
    more = "sweep.include=[{rope: neox, dtype: {q: bf16, kv: fp8_e4m3}}]"
    done, plan = invoke(*words, *axes, more), invoke(*words, "mode=plan", "device=h200")
    rows = pd.read_parquet(tmp_path / "rows.parquet")

    assert done.returncode == 0, done.stderr
    assert set(rows["status"]) == {"ok"}
    assert set(rows["routine_axes"]) == {"rope=none scales=tensor", "rope=neox scales=tensor"}
    assert set(rows["check_stale_covered"]) == {1.0}
    assert plan.returncode == 0, plan.stderr
    assert all(name in plan.stdout for name in BACKENDS if name != "torch_write")
