"""`graph_batch` and `graph_fill`: the problem, the tensors, which backends serve them and what they are told."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import ValidationError

from kernels import registry
from kernels.adapter import Adapter
from kernels.adapters.flex_attention import FlexAttention
from kernels.check import oracle
from kernels.conformance import checks
from kernels.inputs import Inputs
from kernels.inputs.checksums import checksums
from kernels.inputs.generate import PADDED_QUERY, TABLE_GUARD, UNUSED_ENTRY, draw, draw_other_values, poison_unused_slots, redraw
from kernels.inputs.step_lengths import steps_before
from kernels.inputs.tensors import token_major
from kernels.mutants.catalogue import Mutant
from kernels.problem import Problem
from kernels.problem.padded import NULL_PAGE, PaddedBatch, has_empty, launched
from kernels.step import size as step_size
from orchestrator.machines import known_devices
from orchestrator.point import Point
from tests.helpers.recorded_calls import recording

HEADS = {"num_qo_heads": 4, "num_kv_heads": 2, "head_dim_qk": 32, "head_dim_vo": 32, "page_size": 16}
SMALL = {**HEADS, "batch_size": 3, "s_qo": 2, "s_kv": 77, "graph_batch": 5}
LATENT = {"routine": "mla", "num_kv_heads": 4, "head_dim_ckv": 32, "head_dim_kpe": 16}
H200, CPU = known_devices()["h200"], known_devices()["cpu"]


def make(**keys: Any) -> Problem:
    return Problem.model_validate({**SMALL, **keys})


def padded(inputs: Inputs) -> Inputs:
    assert inputs.padded is not None
    return inputs.padded


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"graph_batch": 2}, "graph_batch=2 is less than batch_size=3; allowed: batch_size or more"),
        ({"batch_spec": "4q2s77_3q2s50", "graph_batch": 6}, "graph_batch=6 is less than batch_size=7"),
        ({"graph_batch": 0}, "graph_batch"),
        ({"graph_batch": True}, "graph_batch"),
        ({"graph_fill": 2}, "graph_fill"),
        ({"min_s_qo": 1}, "allowed if all requests have the same number of query tokens"),
        ({"routine": "ragged_prefill"}, "allowed with routine paged_decode or paged_prefill or mla, not ragged_prefill"),
        ({"routine": "cascade", "shared_prefix": 16}, "not cascade"),
    ],
)
def test_what_is_no_padded_batch_is_refused_in_words(keys: dict[str, Any], words: str):
    listed = {name: None for name in SMALL} if "batch_spec" in keys else {}
    given = {k: v for k, v in {**SMALL, **keys}.items() if not (listed and k in ("batch_size", "s_qo", "s_kv"))}

    with pytest.raises(ValidationError, match="graph_") as refused:
        Problem.model_validate(given)

    assert words in str(refused.value)


def test_a_graph_of_the_batch_itself_is_the_same_problem_and_the_same_point_as_none():
    plain = make(graph_batch=None)

    assert make(graph_batch=3, graph_fill=1) == make(graph_fill=1, graph_batch=None) == plain
    assert not {"graph_batch", "graph_fill"} & plain.model_dump(exclude_defaults=True).keys()
    points = [Point(p, "fa2", "how").point_id for p in (plain, make(), make(graph_fill=1), make(graph_batch=6))]
    assert len(set(points)) == 4
    assert launched(plain) is plain


@pytest.mark.parametrize(("fill", "s_qo", "length"), [(0, 1, 0), (0, 2, 0), (1, 1, 1), (1, 2, 3)])
def test_a_padded_request_has_the_length_that_its_engine_fills_in(fill: int, s_qo: int, length: int):
    p = make(graph_fill=fill, s_qo=s_qo, seq_lens="random")
    batch = launched(p)

    assert isinstance(batch, PaddedBatch)
    assert batch.kv_lens == (*p.kv_lens, length, length)
    assert batch.q_lens == (s_qo,) * 5
    assert (batch.num_q_tokens, batch.num_pages, batch.table_width) == (5 * s_qo, p.num_pages + 1, p.table_width)
    assert has_empty(batch) == (fill == 0)


def test_bytes_and_flops_are_those_of_the_real_requests_and_memory_is_that_of_all():
    plain, full = make(graph_batch=None), make()

    assert (full.bytes, full.flops, full.num_q_tokens) == (plain.bytes, plain.flops, plain.num_q_tokens)
    page, rows = 2 * 2 * 16 * 2 * 32, 2 * 2 * (2 * 2 * 4 * 32)
    assert launched(full).input_bytes - plain.input_bytes == page + rows


@pytest.mark.parametrize(
    "keys", [{}, {"kv_layout": "NHD"}, {"kv_dtype": "fp8_e4m3"}, LATENT, {"kv_dtype": "nvfp4"}, {"page_size": 1}]
)
@pytest.mark.parametrize("fill", [0, 1])
def test_padded_requests_lie_behind_the_batch_and_name_the_null_page_alone(keys: dict[str, Any], fill: int):
    x = draw(make(graph_fill=fill, seq_lens="random", **keys), "cpu")
    whole, rows, length = padded(x), 2 * 3, 3 * fill

    for name in ("q", "page_table", "q_lens", "qo_indptr", "kv_lens", "kv_indptr", "kv_indices", "last_page_len"):
        assert getattr(x, name).data_ptr() == getattr(whole, name).data_ptr()
    assert (whole.q[rows:].float() == PADDED_QUERY).all()
    assert (whole.page_table[3:] == NULL_PAGE).all()
    assert whole.kv_lens[3:].tolist() == [length] * 2
    assert whole.q_lens[3:].tolist() == [2 * fill] * 2
    assert (whole.qo_indptr[3:] - whole.qo_indptr[3]).tolist() == [0, 2 * fill, 4 * fill]
    pages = -(-length // x.problem.page_size)
    assert (whole.kv_indptr[3:] - whole.kv_indptr[3]).tolist() == [0, pages, 2 * pages]
    assert whole.last_page_len[3:].tolist() == [length - max(0, pages - 1) * x.problem.page_size] * 2
    assert (whole.kv_indices[x.problem.num_listed_pages :] == NULL_PAGE).all()
    assert len(whole.kv_indices) == int(whole.kv_indptr[-1])
    own = x.kv_indices
    assert sorted(own.tolist()) == list(range(1, x.problem.num_pages + 1))  # every page but the null page, once
    assert len(x.kv[0]) == x.problem.num_pages + 1
    assert whole.empty_output().shape[0] == 5 * 2


def test_what_stands_around_the_page_table_is_far_outside_the_cache():
    table = padded(draw(make(), "cpu")).page_table
    around = [table.as_strided((TABLE_GUARD,), (1,), at) for at in (0, TABLE_GUARD + table.numel())]

    assert all((one == UNUSED_ENTRY).all() for one in around)
    assert table.storage_offset() * 4 % 256 == 0  # kernels load several entries at once


@pytest.mark.parametrize("keys", [{}, {"kv_dtype": "fp8_e4m3"}, LATENT])
def test_the_null_page_is_poisoned_as_unused_slots_are_and_no_other_slot_with_a_token_is(keys: dict[str, Any]):
    x = draw(make(**keys), "cpu")
    before = oracle.reference(x)
    poison_unused_slots(x, float("nan"))

    for cache in x.kv:
        assert token_major(x.problem, cache)[NULL_PAGE].float().isnan().all()
    assert torch.equal(oracle.reference(x), before)


def test_all_of_it_is_covered_by_the_checksums_and_drawn_again():
    x = draw(make(graph_fill=1), "cpu")
    whole = padded(x)
    right, tensors = checksums(x), (whole.q, whole.page_table, whole.q_lens, whole.kv_lens, whole.kv_indptr, whole.kv_indices)
    for tensor in tensors:
        tensor[-1] = 1 if tensor.dim() == 1 and int(tensor[-1]) != 1 else 2
        assert not torch.equal(checksums(x), right)
        redraw(x)
        assert torch.equal(checksums(x), right)
    draw_other_values(x, 1)
    assert not torch.equal(checksums(x), right)


KINDS = [
    ("paged_decode", {"seq_lens": "random"}),
    ("paged_decode", {"mask": "fork", "s_qo": 4, "tree": (-1, 0, 0, 2), "graph_fill": 1}),
    ("paged_prefill", {"window": 20, "graph_fill": 1}),
    ("paged_prefill", {}),
]


@pytest.mark.parametrize(("routine", "keys"), KINDS)
def test_flex_attention_is_right_among_padded_requests(routine: str, keys: dict[str, Any]):
    flex = registry.get(routine, "flex_attention")
    p = make(routine=routine, **keys)

    assert flex.unmet(p, CPU) == []
    assert checks.answer(flex, CPU, p).verdict == "passed"


class ReadsNextRow(FlexAttention):
    """Every request attends with the lengths and pages of the one behind it, the last with those of the null page."""

    def prepare(self, inputs: Inputs, device: Any) -> Any:
        from dataclasses import replace

        later = {name: getattr(inputs, name).roll(-1, 0) for name in ("page_table", "kv_lens", "q_lens")}
        return super().prepare(replace(inputs, **later), device)


def test_a_kernel_that_takes_a_padded_request_for_a_real_one_is_wrong():
    assert checks.answer(ReadsNextRow(routine="paged_decode"), CPU, make(graph_fill=1)).verdict == "failed"


# Which backends are said to serve requests without a token, and why: a new backend must be put somewhere.
BY_VLLM = {
    *(
        (routine, name)
        for routine in ("paged_decode", "paged_prefill")
        for name in ("flex_attention", "vllm_triton", "flash_attn_4", "flash_attn_2_vllm")
    ),
    *(
        (routine, f"flash_attn_3{kind}")
        for routine in ("paged_decode", "paged_prefill", "mla")
        for kind in (("", "_unplanned") if routine == "mla" else ("", "_unplanned", "_32_splits", "_vllm", "_vllm_32_splits"))
    ),
    ("paged_decode", "trtllm-native"),
    ("mla", "flash_mla"),
    ("mla", "flash_mla_vllm"),
    ("mla", "tokenspeed_mla"),
    ("mla", "triton_mla"),
}
ON_H100 = {(routine, "flash_attn_3_sglang") for routine in ("paged_decode", "paged_prefill", "mla")}  # forced, it was right
BY_SOURCE = {("paged_decode", name) for name in ("fa2", "fa2_tc", "fa3", "auto")}


def of_padded_routines() -> dict[tuple[str, str], Adapter]:
    return {key: one for key, one in registry.adapters().items() if key[0] in ("paged_decode", "paged_prefill", "mla")}


def test_every_backend_says_whether_it_serves_requests_without_a_token():
    here = {(routine, "torch_chunks") for routine in ("paged_decode", "paged_prefill", "mla")}  # conformance runs them on a CPU
    assert {key for key, adapter in of_padded_routines().items() if adapter.takes_empty} == BY_VLLM | BY_SOURCE | ON_H100 | here


def test_the_reason_names_what_is_not_known_and_what_can_be_typed():
    cudnn, sdpa = registry.get("paged_decode", "cudnn"), registry.get("paged_decode", "torch_sdpa")
    llama = {"num_qo_heads": 16, "head_dim_qk": 128, "head_dim_vo": 128, "page_size": 64}

    assert cudnn.unmet(make(**llama, s_qo=1), H200) == ["no padded requests without a token (graph_fill=0)"]
    assert cudnn.unmet(make(**llama, graph_fill=1), H200) == []
    assert "the same KV length for every request" in sdpa.unmet(
        make(graph_fill=1), CPU
    )  # as if the lengths differed, since they do


def test_a_backend_hears_of_padded_requests_by_their_lengths():
    assert registry.get("paged_decode", "torch_sdpa").not_passed(make(), CPU) == ("padded requests",)
    assert registry.get("paged_decode", "flex_attention").not_passed(make(), CPU) == ()


@pytest.mark.parametrize(("keys", "promised"), [({"graph_batch": None}, 2), ({"graph_fill": 1}, 2), ({"graph_fill": 0}, None)])
def test_no_plan_promises_query_tokens_that_the_offsets_do_not_have(keys: dict[str, Any], promised: int | None):
    """FlashInfer refuses `uniform_q_len` for offsets that repeat."""
    x = draw(make(routine="paged_prefill", **keys), "cpu")
    with recording() as log:
        registry.get("paged_prefill", "fa2").prepared(x, H200)
    (plan,) = (arguments for name, arguments in log if name.endswith(".plan"))

    assert plan["uniform_q_len"] == promised


class Loaded(Exception):
    """A plan came as far as its kernel's module, behind all that it refuses."""


