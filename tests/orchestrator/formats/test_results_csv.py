"""FlashInfer's result files: rows that say where they come from, columns it would have written, and nothing lost on the way."""

from __future__ import annotations

import csv
import io
import re
import shlex
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest

from orchestrator import ROOT
from orchestrator.errors import UserError
from orchestrator.formats import results_csv
from orchestrator.formats.flashinfer import COLUMNS
from orchestrator.machines import known_devices
from orchestrator.storage import parquet
from orchestrator.storage.columns import COLUMNS as OUR_COLUMNS
from orchestrator.storage.row import to_table
from tests.helpers.command_line import Invoke
from tests.helpers.noted import noted

H200 = known_devices()["h200"]
# The columns of a file of 2025, in its order; those of other routines are a sample.
OLDER = (
    "routine,median_time,std_time,tflops,tb_per_sec,backend,page_size,batch_size,s_qo,s_kv,num_qo_heads,num_kv_heads,head_dim_qk,"
    "head_dim_vo,head_dim_ckv,head_dim_kpe,causal,q_dtype,kv_dtype,avg_actual_seq_len,random_actual_seq_len,m,out_dtype,refcheck,"
    "no_cuda_graph,allow_output_mismatch,random_seed,case_tag,generate_repro_command,repro_command"
)
CELLS = dict.fromkeys(OLDER.split(","), "") | {
    "routine": "BatchDecodeWithPagedKVCacheWrapper", "median_time": "0.05", "std_time": "0.001",
    "tflops": "5.4", "tb_per_sec": "0.7", "backend": "fa2",
    "page_size": "16", "batch_size": "16", "s_qo": "1", "s_kv": "1024", "num_qo_heads": "64",
    "num_kv_heads": "8", "head_dim_qk": "128", "head_dim_vo": "128", "causal": "False", "q_dtype": "torch.bfloat16",
    "kv_dtype": "torch.bfloat16", "avg_actual_seq_len": "1024", "random_actual_seq_len": "False", "refcheck": "True",
    "no_cuda_graph": "False", "allow_output_mismatch": "False", "random_seed": "42", "case_tag": "a model",
    "generate_repro_command": "True", "repro_command": "python3 flashinfer_benchmark.py --routine ...",
}  # fmt: skip
PREFILL = {"routine": "BatchPrefillWithPagedKVCacheWrapper", "s_qo": "1024", "causal": "True"}
MLA = {
    "routine": "BatchMLAPagedAttentionWrapper", "num_qo_heads": "128", "num_kv_heads": "", "head_dim_qk": "", "head_dim_vo": "",
    "head_dim_ckv": "512", "head_dim_kpe": "64",
}  # fmt: skip


def written(tmp_path: Path, *changes: dict[str, str]) -> str:
    """A result file with a line for each change of `CELLS`, and a column for each key that these lack."""
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, list(dict.fromkeys([*CELLS, *(key for change in changes for key in change)])))
    writer.writeheader()
    writer.writerows({**CELLS, **change} for change in changes)
    path = tmp_path / "old.csv"
    path.write_text(out.getvalue())
    return str(path)


def taken(tmp_path: Path, *changes: dict[str, str]) -> list[dict[str, Any]]:
    return results_csv.read(written(tmp_path, *changes), H200, "old")


def test_a_line_is_a_row_with_our_units_and_formulas(tmp_path: Path):
    (row,) = taken(tmp_path, {})

    assert (row["routine"], row["backend"], row["status"]) == ("paged_decode", "fa2", "ok")
    assert (row["median_us"], row["std_us"]) == (50.0, 1.0)
    assert row["bytes"] == 16 * (64 * (128 + 128) * 2 + 1024 * 8 * (128 + 128) * 2)
    assert row["flops"] == 2 * 64 * (128 + 128) * 16 * 1024
    assert row["tflops"] == pytest.approx(row["flops"] / 50e-6 / 1e12)
    assert set(row) == set(OUR_COLUMNS)


def test_a_row_names_its_file_and_claims_only_what_the_file_says(tmp_path: Path):
    (row,) = taken(tmp_path, {})

    assert row["orchestrator_version"] == "flashinfer_benchmark"
    assert (row["cluster"], row["sweep"], row["device_name"]) == ("old.csv", "old", "NVIDIA H200")
    assert row["run_id"].startswith("imported-")
    assert row["reason"] == "imported: line 2 of old.csv, case_tag a model"
    assert row["command"] == CELLS["repro_command"]
    assert row["check"].startswith("not_checked: imported")
    unknown = ("samples_us", "num_samples", "frac_of_peak", "flashinfer_version", "cuda_graph", "l2", "rel_err", "driver")
    assert all(row[name] is None for name in unknown)


