"""`max_seq_len` and `enable_pdl`: what they do to a problem and its inputs, and which calls get them."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from kernels import registry
from kernels.adapter import Adapter
from kernels.check import oracle
from kernels.inputs.generate import UNUSED_ENTRY, draw
from kernels.problem import ROUTINES, Problem
from orchestrator.config.settings import Settings
from orchestrator.machines import known_devices
from orchestrator.planning.decide import make_plan
from orchestrator.planning.expand import expand
from orchestrator.point import Point

HEADS = {"num_qo_heads": 16, "num_kv_heads": 2, "head_dim_qk": 64, "head_dim_vo": 64}
SMALL = {**HEADS, "batch_size": 3, "s_qo": 4, "s_kv": 300}
H200, B200, A100, CPU = (known_devices()[name] for name in ("h200", "b200", "a100", "cpu"))


def make(**keys: object) -> Problem:
    return Problem.model_validate({**SMALL, **keys})


def unmet(backend: str, problem: Problem, device: str = "h200") -> list[str]:
    return registry.get(problem.routine, backend).unmet(problem, known_devices()[device])


@pytest.mark.parametrize("value", [0, -1, 299, True, "4096"])
def test_a_maximum_below_the_longest_request_is_refused(value: object):
    with pytest.raises(ValidationError, match="max_seq_len"):
        make(max_seq_len=value)


def test_the_point_of_a_problem_without_them_is_what_it_was():
    plain, wide, pdl = make(), make(max_seq_len=300), make(enable_pdl=False)

    assert len({Point(p, "fa2", "how").point_id for p in (plain, wide, pdl)}) == 3
    assert Point(plain, "fa2", "how").point_id == Point(make(max_seq_len=None, enable_pdl=None), "fa2", "how").point_id
    assert "max_seq_len" not in plain.model_dump(exclude_defaults=True)


def test_without_pages_there_is_no_table_to_be_wide():
    assert make(routine="ragged_prefill", max_seq_len=4096) == make(routine="ragged_prefill")


@pytest.mark.parametrize("lens", ["fixed", "random"])
def test_a_wider_table_names_the_same_pages_and_no_others(lens: str):
    narrow, wide = draw(make(seq_lens=lens), "cpu"), draw(make(seq_lens=lens, max_seq_len=4096), "cpu")

    assert narrow.page_table.shape == (3, 5)
    assert wide.page_table.shape == (3, 64)
    assert torch.equal(wide.page_table[:, :5], narrow.page_table)
    assert (wide.page_table[:, 5:] == UNUSED_ENTRY).all()
    assert all(torch.equal(a, b) for a, b in zip(narrow.kv, wide.kv, strict=True))
    assert torch.equal(oracle.reference(narrow), oracle.reference(wide))
    assert wide.problem.input_bytes - narrow.problem.input_bytes == 4 * 3 * 64


# What each backend's call does with the maximum: a new backend must be put somewhere.
UNREAD = {
    "auto",
    "fa2",
    "fa2_tc",
    "fa3",
    "flash_mla",
    "flash_mla_vllm",
    "flex_attention",
    "merge_state_chain",
    "merge_states",
    "multi_level",
    "sglang_triton",
    "sglang_triton_extend",
    "batch_attention",
    "batch_pod",
    "torch_chunks",
    "torch_merge",
    "torch_sdpa",
    "torch_two_calls",
    "two_calls_fa2",
    "two_calls_fa3",
    "two_calls_fa3_fa2",
}
REFUSED = {"trtllm-gen", "cute-dsl"}  # of paged decode: their plan takes the batch's own


def test_every_backend_says_what_becomes_of_the_maximum():
    asked = [key for key in registry.adapters() if key[0] in ROUTINES and key[0] != "ragged_prefill"]
    paged = {key: registry.get(*key).max_seq_len for key in asked}

    assert {name for (_, name), what in paged.items() if what == "unread"} == UNREAD
    assert {name for (routine, name), what in paged.items() if what == "refused"} == REFUSED
    assert {routine for (routine, _), what in paged.items() if what == "refused"} == {"paged_decode"}


def test_a_row_says_that_the_kernel_did_not_read_the_maximum():
    sdpa, wide = registry.get("paged_decode", "torch_sdpa"), make(max_seq_len=4096, q_dtype="fp32", kv_dtype="fp32")
    runner = sdpa.prepare(draw(wide, "cpu"), CPU)

    assert sdpa.config_of(runner, wide) == "max_seq_len=unread"
    assert sdpa.config_of(runner, make()) == ""


@pytest.mark.parametrize(
    ("backend", "keys", "device", "reason"),
    [
        ("trtllm-gen", {"max_seq_len": 4096}, "b200", "max_seq_len left to the batch (null)"),
        ("cute-dsl", {"max_seq_len": 4096}, "b200", "max_seq_len left to the batch (null)"),
        ("cudnn", {"enable_pdl": True}, "h200", "enable_pdl left to the library (null)"),
        ("cudnn", {"enable_pdl": False}, "h200", "enable_pdl left to the library (null)"),
        ("flash_attn_3", {"enable_pdl": False}, "h200", "enable_pdl left to the library (null)"),
        ("fa2_tc", {"enable_pdl": True}, "a100", "SM90 or later for enable_pdl=true"),
        ("fa3", {"routine": "paged_prefill", "enable_pdl": True}, "h200", "enable_pdl left to the library (null)"),
        ("auto", {"routine": "paged_prefill", "enable_pdl": True}, "h200", "enable_pdl left to the library (null)"),  # it takes fa3
        ("trtllm-fmha-v2", {"routine": "paged_prefill", "enable_pdl": True}, "h200", "enable_pdl left to the library (null)"),
    ],
)
def test_a_backend_without_the_choice_says_so(backend: str, keys: dict[str, object], device: str, reason: str):
    shape = {"num_qo_heads": 64, "num_kv_heads": 8, "head_dim_qk": 128, "head_dim_vo": 128}

    assert unmet(backend, make(**shape, **keys), device) == [reason]
    assert unmet(backend, make(**shape, **{key: value for key, value in keys.items() if key == "routine"}), device) == []


@pytest.mark.parametrize(("backend", "device"), [("fa2_tc", "h200"), ("trtllm-native", "h200"), ("trtllm-gen", "b200")])
@pytest.mark.parametrize("asked", [True, False])
def test_a_backend_with_the_choice_serves_it(backend: str, device: str, asked: bool):
    assert unmet(backend, make(enable_pdl=asked), device) == []
    assert unmet("auto", make(enable_pdl=asked, mask="causal")) == []  # fa2, for 16-bit queries


def test_what_the_call_has_no_place_for_is_not_forced(settings: Callable[..., Settings]):
    """Forced, it would run the call without the setting, be right, and seem to show that the rule is too strict."""
    one = ("+sweep=smoke", "sweep.batch_size=1", "sweep.s_kv=256", "sweep.s_qo=1", "check.force_unsupported=true")
    asked = settings(*one, "sweep.backend=[cudnn,fa2]", "sweep.enable_pdl=[null,true]", "sweep.dtype=[{q: fp32, kv: fp32}]")
    plan = make_plan(expand(asked), [H200], asked)
    found = {(d.point.backend, d.point.problem.enable_pdl): d.kind for d in plan.decisions}

    assert found == {("cudnn", None): "run", ("cudnn", True): "unsupported", ("fa2", None): "run", ("fa2", True): "run"}


ENTRIES = [  # the function, its backend, and where it takes the longest request
    ("flashinfer.decode.xqa_batch_decode_with_kv_cache", "paged_decode", "trtllm-native", H200, "max_seq_len"),
    ("flashinfer.decode.trtllm_batch_decode_with_kv_cache", "paged_decode", "trtllm-native", B200, "max_seq_len"),
    ("flashinfer.prefill.trtllm_fmha_v2_prefill", "paged_prefill", "trtllm-fmha-v2", H200, "max_kv_len"),
    ("flashinfer.prefill.trtllm_batch_context_with_kv_cache", "paged_prefill", "trtllm-context", B200, "max_kv_len"),
]


@pytest.mark.parametrize(("entry", "routine", "backend", "device", "longest"), ENTRIES)
@pytest.mark.parametrize(("keys", "passed", "width"), [({}, 300, 5), ({"max_seq_len": 4096}, 4096, 64)])
def test_a_function_gets_the_maximum_and_the_wide_table(
    entry: str, routine: str, backend: str, device: Any, longest: str, keys: dict[str, object], passed: int, width: int,
    monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    call = called(entry, registry.get(routine, backend), make(routine=routine, **keys), device, monkeypatch)

    assert call[longest] == passed
    assert call["block_tables"].shape == (3, width)


@pytest.mark.parametrize(("entry", "routine", "backend", "device", "longest"), [e for e in ENTRIES if "fmha_v2" not in e[0]])
@pytest.mark.parametrize("asked", [None, True, False])
def test_a_function_gets_the_choice_of_dependent_launch(
    entry: str, routine: str, backend: str, device: Any, longest: str, asked: bool | None, monkeypatch: pytest.MonkeyPatch
):
    call = called(entry, registry.get(routine, backend), make(routine=routine, enable_pdl=asked), device, monkeypatch)

    assert call["enable_pdl"] is asked


def called(entry: str, adapter: Adapter, problem: Problem, device: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the adapter's call gives to a function of FlashInfer, bound to its real signature."""
    module, _, name = entry.rpartition(".")
    takes = inspect.signature(inspect.unwrap(getattr(importlib.import_module(module), name)))
    given: list[dict[str, Any]] = []
    monkeypatch.setattr(entry, lambda **call: given.append(takes.bind(**call).arguments))
    adapter.prepare(draw(problem, "cpu"), device)()
    return given[-1]
