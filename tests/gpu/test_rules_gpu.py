"""The support rules against the GPU that is here: what they allow is right, and what they forbid, forced, fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator import datafile
from tests.conftest import run

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(3600)]  # most of it compiles kernel modules

# What a rule forbids although it ran and was right, each with why it is forbidden all the same (docs/support.md).
KNOWN_STRICT = {
    r"^.*\(fa2 on .* needs: fp16 or bf16 output\)": "fa2 writes FP8 outputs without a scale: over long contexts they underflow",
}


@pytest.mark.parametrize("sweep", ["rule_edges_paged", "rule_edges_ragged", "rule_edges_mla"])
def test_both_sides_of_every_rule(sweep: str, tmp_path: Path):
    done = run(f"+sweep={sweep}", "check.force_unsupported=true", "timing=quick", f"results.path={tmp_path}", timeout=3500)
    rows = datafile.read(tmp_path).to_pandas()
    wrong = rows[rows["status"].isin(["mismatch", "failed", "timeout", "oom"])]
    strict = rows[(rows["status"] == "ok") & (rows["reason"] != "")]
    unexpected = strict[~strict["reason"].str.contains("|".join(KNOWN_STRICT)).astype(bool)]
    told = ["routine", "backend", "status", "reason"]

    assert done.returncode == 0, done.stderr
    assert len(rows) > 0
    assert wrong[told].to_dict("records") == []
    assert unexpected[told].to_dict("records") == []
