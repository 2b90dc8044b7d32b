"""An export to a folder replaces plain files and says so, and refuses anything else before it writes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.errors import UserError
from orchestrator.storage.exported import save_files
from orchestrator.storage.parquet import DATA
from tests.helpers.command_line import Invoke

FILES = {"first.txt": b"first", "below/second.txt": b"second"}


def test_files_that_were_there_are_replaced_and_named(tmp_path: Path, invoke: Invoke):
    typed = (f"export=aiconfigurator:{tmp_path / 'out'}", "results.path=results/h200_engines/vllm_triton")
    first, second = invoke(*typed), invoke(*typed)

    assert (first.returncode, second.returncode) == (0, 0)
    assert "are replaced" not in first.stderr
    assert "out before are replaced: draft_attention_perf.parquet, generation_attention_perf.parquet, coll" in second.stderr


@pytest.mark.parametrize("kind", ["a link", "a FIFO", "a folder", "a dataset", "a folder that is a link"])
def test_what_is_no_plain_file_is_refused_before_anything_is_written(kind: str, tmp_path: Path):
    out, other = tmp_path / "out", tmp_path / "other"
    (out / "below").mkdir(parents=True)
    other.mkdir()
    (other / "second.txt").write_text("precious")
    target = out / "below" / "second.txt"
    match kind:
        case "a link":
            target.symlink_to(other / "second.txt")
        case "a FIFO":
            os.mkfifo(target)
        case "a folder":
            target.mkdir()
        case "a dataset":
            (out / DATA).write_text("rows")
        case _:
            (out / "below").rmdir()
            (out / "below").symlink_to(other)

    with pytest.raises(UserError, match=r"plain file is needed|the folder of a dataset|is a symbolic link"):
        save_files("aiconfigurator", str(out), FILES)

    assert not (out / "first.txt").exists()
    assert (other / "second.txt").read_text() == "precious"
