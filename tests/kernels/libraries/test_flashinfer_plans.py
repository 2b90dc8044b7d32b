"""What FlashInfer's plans chose: read by the names of the installed release's source, and told by each backend that has a plan."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernels import registry
from kernels.adapter import Adapter, Runner
from kernels.inputs.generate import draw
from kernels.libraries.flashinfer_plans import DECODE, MLA, SOURCE, STRUCTS, fields_of, plan_words
from kernels.problem import Problem
from orchestrator.machines import known_devices
from tests.helpers.recorded_calls import WRAPPERS, recording

H200 = known_devices()["h200"]
AT = 13  # where the chunk's length lies in the memory on the host: at no multiple of 4
STAGED = torch.frombuffer(bytearray(AT) + bytearray((512).to_bytes(4, "little")) + bytearray(8), dtype=torch.uint8)
# As `ToVector` of each struct writes them in 0.7.2.post1, in its order. Numbers that no word tells are 7.
PLANS = {
    DECODE: [264, 7, 7, 7, 7, 7, 7, AT, 1, 1],
    "fa2": [33, 7, 7, 64, 7, 7, 7, 7, 7, AT, 7, 7, 7, 1, 1],
    "fa3": [7, 7, 7, 7, 7, 7, 7, 7, 1],
    MLA: [2, 66, *[7] * 16],
}
WORDS = {
    DECODE: "split_kv=true padded_batch=264 kv_chunk=512",
    "fa2": "cta_tile_q=64 split_kv=true padded_batch=33 kv_chunk=512",
    "fa3": "same_schedule_for_all_heads=true",
    MLA: "cluster_size=2 clusters=66",
}
GQA = {"batch_size": 2, "s_qo": 4, "s_kv": 130, "num_qo_heads": 8, "num_kv_heads": 2, "head_dim_qk": 64, "head_dim_vo": 64}
LATENT = {"num_kv_heads": 8, "head_dim_qk": 192, "head_dim_vo": 128, "head_dim_ckv": 512, "head_dim_kpe": 64}


def wrapper(plan: object, staged: object = STAGED) -> Any:
    return SimpleNamespace(_plan_info=plan, _pin_memory_int_workspace_buffer=staged)


@pytest.mark.parametrize("kind", PLANS)
def test_a_plan_is_read_in_the_order_of_its_source(kind: str):
    assert plan_words(wrapper(PLANS[kind]), kind) == WORDS[kind]


def test_keys_that_are_not_split_have_no_chunks():
    assert plan_words(wrapper([*PLANS["fa2"][:-1], 0]), "fa2") == "cta_tile_q=64 split_kv=false padded_batch=33"


@pytest.mark.parametrize("staged", [None, STAGED[: AT + 3], torch.zeros(64, dtype=torch.uint8)])
def test_a_chunk_that_cannot_be_read_is_not_told(staged: torch.Tensor | None):
    assert plan_words(wrapper(PLANS["fa2"], staged), "fa2") == "cta_tile_q=64 split_kv=true padded_batch=33"


@pytest.mark.parametrize("kind", PLANS)
@pytest.mark.parametrize("plan", [None, [], "other lengths", 5, [None], torch.ones(3)])
def test_what_is_no_such_plan_says_nothing(kind: str, plan: object):
    for given in (PLANS[kind][:-1], [*PLANS[kind], 0]) if plan == "other lengths" else (plan,):
        assert plan_words(wrapper(given), kind) == ""
    assert plan_words(SimpleNamespace(), kind) == ""


def test_a_kernel_without_such_a_plan_says_nothing():
    assert [plan_words(wrapper(PLANS["fa2"]), kernel) for kernel in ("cudnn", "cutlass", "trtllm-gen", "")] == [""] * 4


@pytest.fixture
def include(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The source of another release, which a test writes."""
    monkeypatch.setattr("flashinfer.jit.env.FLASHINFER_INCLUDE_DIR", tmp_path)
    fields_of.cache_clear()
    (tmp_path / SOURCE).parent.mkdir(parents=True)
    yield tmp_path / SOURCE
    fields_of.cache_clear()


def test_a_release_with_another_order_or_other_names_is_read_by_its_own(include: Path):
    body = (
        "struct {} {{\n  int64_t split_kv;\n  std::vector<int64_t> ToVector() const {{\n    return {{split_kv, {}}};\n  }}\n}};\n"
    )
    include.write_text(body.format("PrefillPlanInfo", "cta_tile_q, new_name") + body.format("PrefillPlanSM90Info", "other_name"))

    assert plan_words(wrapper([1, 128, 9]), "fa2") == "cta_tile_q=128 split_kv=true"
    assert plan_words(wrapper([0, 1]), "fa3") == "split_kv=false"
    assert plan_words(wrapper(PLANS["fa2"]), "fa2") == ""  # a list of the newest release
    assert plan_words(wrapper(PLANS[MLA]), MLA) == ""  # a struct that it does not have


