"""Sparse MLA: index sets, the layout with scales in its rows, calls of libraries, and wrong kernels."""

from __future__ import annotations

import math
import random
import sys
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels import mutants, registry
from kernels.adapter import Runner
from kernels.check import oracle
from kernels.check.changed_token import change_tokens
from kernels.check.judgement import judge_rows, judge_whole
from kernels.check.oracle import Verdict
from kernels.conformance import checks
from kernels.device import Device
from kernels.inputs import Inputs
from kernels.inputs.copied_tokens import copied_tokens
from kernels.inputs.generate import UNUSED_SLOT, draw, redraw
from kernels.inputs.tensors import decoy
from kernels.problem import Problem
from kernels.routines.sparse_mla.adapters import TorchIndexed
from kernels.routines.sparse_mla.inputs import SparseInputs
from kernels.routines.sparse_mla.mutants import WRONG
from kernels.routines.sparse_mla.packed import decoded, parts_and_scales, unpacked
from kernels.routines.sparse_mla.problem import query_rows, tokens_read
from orchestrator.machines import known_devices
from tests.helpers.right_kernels import RightKernel, Roundings, Schedule

CPU, H200 = known_devices()["cpu"], known_devices()["h200"]
SHAPE: dict[str, Any] = {
    "routine": "sparse_mla", "batch_size": 2, "s_qo": 3, "s_kv": 300, "num_qo_heads": 8, "num_kv_heads": 8, "head_dim_qk": 192,
    "head_dim_vo": 128, "head_dim_ckv": 512, "head_dim_kpe": 64, "page_size": 16, "top_k": 128, "return_lse": True,
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "drafts": {},
    "decode": {"s_qo": 1},
    "ascending": {"index_order": "ascending"},
    "without the newest": {"newest": "left_out"},
    "padded": {"index_padding": "some"},
    "-1 among them": {"index_padding": "within"},
    "scales in rows": {"kv_dtype": "fp8_ds_mla"},
    "FP8": {"kv_dtype": "fp8_e4m3"},
    "shorter than top_k": {"s_kv": 100},
    "a prompt": {"s_qo": 140, "s_kv": 140},
    "a chunk": {"s_qo": 70, "s_kv": 300},
    "a mixed batch": {"batch_spec": "q9s80_2q1s177_q3s150"},
    "lengths": {"seq_lens": "random", "batch_size": 3},
    "no rotation": {"head_dim_kpe": 0},
}


def problem_of(**keys: Any) -> Problem:
    kept = {key: value for key, value in SHAPE.items() if "batch_spec" not in keys or key not in ("batch_size", "s_qo", "s_kv")}
    return Problem.model_validate({**kept, **keys})


@cache
def drawn(case: str, **keys: Any) -> SparseInputs:
    inputs = draw(problem_of(**CASES[case], **keys), "cpu")
    assert isinstance(inputs, SparseInputs)
    return inputs


def verdict_of(inputs: SparseInputs, adapter: Any, device: Any = CPU) -> Verdict:
    """Prepared on other values, as a worker does."""
    with decoy(inputs):
        runner = adapter.prepared(inputs, device)
        runner()
    runner.refresh()
    runner.out.fill_(math.nan)
    runner()
    return judge_whole(runner.as_asked(runner.out), inputs, oracle.answer(inputs), runner.arithmetic, runner.written_lse())


