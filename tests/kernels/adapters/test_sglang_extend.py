"""SGLang's Triton kernel for drafts and prompts: the arguments of its call, and the copies of new tokens that an engine has."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

from kernels import registry
from kernels.check import oracle
from kernels.inputs import Inputs
from kernels.inputs.copied_tokens import Copied, copied_tokens
from kernels.inputs.generate import draw
from kernels.inputs.rows import rows_of
from kernels.problem import Problem
from orchestrator.machines import known_devices
from tests.helpers.engine_kernels import STAND_INS, modules
from tests.helpers.recorded_calls import recording

H200, A100, CPU = (known_devices()[name] for name in ("h200", "a100", "cpu"))
SHAPE = {
    "routine": "paged_prefill",
    "batch_size": 3,
    "s_qo": 5,
    "s_kv": 70,
    "num_qo_heads": 4,
    "num_kv_heads": 2,
    "head_dim_qk": 32,
    "head_dim_vo": 32,
    "page_size": 16,
}
TREE = {"mask": "binary", "tree": (-1, 0, 0, 1, 2)}
RAGGED = {"min_s_qo": 1, "seq_lens": "random"}
FP8 = {"kv_dtype": "fp8_e4m3"}
EXTEND = registry.get("paged_prefill", "sglang_triton")
Call = dict[str, Any]


def problem(**keys: Any) -> Problem:
    return Problem.model_validate({**SHAPE, **keys})


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, module in modules(STAND_INS).items():
        monkeypatch.setitem(sys.modules, name, module)


def call_on(inputs: Inputs) -> Call:
    with recording() as log:
        EXTEND.prepare(inputs, H200)()
    (first, given), (second, again) = log
    assert first == second == "extend_attention_fwd"
    assert all(given[name] is again[name] for name in given)
    return given


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"kv_layout": "NHD", "page_size": 1},
        {"head_dim_vo": 16},
        RAGGED,
        {"s_qo": 70},
        {"s_qo": 1},
        {"window": 20},
        {"window": 2, **RAGGED},
        {"window": 30, "s_qo": 70},
        {"sinks": True},
        {"mask": "full"},
        FP8,
        {**FP8, "window": 20, "sinks": True},
        TREE,
        {**TREE, **RAGGED},
        {**TREE, "sinks": True},
        {"return_lse": True},
        {**TREE, "return_lse": True},
        {"graph_batch": 5, "graph_fill": 1},
    ],
    ids=str,
)
def test_the_arguments_say_the_whole_problem(keys: dict[str, Any]):
    p = problem(**keys)
    inputs = draw(p, "cpu")
    runner = EXTEND.prepared(inputs, H200)
    runner.out.fill_(torch.nan)
    runner()
    lse = runner.written_lse()
    answer = oracle.answer(inputs)

    assert EXTEND.unmet(p, H200) == []
    assert oracle.judge(runner.without_padding(runner.out), oracle.reference(inputs), p, runner.arithmetic).passed
    assert (lse is not None) == p.return_lse
    assert lse is None or torch.allclose(lse, answer.lse, atol=1e-4)
    assert EXTEND.workspace_bytes(p) > 0


@pytest.mark.parametrize("keys", [{}, RAGGED, {"kv_layout": "NHD"}, FP8, {"kv_dtype": "fp8_e5m2"}, {"s_qo": 70}], ids=str)
def test_new_tokens_are_those_of_the_cache_and_the_list_names_the_context_alone(keys: dict[str, Any]):
    p = problem(**keys)
    inputs = draw(p, "cpu")
    call = call_on(inputs)
    k_buffer, _ = rows_of(p, inputs.kv[0])
    starts = call["kv_indptr"].tolist()

    assert call["k_extend"].dtype == call["v_extend"].dtype == torch.bfloat16
    assert call["kv_indptr"].dtype == torch.int32 and call["kv_indices"].dtype == call["qo_indptr"].dtype == torch.int64
    assert call["qo_indptr"].tolist() == inputs.qo_indptr.tolist() and call["max_len_extend"] == p.s_qo
    assert len(call["kv_indices"]) == starts[-1] == p.num_kv_tokens - p.num_q_tokens
    for request, (q, kv) in enumerate(zip(p.q_lens, p.kv_lens, strict=True)):
        new = inputs.tokens(request, kv - q, kv)
        for copy, stored, scale in zip((call["k_extend"], call["v_extend"]), new, (inputs.k_scale, inputs.v_scale), strict=True):
            assert torch.equal(copy[inputs.queries(request)].float(), stored.float() * scale)
        context = call["kv_indices"][starts[request] : starts[request + 1]]
        assert torch.equal(k_buffer.float()[context], inputs.tokens(request, 0, kv - q)[0].float())


def test_new_tokens_are_brought_up_to_date_outside_of_the_call():
    """What changes in the cache reaches the copies with `Runner.refresh` alone, and no more than the new tokens is copied."""
    p = problem()
    inputs = draw(p, "cpu")
    with recording() as log:
        runner = EXTEND.prepare(inputs, H200)
        copy = log[-1][1]["v_extend"]
        before = copy.clone()
        with copied_tokens(inputs, [Copied(1, 3, 69)]):
            runner()
            assert torch.equal(copy, before)
            runner.refresh()
            assert not torch.equal(copy, before)
        runner.refresh()
        with copied_tokens(inputs, [Copied(1, 3, 64)]):
            runner.refresh()

    assert torch.equal(copy, before)
    assert EXTEND.reads_copy(*runner.copies, p)


@pytest.mark.parametrize("lens", [{}, {"seq_lens": "random", "s_qo": 30, "min_s_qo": 1}], ids=str)
def test_with_a_window_the_list_names_what_the_first_query_sees(lens: dict[str, Any]):
    p = problem(window=20, **lens)
    inputs = draw(p, "cpu")
    call = call_on(inputs)
    k_buffer, _ = rows_of(p, inputs.kv[0])
    starts = call["kv_indptr"].tolist()

    assert call["sliding_window_size"] == 19  # as SGLang counts it, without the query's own
    for request, (q, kv) in enumerate(zip(p.q_lens, p.kv_lens, strict=True)):
        first = max(0, kv - q - 19)
        context = call["kv_indices"][starts[request] : starts[request + 1]]
        assert int(call["window_kv_offsets"][request]) == first
        assert torch.equal(k_buffer.float()[context], inputs.tokens(request, first, kv - q)[0].float())


def test_a_tree_is_a_mask_over_all_keys_of_a_request():
    p = problem(**TREE, **RAGGED)
    inputs = draw(p, "cpu")
    call = call_on(inputs)
    begins = call["mask_indptr"].tolist()

    assert call["custom_mask"].dtype == torch.bool and call["mask_indptr"].dtype == torch.int64
    assert len(call["custom_mask"]) == begins[-1]
    for request, (q, kv) in enumerate(zip(p.q_lens, p.kv_lens, strict=True)):
        mask = call["custom_mask"][begins[request] : begins[request + 1]].view(q, kv)
        assert mask[:, : kv - q].all()
        assert torch.equal(mask[:, kv - q :], inputs.visible[:q, :q])


@pytest.mark.parametrize(("keys", "is_causal"), [({}, True), ({"mask": "full"}, False)])
def test_without_a_tree_there_is_no_mask(keys: dict[str, Any], is_causal: bool):
    call = call_on(draw(problem(**keys), "cpu"))

    assert call["custom_mask"] is call["mask_indptr"] is call["window_kv_offsets"] is None
    assert (call["is_causal"], call["sliding_window_size"]) == (is_causal, -1)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(("keys", "dtype"), [({}, "bf16"), (FP8, "fp8_e4m3"), ({**FP8, "s_qo": 70}, "bf16")], ids=str)
def test_its_arithmetic_is_as_coarse_as_the_cache_where_there_is_a_context(keys: dict[str, Any], dtype: str):
    runner = EXTEND.prepare(draw(problem(**keys), "cpu"), H200)

    assert (runner.resolved_backend, runner.compute_dtype) == ("triton_extend", dtype)


@pytest.mark.parametrize(
    ("device", "keys", "sentence"),
    [
        (CPU, {}, "a CUDA device of SM80 or later"),
        (A100, FP8, "with an FP8 cache, SM89 or later"),
        (H200, {"head_dim_vo": 8}, "head_dims of 16 or more"),
        (H200, {**FP8, "head_dim_qk": 16}, "with an FP8 cache, a head_dim of keys of more than 16"),
        (H200, {"window": 1}, "no window of one token"),
        (H200, {"graph_batch": 5}, "no padded requests without a token (graph_fill=0)"),
        (H200, {"enable_pdl": True}, "enable_pdl left to the library (null)"),
        (H200, {"q_dtype": "fp8_e4m3", **FP8, "out_dtype": "fp8_e4m3"}, "fp16 or bf16 queries"),
    ],
)
def test_a_condition_of_its_rule_stands_alone(device: Any, keys: dict[str, Any], sentence: str):
    assert EXTEND.unmet(problem(**keys), device) == [sentence]


def test_an_older_release_has_it_elsewhere_without_a_log_sum_exp(monkeypatch: pytest.MonkeyPatch):
    def extend_attention_fwd(*, q_extend: torch.Tensor, o_extend: torch.Tensor, **keys: Any) -> None:
        assert not {"lse_extend", "page_size"} & keys.keys()
        o_extend.fill_(1.0)

    older = {"sglang.srt.layers.attention.triton_ops.extend_attention": {"extend_attention_fwd": extend_attention_fwd}}
    for name, module in modules(older).items():
        monkeypatch.setitem(sys.modules, name, module)
    runner = EXTEND.prepare(draw(problem(), "cpu"), H200)
    adapter = EXTEND.for_versions({"sglang": "0.5.12.post1", "triton": "3.6.0"})

    assert (runner.out == 1).all() and adapter.unmet(problem(), H200) == []
    assert adapter.unmet(problem(return_lse=True), H200) == [
        "sglang 0.5.23 or later for a log-sum-exp, keys of more than 128 or of another size than values"
    ]


def test_the_copies_are_counted():
    """Keys and values of 3 * 5 tokens in 2 heads of 32, what of one of them is picked, and the list of all tokens."""
    copies, list_of_tokens = 2 * 2 * 15 * 2 * 32, 8 * 3 * 70

    assert EXTEND.workspace_bytes(problem()) == copies + copies // 2 + list_of_tokens
    assert EXTEND.workspace_bytes(problem(**FP8)) == copies + 5 * copies // 4 + list_of_tokens
    assert EXTEND.workspace_bytes(problem(**TREE)) == copies + copies // 2 + list_of_tokens + 2 * 15 * 70


def test_the_answer_over_fp8_depends_on_triton_where_keys_are_multiplied_in_two_parts():
    reason = "with an FP8 cache, keys of 192 and values of up to 128, Triton 3.7 or later"
    of_deepseek = {"head_dim_qk": 192, "head_dim_vo": 128}
    older, later = (EXTEND.for_versions({"sglang": "0.5.23", "triton": of}) for of in ("3.6.0", "3.7.1"))
    right = [of_deepseek, {**FP8, **of_deepseek, "head_dim_vo": 160}, {**FP8, **of_deepseek, "head_dim_qk": 128}]

    for dtype in ("fp8_e4m3", "fp8_e5m2"):
        wrong = problem(kv_dtype=dtype, **of_deepseek)
        assert older.unmet(wrong, H200) == [reason]
        assert later.unmet(wrong, H200) == EXTEND.unmet(wrong, H200) == []
        assert EXTEND.distributions_for(wrong) == ("sglang", "triton")
    for p in (problem(**keys) for keys in right):
        assert older.unmet(p, H200) == []
        assert EXTEND.distributions_for(p) == ("sglang",)