@pytest.fixture
def plans_without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """FlashInfer's own plans on a CPU: without pinned memory, and up to the module."""
    import flashinfer.decode
    import flashinfer.prefill

    def load(*_args: object, **_keys: object) -> None:
        raise Loaded

    empty = torch.empty

    def unpinned(*size: Any, **keys: Any) -> torch.Tensor:
        return empty(*size, **{**keys, "pin_memory": False})

    monkeypatch.setattr(torch, "empty", unpinned)
    for module in (flashinfer.decode, flashinfer.prefill):
        for name in ("get_batch_prefill_module", "get_batch_decode_module", "gen_customize_batch_prefill_module"):
            monkeypatch.setattr(module, name, load, raising=False)


REFUSAL = "q_len_per_req=4 requires kv_len >= q_len_per_req for every request"
NEEDS_TOKENS = "for drafts, a token of every request (graph_fill=1, no s0 in batch_spec)"


@pytest.mark.usefixtures("plans_without_gpu")
@pytest.mark.parametrize("backend", ["fa2_tc", "auto", "cudnn", "trtllm-gen", "cute-dsl"])
def test_the_decode_wrapper_refuses_drafts_of_a_request_without_a_token(backend: str):
    """The library's own plan on the CPU; an H200 said the same of `fa2_tc` (+sweep=padded_graphs)."""
    adapter = registry.get("paged_decode", backend)

    with pytest.raises(ValueError, match=REFUSAL):
        adapter.prepared(draw(make(s_qo=4, head_dim_qk=64, head_dim_vo=64), "cpu"), H200)
    assert NEEDS_TOKENS in adapter.unmet(make(s_qo=4), H200)
    assert NEEDS_TOKENS not in adapter.unmet(make(s_qo=4, graph_fill=1), H200) + adapter.unmet(make(s_qo=1), H200)