@pytest.mark.parametrize("case", CASES)
def test_each_query_token_has_tokens_of_its_own_that_it_may_see(case: str):
    inputs = drawn(case)
    p, rows, n = inputs.problem, inputs.rows, inputs.problem.page_size
    top_k, all_read = int(p.axis("top_k") or 0), 0
    for request, (q_len, length) in enumerate(zip(p.q_lens, p.kv_lens, strict=True)):
        read: set[int] = set()
        for token in range(q_len):
            row, own = p.q_starts[request] + token, length - q_len + token
            at = rows.positions[row, : rows.kv_lens[row]].tolist()
            newest = {position for position in at if position >= length - q_len}
            slots = [int(inputs.page_table[request, position // n]) * n + position % n for position in at]
            short = p.axis("index_padding") != "none" and row % 3 == 0

            assert len(set(at)) == len(at) <= top_k and max(at) <= own
            assert len(at) == (min(top_k, own + 1 if p.axis("newest") == "listed" else length - q_len) // (2 if short else 1))
            assert (own in newest) == (p.axis("newest") == "listed") and (p.axis("newest") == "listed" or not newest)
            assert rows.page_table[row, : len(at)].tolist() == slots
            assert [slot for slot in inputs.indices[row].tolist() if slot >= 0] == slots
            assert p.axis("index_order") != "ascending" or at == sorted(at)
            read |= set(at)
        all_read += len(read)
    within = p.axis("index_padding") == "within"
    assert all_read == tokens_read(p) and p.kv_bytes == all_read * (
        656 if p.kv_dtype == "fp8_ds_mla" else inputs.kv[0][0, 0].nbytes
    )
    assert ((inputs.indices[:, :-1] < 0) & (inputs.indices[:, 1:] >= 0)).any() == within


@pytest.mark.parametrize("case", CASES)
def test_what_nobody_chose_holds_a_large_number_and_is_drawn_again_alike(case: str):
    inputs = drawn(case)
    chosen = torch.zeros(inputs.rows.problem.num_pages, dtype=torch.bool)
    chosen[inputs.rows.kv_indices.long()] = True
    before = [inputs.kv[0].clone().float(), inputs.indices.clone(), inputs.rows.page_table.clone()]
    latent = inputs.rows.kv[0].flatten(1).float()
    redraw(inputs)

    assert (latent[~chosen][:, :400] == UNUSED_SLOT).all() and not (latent[chosen][:, :400] == UNUSED_SLOT).all(1).any()
    assert not chosen[inputs.rows.unused_slots[0]].any()
    assert all(
        torch.equal(a, b) for a, b in zip(before, (inputs.kv[0].float(), inputs.indices, inputs.rows.page_table), strict=True)
    )


@pytest.mark.parametrize("case", CASES)
def test_the_backend_without_a_library_is_right_and_follows_changed_tokens(case: str):
    inputs, adapter = drawn(case), registry.get("sparse_mla", "torch_indexed")
    verdict, answer = verdict_of(inputs, adapter), oracle.answer(inputs)
    runner = adapter.prepared(inputs, CPU)
    changes = change_tokens(inputs, answer, runner.arithmetic, random.Random(1))

    assert verdict.passed, verdict.reason
    assert verdict.min_tokens is not None and verdict.min_tokens <= 2
    assert sum(one.requests for one in changes) >= min(8, inputs.problem.s_qo)
    runner.refresh()
    runner()
    before = runner.out.clone()
    for changed in changes:
        with copied_tokens(inputs, changed.copied):
            runner.refresh()
            runner()
            assert judge_rows(runner.out[changed.rows], inputs, changed.answer, runner.arithmetic).passed
            assert not judge_rows(before[changed.rows], inputs, changed.answer, runner.arithmetic).passed
    runner.refresh()


def test_the_layout_with_scales_loses_nothing_of_what_it_decodes_to():
    latent = decoded(torch.randn(40, 1, 1, 576, generator=torch.Generator().manual_seed(3)).mul(3).bfloat16())
    inputs = drawn("scales in rows")
    stored = inputs.rows.kv[0].flatten(1)[inputs.rows.kv_indices.long()]
    packed = inputs.packed
    packed.refresh()
    scales = parts_and_scales(latent)[1]

    assert torch.equal(decoded(latent), latent)
    assert torch.equal(unpacked(packed.cache.flatten(0, 2)[inputs.rows.kv_indices.long()]), stored.float())
    assert packed.cache.shape == (inputs.problem.num_pages, 16, 1, 656) and inputs.problem.kv_bytes % 656 == 0
    assert ((scales.log2() % 1) == 0).all(0).tolist() == [True, False, False, False] and len(scales[:, 0].unique()) > 1


FAULTS = [name for name, *_ in WRONG]
PLACES = ("drafts", "decode", "without the newest", "padded", "scales in rows")


@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_index_set_is_called_wrong_wherever_it_is_wrong(name: str):
    of_routine = {one.name: one for one in mutants.ADAPTERS if one.routine == "sparse_mla"}
    [wrong] = mutants.made_of(registry.get("sparse_mla", "torch_indexed"), [of_routine[name]])  # type: ignore[list-item]
    tried = [inputs for case in PLACES for seed in range(3) if not wrong.unmet((inputs := drawn(case, seed=seed)).problem, CPU)]

    assert tried
    assert [inputs.problem.routine_axes for inputs in tried if verdict_of(inputs, wrong).passed] == []


def test_all_faults_of_attention_are_made_of_this_routine_too():
    names = {one.name for one in mutants.ADAPTERS if one.routine == "sparse_mla"}

    assert {*FAULTS, "one_token_short", "maximum_from_0", "lse_left"} <= names


def _attend(q: Tensor, latent: Tensor, seen: Tensor, scale: float, width: int) -> tuple[Tensor, Tensor]:
    """q [T, H, D], latent [T, k, D], seen [T, k]."""
    scores = torch.einsum("thd,tkd->thk", q.float() * scale, latent.float()).masked_fill(~seen[:, None], -torch.inf)
    total = scores.logsumexp(-1)
    return ((scores - total[..., None]).exp() @ latent[..., :width].float().nan_to_num()).to(q.dtype), total


class FlashMlaStandIn:
    """What FlashMLA's interface does with its arguments, and refuses."""

    @staticmethod
    def get_mla_metadata() -> tuple[object, None]:
        return object(), None

    @staticmethod
    def flash_mla_sparse_fwd(q: Tensor, kv: Tensor, indices: Tensor, sm_scale: float, d_v: int, topk_length: Tensor | None) -> Any:
        assert q.shape[1] in (64, 128) and indices.shape[1:] == (1, 128) and kv.shape[1] == 1
        column = torch.arange(128)
        seen = (indices[:, 0] >= 0) & (column < (128 if topk_length is None else topk_length[:, None]))
        out, lse = _attend(q, kv[indices[:, 0].clamp(min=0).long(), 0], seen, sm_scale, d_v)
        return out, None, lse

    @staticmethod
    def flash_mla_with_kvcache(
        q: Tensor, k_cache: Tensor, indices: Tensor, head_dim_v: int, softmax_scale: float, **given: Any
    ) -> Any:
        assert q.shape[2] in (64, 128) and k_cache.shape[2:] == (1, 656) and k_cache.dtype == torch.uint8
        assert given["is_fp8_kvcache"] and given["tile_scheduler_metadata"] is not None
        at = indices.flatten(0, 1)
        out, lse = _attend(
            q.flatten(0, 1), unpacked(k_cache.flatten(0, 2)[at.clamp(min=0).long()]), at >= 0, softmax_scale, head_dim_v
        )
        return out.view(*q.shape[:3], -1), lse.view(*q.shape[:3]).transpose(1, 2)


@pytest.mark.parametrize("case", [case for case, keys in CASES.items() if keys.get("kv_dtype") != "fp8_e4m3"])
@pytest.mark.parametrize("heads", [8, 64])
def test_flash_mla_gets_padded_heads_and_each_token_its_indices(monkeypatch: pytest.MonkeyPatch, case: str, heads: int):
    monkeypatch.setitem(sys.modules, "flash_mla", FlashMlaStandIn)
    inputs, adapter = drawn(case, num_qo_heads=heads, num_kv_heads=heads), registry.get("sparse_mla", "flash_mla")

    assert adapter.unmet(inputs.problem, H200) == []
    assert (verdict := verdict_of(inputs, adapter, H200)).passed, verdict.reason


@pytest.mark.parametrize("case", [case for case, keys in CASES.items() if "kv_dtype" not in keys])
def test_flash_attention_gets_each_query_token_as_a_request_over_pages_of_one_token(monkeypatch: pytest.MonkeyPatch, case: str):
    def call(
        q: Tensor, k: Tensor, v: Tensor, q_v: Tensor, seqused_k: Tensor, block_table: Tensor, out: Tensor, **given: Any
    ) -> Any:
        assert given["max_seqlen_q"] == 1 and given["max_seqlen_k"] == 128 and q.shape[-1] == 64
        seen = torch.arange(128) < seqused_k[:, None]
        at = torch.where(seen, block_table, 0).long()
        both = torch.cat((v[at][:, :, 0, 0], k[at][:, :, 0, 0]), -1)
        found, lse = _attend(torch.cat((q_v, q), -1), both, seen, given["softmax_scale"], v.shape[-1])
        out.copy_(found)
        return out, lse.T

    library = SimpleNamespace(flash_attn_varlen_func=call, get_scheduler_metadata=lambda **_: torch.zeros(1))
    monkeypatch.setitem(sys.modules, "vllm.vllm_flash_attn", library)
    inputs, adapter = drawn(case), registry.get("sparse_mla", "flash_attn_3")

    assert adapter.unmet(inputs.problem, H200) == []
    assert (verdict := verdict_of(inputs, adapter, H200)).passed, verdict.reason


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"newest": "left_out", "s_qo": 300}, "type newest=listed"),
        ({"kv_dtype": "fp8_ds_mla", "head_dim_kpe": 0}, "a latent of 512 + 64"),
        ({"kv_dtype": "nvfp4"}, "allowed: fp16 or bf16 queries over"),
        ({"top_k": 0}, "top_k=0: allowed: a whole number from 1"),
        ({"index_order": "any"}, "shuffled, ascending"),
        ({"mask": "full"}, "routine=sparse_mla has no mask"),
        ({"routine": "mla", "kv_dtype": "fp8_ds_mla", "top_k": None}, "allowed for the cache of routine=sparse_mla"),
    ],
)
def test_a_wrong_key_is_refused_in_words(keys: dict[str, Any], words: str):
    with pytest.raises(ValueError, match=words.replace("+", r"\+")):
        Problem.model_validate({key: value for key, value in {**SHAPE, **keys}.items() if value is not None})


