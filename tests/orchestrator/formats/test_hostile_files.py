"""Files of other benchmarks that are binary, bombs, or far too much: one message by line, at once."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator import machines
from orchestrator.errors import UserError
from orchestrator.formats import flashinfer, results_csv, vllm_config
from orchestrator.storage.exported import save_file
from tests.helpers.yaml_bomb import BOMB

VLLM = "batch_specs: [q1s1k]\nbackends: [FLASHINFER]\n"
RANGES = "backends: [FLASHINFER]\nbatch_spec_ranges: "
HEADER = "routine,median_time,backend,batch_size,s_kv,num_qo_heads,num_kv_heads,head_dim_qk,page_size,q_dtype,kv_dtype\n"
LINE = "BatchDecodeWithPagedKVCacheWrapper,{},fa2,{},100,8,8,128,16,torch.bfloat16,torch.bfloat16\n"


def read_vllm(path: str) -> Any:
    return vllm_config.read(path, None)


def read_list(path: str) -> Any:
    return flashinfer.read_testlist(path, None)


def read_csv(path: str) -> Any:
    return results_csv.read(path, machines.known_devices()["h200"], "mine")


@pytest.mark.parametrize(
    ("read", "content", "words"),
    [
        (read_vllm, b"\x93\xff", "file:1: no text in UTF-8"),
        (read_vllm, f"{VLLM}batch_specs: [q1s2k]\n", "file:3: the key 'batch_specs' is in line 1 too"),
        (read_vllm, f"{VLLM}description: !!binary aGVsbG8=\n", "file:3: the tag !!binary"),
        (read_vllm, VLLM + BOMB, "file:8: more than 100,000 values"),
        (read_vllm, f"{VLLM}model: &a {{x: *a}}\n", "file:3: a value is inside of itself by an alias"),
        (read_vllm, f"{VLLM}? [1]\n: 2\n", "file:3: a list or a mapping is in the place of a key"),
        (read_vllm, "", "file:1: no mapping"),
        (read_vllm, RANGES + "[{template: 'q{a}s1k', a: {start: 1, stop: 10000000000000000}}]\n", "a start and a stop from 0 to"),
        (
            read_vllm,
            RANGES + "[{template: 'q{a}s{b}k', a: {start: 1, stop: 100000000}, b: {start: 1, stop: 100000000}}]\n",
            "its ranges give 1e+16 specs; allowed: up to 10,000",
        ),
        (read_vllm, RANGES + "[{template: '{a.__class__}q1s1k', a.__class__: 1}]\n", "allowed: only names in its braces"),
        (read_vllm, RANGES + "[{template: '{a:>1000000000}q1s1k', a: 1}]\n", "allowed: only names in its braces"),
        (read_vllm, RANGES + "[{template: '{a!r}q1s1k', a: 1}]\n", "allowed: only names in its braces"),
        (read_vllm, RANGES + "[{template: '{}q1s1k', '': 1}]\n", "allowed: only names in its braces"),
        (read_vllm, RANGES + "[{template: '{q1s1k', a: 1}]\n", "a brace without its partner"),
        (
            read_vllm,
            f"backends: [FLASHINFER]\nbatch_specs: {['q1s9'] * 2000}\nbatch_sizes: {list(range(1, 2001))}\n",
            "4,000,000 batches; allowed: up to 10,000",
        ),
        (read_vllm, "backends: [FLASHINFER]\nbatch_specs: [999999999q1s1k_1q1s2k]\n", "1,000,000,000 requests of several lengths"),
        (read_list, b"\x93\xff", "file:1: no text in UTF-8"),
        (read_list, "x " * 10_000, "file:1: 19,999 characters in a line"),
        (read_list, "--routine 'x\n", "file:1: "),
        (read_csv, b"\x93\xff", "file:1: no text in UTF-8"),
        (read_csv, "a,b\n1,\0\n", "file:2: a null character"),
        (read_csv, f'{HEADER}"{"x" * 200_000}"\n', "file:2: not CSV"),
        (read_csv, "routine," + HEADER + "x," + LINE.format(1, 1), "file:1: the column 'routine' stands there twice"),
        (read_csv, HEADER + LINE.format("sNaN", 1), "allowed: a number of milliseconds"),
        (read_csv, HEADER + LINE.format("1e9999999999999999999", 1), "allowed: a number of milliseconds"),
        (read_csv, HEADER + LINE.format(1, "9" * 5000), "allowed: a whole number"),
    ],
)
def test_a_hostile_file_is_refused_by_line(tmp_path: Path, read: Callable[[str], Any], content: str | bytes, words: str):
    file = tmp_path / "file"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    begun = time.process_time()
    with pytest.raises(UserError) as refused:
        read(str(file))

    assert words in str(refused.value).replace(str(file), "file")
    assert time.process_time() - begun < 3


@pytest.mark.parametrize("place", ["a link", "a FIFO", "a folder", "rows.parquet", "thesis.docx", "beside rows"])
def test_an_export_replaces_nothing_but_a_plain_file_of_its_own(place: str, tmp_path: Path):
    target = tmp_path / (place if "." in place else "out.csv")
    precious = tmp_path / ("rows.parquet" if place == "beside rows" else "precious")
    precious.write_text("precious")
    make = {"a link": lambda: target.symlink_to(precious), "a FIFO": lambda: os.mkfifo(target), "a folder": target.mkdir}
    make.get(place, lambda: None if place == "beside rows" else target.write_text("a dataset"))()

    with pytest.raises(UserError, match=r"a plain file is needed|the name of its file|is there, and is no such file"):
        save_file(str(target), b"text")

    assert precious.read_text() == "precious"
    assert "." not in place or target.read_text() == "a dataset"
    assert not list(tmp_path.glob(".*.part"))


def test_a_link_or_a_file_beside_an_export_is_not_written_through(tmp_path: Path):
    precious = tmp_path / "precious"
    precious.write_text("precious")
    (tmp_path / "out.csv.new").symlink_to(precious)
    save_file(str(tmp_path / "out.csv"), b"text")

    assert precious.read_text() == "precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.csv", "out.csv.new", "precious"]
