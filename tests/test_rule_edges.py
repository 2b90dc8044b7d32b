"""The sweeps of rule edges have points on both sides of every condition of a rule that depends on the problem."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from kernels import registry
from kernels.adapter import Adapter
from kernels.problem import Problem
from orchestrator.config.settings import load
from orchestrator.machines import known_devices
from orchestrator.planning.expand import expand
from orchestrator.point import Point
from tests.helpers.command_line import composed

H200 = known_devices()["h200"]
SWEEPS = {"paged_decode": "paged", "paged_prefill": "paged", "ragged_prefill": "ragged", "mla": "mla", "sparse_mla": "sparse"}
SHAPE: dict[str, Any] = {
    "batch_size": 1, "s_qo": 1, "s_kv": 64, "num_qo_heads": 8, "num_kv_heads": 8, "head_dim_qk": 128, "head_dim_vo": 128,
    "head_dim_ckv": 512, "head_dim_kpe": 64,
}  # fmt: skip
# A sweep runs on one GPU, so these are all met or all unmet there.
OF_THE_DEVICE = (
    "SM", "the SM100", "a CPU, or", "on a CPU", "a CUDA device of", "with an FP8 cache, SM89", "16-bit queries, or SM90",
)  # fmt: skip
# Backends whose conditions those of another one are, and references, which read a copy of the cache.
NO_RULE_OF_THEIR_OWN = {
    "flash_attn_3_unplanned", "flash_attn_3_32_splits", "flash_attn_3_vllm_32_splits", "fa2_chunks", "fa2_chunks_8k", "fa3_chunks",
    "torch_sdpa", "torch_chunks", "torch_indexed",
}  # fmt: skip
ANY = "any"
TREE = "a tree is not handed over, so a forced run says nothing"
TREE_OF_SINKS = "fa2's variant with sinks drops the tree, so a forced run says nothing"
ONE_SIZE = "one size is handed over for keys and values, and an output of the other one has no room for it"
CONVERTED = "the library allocates its output, and the call converts it"
RAGGED = "it is met without pages"
PAGED = "it is met over pages"
OF_EIGHT = "head_dims that are multiples of 8, with FP8 of 16"
SIXTEEN = "over pages another condition asks for multiples of 16, and with 8 bits for SM100"
# Conditions that are never the only ones unmet at a point that says something, by routine and backend, each with the reason.
NEVER_ALONE: dict[tuple[str, str], dict[str, str]] = {
    ("paged_decode", ANY): {
        "equal head_dim of keys and values": ONE_SIZE,
        "with FP8, equal head_dims of keys and values": ONE_SIZE,
    },
    ("paged_prefill", ANY): {
        "keys of 64 bytes or a multiple of 128, of which fa2 loads all": "keys of 192 bytes have values of 128, and no pages",
        "equal head_dim of keys and values in pages": ONE_SIZE,
        "with FP8, equal head_dims of keys and values": ONE_SIZE,
    },
    ("paged_prefill", "fa2"): {"with attention sinks, a causal or full mask": TREE_OF_SINKS},
    ("ragged_prefill", ANY): {
        "equal head_dim of keys and values in pages": RAGGED,
        "with pages, head_dims that are multiples of 16": RAGGED,
        "on CUDA a page_size that is a multiple of 16": RAGGED,
        "on CUDA a cache of up to 2^31 elements": "no batch without pages is as large",
    },
    ("mla", ANY): {"a causal or full mask": TREE},
    **{
        (routine, backend): {"a causal or full mask": TREE}
        for routine in ("paged_decode", "paged_prefill", "ragged_prefill")
        for backend in ("flash_attn_3_vllm", "flash_attn_3_sglang", "flash_attn_2_vllm")
    },
    ("paged_decode", "fa2"): {
        "causal drafts": "it takes one query token",
        "for drafts, a token of every request (graph_fill=1, no s0 in batch_spec)": "it takes one query token",
    },
    ("paged_decode", "fa2_tc"): {"with attention sinks, a causal or full mask": TREE},
    ("paged_decode", "fa3"): {"with attention sinks, a causal or full mask": TREE},
    ("paged_decode", "cudnn"): {
        "with a request without keys, no sinks": "drafts of such a request are refused, and one token with sinks",
        "fp16 or bf16 output": "it takes one dtype of 16 bits",
    },
    ("paged_decode", "flash_attn_4"): {"a causal or full mask": TREE, OF_EIGHT: SIXTEEN},
    ("paged_decode", "flash_attn_3"): {
        "no log-sum-exp over a draft tree, whose two calls are merged": "none is asked for",
    },
    ("paged_decode", "trtllm-native"): {"no log-sum-exp from XQA, which gives none": "none is asked for"},
    ("paged_prefill", "auto"): {
        "head_dims 64, 128, 256 or 192/128": "over other head_dims it takes fa2",
        "a causal or full mask": "over a tree it takes fa2",
        "with attention sinks, a causal or full mask": TREE_OF_SINKS,
    },
    ("paged_prefill", "flash_attn_3"): {
        "no log-sum-exp over a draft tree, whose two calls are merged": "none is asked for",
    },
    ("paged_decode", "batch_attention"): {"a causal or full mask": TREE},
    ("paged_decode", "batch_pod"): {"a causal or full mask": TREE, "output of the query's dtype": CONVERTED},
    ("paged_prefill", "flash_attn_4"): {"a causal or full mask": TREE, OF_EIGHT: SIXTEEN},
    ("paged_prefill", "trtllm-fmha-v2"): {
        "a causal or full mask": TREE,
        "with FP8, pages and SM90": PAGED,
        "equal head_dim of keys and values": "its pages interleave keys and values of one size",
        "without pages, whole prompts (s_qo = s_kv)": PAGED,
        "with a soft cap, pages": PAGED,
    },
    **{
        key: {"with an FP8 cache, keys of 192 and values of up to 128, Triton 3.7 or later": "it depends on what is installed"}
        for key in (("paged_prefill", "sglang_triton"), ("mla", "sglang_triton_extend"))
    },
    ("ragged_prefill", "auto"): {
        "head_dims 64, 128, 256 or 192/128": "over other head_dims it takes fa2",
        "a causal or full mask": "over a tree it takes fa2",
        "with attention sinks, fp16 or bf16 queries": "it takes no sinks",
        "with attention sinks, a causal or full mask": "it takes no sinks",
        "with attention sinks, no soft cap": "it takes no sinks",
        "with sinks and a log-sum-exp, a key for every request (fa3)": "it takes no sinks",
    },
    ("ragged_prefill", "fa2"): {"with attention sinks, a causal or full mask": TREE_OF_SINKS},
    ("ragged_prefill", "flash_attn_3"): {
        "a causal or full mask": TREE,
        "no log-sum-exp over a draft tree, whose two calls are merged": "it takes no tree",
    },
    ("ragged_prefill", "flash_attn_4"): {"a causal or full mask": TREE},
    ("ragged_prefill", "trtllm-fmha-v2"): {"a causal or full mask": TREE},
    ("mla", "flash_mla"): {"output of the query's dtype": CONVERTED},
    ("sparse_mla", "flash_mla"): {"output of the query's dtype": CONVERTED},
    ("sparse_mla", "flash_mla_vllm"): {"output of the query's dtype": CONVERTED},
    ("mla", "flash_mla_vllm"): {
        "output of the query's dtype, or bf16 with FP8 queries": CONVERTED,
        "with FP8, fewer than 4,096 requests": "it ends the process",
        "with FP8, up to 4,992 rows of a query token and a head": "it stops the GPU",
        "with FP8, no padded requests without a token (it follows the entry of the page table before their rows)":
            "it reads far outside the cache",
    },
}  # fmt: skip


def of_problem(adapter: Adapter, problem: Problem, of_the_device: bool = False) -> dict[str, bool]:
    """The backend's own conditions on an H200, and whether they are met: those that depend on the problem, or the others."""
    needs = adapter.needs(problem, H200)
    return {need.sentence: need.met for need in needs if need.sentence.startswith(OF_THE_DEVICE) == of_the_device}