def test_imported_rows_never_take_the_place_of_measured_ones(tmp_path: Path):
    (first,), (second,) = taken(tmp_path, {}), taken(tmp_path, {"no_cuda_graph": "True"})

    assert first["point_id"] != second["point_id"]
    assert second["cuda_graph"] is False


def test_random_prefill_lengths_are_drawn_again_and_give_the_files_bytes(tmp_path: Path):
    """Time and rate as FlashInfer published them for a B200 in benchmarks/samples/sample_testlist_output.csv."""
    (row,) = taken(tmp_path, {
        **PREFILL, "median_time": "0.19863999634981155", "tb_per_sec": "0.972820638093932", "avg_actual_seq_len": "327",
        "random_actual_seq_len": "True",
    })  # fmt: skip

    assert row["batch_spec"].startswith("q103_q436_q861_")
    assert row["bytes"] == pytest.approx(0.972820638093932e12 * 0.19863999634981155e-3, rel=1e-12)
    assert row["tb_per_sec"] == pytest.approx(0.972820638093932, rel=1e-12)


@pytest.mark.parametrize("change", [{"avg_actual_seq_len": "501"}, {**PREFILL, "avg_actual_seq_len": "333"}])
def test_with_unknown_lengths_the_row_has_the_files_rates_and_says_so(tmp_path: Path, change: dict[str, str]):
    (row,) = taken(tmp_path, {**change, "random_actual_seq_len": "True"})

    assert (row["seq_lens"], row["batch_spec"], row["flops"], row["bytes"]) == ("random", None, None, None)
    assert (row["tflops"], row["tb_per_sec"]) == (5.4, 0.7)
    assert row["reason"].endswith(f"lengths drawn there and lost, {change['avg_actual_seq_len']} on average")


@pytest.mark.parametrize(
    ("change", "keys"),
    [
        (MLA, {"routine": "mla", "mask": "causal", "head_dim_qk": 192, "head_dim_vo": 128, "num_kv_heads": 128}),
        ({**MLA, "s_qo": "4"}, {"mask": "full"}),
        ({"s_qo": "4", "causal": "True"}, {"mask": "causal"}),
        ({"s_qo": "4"}, {"mask": "full"}),
        ({**PREFILL, "backend": "trtllm-gen-native"}, {"backend": "trtllm-context"}),
        ({"backend": "prims-ts"}, {"backend": "prims-ts"}),  # a time is a time, whoever's kernel it is
        ({"kv_dtype": "torch.uint8"}, {"kv_dtype": "nvfp4"}),
        ({"enable_pdl": "True"}, {"enable_pdl": True}),
        ({"enable_pdl": "False"}, {"enable_pdl": None}),
        ({"q_dtype": "torch.float8_e4m3fn", "kv_dtype": "torch.float8_e4m3fn"}, {"q_dtype": "fp8_e4m3", "out_dtype": "fp8_e4m3"}),
        ({"q_dtype": "torch.float8_e4m3fn", "out_dtype": "torch.bfloat16"}, {"q_dtype": "fp8_e4m3", "out_dtype": "bf16"}),
    ],
)
def test_its_words_are_keys_of_a_problem(tmp_path: Path, change: dict[str, str], keys: dict[str, object]):
    (row,) = taken(tmp_path, change)

    assert {key: row[key] for key in keys} == keys


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"routine": "mm_fp4"}, "old.csv:3: 1 line of other routines: mm_fp4"),
        ({"median_time": "fast"}, "old.csv:3: median_time='fast': allowed: a number of milliseconds"),
        ({"median_time": "inf"}, "old.csv:3: median_time='inf': allowed: a number of milliseconds from 0"),
        ({"median_time": "5e-324"}, "old.csv:3: median_time=5e-324: allowed: a number of milliseconds from 1e-06"),
        ({"median_time": "0"}, "old.csv:3: median_time=0.0: allowed: a number of milliseconds from 1e-06"),
        ({"tflops": "many", "random_actual_seq_len": "True"}, "old.csv:3: tflops='many': allowed: a number"),
        ({"q_dtype": "torch.bfloat17"}, "old.csv:3: 'torch.bfloat17' is no dtype"),
        ({"batch_size": "x"}, "old.csv:3: batch_size='x': allowed: a whole number"),
        ({"batch_size": ""}, "old.csv:3: batch_size='': allowed: a whole number"),
        ({"num_kv_heads": "7"}, "old.csv:3: num_qo_heads=64 does not divide by num_kv_heads=7"),
        ({"m": "4096"}, "old.csv:3: m='4096' has no counterpart here"),
        ({"causal": "maybe"}, "old.csv:3: causal='maybe': allowed: True or False"),
    ],
)
def test_a_line_that_cannot_be_mapped_is_named_with_its_column(tmp_path: Path, change: dict[str, str], words: str):
    rows, said = noted(lambda: taken(tmp_path, {}, change))

    assert len(rows) == 1
    assert words in said
    with pytest.raises(UserError, match="nothing of"):
        taken(tmp_path, change)


