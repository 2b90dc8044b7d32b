"""A line of a journal with right keys and wrong types is no row, and says which key it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.storage.folder import FolderStore
from orchestrator.storage.journal import parse_row
from orchestrator.storage.parquet import read
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
        {"median_us": 10**15 * 10**4},
        {"median_us": float("nan")},
        {"median_us": None},
        {"finished_at": "9999-12-31T00:00:00+00:00"},
        {"samples_us": "abc"},
        {"samples_us": [[1.0]]},
        {"tree": [2**40]},
        {"batch_size": 1.5},
        {"batch_size": "4"},
        {"batch_size": 2**63},
        {"batch_size": -1},
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

    assert str(parse_row(line(**changes))).startswith(key)


@pytest.mark.parametrize("text", [b"[" * 100_000, b'{"point_id": ' + b"9" * 5000 + b"}", b"3", b"null", b"\xff"])
def test_what_is_no_object_is_no_row(text: bytes):
    assert "JSON" in str(parse_row(text)) or "5000 digits" in str(parse_row(text))


def test_a_row_is_read_as_it_was_written():
    assert parse_row(to_json(ROW).encode()) == ROW
    assert isinstance(parse_row(line(batch_size=4.0, tflops=float("nan"))), dict)  # as JSON may write them


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seed": 10**20}, "since seed=100000000000000000000 is no whole number; it was ok: measured"),
        ({"seed": 10**5000}, "since seed=int (ValueError) is no whole number"),
        ({"batch_size": 2**40}, "since batch_size=1099511627776 is no size from 1 to 2,147,483,647"),
        ({"median_us": float("inf")}, "since median_us=inf is no time"),
        ({"samples_us": [1.0, "x"]}, "is no list of numbers"),
        ({"kernel_config": object()}, "since kernel_config=<object"),
        ({"colour": "red"}, "since 'colour' is no column"),
        ({"status": "splendid"}, "since status='splendid'"),
    ],
)
def test_a_row_that_cannot_be_stored_fails_in_words_and_the_dataset_stays_readable(
    tmp_path: Path, changes: dict[str, object], words: str
):
    store = FolderStore(str(tmp_path))
    store.add([{**ROW, "reason": "measured", **changes}, made("p2")])  # type: ignore[typeddict-item, misc]
    assert read(tmp_path).num_rows == 2
    store.close()
    found = {row["point_id"]: row for row in read(tmp_path).to_pylist()}

    assert (found["p1"]["status"], found["p1"]["median_us"], found["p2"]["status"]) == ("failed", None, "ok")
    assert words in found["p1"]["reason"]


def test_text_that_no_file_holds_is_escaped(tmp_path: Path):
    store = FolderStore(str(tmp_path))
    store.add([{**made("p1", "failed", backend="\ud800"), "reason": "bad \udcff name"}])
    store.close()
    (row,) = read(tmp_path).to_pylist()

    assert (row["reason"], row["backend"]) == ("bad \\udcff name", "\\ud800")
