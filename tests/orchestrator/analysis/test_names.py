"""How names are shown to readers, and which are references."""

from __future__ import annotations

import re

import pytest

from kernels import registry
from orchestrator.analysis.names import all_shown, of_references, shown
from orchestrator.analysis.questions import exactness


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fa3", "fa3 (FlashInfer)"),
        ("fa3_chunks", "fa3_chunks (FlashInfer)"),
        ("two_calls_fa3", "two_calls_fa3 (FlashInfer)"),
        ("two_calls_fa3_fa2", "two_calls_fa3_fa2 (FlashInfer)"),
        ("fa2_tc+fa3@4", "fa2_tc+fa3@4 (fa3: FlashInfer)"),
        ("flash_attn_3+fa3", "flash_attn_3+fa3 (fa3: FlashInfer)"),
        ("window@fa3", "window@fa3 (FlashInfer)"),
        ("flash_attn_3", "flash_attn_3"),
        ("fa2_tc+flash_attn_3@4", "fa2_tc+flash_attn_3@4"),
        ("auto(fa3)", "auto(fa3)"),
        ("fa2", "fa2"),
        ("", ""),
    ],
)
def test_a_name_that_could_be_another_library_s_has_its_own_beside_it(name: str, expected: str):
    assert shown(name) == expected
    assert shown(expected) == expected
    assert all_shown(f"fa2, {name}") == f"fa2, {expected}"


def test_a_kernel_of_several_words_has_the_library_behind_it():
    assert shown("fa3 over 5 parts") == "fa3 over 5 parts (FlashInfer)"
    assert shown("multi_level: fa3") == "multi_level: fa3 (FlashInfer)"
    assert exactness.named("two_calls_fa3", "prefix fa3") == "two_calls_fa3(prefix fa3) (FlashInfer)"


def test_every_backend_that_calls_fa3_is_marked():
    names = {name for _, name in registry.adapters()}

    assert {name for name in names if "fa3" in name} == {name for name in names if shown(name) != name}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("torch_sdpa", True),
        ("fa2_tc+torch_sdpa@4", True),
        ("torch_sdpa+fa2", True),
        ("torch_sdpa_like", False),
        ("fa2_tc+fa2", False),
        ("fa3+torch_sdpa (fa3: FlashInfer)", True),
    ],
)
def test_references_are_the_backends_that_say_they_copy_the_cache(name: str, expected: bool):
    assert bool(re.search(of_references(), name)) == expected
