"""A shared prefix in a problem and in its inputs: stored once, counted once, planted once, and read by every request."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError

from kernels.check import oracle
from kernels.check.judgement import judge_whole
from kernels.inputs.generate import draw
from kernels.inputs.sentinel_keys import prefix_plants
from kernels.problem import Problem
from kernels.problem.arithmetic import Arithmetic

HEADS = {"num_qo_heads": 8, "num_kv_heads": 2, "head_dim_qk": 16, "head_dim_vo": 16, "page_size": 16}
CASCADE = {**HEADS, "routine": "cascade", "batch_size": 3, "s_qo": 2, "s_kv": 300, "shared_prefix": 160}


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"shared_prefix": None}, "routine=cascade needs it"),
        ({"shared_prefix": 170}, "multiple of page_size=16, such as 176"),
        ({"shared_prefix": 304}, "at most the shortest request's context, which is 298 tokens"),
        ({"routine": "paged_decode"}, "allowed only with routine=cascade"),
        ({"window": 64}, "routine=cascade takes none"),
    ],
)
def test_what_no_cascade_can_be_is_refused_in_words(keys: dict[str, object], words: str):
    with pytest.raises(ValidationError, match=words):
        Problem.model_validate({**CASCADE, **keys})


def test_the_prefix_is_stored_and_counted_once():
    p = Problem.model_validate(CASCADE)
    apart = Problem.model_validate({**CASCADE, "routine": "paged_decode", "shared_prefix": None})
    x = draw(p, "cpu")

    assert apart.bytes - p.bytes == 2 * 160 * 2 * 32 * 2  # two further requests, 160 tokens, 2 heads of 16 + 16, bf16
    assert (p.unshared_bytes, p.flops) == (apart.bytes, apart.flops)
    assert apart.num_pages - p.num_pages == 2 * 10 and len(x.kv_indices) == apart.num_pages
    assert (x.page_table[:, :10] == x.page_table[0, :10]).all()
    assert len(set(x.page_table[:, 10:].flatten().tolist()) | set(x.page_table[0].tolist())) == p.num_pages == x.kv[0].shape[0]


def test_each_key_of_the_prefix_is_planted_once_and_every_request_has_its_turn():
    plants = prefix_plants(Problem.model_validate(CASCADE))
    keys = list(zip(*plants[:2].tolist(), strict=True))

    assert len(keys) == len(set(keys)) and set(plants[4].tolist()) == {0, 1, 2}
    assert {0, 159} <= set(plants[0].tolist()) and max(plants[0].tolist()) == 159


def test_old_point_ids_do_not_know_the_new_fields():
    dumped = Problem.model_validate({**CASCADE, "routine": "paged_decode", "shared_prefix": None}).model_dump(exclude_defaults=True)

    assert not {"shared_prefix", "return_lse"} & dumped.keys()


@pytest.mark.parametrize("seed", range(3))
def test_a_right_answer_to_whole_prompts_without_groups_passes(seed: int):
    """Behind logits above 100 weights are so small that their squares are 0: the check took that for a wrong mask."""
    heads = {"num_qo_heads": 8, "num_kv_heads": 8, "head_dim_qk": 192, "head_dim_vo": 128}
    p = Problem.model_validate({**heads, "routine": "ragged_prefill", "batch_size": 2, "s_qo": 70, "s_kv": 70, "seed": seed})
    x = draw(p, "cpu")
    answer = oracle.answer(x)
    verdict = judge_whole(answer.out.to(torch.bfloat16), x, answer, Arithmetic("bf16"))

    assert verdict.passed, verdict.reason