def test_a_line_of_another_width_and_a_file_of_another_kind_are_named(tmp_path: Path):
    path = Path(written(tmp_path, {}))
    path.write_text(path.read_text() + "a,b\n")
    assert "old.csv:3: 2 cells under 30 columns" in noted(lambda: results_csv.read(str(path), H200, "old"))[1]
    path.write_text("a,b\n1,2\n")
    with pytest.raises(UserError, match=r"old.csv:1: no column routine, median_time") as error:
        results_csv.read(str(path), H200, "old")
    assert "median_time in milliseconds (ms), routine one of BatchDecodeWithPagedKVCacheWrapper, " in str(error.value)


NUMBERS = ["median_us", "std_us", "tflops", "tb_per_sec", "flops", "bytes"]
WHAT = ["routine", "backend", "resolved_backend", "batch_size", "s_qo", "s_kv", "mask", "page_size", "num_qo_heads", "num_kv_heads"]
WHAT += ["head_dim_qk", "head_dim_vo", "head_dim_ckv", "head_dim_kpe", "q_dtype", "kv_dtype", "out_dtype", "seed", "seq_lens"]


@pytest.mark.parametrize("name", ["h200_releases/auto_routing", "h200_mla/mla_mtp"])
def test_a_dataset_that_goes_out_and_comes_in_again_has_the_same_numbers(name: str, tmp_path: Path):
    table = parquet.read(ROOT / "results" / name).to_pandas()
    text, left_out = results_csv.to_csv(table.to_dict("records"))
    (tmp_path / "out.csv").write_text(text)
    back = pd.DataFrame(results_csv.read(str(tmp_path / "out.csv"), H200, "out"))
    went = table[table["status"] == "ok"].assign(seed=0)

    assert list(csv.DictReader(io.StringIO(text)).fieldnames or ()) == list(COLUMNS)
    assert len(back) + sum(left_out.values()) == len(table)
    assert len(back) == len(went)
    both = [side.assign(**side[WHAT].astype(object).fillna("none").map(str)) for side in (went, back)]
    joined = both[0].merge(both[1], on=[key for key in WHAT if key != "mask"], suffixes=("", "_back"))
    joined = joined[(joined["mask"] == joined["mask_back"]) | (joined["s_qo"] == "1")]
    assert len(joined) == len(went)
    for number in NUMBERS:
        assert (joined[number] == joined[f"{number}_back"]).all(), number


def test_the_rates_that_go_out_are_those_of_flashinfer_s_formula():
    table = parquet.read(ROOT / "results" / "h100_prefill/ragged_prefill").to_pandas()
    table = table[(table["status"] == "ok") & (table["mask"] == "causal") & (table["backend"] != "flash_attn_3")]
    text, _ = results_csv.to_csv(table.to_dict("records"))
    out = pd.read_csv(io.StringIO(text))
    # its formula: (d_qk + d_vo) * H * sum of q * (2k - q), by milliseconds and 1e9
    pairs = out["batch_size"] * out["s_qo"] * (2 * out["s_kv"] - out["s_qo"])
    theirs = (out["head_dim_qk"] + out["head_dim_vo"]) * out["num_qo_heads"] * pairs / out["median_time"] / 1e9

    assert len(out) == len(table)
    assert ((out["tflops"] - theirs).abs() < 1e-9 * theirs).all()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"window": 128}, "window: no column for it"),
        ({"sinks": True}, "sinks: no column for it"),
        ({"kv_layout": "NHD"}, "kv_layout: no column for it"),
        ({"page_order": "sequential"}, "page_order: no column for it"),
        ({"max_seq_len": 131072}, "max_seq_len: no column for it"),
        ({"enable_pdl": False}, "enable_pdl=false: in its files False says that nothing was asked"),
        ({"seq_lens": "listed", "batch_spec": "15q1s1k_q1s1000"}, "batch_spec: no column for it"),
        ({"s_qo": 4, "min_s_qo": 1}, "min_s_qo: no column for it"),
        ({"mask": "t", "s_qo": 3, "tree": [-1, 0, 0]}, "tree: no column for it"),
        ({"twin": 1}, "twin: its files have each case once"),
        ({"status": "oom"}, "oom: its files have only times"),
    ],
)
def test_a_row_that_its_columns_have_no_words_for_is_left_out_by_name(tmp_path: Path, change: dict[str, Any], reason: str):
    (row,) = taken(tmp_path, {})
    table = to_table([row, {**row, **change, "point_id": "another"}]).to_pandas()
    text, left_out = results_csv.to_csv(table.to_dict("records"))

    assert left_out == {reason: 1}
    assert len(text.splitlines()) == 2


