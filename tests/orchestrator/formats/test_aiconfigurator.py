"""aiconfigurator's tables: rows that say where they come from, tables in its schema, and damaged files in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from orchestrator import ROOT
from orchestrator.analysis.connection import Record
from orchestrator.config.model import Model
from orchestrator.errors import UserError
from orchestrator.formats.aiconfigurator import reader, writer
from orchestrator.formats.aiconfigurator.reader import OF_ATTENTION, OF_MLA, OPTIONAL, read_records
from orchestrator.machines import known_devices
from orchestrator.storage import parquet
from orchestrator.storage.columns import COLUMNS
from orchestrator.storage.row import Row
from tests.helpers.command_line import Invoke
from tests.helpers.noted import noted
from tests.helpers.timed_rows import views_of

MODEL = Model(name="llama", num_qo_heads=64, num_kv_heads=8, head_dim_qk=128, head_dim_vo=128, tp=(1, 8))
# A row of h200_sxm/attention/vllm/0.24.0/generation_attention_perf.parquet: 64 and 8 heads, batch 8, 8,192 KV tokens.
LINE: dict[str, Any] = {
    "framework": "VLLM", "version": "0.24.0", "device": "NVIDIA H200", "op_name": "generation_attention",
    "kernel_source": "vllm_flash_attn_fa3", "batch_size": 8, "isl": 1, "num_heads": 64, "num_key_value_heads": 8, "head_dim": 128,
    "beam_width": 1, "attn_dtype": "bfloat16", "kv_cache_dtype": "bfloat16", "step": 8191, "window_size": 0, "latency": 0.083,
}  # fmt: skip
NOT_OF_MLA = ("num_key_value_heads", "head_dim", "beam_width", "attn_dtype", "window_size")
MLA_LINE = {key: value for key, value in LINE.items() if key not in NOT_OF_MLA} | {
    "op_name": "mla_generation", "framework": "SGLang", "kernel_source": "flash_attention", "mla_dtype": "bfloat16", "tp_size": 2,
}  # fmt: skip


def written(tmp_path: Path, *lines: dict[str, Any]) -> str:
    """A table where aiconfigurator keeps it."""
    folder = tmp_path / "h200_sxm" / "attention" / "vllm" / "0.24.0"
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist([*lines]), folder / "generation_attention_perf.parquet")
    return str(folder / "generation_attention_perf.parquet")


def taken(tmp_path: Path, *lines: dict[str, Any]) -> list[Row]:
    return reader.read(written(tmp_path, *lines), None, MODEL, "published")


def test_a_line_is_a_row_that_names_its_table_and_claims_no_more_than_it_says(tmp_path: Path):
    (row,) = taken(tmp_path, LINE)

    assert set(row) == set(COLUMNS)
    assert (row["routine"], row["backend"], row["resolved_backend"]) == ("paged_decode", "flash_attn_3", "vllm_flash_attn_fa3")
    assert (row["batch_size"], row["s_qo"], row["s_kv"], row["median_us"]) == (8, 1, 8192, pytest.approx(83.0))
    assert (row["model"], row["tp"], row["page_size"], row["page_order"]) == ("llama", 1, 64, "random")
    assert (row["cluster"], row["device_name"], row["libraries"]) == ("aiconfigurator-vllm-0.24.0", "NVIDIA H200", "vllm 0.24.0")
    assert row["bytes"] == 8 * (64 * 2 * 128 * 2 + 8192 * 8 * 2 * 128 * 2)
    assert row["tb_per_sec"] == pytest.approx(row["bytes"] / 83e-6 / 1e12)
    assert (row["orchestrator_version"], row["l2"], row["context"]) == ("aiconfigurator", "warm", "isolated")
    assert row["reason"].startswith("imported: row 1 of h200_sxm/attention/vllm/0.24.0/generation_attention_perf.parquet")
    assert str(tmp_path) not in row["reason"]
    assert all(row[name] is None for name in ("samples_us", "rel_err", "torch_version", "frac_of_peak", "command"))


@pytest.mark.parametrize(
    ("line", "keys"),
    [
        ({**LINE, "num_heads": 8, "num_key_value_heads": 1}, {"model": "llama", "tp": 8}),
        ({**LINE, "num_heads": 32}, {"model": "custom", "tp": 1}),
        ({**LINE, "window_size": 128}, {"window": 128}),
        ({**LINE, "kv_cache_dtype": "fp8"}, {"q_dtype": "fp8_e4m3", "kv_dtype": "fp8_e4m3", "out_dtype": "bf16"}),
        (
            {**LINE, "kv_cache_dtype": "fp8", "kernel_source": "vllm_flashinfer_trtllmdecode"},
            {"q_dtype": "bf16", "backend": "trtllm-native"},
        ),
        ({**LINE, "op_name": "context_attention", "isl": 512, "step": 0}, {"routine": "paged_prefill", "s_qo": 512, "s_kv": 512}),
        (
            {**LINE, "framework": "SGLang", "kernel_source": "flashinfer"},
            {"backend": "fa2_tc", "page_size": 1, "page_order": "sequential"},
        ),
        ({**LINE, "framework": "SGLang", "kernel_source": "trtllm_mha"}, {"backend": "trtllm-native", "page_size": 64}),
        ({**LINE, "framework": "TRTLLM", "kernel_source": "torch_flow"}, {"backend": "torch_flow", "page_size": 64}),
        ({**LINE, "power": 400.0, "power_limit": 700.0}, {"power_w": None}),
        (MLA_LINE, {"routine": "mla", "num_qo_heads": 64, "num_kv_heads": 64, "head_dim_ckv": 512, "backend": "flash_attn_3"}),
    ],
)
def test_what_its_collectors_do_is_in_the_row(tmp_path: Path, line: dict[str, Any], keys: dict[str, object]):
    (row,) = taken(tmp_path, line)

    assert {key: row[key] for key in keys} == keys  # type: ignore[literal-required]


def test_the_last_of_two_lines_of_one_shape_counts_and_two_kernels_stay_two(tmp_path: Path):
    rows = taken(tmp_path, LINE, {**LINE, "latency": 0.09}, {**LINE, "kernel_source": "vllm_flash_attn_fa4"})

    assert sorted((row["backend"], row["median_us"]) for row in rows) == [
        ("flash_attn_3", pytest.approx(90)),
        ("flash_attn_4", pytest.approx(83)),
    ]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"op_name": "mla_context"}, ":1: op_name='mla_context': allowed: context_attention"),
        ({"op_name": "gemm"}, ":1: op_name='gemm'"),
        ({"beam_width": 4}, ":1: beam_width=4: allowed: 1"),
        ({"attn_dtype": "int4"}, ":1: attn_dtype='int4': allowed: bfloat16"),
        ({"latency": float("nan")}, ":1: latency=nan"),
        ({"latency": 0.0}, ":1: latency=0.0"),
        ({"latency": float("inf")}, ":1: latency=inf"),
        ({"batch_size": 0}, ":1: batch_size=0"),
        ({"batch_size": 2**62}, ":1: batch_size="),
        ({"step": -5}, ":1: s_kv=-4"),
        ({"num_key_value_heads": 7}, ":1: num_qo_heads=64 does not divide"),
        ({"head_dim": None}, ":1: head_dim is empty"),
        ({"framework": "other"}, "framework='other'; allowed: VLLM, SGLang, TRTLLM"),
        ({"framework": None}, "1 values of framework (None); allowed: a table of one"),
        ({"head_dim": "128"}, ":1: head_dim_qk='128': allowed: a whole number"),
        ({"latency": "1"}, ":1: latency='1': allowed: a number of milliseconds from 1e-06"),
        ({"op_name": 3, "new_column": 3}, ":1: column new_column has no counterpart here"),
    ],
)
def test_a_value_without_a_counterpart_is_named_by_its_row(tmp_path: Path, change: dict[str, Any], words: str):
    lines = [{**LINE, **change}] if change.get("head_dim", 0) is not None else [{**LINE, **change}, LINE]
    if len(lines) > 1:
        rows, said = noted(lambda: taken(tmp_path, *lines))
        assert len(rows) == 1
    else:
        with pytest.raises(UserError) as caught:
            taken(tmp_path, *lines)
        said = str(caught.value)

    assert words in said


def test_the_encoders_table_is_plain_attention_without_a_mask(tmp_path: Path):
    kept = {key: LINE[key] for key in ("framework", "version", "device", "num_heads", "head_dim", "attn_dtype", "latency")}
    line = {**kept, "op_name": "encoder_attention", "kernel_source": "flash_attention_v3", "batch_size": 4, "isl": 577}
    (row,), (other,) = taken(tmp_path, line), taken(tmp_path, {**line, "kernel_source": "torch_flow"})

    assert (row["routine"], row["mask"], row["batch_size"], row["s_qo"], row["s_kv"]) == ("ragged_prefill", "full", 4, 577, 577)
    assert (row["num_qo_heads"], row["num_kv_heads"], row["head_dim_qk"]) == (64, 64, 128)
    assert (row["backend"], other["backend"]) == ("flash_attn_3", "torch_flow")


def test_damaged_files_and_other_tables_are_named_in_words(tmp_path: Path):
    whole = Path(written(tmp_path, LINE)).read_bytes()
    cases = {"no readable Parquet file": whole[:300], "no readable Parquet file ": b"PAR1", " no readable Parquet file": b""}
    for words, content in cases.items():
        (tmp_path / "bad.parquet").write_bytes(content)
        with pytest.raises(UserError, match=words.strip()):
            read_records(str(tmp_path / "bad.parquet"))
    for table, words in (
        (pa.table({"a": [1]}), "no column framework"),
        (pa.table({"a": pa.array([b"\xff\xfe"]).view(pa.string())}), "no readable Parquet file"),
        (pa.Table.from_pylist([LINE]).slice(0, 0), "it has no rows"),
        (pa.Table.from_pylist([LINE]).append_column("isl", pa.array([1])), "the column isl twice"),
    ):
        pq.write_table(table, tmp_path / "bad.parquet")
        with pytest.raises(UserError, match=words):
            read_records(str(tmp_path / "bad.parquet"))


def test_a_table_of_two_devices_or_of_another_is_refused(tmp_path: Path):
    with pytest.raises(UserError, match="2 values of device"):
        taken(tmp_path, LINE, {**LINE, "device": "NVIDIA B200"})
    with pytest.raises(UserError, match="was measured on NVIDIA H200; leave device out"):
        reader.read(written(tmp_path, LINE), known_devices()["b200"], MODEL, "x")


def test_the_command_needs_no_device_and_a_damaged_file_ends_with_code_2(tmp_path: Path, invoke: Invoke):
    path = written(tmp_path, LINE, {**LINE, "step": 32_767})
    done = invoke(f"import={path}", f"results.path={tmp_path / 'rows'}")
    Path(path).write_bytes(b"PAR1 and no more")
    damaged = invoke(f"import={path}", f"results.path={tmp_path / 'other'}")

    assert done.returncode == 0, done.stderr
    assert parquet.read(tmp_path / "rows").num_rows == 2
    assert damaged.returncode == 2 and damaged.stderr.startswith("error: import=")
    assert not (tmp_path / "other").exists()


@pytest.fixture(scope="module")
def long_ctx() -> list[Record]:
    table = parquet.read(ROOT / "results" / "h200_main/specdec_long_ctx").to_pandas()
    return table[(table["s_kv"] == 8192) & (table["kv_dtype"] == "bf16")].to_dict("records")


def test_a_dataset_is_written_in_its_schema_with_the_fastest_of_each_workload(tmp_path: Path, long_ctx: list[Record]):
    tables, left_out, _ = writer.to_tables(long_ctx)
    files = writer.save(tables, str(tmp_path / "out"))
    decode = read_records(str(tmp_path / "out" / "generation_attention_perf.parquet"))
    ranked = views_of(pd.DataFrame(long_ctx)).records("SELECT us FROM fastest WHERE batch_size = 8 AND s_qo = 1")

    assert files == ["generation_attention_perf.parquet", "draft_attention_perf.parquet", "collection_meta.yaml"]
    assert {*decode[0]} == {*OF_ATTENTION} | (OPTIONAL - {"power", "power_limit"})
    assert [line["latency"] for line in decode if line["batch_size"] == 8] == [pytest.approx(ranked[0]["us"] / 1000)]
    assert {(line["isl"], line["isl"] + line["step"]) for line in decode} == {(1, 8192)}
    assert sum(left_out.values()) + sum(map(len, tables.values())) == len(long_ctx)
    meta = yaml.safe_load((tmp_path / "out" / "collection_meta.yaml").read_text())
    assert meta["schema_version"] == 1 and meta["tables"]["generation_attention_perf"] == {"status": "complete"}


def test_drafts_never_stand_in_the_table_that_is_searched_by_kv_tokens_alone(tmp_path: Path, long_ctx: list[Record]):
    tables, *_ = writer.to_tables(long_ctx)

    assert {line["isl"] for line in tables["generation_attention_perf"]} == {1}
    assert {line["isl"] for line in tables["draft_attention_perf"]} == {2, 4, 8}
    assert {line["isl"] + line["step"] for line in tables["draft_attention_perf"]} == {8192}


def test_mla_has_the_columns_of_its_own_table():
    rows = parquet.read(ROOT / "results" / "h200_mla/mla_mtp").to_pandas()
    few = rows[(rows["batch_size"] == rows["batch_size"].min()) & (rows["tp"] == rows["tp"].min())]
    tables, *_ = writer.to_tables(few.to_dict("records"))

    assert {*tables} == {"generation_mla_perf", "draft_mla_perf"}
    assert {*tables["generation_mla_perf"][0]} == {*OF_MLA}


def test_what_a_table_cannot_hold_is_refused_or_counted(tmp_path: Path, long_ctx: list[Record]):
    few = [row for row in long_ctx if row["status"] == "ok" and row["batch_size"] == 8]
    tree = [{**row, "mask": "a_tree"} for row in few]

    with pytest.raises(UserError, match=r"several values of device_name .* type where=\{device_name: "):
        writer.to_tables([*few, {**few[0], "device_name": "another"}])
    assert writer.to_tables(tree)[1]["mask: no column for it"] > 0
    with pytest.raises(UserError, match="no row of the dataset fits"):
        writer.save(writer.to_tables(tree)[0], str(tmp_path / "none"))
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        writer.save(writer.to_tables(few)[0], str(tmp_path / "file" / "below"))