@pytest.mark.usefixtures("plans_without_gpu")
@pytest.mark.parametrize(
    ("backend", "keys"),
    [
        *((backend, {"s_qo": 1}) for backend in ("fa2", "fa2_tc", "fa3", "auto")),
        *((backend, {"s_qo": 4, "graph_fill": 1}) for backend in ("fa2_tc", "auto")),
        *((backend, {"s_qo": 4, "sinks": True, "graph_fill": 1}) for backend in ("fa2_tc", "fa3")),  # the wrapper of prefill
    ],
)
def test_what_the_rule_allows_among_padded_requests_is_planned(backend: str, keys: dict[str, Any]):
    adapter, p = registry.get("paged_decode", backend), make(head_dim_qk=64, head_dim_vo=64, **keys)

    assert adapter.unmet(p, H200) == []
    with pytest.raises(Loaded):
        adapter.prepared(draw(p, "cpu"), H200)


@pytest.mark.parametrize(
    ("routine", "backend", "keys", "sentence"),
    [
        ("paged_decode", "fa2_tc", {"sinks": True}, "with attention sinks, padded requests with tokens (graph_fill=1)"),
        ("paged_prefill", "fa2", {"s_qo": 4}, "no padded requests without a token (graph_fill=0)"),
    ],
)
def test_the_prefill_wrapper_needs_padded_requests_with_tokens(routine: str, backend: str, keys: dict[str, Any], sentence: str):
    """Its call compares the rows of the queries with the plan: an H200 said so of `fa2`, FlashInfer 0.7.2.post1."""
    adapter = registry.get(routine, backend)
    size = {"routine": routine, "head_dim_qk": 64, "head_dim_vo": 64, **keys}

    assert adapter.unmet(make(**size), H200) == [sentence]
    assert adapter.unmet(make(**size, graph_fill=1), H200) == []


