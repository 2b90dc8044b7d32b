"""FlashInfer's fa3: with four warps of a block late, the others copy rows that are not there yet (docs/backends.md)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.command_line import environment

KINDS = ["ragged_full", "ragged_causal", "paged_full", "paged_causal"]
EARLY = [row for row in range(64, 128) if row % 16 < 8]  # rows of the late half that the four early warps copy


def lines(kernel: str, folder: Path) -> list[dict[str, Any]]:
    file = folder / f"{kernel}.jsonl"
    words = [sys.executable, "-m", "tests.gpu.fa3_barrier", kernel, str(file), "2", "4,512,1500", ",".join(KINDS)]
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.timeout(3600)  # most of it compiles kernel modules
def test_four_early_warps_pass_the_barrier_of_fa3_alone(tmp_path: Path):
    late, mended = lines("late_released", tmp_path), lines("late_mended", tmp_path)

    assert [line["kind"] for line in late] == [line["kind"] for line in mended] == KINDS
    assert [line["off"][0]["in_tile"] for line in late] == [EARLY] * len(KINDS)
    assert {pieces for line in late for pieces in line["off"][0]["of_v"]} == {16}
    assert [line["wrong"] for line in mended] == [0] * len(KINDS)
