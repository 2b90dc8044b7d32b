"""The page of the committed datasets is what their rows say."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from orchestrator.config.base import own_files
from tests.helpers.datasets import EVERY, RESULTS
from tools import dataset_page


def test_the_page_of_datasets_is_written_from_their_rows():
    assert (RESULTS / "README.md").read_text() == dataset_page.page(), "type python -m tools.docs"


def test_the_page_has_a_line_for_each_dataset_and_its_command_names_a_sweep():
    lines = [line for line in (RESULTS / "README.md").read_text().splitlines() if "|`+sweep=" in line]

    assert len(lines) == len(EVERY) > 90
    assert {line.split("|`+sweep=")[1].split()[0].rstrip("`|") for line in lines} <= {*own_files("sweep"), "base"}


def test_a_dataset_that_nobody_described_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dataset_page, "RESULTS", tmp_path)
    (tmp_path / "datasets.yaml").write_text("h200_main: {a: {asks: X, command: +sweep=a}}")

    with pytest.raises(SystemExit, match=r"but not in both: h200_main/a\.parquet"):
        dataset_page.page()


def test_a_dataset_of_few_samples_says_so():
    rows = dataset_page.frame(RESULTS / "h200_prefill" / "cascade.parquet")

    with pytest.raises(SystemExit, match="measured with timing=quick; say so"):
        dataset_page.line("cascade", {"asks": "X", "command": "+sweep=cascade"}, rows)


def test_the_table_of_servers_counts_the_rows():
    table = (RESULTS / "README.md").read_text().partition("## Servers measured")[2].partition(dataset_page.ALIKE)[0]
    cells = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("|")][2:]
    counted = duckdb.sql(f"""
        SELECT model || if(routine = 'gated_delta', ', gated_delta', ''), tp, split_part(device_name, ' ', 2) AS gpu, count(*)
        FROM read_parquet('{RESULTS}/h[12]00_*/*.parquet', union_by_name = true, filename = true)
        WHERE status = 'ok' AND s_qo <= 64 AND coalesce(twin, 0) = 0 AND model <> 'custom' AND filename NOT LIKE '%_rules/%'
        GROUP BY ALL""")

    assert {(model, tp, gpu): points for model, tp, gpu, *_, points, _ in cells} == {
        (model, f"{tp}", gpu): f"{count:,}" for model, tp, gpu, count in counted.fetchall()
    }
    most = "\nMostly measured: batch 1, 8, 64 at 8k, 32k, batch 512 at 2k; drafts 0, 3.\n"  # as conf/sweep/servers.yaml has it
    assert most in (RESULTS / "README.md").read_text()
    readme = (RESULTS.parent / "README.md").read_text()
    assert most in readme and "|bf16, fp8_ds_mla, fp8_e4m3 (h100)|" in readme and "|bf16, fp16, fp8_e4m3|" in readme
    assert len({line[0] for line in cells if line[0].startswith("qwen3_next_80b_a3b")}) == 2  # its attention, and its delta nets
    assert all("flash_attn_3_vllm" in line[6] for line in cells if line[:2] == ["llama_3_1_70b", "1"])
