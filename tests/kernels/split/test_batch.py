"""Which requests of a batch go to which call, and the problems that they are."""

from __future__ import annotations

import pytest

from kernels.problem import Problem
from kernels.split.batch import Halves, halves_of, parsed
from tests.helpers.problems import HEADS

PAGED = {"routine": "paged_decode", "page_size": 16, **HEADS}


def split(spec: str, threshold: int | None = None, **keys: object) -> Halves | None:
    return halves_of(Problem.model_validate({**PAGED, "batch_spec": spec, **keys}), threshold)


@pytest.mark.parametrize(
    ("spec", "threshold", "decode", "prefill"),
    [
        ("15q4s100_q1s100", 4, range(15), [15]),
        ("15q4s100_q1s100", 1, [15], range(15)),
        ("q512_3q4s100", 4, [1, 2, 3], [0]),
        ("2q2k_8q1s1k", 1, range(2, 10), [0, 1]),
        ("2q4s99_q2s99_3q4s99_q9s99", 8, [0, 1, 3, 4, 5], [2, 6]),
        ("2q2s99_2q4s99", 4, [2, 3], [0, 1]),  # equally common: the longer
        ("2q2s99_2q4s99", 3, [0, 1], [2, 3]),
        ("3q512_2q1s99", None, [0, 1, 2], [3, 4]),  # no limit: the most common length, however long
        ("2q4s99_2q4s50_q1s20", 4, range(4), [4]),  # KV lengths may differ in a call
    ],
)
def test_the_decode_call_gets_the_most_common_length_up_to_the_threshold(
    spec: str, threshold: int | None, decode: list[int], prefill: list[int]
):
    found = split(spec, threshold)

    assert found is not None
    assert (list(found.decode_requests), list(found.prefill_requests)) == (list(decode), list(prefill))
    whole = Problem.model_validate({**PAGED, "batch_spec": spec})
    for part, requests in ((found.decode, found.decode_requests), (found.prefill, found.prefill_requests)):
        assert part.q_lens == tuple(whole.q_lens[i] for i in requests)
        assert part.kv_lens == tuple(whole.kv_lens[i] for i in requests)
    assert len(set(found.decode.q_lens)) == 1 and found.decode.min_s_qo is None
    assert found.decode.bytes + found.prefill.bytes == whole.bytes
    assert found.decode.flops + found.prefill.flops == whole.flops


@pytest.mark.parametrize(("spec", "threshold"), [("4q4s100", 4), ("4q4s100_q9s100", 3), ("q1s100_q1s50", None)])
def test_a_batch_for_one_call_is_not_split(spec: str, threshold: int | None):
    assert split(spec, threshold) is None


def test_ragged_drafts_are_split_by_the_threshold():
    drawn = {"batch_size": 16, "s_qo": 8, "min_s_qo": 1, "s_kv": 100}
    ragged = Problem.model_validate({**PAGED, **drawn})
    for threshold in (1, 4, 8):
        found = halves_of(ragged, threshold)
        assert found is not None and found.decode.s_qo <= threshold
        assert sorted(found.order) == list(range(16))
        most = max(ragged.q_lens.count(q) for q in range(1, threshold + 1))
        assert len(found.decode_requests) == most


def test_a_part_keeps_what_is_not_a_length():
    kept = {"window": 9, "sinks": True, "q_dtype": "fp16", "kv_dtype": "fp8_e4m3", "kv_layout": "NHD", "page_order": "sequential"}
    found = split("2q4s99_q2s50", 4, **kept, seed=3, tp=2)

    assert found is not None
    for part, routine in ((found.decode, "paged_decode"), (found.prefill, "paged_prefill")):
        assert part.model_dump(include={*kept, "seed", "tp"}) == {**kept, "seed": 3, "tp": 2}
        assert part.routine == routine


def test_a_tree_is_cut_to_the_longest_draft_of_a_part():
    found = split("2q7s99_q3s99_q2s99", 8, mask="binary", tree=(-1, 0, 0, 1, 1, 2, 2))

    assert found is not None
    assert (found.decode.tree, found.prefill.tree) == ((-1, 0, 0, 1, 1, 2, 2), (-1, 0, 0))


def test_both_calls_of_mla_are_mla():
    latent = {"routine": "mla", "head_dim_ckv": 32, "head_dim_kpe": 16}
    found = split("2q4s99_q2s50", 4, **latent)

    assert found is not None
    assert (found.decode.routine, found.prefill.routine) == ("mla", "mla")


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("fa2_tc+fa2", ("fa2_tc", "fa2", None)),
        ("trtllm-native+fa3@12", ("trtllm-native", "fa3", 12)),
        ("fa2_tc", None),
        ("fa2_tc+fa2@0", None),
        ("fa2_tc+fa2@", None),
        ("a+b+c", None),
        ("wrong@fa2", None),
    ],
)
def test_a_name_says_both_backends_and_the_threshold(name: str, parts: tuple[str, str, int | None] | None):
    assert parsed(name) == parts