def test_a_release_that_does_not_say_where_its_source_is_tells_nothing(include: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr("flashinfer.jit.env.FLASHINFER_INCLUDE_DIR")

    assert plan_words(wrapper(PLANS["fa2"]), "fa2") == ""


def test_without_the_source_nothing_is_told(include: Path):
    assert [plan_words(wrapper(PLANS[kind]), kind) for kind in PLANS] == [""] * len(PLANS)


def runner_of(adapter: Adapter, problem: Problem, by_kernel: dict[str, list[int]]) -> Runner:
    """Prepared on stand-ins for FlashInfer's wrappers, each with the plan of the kernel that it resolves to."""
    with recording():
        for path in WRAPPERS:
            module, _, name = path.rpartition(".")
            kind = getattr(importlib.import_module(module), name)
            kind._plan_info = property(lambda self: by_kernel.get(self._backend))
            kind._pin_memory_int_workspace_buffer = STAGED
        return adapter.prepare(draw(problem, "cpu"), H200)


OF_FA2, OF_FA3 = WORDS["fa2"], WORDS["fa3"]
OF_DECODE = {"fa2": PLANS[DECODE]}
OF_MLA = dict.fromkeys(("fa2", "fa3"), PLANS[MLA])
CASES: list[tuple[str, str, dict[str, Any], dict[str, list[int]], str]] = [
    ("paged_decode", "fa2", {"s_qo": 1}, OF_DECODE, WORDS[DECODE]),
    ("paged_decode", "fa2_tc", {}, PLANS, OF_FA2),
    ("paged_decode", "auto", {}, PLANS, OF_FA2),
    ("paged_decode", "fa3", {"s_qo": 1}, PLANS, OF_FA3),
    ("paged_decode", "fa3", {"s_qo": 1, "q_dtype": "fp8_e4m3", "kv_dtype": "fp8_e4m3"}, PLANS, OF_FA3),
    ("paged_decode", "fa2_tc", {"sinks": True}, PLANS, f"variant=AttentionSink {OF_FA2}"),
    ("paged_decode", "fa2_tc", {"max_seq_len": 4096}, PLANS, f"{OF_FA2} max_seq_len=unread"),
    ("paged_decode", "cudnn", {}, PLANS, ""),
    ("paged_prefill", "fa2", {}, PLANS, OF_FA2),
    ("paged_prefill", "auto", {}, PLANS, OF_FA2),
    ("paged_prefill", "fa3", {}, PLANS, OF_FA3),
    ("paged_prefill", "fa3", {"sinks": True}, PLANS, f"variant=AttentionSink {OF_FA3}"),
    ("paged_prefill", "fa2", {"sinks": True}, {}, "variant=AttentionSink"),
    ("paged_prefill", "cudnn", {}, PLANS, ""),
    ("ragged_prefill", "fa2", {}, PLANS, OF_FA2),
    ("ragged_prefill", "fa3", {}, PLANS, OF_FA3),
    ("ragged_prefill", "fa2_chunks", {}, PLANS, f"chunk_tokens=32768 new ({OF_FA2}) first_chunk ({OF_FA2})"),
    ("ragged_prefill", "fa2_chunks", {"s_kv": 4}, PLANS, f"chunk_tokens=32768 new ({OF_FA2})"),
    ("ragged_prefill", "fa3_chunks", {}, {}, "chunk_tokens=32768"),
    ("cascade", "two_calls_fa2", {"shared_prefix": 64}, PLANS, f"prefix ({OF_FA2}) rest ({OF_FA2})"),
    ("cascade", "two_calls_fa3_fa2", {"shared_prefix": 64}, PLANS, f"prefix ({OF_FA3}) rest ({OF_FA2})"),
    ("cascade", "multi_level", {"shared_prefix": 64}, PLANS, f"prefix ({OF_FA2}) rest ({OF_FA2})"),
    ("mla", "fa2", LATENT, OF_MLA, WORDS[MLA]),
    ("mla", "auto", LATENT, OF_MLA, WORDS[MLA]),
    ("mla", "cutlass", {**LATENT, "s_qo": 1}, {"cutlass": PLANS[MLA]}, ""),
]


@pytest.mark.parametrize(("routine", "backend", "keys", "plans", "words"), CASES)
def test_a_row_says_what_the_plan_chose(routine: str, backend: str, keys: dict[str, Any], plans: dict[str, list[int]], words: str):
    adapter, problem = registry.get(routine, backend), Problem.model_validate({**GQA, "routine": routine, **keys})

    assert adapter.config_of(runner_of(adapter, problem, plans), problem) == words


@pytest.mark.parametrize(("routine", "backend"), [("paged_decode", "fa2_tc"), ("paged_prefill", "fa2"), ("ragged_prefill", "fa2")])
def test_auto_says_the_same_as_the_backend_that_it_takes(routine: str, backend: str):
    """`orchestrator/worker/contest.py` compares the words: two that differ would not be one call."""
    problem = Problem.model_validate({**GQA, "routine": routine})
    auto, own = (runner_of(registry.get(routine, name), problem, PLANS) for name in ("auto", backend))

    assert auto.kernel_config == own.kernel_config == OF_FA2


def test_both_calls_of_a_mixed_batch_say_theirs():
    adapter = registry.get("paged_decode", "fa2_tc+fa3")
    shape = {key: value for key, value in GQA.items() if key not in ("batch_size", "s_qo", "s_kv")}
    problem = Problem.model_validate({**shape, "routine": "paged_decode", "batch_spec": "3q2s130_q9s80"})

    assert adapter.config_of(runner_of(adapter, problem, PLANS), problem) == (
        f"decode_requests=3 decode_q_tokens=6 ({OF_FA2}) prefill_requests=1 prefill_q_tokens=9 ({OF_FA3})"
    )


def test_the_installed_release_has_all_structs():
    assert {struct: len(fields_of(struct)) for struct in STRUCTS.values()} == {STRUCTS[kind]: len(PLANS[kind]) for kind in PLANS}
