"""The Triton kernel of docs/adding_a_backend.md on a GPU: it passes its checks, and is ranked beside FlashInfer's."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd
import pytest

from orchestrator import ROOT
from tests.helpers.command_line import run_from_scratch


def test_the_kernel_of_the_docs_is_right_and_has_a_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for file in (ROOT / "docs" / "own_kernel").glob("*.py"):
        shutil.copy(file, tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    checked = run_from_scratch("mode=conformance", "adapters=[my_triton]", "format=markdown")
    few = ("sweep.backend=[paged_triton,fa2_tc]", "sweep.batch_size=[1,32]", "sweep.s_kv=[8192]", "sweep.s_qo=[1,4]")
    path = f"results.path={tmp_path / 'rows'}"
    dtypes = "sweep.dtype=[{q: bf16, kv: bf16}, {q: bf16, kv: fp8_e4m3}]"
    swept = run_from_scratch("+sweep=smoke", "adapters=[my_triton]", "cluster=inline", *few, dtypes, path)
    ranked = run_from_scratch("mode=report", "question=one_backend", path, "format=markdown")

    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "| a CUDA graph captures the call | passed |" in checked.stdout and "| failed |" not in checked.stdout
    assert swept.returncode == 0 and set(pd.read_parquet(tmp_path / "rows")["status"]) == {"ok"}, swept.stdout + swept.stderr
    assert ranked.returncode == 0 and "| paged_triton" in ranked.stdout.partition("every backend")[2]