def test_over_a_tree_flash_attention_3_needs_padded_requests_with_tokens():
    adapter = registry.get("paged_decode", "flash_attn_3")
    tree = {"mask": "fork", "s_qo": 4, "tree": (-1, 0, 0, 2), "head_dim_qk": 64, "head_dim_vo": 64}

    assert adapter.unmet(make(**tree), H200) == ["for a tree, padded requests with tokens (graph_fill=1)"]
    assert adapter.unmet(make(**tree, graph_fill=1), H200) == []


def test_a_mutant_on_a_padded_graph_is_wrong_in_a_real_request():
    flex = registry.get("paged_decode", "flex_attention")
    mutant = Mutant(
        routine="paged_decode", name="m", about="", wrong=lambda case: 2 * case.answer(), applies=lambda _: {}, wraps=flex
    )

    assert mutant.unmet(make(), CPU) == []
    assert checks.answer(mutant, CPU, make()).verdict == "failed"


@pytest.mark.parametrize("fill", [0, 1])
def test_a_plan_of_an_earlier_step_keeps_the_padding_as_it_is(fill: int):
    x = draw(make(graph_fill=fill), "cpu")
    now, before = steps_before(padded(x), 0), steps_before(padded(x), 2)
    right = checksums(x)

    assert (now.kv_lens, before.kv_lens) == ((77, 77, 77, 3 * fill, 3 * fill), (73, 73, 73, 3 * fill, 3 * fill))
    before.write_into(padded(x))
    assert not torch.equal(checksums(x), right)
    now.write_into(padded(x))
    assert torch.equal(checksums(x), right)


def test_a_step_has_no_padded_requests():
    assert step_size.unmet(make()) == ["no padded requests (graph_batch=null)"]
    assert step_size.unmet(make(graph_batch=None)) == []