def test_an_exported_row_is_measured_again_without_a_folder_of_who_measured_it(tmp_path: Path, invoke: Invoke):
    (row,) = taken(tmp_path, {})
    measured = {**row, "command": "python -m orchestrator +sweep=smoke results.path=/out/x"}
    pq.write_table(to_table([measured]), tmp_path / "a.parquet")
    path = f"results.path={tmp_path / 'a'}"
    (tmp_path / "out.csv").write_text(invoke("export=flashinfer_csv", path).stdout)

    (command,) = pd.read_csv(tmp_path / "out.csv")["repro_command"]
    assert command == f"python -m orchestrator mode=replay point={row['point_id']} {path}"


def test_a_person_imports_a_file_reads_its_report_and_exports_it(tmp_path: Path, invoke: Invoke):
    path, data = written(tmp_path, {}, {"backend": "cudnn", "median_time": "0.04"}), f"results.path={tmp_path / 'rows'}"
    first, again = invoke(f"import={path}", "device=h200", data), invoke(f"import={path}", "device=h200", data)
    report, printed = invoke("mode=report", "full=true", data), invoke("export=flashinfer_csv", data)
    saved = invoke(f"export={tmp_path / 'out.csv'}", data)

    assert [done.returncode for done in (first, again, report, printed, saved)] == [0] * 5, first.stderr + printed.stderr
    assert "2 rows of" in again.stdout and len(pd.read_parquet(tmp_path / "rows")) == 2
    assert "cudnn 40.0 (+25%)" in report.stdout
    asked, apart = ("mode=report", "question=best"), "times of others (old.csv) have tables of their own, since how they were timed"
    assert apart in " ".join(invoke(*asked, data).stdout.split())
    assert apart not in " ".join(invoke(*asked, "results.path=results/h200_main/specdec_tp8").stdout.split())
    assert printed.stdout == (tmp_path / "out.csv").read_text()
    assert pd.read_csv(tmp_path / "out.csv")["median_time"].tolist() == [0.05, 0.04]


def test_the_times_that_the_docs_show_are_taken_and_are_of_decode_and_drafts_with_a_mask(tmp_path: Path, invoke: Invoke):
    (shown,) = re.findall(r"```\n(routine,.*?)```", (ROOT / "docs/formats.md").read_text(), re.DOTALL)
    path = tmp_path / "mine.csv"
    path.write_text(shown)
    rows = results_csv.read(str(path), H200, "mine")

    assert [(row["median_us"], row["s_qo"], row["mask"], row["kv_dtype"]) for row in rows] == [
        (pytest.approx(70.1), 1, "causal", "bf16"),
        (pytest.approx(91.2), 4, "causal", "fp8_e4m3"),
    ]
    assert [row["timer"] for row in rows] == [None, None]  # a file of one's own says nothing of events
    done = invoke(f"import={path}", "device=h200", f"results.path={tmp_path / 'mine'}")
    words = done.stdout.splitlines()[-1].split()[3:]
    compared = invoke(*words)

    assert words[0] == "mode=compare" and words[2].startswith("candidate=results/h200_")
    assert compared.returncode == 0 and "my_kernel 70.1" in compared.stdout and "of their workload" not in compared.stderr


def test_an_import_outside_a_checkout_says_what_to_type_in_one(tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch):
    path = written(tmp_path, {"batch_size": "8", "s_kv": "8192", "avg_actual_seq_len": "8192", "causal": "True"})
    monkeypatch.chdir(tmp_path)
    *_, said, again = invoke(f"import={Path(path).name}", "device=h200", "results.path=rows").stdout.splitlines()
    monkeypatch.chdir(ROOT)

    assert "results/ here has no times of its workloads; in a checkout, this names a dataset to compare with" in said
    assert "  python -m orchestrator mode=compare " in invoke(*shlex.split(again)[3:]).stdout
    assert len(pd.read_parquet(tmp_path / "rows")) == 1
