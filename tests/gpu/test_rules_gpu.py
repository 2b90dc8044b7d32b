"""The support rules on this machine's GPU: what they allow is right, and what they forbid fails if it is forced."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.storage import parquet
from tests.helpers.command_line import run_from_scratch
from tests.helpers.strict_rules import KNOWN_STRICT

pytestmark = pytest.mark.timeout(3600)  # most of the time compiles kernel modules


@pytest.mark.parametrize("sweep", ["rule_edges_paged", "rule_edges_ragged", "rule_edges_mla"])
def test_both_sides_of_every_rule(sweep: str, tmp_path: Path):
    done = run_from_scratch(
        f"+sweep={sweep}", "check.force_unsupported=true", "timing=quick", f"results.path={tmp_path}", timeout=3500
    )
    rows = parquet.read(tmp_path).to_pandas()
    wrong = rows[rows["status"].isin(["mismatch", "failed", "timeout", "oom"])]
    strict = rows[(rows["status"] == "ok") & (rows["reason"] != "")]
    unexpected = strict[~strict["reason"].str.contains("|".join(KNOWN_STRICT)).astype(bool)]
    told = ["routine", "backend", "status", "reason"]

    assert done.returncode == 0, done.stderr
    assert len(rows) > 0
    assert wrong[told].to_dict("records") == []
    assert unexpected[told].to_dict("records") == []