def runs_on_hopper(adapter: Adapter) -> bool:
    return all(of_problem(adapter, Problem(routine=adapter.routine, **SHAPE), of_the_device=True).values())


@cache
def points(sweep: str) -> tuple[Point, ...]:
    return tuple(expand(load(composed(f"+sweep=rule_edges_{sweep}"))))


def points_of(routine: str, backend: str) -> list[Point]:
    return [point for point in points(SWEEPS[routine]) if (point.problem.routine, point.backend) == (routine, backend)]


SUBJECTS = [
    key
    for key, adapter in registry.adapters().items()
    if key[0] in SWEEPS and key[1] not in NO_RULE_OF_THEIR_OWN and runs_on_hopper(adapter)
]


def crossed(routine: str, backend: str) -> tuple[set[str], set[str], set[str]]:
    """Conditions of a backend that depend on the problem: all, those met at some point, and those that are the only ones unmet.

    Of the last, at points that say something: where the kernel is told of every feature.
    """
    adapter = registry.get(routine, backend)
    said: set[str] = set()
    met: set[str] = set()
    alone: set[str] = set()
    for problem in (point.problem for point in points_of(routine, backend)):
        needs = of_problem(adapter, problem)
        said |= needs.keys()
        met |= {sentence for sentence, is_met in needs.items() if is_met}
        unmet = adapter.unmet(problem, H200)
        if len(unmet) == 1 and not adapter.not_passed(problem, H200):
            alone |= set(unmet)
    return said, met, alone


def never_alone(routine: str, backend: str) -> set[str]:
    return NEVER_ALONE.get((routine, ANY), {}).keys() | NEVER_ALONE.get((routine, backend), {}).keys()


def test_every_backend_that_runs_on_hopper_is_asked():
    decode = {name for routine, name in SUBJECTS if routine == "paged_decode"}

    assert decode >= {"fa2", "fa2_tc", "fa3", "auto", "cudnn", "trtllm-native"}
    assert not {("mla", "cutlass"), ("mla", "cute-dsl"), ("ragged_prefill", "cutlass"), ("paged_decode", "cutile")} & set(SUBJECTS)
    assert len(SUBJECTS) > 25


@pytest.mark.parametrize(("routine", "backend"), SUBJECTS, ids=["-".join(key) for key in SUBJECTS])
def test_every_condition_is_crossed_by_itself(routine: str, backend: str):
    said, met, alone = crossed(routine, backend)

    assert len(said) >= 3
    assert said - alone == said & never_alone(routine, backend)
    assert said - met == set()


def test_no_reason_is_for_a_condition_that_no_rule_has():
    own = {key: crossed(*key)[0] for key in SUBJECTS}
    for (routine, backend), reasons in NEVER_ALONE.items():
        said = set().union(*(found for key, found in own.items() if key[0] == routine and backend in (ANY, key[1])))
        assert reasons.keys() - said == set(), (routine, backend)


@pytest.mark.parametrize("routine", ["paged_decode", "paged_prefill", "ragged_prefill"])
def test_features_that_flex_attention_lacks_have_a_point(routine: str):
    adapter = registry.get(routine, "flex_attention")
    unmet = [adapter.unmet(point.problem, H200) for point in points_of(routine, "flex_attention")]

    assert ["no attention sinks"] in unmet
    assert ["no log-sum-exp as a second output"] in unmet
