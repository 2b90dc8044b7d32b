"""How names are shown to readers, and that a reference is no winner of a finding."""

from __future__ import annotations

import re

import pandas as pd
import pytest

from benchmarks.findings.frames import named, of_best
from orchestrator.analysis.names import all_shown, of_references, shown


@pytest.mark.parametrize(
    ("name", "expected"), [("fa3", "fa3 (FlashInfer)"), ("flash_attn_3", "flash_attn_3"), ("fa2", "fa2"), ("", "")]
)
def test_a_name_that_could_be_another_library_s_has_its_own_beside_it(name: str, expected: str):
    assert shown(name) == expected
    assert all_shown(f"fa2, {name}") == f"fa2, {expected}"
    assert named(f"prefill {name}") == f"prefill {expected}".strip()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("torch_sdpa", True),
        ("fa2_tc+torch_sdpa@4", True),
        ("torch_sdpa+fa2", True),
        ("torch_sdpa_like", False),
        ("fa2_tc+fa2", False),
    ],
)
def test_references_are_the_backends_that_say_they_copy_the_cache(name: str, expected: bool):
    assert bool(re.search(of_references(), name)) == expected


def test_a_reference_is_not_the_best_of_its_problem():
    ok = pd.DataFrame({"backend": ["torch_sdpa", "fa2", "fa3"], "problem": 1, "own_us": [1.0, 10.0, 20.0]})

    assert dict(of_best(ok, ["problem"])[["backend", "ratio"]].values) == {"fa2": 1.0, "fa3": 2.0}
