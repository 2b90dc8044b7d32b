"""Data of others, and what people type by mistake: words and exit code 2, bounded time and memory, and nothing is written."""

from __future__ import annotations

import io
import json
import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.analysis import traffic
from orchestrator.analysis.dataset import open_dataset
from orchestrator.commands.export import _rows_of
from orchestrator.composing import overrides
from orchestrator.composing.compose import composed
from orchestrator.config import config_json
from orchestrator.config.model import Model
from orchestrator.environments import make
from orchestrator.errors import UserError
from orchestrator.formats import import_config
from orchestrator.formats.flashinfer_trace.safetensors import with_vectors
from orchestrator.machines import known_devices
from orchestrator.planning.replay import replay_command
from orchestrator.point import Point
from orchestrator.reporting import document
from orchestrator.scheduling.archive import _read as read_archive
from orchestrator.storage import checksum
from orchestrator.storage.columns import Row
from orchestrator.storage.folder import FolderStore
from orchestrator.storage.row import to_table
from orchestrator.untrusted.text import for_csv, for_json
from tests.helpers.command_line import Invoke
from tests.helpers.datasets import MAIN
from tests.helpers.runs import SMALL
from tests.helpers.stored_rows import made

S1 = [*SMALL, "cluster=inline", "sweep.backend=[torch_sdpa]", "sweep.batch_size=[1]", "sweep.s_qo=[1]"]
PLAN, ASK = ["mode=plan", "device=h200"], ["mode=report", "question=one_backend", f"results.path={MAIN}"]
TEN = "[1,2,3,4,5,6,7,8,9,10]"
DECODE = "gqa_paged_decode_h32_kv8_d128_ps16"
CSV = "routine,median_time,backend,batch_size,s_qo,s_kv,num_qo_heads,num_kv_heads,head_dim_qk,page_size,q_dtype,kv_dtype,"
CSV += "random_actual_seq_len\n"
LINE = "BatchPrefillWithPagedKVCacheWrapper,1,fa2,{},7,1024,8,8,128,16,torch.bfloat16,torch.bfloat16,True\n"
RANGES = 'batch_spec_ranges: [{{template: "{{bs}}q1s1k", {}: 2, bs: 3}}]\nbackends: [FLASHINFER]\n'
ESC = "x\nrm -rf ~ #\x1b]0;PWN\x07\u202e"


def trace(definition: str = DECODE, **inputs: Any) -> str:
    axes = {"batch_size": 2, "num_kv_indices": 64, "len_indptr": 3}
    return json.dumps({"definition": definition, "workload": {"axes": axes, "inputs": inputs, "uuid": "x"}})


def tensor(path: str) -> dict[str, str]:
    return {"type": "safetensors", "path": path, "tensor_key": "k"}


def histograms(edges: int, engines: int) -> str:
    lines = [
        f'vllm:request_{of}_tokens_bucket{{le="{i}"}} {min(i, edges)}'
        for of in ("prompt", "generation")
        for i in range(1, edges + 1)
    ]
    lines += [f'vllm:request_{of}_tokens_bucket{{le="+Inf"}} {edges}' for of in ("prompt", "generation")]
    return "\n".join([*lines, *(f'vllm:num_requests_running{{engine="{i}"}} {i}' for i in range(1, engines + 1)), ""])


