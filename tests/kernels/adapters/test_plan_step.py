"""What a plan of once a step hands to the library: the lengths on the host, the step's pages alone, all else as at first."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernels import registry
from kernels.adapter import nothing_to_plan
from kernels.inputs import Inputs
from kernels.inputs.generate import draw
from kernels.inputs.step_lengths import steps_before
from kernels.problem import Problem
from orchestrator.machines import known_devices
from tests.helpers.recorded_calls import frozen, recording

H200 = known_devices()["h200"]
SHAPE = {"batch_size": 2, "s_qo": 4, "s_kv": 130, "num_qo_heads": 8, "num_kv_heads": 2, "head_dim_qk": 64, "head_dim_vo": 64}
LATENT = {"routine": "mla", "num_kv_heads": 8, "head_dim_qk": 192, "head_dim_vo": 128, "head_dim_ckv": 512, "head_dim_kpe": 64}
LENGTHS = frozenset(
    {"indptr", "indices", "last_page_len", "qo_indptr", "paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len", "metadata"}
)
# Of each backend: the names of its plan's lengths beside what `HostLengths` calls them.
DECODE = {"indptr": "kv_indptr", "last_page_len": "last_page_len"}
PREFILL = {"qo_indptr": "qo_indptr", "paged_kv_indptr": "kv_indptr", "paged_kv_last_page_len": "last_page_len"}
WRAPPERS = [
    ("paged_decode", "fa2_tc", {}, DECODE),
    ("paged_decode", "cudnn", {}, DECODE),
    ("paged_decode", "fa2", {"s_qo": 1}, DECODE),
    ("paged_decode", "fa2_tc", {"sinks": True}, PREFILL),
    ("paged_prefill", "fa2", {}, PREFILL),
    ("cascade", "fa2_tc", {"shared_prefix": 64}, DECODE),
]


def drawn(**keys: Any) -> Inputs:
    return draw(Problem.model_validate({**SHAPE, **keys}), "cpu")


@pytest.mark.parametrize(("routine", "backend", "keys", "names"), WRAPPERS)
def test_a_wrapper_gets_the_step_s_lengths_and_pages(routine: str, backend: str, keys: dict[str, Any], names: dict[str, str]):
    inputs = drawn(routine=routine, **keys)
    step = steps_before(inputs, 1)
    with recording() as log:
        runner = registry.get(routine, backend).prepare(inputs, H200)
        first = log[-1][1]
        step.write_into(inputs)
        assert runner.plan_step is not None
        runner.plan_step(step.host)
    name, again = log[-1]

    assert name.endswith(".plan") and again["wrapper"] == first["wrapper"]
    assert all(again[theirs] is getattr(step.host, ours) for theirs, ours in names.items())
    pages = again["indices" if "indices" in again else "paged_kv_indices"]
    assert torch.equal(pages, step.kv_indices) and pages.data_ptr() == inputs.kv_indices.data_ptr()
    assert {k: frozen(v) for k, v in again.items() if k not in LENGTHS} == {
        k: frozen(v) for k, v in first.items() if k not in LENGTHS
    }


def test_a_latent_s_wrapper_gets_one_form_of_the_lengths():
    inputs = drawn(**LATENT)
    step = steps_before(inputs, 1)
    with recording() as log:
        runner = registry.get("mla", "fa2").prepare(inputs, H200)
        step.write_into(inputs)
        assert runner.plan_step is not None
        runner.plan_step(step.host)
    (first, again) = (keys for name, keys in log if name.endswith(".plan"))
    given = again["metadata"]

    assert (given.qo_indptr, given.kv_indptr, given.kv_len_arr) == (step.host.qo_indptr, step.host.kv_indptr, step.host.kv_lens)
    assert torch.equal(given.kv_indices, step.kv_indices)
    assert given.block_tables is None
    assert {k: frozen(v) for k, v in again.items() if k != "metadata"} == {
        k: frozen(v) for k, v in first.items() if k != "metadata"
    }


def test_flash_attention_3_makes_its_metadata_anew_where_the_call_reads_them():
    inputs = drawn()
    with recording() as log:
        runner = registry.get("paged_decode", "flash_attn_3").prepare(inputs, H200)
        runner()
        read = log[-1][1]
        assert runner.plan_step is not None
        with torch.no_grad():
            next(value for value in read.values() if isinstance(value, torch.Tensor) and value.shape == (1,)).fill_(7)
        runner.plan_step(steps_before(inputs, 1).host)
        made = log[-1]
        runner()
    (metadata,) = (value for value in log[-1][1].values() if isinstance(value, torch.Tensor) and value.shape == (1,))

    assert made[0] == "get_scheduler_metadata"
    assert any(value is inputs.kv_lens for value in made[1].values())
    assert metadata.tolist() == [0.0]  # what the plan made, in the tensor that the first call read
    assert any(value is metadata for value in read.values())


@pytest.mark.parametrize(
    ("backend", "plan"), [("trtllm-native", nothing_to_plan), ("flash_attn_3_unplanned", nothing_to_plan), ("sglang_triton", None)]
)
def test_what_has_no_plan_says_so_and_what_does_not_say_is_none(backend: str, plan: object):
    with recording():
        assert registry.get("paged_decode", backend).prepare(drawn(s_qo=1), H200).plan_step is plan


@pytest.mark.parametrize(("routine", "backend"), [("paged_prefill", "fa2"), ("paged_decode", "flash_attn_3")])
def test_over_a_tree_a_plan_is_not_stated(routine: str, backend: str):
    with recording():
        runner = registry.get(routine, backend).prepare(drawn(routine=routine, mask="chain", tree=(-1, 0, 1, 2)), H200)

    assert runner.plan_step is None