def test_the_same_batch_by_query_tokens_is_dense_attention_over_pages_of_one():
    problem = problem_of(s_qo=3, index_padding="some")
    rows = query_rows(problem)

    assert (rows.routine, rows.batch_size, rows.s_qo, rows.page_size) == ("mla", 6, 1, 1)
    assert rows.kv_lens == (64, 128, 128, 64, 128, 128) and rows.judged is rows is problem.judged
    assert rows.apart == ((2, 5), (1, 4), (0, 3)) and rows.attention_flops == problem.flops


@pytest.mark.parametrize(
    "keys", [{"s_kv": 77}, {"s_kv": 400}, {"s_kv": 400, "index_padding": "within"}, {"head_dim_kpe": 0}], ids=str
)
def test_kernels_that_only_round_are_right(keys: dict[str, Any]):
    how, coin = Roundings("bf16", "bf16", "bf16"), random.Random(7)
    for seed in range(4):
        inputs = draw(problem_of(**keys, return_lse=False, seed=seed), "cpu")
        assert isinstance(inputs, SparseInputs)
        rows = inputs.rows
        kernel = RightKernel(how, Schedule.draw(rows.problem, how, coin))
        verdict = judge_whole(kernel(rows)[0], rows, oracle.answer(rows), kernel.arithmetic(rows.problem))

        assert verdict.passed, verdict.reason
        assert verdict.weight_over_limit is not None and verdict.weight_over_limit < 0.8


