"""A line of a journal with right keys and wrong types is no row, and says which key it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.errors import DamagedDataset
from orchestrator.storage.parquet import JOURNAL, damage_in, parse_row, read
from orchestrator.storage.row import to_json
from tests.helpers.stored_rows import made

ROW = made("p1", median_us=1.5, samples_us=[1.0, 2.0], tree=[-1, 0], batch_size=4, cuda_graph=True)


def line(**changes: object) -> bytes:
    return json.dumps({**ROW, **changes}).encode()


@pytest.mark.parametrize(
    "changes",
    [
        {"median_us": "1.5"},
        {"median_us": True},
        {"median_us": 10**30},
        {"samples_us": "abc"},
        {"samples_us": [[1.0]]},
        {"tree": [2**40]},
        {"batch_size": 1.5},
        {"batch_size": "4"},
        {"batch_size": 2**63},
        {"batch_size": True},
        {"cuda_graph": "yes"},
        {"finished_at": "yesterday"},
        {"finished_at": "2020-01-01T00:00:00"},
        {"finished_at": 5},
        {"finished_at": None},
        {"point_id": 3},
        {"point_id": ["p1"]},
        {"point_id": None},
        {"status": None},
        {"status": "splendid"},
        {"status": {"a": 1}},
        {"reason": {"a": 1}},
        {"reason": "\ud800"},
        {"backend": ["fa2"]},
    ],
)
def test_a_value_of_another_type_is_no_row(changes: dict[str, object]):
    (key,) = changes

    assert parse_row(line(**changes)) is None
    assert damage_in(line(**changes)).startswith(key)


@pytest.mark.parametrize("text", [b"[" * 100_000, b'{"point_id": ' + b"9" * 5000 + b"}", b"3", b"null", b"\xff"])
def test_what_is_no_object_is_no_row(text: bytes):
    assert parse_row(text) is None
    assert damage_in(text) == ""


def test_a_row_is_read_as_it_was_written():
    assert parse_row(to_json(ROW).encode()) == ROW
    assert parse_row(line(batch_size=4.0, median_us=float("nan"))) is not None  # as JSON may write them


def test_the_message_names_line_and_key(tmp_path: Path):
    (tmp_path / JOURNAL).write_bytes(line() + b"\n" + line(batch_size="4") + b"\n")

    with pytest.raises(
        DamagedDataset, match=rf"line 2 of .*{JOURNAL} is not a row of this project \(batch_size='4' is no whole number\)"
    ):
        read(tmp_path)