@pytest.fixture
def refused(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """What a command says that must end with exit code 2, at once, in little memory, and leave a folder as it was."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def run(*words: str) -> str:
        before, begun, memory = sorted(tmp_path.rglob("*")), time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        done = invoke(*words)
        assert (done.returncode, done.stdout) == (2, ""), done.stderr
        assert "Traceback" not in done.stderr
        assert sorted(tmp_path.rglob("*")) == before
        assert time.process_time() - begun < 5
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 1e6  # KB
        return done.stderr

    yield run


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([*ASK, f"weights=[{{s_kv: {TEN}, s_qo: {TEN}, seed: {TEN}, tp: {TEN}, window: {TEN}, weight: 1}}]"], "100,000 workl"),
        ([*ASK, "weights=[]"], "weights=[]: allowed: one workload or more"),
        ([*ASK, "weights=[{tree: [1,2], weight: 1}]"], "unknown 'tree'"),
        ([*ASK, "weights=[{s_qo: [], weight: 1}]"], "allowed: a value, or a list of values"),
        ([*ASK, "weights=[{s_qo: true, weight: 1}]"], "s_qo=True; allowed: a value"),
        ([*ASK, "where={s_qo: 1, s_qo: 4}"], "s_qo stands there twice"),
        ([*ASK, 'where={backend: "\udcff"}'], "no text in UTF-8"),
        ([*S1, "results.path=/"], "/bin is no part of a dataset"),
        ([*S1, "sweep.seed=[99999999999999999999]"], "sweep.seed=99999999999999999999: allowed: at most"),
        ([*S1, "limits.attempts=1000"], "limits.attempts=1000: allowed: at most 100"),
        ([*S1, "limits.attempts=true"], "limits.attempts=true: allowed: a number"),
        ([*S1, "sweep.seed=[true]"], "sweep.seed=true: allowed: a whole number"),
        (["+sweep=smoke", "where={s_qo: []}", *PLAN], "where={s_qo: []}: allowed: columns with a value"),
        ([*S1, "limits.point_seconds=1e300"], "limits.point_seconds=1e+300: allowed: at most"),
        ([*S1, '+env.x={requirements: ["six\0"]}', "sweep.env=[x]"], "allowed: text without control characters"),
        ([*S1, "+env.x={python: '~nosuchuser/python'}", "sweep.env=[x]"], "there is no user 'nosuchuser'"),
        ([*S1, "sweep.env=[mine]"], "unknown environment"),
        ([*S1, "--config-dir", "~nosuchuser/x"], "there is no user 'nosuchuser'"),
        ([*S1, "--config-dir", "a" * 5000], "File name too long; type another folder"),
        ([*S1, f"+sweep.head_dim_qk=[{'9' * 400}]", "+sweep.softmax_scale=[1]"], "allowed: at most"),
        (["+sweep=smoke", f"sweep.batch_size={'[' * 400}{']' * 400}", *PLAN], "more than 30 deep"),
    ],
)  # fmt: skip
def test_what_is_typed(refused: Callable[..., str], words: list[str], said: str):
    assert said in refused(*words)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("c/sweep/t.yaml", "defaults: [base, _self_]\nname: t\nbackend: [fa2\n", "t.yaml:4: not YAML"),
        ("p.txt", histograms(2000, 0), "31,944,000 combinations"),
        ("p.txt", histograms(100, 300), "23,160,000 combinations"),
        ("w.jsonl", trace(DECODE.replace("d128", "d0")), "w.jsonl:1: a value of a wrong kind or size"),
        ("w.jsonl", trace().replace('"inputs": {}', f'"inputs": {{"sm_scale": {{"value": 1{"0" * 399}}}}}'), "400 digits"),
        ("w.jsonl", trace(kv_indptr=tensor("a" * 5000)), "File name too long"),
        ("w.jsonl", trace(kv_indptr=tensor("loop/x")), "w.jsonl:1:"),
        ("w.jsonl", trace(kv_indptr=tensor("odd.safetensors")), "k is no vector of whole numbers"),
        ("w.jsonl", trace(DECODE.replace("h32", "h1")), "is no definition with the axes"),
        ("w.jsonl", '{"definition": "a", "definition": "b", "workload": {}}', "the key 'definition' stands there twice"),
        ("r.csv", CSV + LINE.format(2_000_000_000), "batch_size=2000000000: allowed: 1 to 1,048,576"),
        ("old.csv", CSV + LINE.format(2), "its date is before 1970 or in the future"),
        ("v.yaml", RANGES.format("1"), "the ranges are of ['1', 'bs']"),
        ("v.yaml", RANGES.format("null"), "the ranges are of ['None', 'bs']"),
        ("v.yaml", f"batch_specs: [q1s1k]\nbackends: [FLASHINFER]\nmodel: {{num_q_heads: 0x{'f' * 6000}}}\n", "6002 digits"),
        ("v.yaml", "batch_specs: [q1s1k]\nmodel: !!bool zz\n", "v.yaml:2: the tag !!bool"),
        ("v.yaml", "batch_specs: [q1s1k]\nmodel: !!int ''\n", "v.yaml:2: the tag !!int"),
        ("v.yaml", f"batch_specs: [q1s1k]\nmodel: 0b{'1' * 20_000}\n", "20002 digits"),
        ("v.yaml", f"batch_specs: [q1s1k]\nmodel: {'1:' * 200}1.0\n", "looks like a number and is not one"),
    ],
)  # fmt: skip
def test_what_a_file_says(refused: Callable[..., str], tmp_path: Path, name: str, content: str, said: str):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    header = json.dumps({"k": {"dtype": [], "shape": [3], "data_offsets": [0, 12]}}).encode()
    (tmp_path / "odd.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(12))
    (tmp_path / "definitions" / "gqa").mkdir(parents=True)
    axes = {"num_qo_heads": 1, "num_kv_heads": 8, "head_dim": 10**400, "page_size": 16}
    written = json.dumps({"axes": {axis: {"value": value} for axis, value in axes.items()}, "inputs": {}})
    (tmp_path / "definitions" / "gqa" / f"{DECODE.replace('h32', 'h1')}.json").write_text(written)
    file = tmp_path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)
    if name == "old.csv":
        os.utime(file, (1_000_000_000_000, 1_000_000_000_000))
    words = {
        ".yaml": ["--config-dir", str(tmp_path / "c"), "+sweep=t"] if name.startswith("c/") else [f"import={file}"],
        ".txt": [*ASK, f"traffic={file}"],
        ".jsonl": [f"import={file}", "+sweep.backend=[fa2]"],
        ".csv": [f"import={file}", "device=h200", f"results.path={tmp_path / 'rows'}"],
    }[file.suffix]

    assert said in refused(*words, *(PLAN if file.suffix in (".yaml", ".jsonl") else []))


@pytest.mark.parametrize("said", ['{"packages": 5, "cuda": [], "problem": null}', "[" * 200_000, "", '{"packages": {"six": 1}}'])
def test_an_interpreter_that_says_nonsense_and_a_cache_that_was_cut_off(refused: Callable[..., str], tmp_path: Path, said: str):
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\ncat <<'E'\n{said}\nE\n")
    python.chmod(0o755)
    (tmp_path / make.MADE).write_text(said)

    assert make._known(tmp_path) is None
    rows = f"results.path={tmp_path}_rows"  # the dataset is opened before the interpreter is asked
    assert "is not a Python that runs" in refused(*S1, f"+env.x={{python: {python}}}", "sweep.env=[x]", rows)


@pytest.mark.parametrize(
    "content",
    ['!!python/object/apply:os.system ["true"]', b"requirements: [\xff]", "python: a\npython: b"],
)
def test_a_file_of_an_environment(refused: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | bytes):
    (file := tmp_path / "mine.yaml").write_bytes(content if isinstance(content, bytes) else content.encode())
    monkeypatch.setattr("orchestrator.config.environment.own_files", lambda group: {"mine": file})

    assert "mine.yaml:" in refused(*S1, "sweep.env=[mine]")


def dataset(folder: Path, rows: int = 200, **changes: object) -> str:
    """A committed dataset's first rows with other values, which has a checksum: anybody can compute one."""
    table = pq.read_table(MAIN, filters=[("status", "=", "ok")]).slice(0, rows)
    changed = [
        {**row, **{key: value for key, value in changes.items() if row[key] is not None or key == "tree"}}
        for row in table.to_pylist()
    ]
    folder.mkdir()
    with (folder / "rows.parquet").open("w+b") as file:
        checksum.write(pa.Table.from_pylist(changed, schema=table.schema), file)
    return str(folder)


def test_dates_and_blocks_that_no_row_has(refused: Callable[..., str], invoke: Invoke, tmp_path: Path):
    from datetime import UTC, datetime

    late = dataset(tmp_path / "late", finished_at=datetime(9999, 12, 31, tzinfo=UTC))
    odd = dataset(tmp_path / "odd", block_sizes=[-5, 5, 5, 5])
    for words in (
        ["mode=dashboard", f"export={tmp_path / 'x.html'}"],
        ["mode=site", f"export={tmp_path / 'site'}"],
        ["mode=report"],
    ):
        assert "finished_at that is no date from 1970 to 2261" in refused(*words, f"results.path={late}")
    assert invoke("mode=compare", f"baseline={odd}", f"candidate={MAIN}", "missing=allow").returncode in (0, 1)


@pytest.mark.parametrize(
    "words",
    [["export=vllm"], ["export=sglang"], ["mode=report"], ["mode=report", "question=best", "format=csv"], ["export=flashinfer_csv"],
     ["mode=report", "question=best", "format=json"], ["mode=report", "format=csv"], ["mode=report", "format=markdown"]],
)  # fmt: skip
def test_text_of_a_dataset_is_printed_as_text(invoke: Invoke, tmp_path: Path, words: list[str]):
    path = dataset(tmp_path / "evil", 900, model=ESC, libraries=ESC, host=ESC, command=ESC)
    done = invoke(*words, f"results.path={path}")
    printed = done.stdout + done.stderr

    assert done.returncode == 0, done.stderr
    assert not any(sign in printed for sign in "\x1b\x07\u202e")
    assert not any(line.lstrip("\"'| ").startswith("rm -rf") for line in printed.splitlines())


@pytest.mark.parametrize("name", ["flashinfer_csv", "flashinfer_trace:{}", "aiconfigurator:{}"])
@pytest.mark.parametrize("changes", [{"mask": "x"}, {"routine": "nope"}, {"seed": -7}, {"tree": [1, 2]}, {"tree": [None]}])
def test_a_row_that_is_no_problem_is_left_out(invoke: Invoke, tmp_path: Path, name: str, changes: Row):
    done = invoke(f"export={name.format(tmp_path / 'out')}", f"results.path={dataset(tmp_path / 'rows', **changes)}")

    assert "Traceback" not in done.stderr and done.returncode in (0, 2), done.stderr
    assert name != "flashinfer_csv" or "rows: no problem of this project: " in done.stderr


@pytest.mark.parametrize(
    ("name", "precious"),
    [("x.html", "<!doctype html>\n<title>my thesis</title>"), ("x.csv", "routine,median_time,backend\nmine,1,fa2\n")],
)
def test_an_export_takes_the_place_of_its_own_files_alone(invoke: Invoke, tmp_path: Path, name: str, precious: str):
    file, beside, rows = tmp_path / name, tmp_path / f"{name}.new", f"results.path={dataset(tmp_path / 'rows')}"
    beside.write_text(precious)
    codes = [invoke(f"export={file}", rows).returncode for _ in range(2)]
    file.write_text(precious)
    done = invoke(f"export={file}", rows)

    assert codes == [0, 0]
    assert (done.returncode, file.read_text(), beside.read_text()) == (2, precious, precious)
    assert "is there, and is no such file" in done.stderr


def test_a_formula_is_no_formula_in_a_sheet():
    assert [for_csv(cell) for cell in ('=HYPERLINK("a")', "@x", "+1+2", "-5.2%", "-1e-3", 5, None)] == [
        "'=HYPERLINK(\"a\")", "'@x", "'+1+2", "-5.2%", "-1e-3", 5, None,
    ]  # fmt: skip
    assert json.loads(for_json(json.dumps(ESC, ensure_ascii=False))) == ESC


def test_a_clock_that_was_set_back_makes_no_old_row_current(refused: Callable[..., str], tmp_path: Path):
    store = FolderStore(str(tmp_path / "rows"))
    store.add([{**made("p1"), "finished_at": "2200-01-01T00:00:00+00:00"}])
    store.close()

    assert "its newest row is of 2200-01-01 00:00 UTC, and the clock here says" in refused(*S1, f"results.path={tmp_path / 'rows'}")


def test_credentials_reach_no_row(problem: Callable[..., Any]):
    command = replay_command(["+env.x={requirements: ['six @ http://me:s3cret@host/six.whl']}"], "run")(
        Point(problem(), "fa2", "how")
    )

    assert "six @ http://***@host/six.whl" in command and "s3cret" not in command


def test_a_token_of_ray_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from orchestrator.pools.ray.connection import _make_token_private

    token = tmp_path / "token"
    token.write_text("secret")
    token.chmod(0o644)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(token))
    _make_token_private()

    assert token.stat().st_mode & 0o777 == 0o600


