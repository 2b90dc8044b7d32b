"""How names are shown to readers, and that a reference is no winner of a finding."""

from __future__ import annotations

import pandas as pd
import pytest

from benchmarks.findings import named, of_best
from orchestrator.analysis.names import all_shown, shown


@pytest.mark.parametrize(
    ("name", "expected"), [("fa3", "fa3 (FlashInfer)"), ("flash_attn_3", "flash_attn_3"), ("fa2", "fa2"), ("", "")]
)
def test_a_name_that_could_be_another_library_s_has_its_own_beside_it(name: str, expected: str):
    assert shown(name) == expected
    assert all_shown(f"fa2, {name}") == f"fa2, {expected}"
    assert named(f"prefill {name}") == f"prefill {expected}".strip()


def test_a_reference_is_not_the_best_of_its_problem():
    ok = pd.DataFrame({"backend": ["torch_sdpa", "fa2", "fa3"], "problem": 1, "median_us": [1.0, 10.0, 20.0]})

    assert dict(of_best(ok, ["problem"])[["backend", "ratio"]].values) == {"fa2": 1.0, "fa3": 2.0}
