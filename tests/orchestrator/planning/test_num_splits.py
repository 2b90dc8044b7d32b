"""The axis `num_splits`: how many parts a kernel makes of the keys, and the names that backends have had for it."""

from __future__ import annotations

import pytest

from kernels import registry
from orchestrator.config.settings import load
from orchestrator.errors import UserError
from orchestrator.machines import known_devices
from orchestrator.planning.expand import chosen, expand
from orchestrator.point import Point
from orchestrator.storage.row import describe
from tests.helpers.command_line import composed

H200 = known_devices()["h200"]


def points(*typed: str) -> list[Point]:
    settings = load(composed("+sweep=base", "sweep.name=t", "sweep.batch_size=[1]", "sweep.s_kv=[4096]", *typed))
    return chosen(expand(settings), settings)


def test_each_value_is_a_backend_of_its_own_and_32_is_that_of_before():
    found = points("sweep.backend=[flash_attn_3,flash_attn_3_vllm]", "sweep.num_splits=[null,1,32]")
    (old,) = points("sweep.backend=[flash_attn_3_32_splits]")

    assert [point.backend for point in found[:3]] == ["flash_attn_3", "flash_attn_3_1_splits", "flash_attn_3_32_splits"]
    assert found[2].point_id == old.point_id and len({point.group_id for point in found}) == 1
    assert [describe(point)["num_splits"] for point in found] == [None, 1, 32] * 2
    assert [
        point.backend for point in points("sweep.backend=[flash_attn_3]", "sweep.num_splits=[null,8]", "where={num_splits: 8}")
    ] == ["flash_attn_3_8_splits"]


@pytest.mark.parametrize(
    ("backend", "splits", "unmet"),
    [
        ("flash_attn_3_vllm", 8, []),
        ("flash_attn_3_sglang", 8, []),
        ("sglang_triton", 16, []),
        ("flash_attn_4", 1, []),
        ("flash_attn_4", 2, ["on SM90 num_splits=1, since it splits no keys there"]),
        ("fa2_tc", 8, ["num_splits left to the library (null)"]),
    ],
)
def test_a_backend_that_is_not_told_it_is_unsupported(backend: str, splits: int, unmet: list[str]):
    (point,) = points(f"sweep.backend=[{backend}]", f"sweep.num_splits=[{splits}]", "model=qwen3_32b")
    adapter = registry.get("paged_decode", point.backend)

    assert adapter.num_splits == splits and adapter.unmet(point.problem, H200) == unmet
    assert adapter.lacks_choice(point.problem, H200) == (backend == "fa2_tc")


@pytest.mark.parametrize("value", ["0", "257", "many", "true"])
def test_what_is_no_number_of_parts(value: str):
    with pytest.raises(UserError, match=r"sweep\.num_splits"):
        points("sweep.backend=[flash_attn_3]", f"sweep.num_splits=[{value}]")