# ---- whatever is in a file


def _imported(path: Path) -> object:
    config = {"import": str(path), "mode": "run", "device": "h200", "results": {"path": "results/none"}, "adapters": []}
    return import_config.resolve_files(config)


def _result_file(path: Path) -> object:
    model = Model(name="m", num_qo_heads=8, num_kv_heads=8, head_dim_qk=128, head_dim_vo=128)
    given = SimpleNamespace(source=str(path), device=known_devices()["h200"], model=model, sweep=SimpleNamespace(name="s"))
    return _rows_of(given)  # type: ignore[arg-type]


def _peak_kb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _dataset(path: Path) -> object:
    return open_dataset(path).current()


def _config(path: Path) -> object:
    return composed(["+sweep=t"], str(path.parents[1]))


def _parquet() -> bytes:
    file = io.BytesIO()
    pq.write_table(to_table([made("p1"), made("p2", "failed")]), file)
    return file.getvalue()


def _table() -> bytes:
    names = dict.fromkeys(("attn_dtype", "kv_cache_dtype"), "bfloat16") | dict.fromkeys(("num_heads", "num_key_value_heads"), 8)
    line = {"framework": "VLLM", "version": "0.24.0", "device": "NVIDIA H200", "op_name": "generation_attention", "batch_size": 8}
    line |= {"kernel_source": "vllm_flash_attn_fa3", "isl": 1, "head_dim": 128, "beam_width": 1, "step": 8191, "latency": 0.083}
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([line | names]), file, compression="none")
    return file.getvalue()


