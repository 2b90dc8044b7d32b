"""FlexAttention over pages as they lie: right against plain attention over gathered tokens, and its rule says what it lacks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels import registry
from kernels.adapters import flex_attention
from kernels.inputs import Inputs
from kernels.inputs.generate import draw
from kernels.inputs.rows import rows_of
from kernels.problem import Problem
from orchestrator.machines import known_devices

SHAPE = {"num_qo_heads": 4, "num_kv_heads": 2, "head_dim_qk": 32, "head_dim_vo": 32, "batch_size": 3, "s_kv": 70, "s_qo": 4}
EXACT = {"q_dtype": "fp32", "kv_dtype": "fp32"}
CASES = {
    "causal drafts": {},
    "one query token": {"s_qo": 1},
    "drafts that see all": {"mask": "full"},
    "KV lengths that differ": {"seq_lens": "random"},
    "query lengths that differ": {"min_s_qo": 1, "seq_lens": "random"},
    "a window": {"window": 9, "seq_lens": "random"},
    "two tiles of queries": {"s_qo": 150, "s_kv": 300, "seq_lens": "random"},
    "two tiles and a window": {"s_qo": 150, "s_kv": 300, "window": 20},
}


def make(routine: str = "paged_decode", **keys: object) -> Problem:
    return Problem.model_validate({**SHAPE, **EXACT, "routine": routine, **keys})


def answer(problem: Problem, inputs: Inputs) -> Tensor:
    """What the backend writes, [T, H, D]."""
    runner = registry.get(problem.routine, "flex_attention").prepare(inputs, known_devices()["cpu"])
    runner.out.fill_(float("nan"))
    runner()
    return runner.out


def expected(problem: Problem, inputs: Inputs) -> Tensor:
    """Plain attention, a request at a time, over tokens gathered from the pages, [T, H, D]."""
    return torch.cat([attended(problem, inputs, request) for request in range(problem.batch_size)])


def attended(p: Problem, inputs: Inputs, request: int) -> Tensor:
    """One request's answer, [its query tokens, H, D]."""
    queries, length = p.q_lens[request], p.kv_lens[request]
    k, v = (t.repeat_interleave(p.num_qo_heads // p.num_kv_heads, 1) for t in inputs.tokens(request, 0, length))
    logits = torch.einsum("qhd,khd->hqk", inputs.q[inputs.queries(request)], k) * inputs.sm_scale
    seen = sees(p, queries, length)
    return torch.einsum("hqk,khd->qhd", logits.masked_fill(~seen, float("-inf")).softmax(-1), v)


def sees(p: Problem, queries: int, length: int) -> Tensor:
    """The mask of one request, bool [queries, length], written out key by key."""
    return torch.tensor([[sees_key(p, j, key, length - queries) for key in range(length)] for j in range(queries)])


def sees_key(p: Problem, j: int, key: int, context: int) -> bool:
    if p.tree is not None:
        return key < context or key - context in ancestors(p.tree, j)
    in_window = p.window is None or key > context + j - p.window
    return in_window and (p.mask == "full" or key <= context + j)


def ancestors(parents: tuple[int, ...], j: int) -> set[int]:
    """Query token `j` and those above it in the draft tree; a root's parent is negative."""
    return {j} | (ancestors(parents, parents[j]) if parents[j] >= 0 else set())


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("keys", CASES.values(), ids=CASES)
def test_pages_in_either_layout(keys: dict[str, object], layout: str):
    problem = make("paged_prefill", kv_layout=layout, page_size=16, **keys)
    inputs = draw(problem, "cpu")

    torch.testing.assert_close(answer(problem, inputs), expected(problem, inputs), rtol=1e-5, atol=2e-5)  # logits of 128 in fp32


@pytest.mark.parametrize("routine", ["paged_decode", "paged_prefill", "ragged_prefill"])
def test_a_draft_tree(routine: str):
    problem = make(routine, mask="tree", tree=(-1, 0, 0, 1, 1, 2), s_qo=6, seq_lens="random")
    inputs = draw(problem, "cpu")

    # The exponential of a logit near 100 in fp32 is known to 1e-5.
    torch.testing.assert_close(answer(problem, inputs), expected(problem, inputs), rtol=1e-5, atol=3e-5)


@pytest.mark.parametrize("keys", CASES.values(), ids=CASES)
def test_consecutive_tokens(keys: dict[str, object]):
    problem = make("ragged_prefill", **keys)
    inputs = draw(problem, "cpu")

    torch.testing.assert_close(answer(problem, inputs), expected(problem, inputs))


def test_a_cache_is_read_where_it_lies():
    for layout in ("NHD", "HND"):
        problem = make(kv_layout=layout)
        inputs = draw(problem, "cpu")
        for cache in inputs.kv:
            rows, _ = rows_of(problem, cache)
            assert rows.data_ptr() == cache.data_ptr()


def test_more_shapes_than_torch_compiles_by_default(monkeypatch: pytest.MonkeyPatch):
    """On a CPU nothing is compiled otherwise. Here it is, so that torch's limit counts as on a GPU."""
    monkeypatch.setattr(flex_attention, "_uncompiled", lambda: flex_attention._compiled("eager"))
    for s_kv in range(20, 32):
        problem = make(s_kv=s_kv)
        inputs = draw(problem, "cpu")
        torch.testing.assert_close(answer(problem, inputs), expected(problem, inputs))


@pytest.mark.parametrize(
    ("device", "routine", "keys", "sentence"),
    [
        ("h200", "paged_decode", {"kv_dtype": "fp8_e4m3"}, "keys, values and output of the query's dtype"),
        ("h200", "paged_decode", {"sinks": True}, "no attention sinks"),
        ("h200", "paged_decode", {"page_size": 8}, "on CUDA a page_size that is a multiple of 16"),
        ("h200", "paged_decode", {"q_dtype": "fp32", "kv_dtype": "fp32"}, "fp16 or bf16 queries, or fp32 ones on a CPU"),
        ("h200", "ragged_prefill", {"s_qo": 4096, "s_kv": 2**20, "batch_size": 32}, "on CUDA a cache of up to 2^31 elements"),
        ("h200", "paged_decode", {"s_kv": 2**20, "batch_size": 32}, "on CUDA a cache of up to 2^31 elements"),
        ("cpu", "paged_decode", {"s_kv": 2**20}, "on a CPU a small problem, since nothing is fused there"),
    ],
)
def test_what_it_does_not_serve_is_a_sentence(device: str, routine: str, keys: dict[str, object], sentence: str):
    problem = make(routine, **{"q_dtype": "bf16", "kv_dtype": "bf16", **keys})

    assert registry.get(routine, "flex_attention").unmet(problem, known_devices()[device]) == [sentence]


@pytest.mark.parametrize("routine", ["paged_decode", "paged_prefill", "ragged_prefill"])
def test_a_gpu_serves_long_contexts(routine: str):
    keys = {"q_dtype": "bf16", "kv_dtype": "bf16", "s_kv": 131072, "min_s_qo": 1, "window": 4096}

    assert registry.get(routine, "flex_attention").unmet(make(routine, **keys), known_devices()["h200"]) == []


@pytest.mark.parametrize(
    ("keys", "words"),
    [({"page_size": 16}, "BLOCK_N=16"), ({"page_size": 48}, "BLOCK_N=16"), ({"page_size": 128}, "BLOCK_N=64")],
)
def test_a_row_says_how_many_keys_a_block_has_where_pages_decide_it(keys: dict[str, object], words: str):
    assert flex_attention.options_words(flex_attention.options_of(make(**keys))) == words
    assert flex_attention.options_words(flex_attention.options_of(make("ragged_prefill"))) == ""
    assert (
        registry.get("paged_decode", "flex_attention").prepare(draw(make(**keys), "cpu"), known_devices()["cpu"]).kernel_config
        == ""
    )
