"""Readers of other programs' files open plain files of a bounded size, and never wait for a FIFO."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.analysis import traffic
from orchestrator.errors import UserError
from orchestrator.formats.aiconfigurator import reader as table
from orchestrator.formats.flashinfer_trace import reader, safetensors

Reader = Callable[[Path], Any]
READERS: list[tuple[Any, Reader]] = [
    (traffic, lambda path: traffic.read(str(path))),
    (reader, lambda path: reader.read(str(path))),
    (table, lambda path: table.read_records(str(path))),
    (safetensors, lambda path: safetensors.read_vector(path, "kv_indptr")),
    (reader, lambda path: reader._of_file(path.stem, path.parents[2], {}, {})),
]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where a definition would lie, which suits the other readers too."""
    (folder := tmp_path / "definitions" / "gqa").mkdir(parents=True)
    return folder / "one.json"


@pytest.mark.parametrize("read", [read for _, read in READERS])
@pytest.mark.parametrize("kind", ["FIFO", "folder", "link to a FIFO"])
def test_what_is_no_plain_file_is_refused_and_not_waited_for(place: Path, read: Reader, kind: str):
    if kind == "folder":
        place.mkdir()
    else:
        os.mkfifo(fifo := place if kind == "FIFO" else place.with_name("fifo"))
        if fifo != place:
            place.symlink_to(fifo)

    with pytest.raises((UserError, ValueError), match=r"plain file|no definition"):
        read(place)


@pytest.mark.parametrize(("module", "read"), READERS)
def test_a_file_is_read_up_to_a_limit(place: Path, module: Any, read: Reader, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MAX_BYTES", 10**6)
    place.write_bytes(b" " * (10**6 + 1))

    with pytest.raises((UserError, ValueError), match=r"more than 1 MB|no definition"):
        read(place)