LIST = b"--routine BatchDecodeWithPagedKVCacheWrapper --backends fa2 --batch_size 8 --s_kv 64 --num_qo_heads 8 --num_kv_heads 8 "
LIST += b"--head_dim_qk 128 --page_size 16 --random_actual_seq_len\n"
VLLM = b"batch_specs: [q1s1k, q2k]\nbackends: [FLASHINFER]\nmodel: {num_q_heads: 32, num_kv_heads: 8}\nbatch_sizes: [1, 2]\n"
TRACE = trace(kv_indptr=tensor("t.safetensors")).replace("_ps16", "_ps1").replace("64", "2").encode()
LENGTHS = b'{"input_length": 6758, "output_length": 500}\n{"input_length": 5, "output_length": 9}\n'
SWEEP = b"defaults: [smoke, _self_]\nname: t\nbackend: [fa2]\ns_kv: [64, {from: 1, to: 8, factor: 2}]\n"
WORDS = b"+sweep=smoke\nsweep.s_kv=[1,2]\nwhere={a: 1}"
MODEL = b'{"model_type": "qwen3", "num_attention_heads": 64, "num_key_value_heads": 8, "hidden_size": 5120, "layer_types": ["a"]}'
PAGE = b"---\ntitle: a\nverdict: b\nconfidence: high\nresults: results/x\n---\ntext\n"
OPERATORX = {"batch_size": 4, "seq_len_q": 1, "seq_len_kv": 1536, "num_heads": 8, "num_heads_kv": 1, "head_dim": 64, "causal": True}
OPERATORX |= dict.fromkeys(("dtype_q", "dtype_k", "dtype_v", "dtype_o"), "bf16")
READERS: dict[str, tuple[Callable[[Path], object], bytes]] = {
    "list.txt": (_imported, LIST),
    "v.yaml": (_imported, VLLM),
    "w.jsonl": (_imported, TRACE),
    "r.csv": (_result_file, (CSV + LINE.format(2)).encode()),
    "o.json": (_imported, json.dumps([{"type": "attention_mha", "args": OPERATORX, "name": "model"}]).encode()),
    "t.csv": (lambda path: traffic.read(str(path)), b"TIMESTAMP,ContextTokens,GeneratedTokens\n1,374,44\n2,396,109\n"),
    "t.txt": (lambda path: traffic.read(str(path)), histograms(3, 2).encode()),
    "t.jsonl": (lambda path: traffic.read(str(path)), LENGTHS),
    "c/sweep/t.yaml": (_config, SWEEP),
    "rows.parquet": (_dataset, _parquet()),
    "a.parquet": (_result_file, _table()),
    "config.json": (lambda path: config_json.read(str(path)), MODEL),
    "d.md": (lambda path: document.read(str(path)), PAGE),
    "m.tar": (lambda path: read_archive(str(path), lambda entries: entries), bytes(1024)),
    "words": (lambda path: overrides.read(path.read_text(errors="surrogateescape").split("\n")), WORDS),
}
SIGNS = [b"\0", b"\xff", b"\t", b"\n", b"{", b"}", b"[" * 500, b"]", b'"', b"'", b": ", b",", b"-", b"../", b"=", b"\xed\xa0\x80"]
VALUES = [
    b"!!python/x ",
    b"&a ",
    b"*a",
    b"null",
    b"true",
    b"NaN",
    b"1e999",
    b"-1",
    b"0",
    b"9" * 30,
    b"9" * 5000,
    b"0xffffffffffffffff",
    b"0b" + b"1" * 20000,
    b"1:" * 200 + b"1.0",
    b"!!bool ",
]
TOKENS = [*SIGNS, *VALUES, b"2000000000", b"${oc.env:HOME}"]
EDITS = st.lists(
    st.tuples(st.floats(0, 1), st.integers(0, 12), st.sampled_from(TOKENS) | st.binary(max_size=6)), min_size=1, max_size=4
)


@pytest.mark.parametrize("name", READERS)
@given(edits=EDITS)
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_whatever_a_file_holds_is_taken_or_refused_in_words(name: str, edits: list[tuple[float, int, bytes]]):
    read, content = READERS[name]
    for where, deleted, put in edits:
        at = int(where * len(content))
        content = content[:at] + put + content[at + deleted :]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / name
        file.parent.mkdir(parents=True, exist_ok=True)
        (file.parent / "t.safetensors").write_bytes(with_vectors({"k": [0, 1, 2]}))
        file.write_bytes(content)
        before, begun, most = sorted(Path(folder).rglob("*")), time.process_time(), _peak_kb()
        try:
            read(file)
        except UserError as error:
            assert str(error)
        assert time.process_time() - begun < 3 and _peak_kb() - most < 500_000
        assert sorted(Path(folder).rglob("*")) == before
