"""vLLM's batch specs: every form of the grammar, its refusals, and the problems that they make."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from kernels.problem import Problem, batch_spec
from tests.helpers.problems import SMALL

HEADS = {key: value for key, value in SMALL.items() if key not in ("batch_size", "s_qo", "s_kv")}


@pytest.mark.parametrize(
    ("spec", "segments"),
    [
        ("q2k", [(1, 2048, 2048)]),
        ("q1", [(1, 1, 1)]),
        ("8q1s1k", [(8, 1, 1024)]),
        ("2q4k", [(2, 4096, 4096)]),
        ("16q4s1k", [(16, 4, 1024)]),
        ("q1ks2k", [(1, 1024, 2048)]),
        ("q512s4k", [(1, 512, 4096)]),
        ("2q2k_8q1s1k", [(2, 2048, 2048), (8, 1, 1024)]),
        ("2q1k_16q4s1k_16q1s1k", [(2, 1024, 1024), (16, 4, 1024), (16, 1, 1024)]),
        ("64q1kv4k", [(64, 1, 4096)]),  # the older word for s
        ("q1kkv4k", [(1, 1024, 4096)]),
        ("q4s100_3q4s100", [(4, 4, 100)]),
    ],
)
def test_a_spec_says_how_many_requests_of_which_lengths(spec: str, segments: list[tuple[int, int, int]]):
    assert list(batch_spec.parse(spec)) == segments


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("q4s2", "'q4s2' has s=2 below q=4"),
        ("8q1s1k_2q2ks1k", "'2q2ks1k' has s=1024 below q=2048"),
        ("8s1k", "older dialect; type '8q1s1k'"),
        ("spec4s1k", "older dialect; type 'q4s1k'"),
        ("q1M", "'q1M' is not a segment"),
        ("q1K", "'q1K' is not a segment"),
        ("q1.5k", "'q1.5k' is not a segment"),
        ("q1s", "'q1s' is not a segment"),
        ("8q1s1k_", "'' is not a segment"),
        ("", "'' is not a segment"),
        (" q1", "' q1' is not a segment"),
        ("-1q1", "'-1q1' is not a segment"),
        ("0q1", "'0q1' has no request"),
        ("q0s8", "'q0s8' has no request or no query token"),
    ],
)
def test_a_wrong_spec_raises_with_its_segment(spec: str, words: str):
    with pytest.raises(ValueError, match="batch_spec") as caught:
        batch_spec.parse(spec)

    assert words in str(caught.value)


@given(st.lists(st.tuples(st.integers(1, 5000), st.integers(0, 5000)), min_size=1, max_size=9))
def test_a_batch_has_one_name_that_parses_to_it(batch: list[tuple[int, int]]):
    lens = [(q, q + context) for q, context in batch]

    assert list(batch_spec.lengths(batch_spec.name(lens))) == lens
    assert batch_spec.name(batch_spec.lengths(batch_spec.name(lens))) == batch_spec.name(lens)


def test_a_batch_of_equal_requests_needs_no_spec():
    assert Problem.model_validate({**HEADS, "batch_spec": "2q3s100"}) == Problem.model_validate(SMALL)


@pytest.mark.parametrize(
    ("spec", "keys"),
    [
        ("2q2k_8q1s1k", {"batch_size": 10, "s_qo": 2048, "min_s_qo": 1, "s_kv": 2048, "seq_lens": "listed"}),
        ("16q4s1k_16q1s1k", {"batch_size": 32, "s_qo": 4, "min_s_qo": 1, "s_kv": 1024, "seq_lens": "fixed"}),
        ("2q4s64_q4s99", {"batch_size": 3, "s_qo": 4, "min_s_qo": None, "s_kv": 99, "seq_lens": "listed"}),
    ],
)
def test_a_mixed_batch_has_exactly_its_lengths(spec: str, keys: dict[str, object]):
    p = Problem.model_validate({**HEADS, "batch_spec": spec})

    assert {key: getattr(p, key) for key in keys} == keys
    assert tuple(zip(p.q_lens, p.kv_lens, strict=True)) == batch_spec.lengths(spec)
    assert p.batch_spec == spec
    assert (p.num_q_tokens, p.num_kv_tokens) == (sum(p.q_lens), sum(p.kv_lens))
    assert Problem.model_validate(p.model_dump()) == p


def test_a_key_that_contradicts_the_spec_is_named():
    with pytest.raises(ValidationError, match="s_kv=100: batch_spec='8q1s1k' says 1024; leave s_kv out"):
        Problem.model_validate({**HEADS, "batch_spec": "8q1s1k", "s_kv": 100})