@pytest.mark.parametrize("seed", [7, 41, 56])
def test_a_kernel_that_normalises_probabilities_before_it_rounds_them_is_right(seed: int):
    """Each row's error then lies along its own output, which once counted as a key that is read 1.2 times."""
    keys = {"batch_size": 4, "s_qo": 1, "s_kv": 100, "page_size": 64, "top_k": 256, "return_lse": False}
    inputs = draw(problem_of(**keys, seed=seed), "cpu")
    kernel = RightKernel(Roundings("bf16", "bf16", "bf16"), Schedule(64, 1, False, False, False, "fp32", 1.0, normalised=True))
    verdict = judge_whole(kernel(inputs)[0], inputs, oracle.answer(inputs), kernel.arithmetic(inputs.problem))

    assert verdict.passed, verdict.reason
    assert verdict.weight_over_limit is not None and verdict.weight_over_limit < 0.7


class Rounded(TorchIndexed):
    """In 16 bits, as tensor cores compute it."""

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        kernel = RightKernel(Roundings("bf16", "bf16", "bf16"), Schedule(64, 1, False, False, False, "fp32", 1.0))
        out = inputs.empty_output()

        def launch() -> None:
            out.copy_(kernel(inputs)[0])

        return Runner(launch, out, "rounded", "bf16")


def test_a_kernel_that_only_rounds_passes_conformance_while_its_inputs_change():
    """Signs of keys turn the planted logits around, where no limit of 16 bits holds."""
    problem = problem_of(s_qo=7, s_kv=77, return_lse=False)
    assert checks.other_queries(Rounded(), CPU, problem).verdict == "passed"
