"""`import=` and `export=`: the keys they need, wrong input, and the rows of an imported file."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from orchestrator.config.settings import load
from orchestrator.errors import UserError
from orchestrator.formats.import_config import resolve_files
from tests.helpers.command_line import Invoke, composed, run

LINE = (
    "--routine BatchDecodeWithPagedKVCacheWrapper --page_size 16 --batch_size 2 --s_kv 64 "
    "--num_qo_heads 8 --num_kv_heads 2 --head_dim_qk 16"
)


@pytest.mark.parametrize(
    ("name", "overrides", "words"),
    [
        (
            "a.xml",
            [],
            "allowed: a test list (.txt), a result file (.csv), a vLLM config (.yaml), workloads of flashinfer-trace (.jsonl)",
        ),
        ("none.txt", [], "no such file"),
        ("a.txt", ["export=flashinfer_csv"], "allowed: one of them at a time"),
        ("a.txt", ["+sweep=smoke"], "brings its own points"),
        ("a.txt", ["mode=import"], "holds points to run, not results"),
        ("a.txt", ["adapters=[no.such]"], "adapters=['no.such']"),
        ("a.txt", ["+sweep.bach_size=3"], "did you mean 'batch_size'?"),
        ("a.csv", [], "does not say on which GPU it was measured; type device=h200"),
        ("a.csv", ["mode=plan", "device=h200"], "holds results, not points to run"),
        ("bytes.txt", [], "no text in UTF-8"),
    ],
)
def test_what_contradicts_a_file_is_named(tmp_path: Path, name: str, overrides: list[str], words: str):
    for made in ("a.txt", "a.xml", "a.csv"):
        (tmp_path / made).write_text(f"{LINE}\n")
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError) as caught:
        load(resolve_files(composed(f"import={tmp_path / name}", *overrides)))

    assert words in str(caught.value)


def test_a_dataset_is_named_after_its_file_where_no_path_is_given(tmp_path: Path):
    (tmp_path / "my cases.txt").write_text(f"{LINE}\n")
    found = load(resolve_files(composed(f"import='{tmp_path / 'my cases.txt'}'")))

    assert (found.sweep.name, found.results.path) == ("my_cases", "results/my_cases")


@pytest.mark.parametrize("mode", ["run", "export"])
def test_an_export_names_its_format_or_has_its_suffix(mode: str):
    with pytest.raises(UserError, match=r"allowed: flashinfer_csv, vllm, sglang, which print, .* or a path that ends in \.csv or"):
        resolve_files(composed(f"mode={mode}", "export=page.txt"))


@pytest.mark.parametrize(
    ("mode", "given", "means"),
    [
        ("run", "a.csv", "flashinfer_csv:a.csv"),
        ("export", "vllm", "vllm"),
        ("run", "a.html", "html:a.html"),
        ("dashboard", "a.html", "html:a.html"),
        ("run", "site:public", "site:public"),
        ("site", "site:public", "site:public"),
        ("site", "public", "site:public"),
        ("site", "s3-like", "site:s3-like"),
    ],
)
def test_an_export_means_the_same_in_every_mode(mode: str, given: str, means: str):
    found = resolve_files(composed(f"mode={mode}", f"export='{given}'"))

    assert (found["mode"], found["export"]) == ("site" if mode == "site" else "export", means)


@pytest.mark.parametrize(
    ("mode", "given", "words"), [("dashboard", "rows", "type export=NAME.html"), ("site", "vllm:x", "type export=DIR")]
)
def test_a_mode_of_one_format_takes_no_other(mode: str, given: str, words: str):
    with pytest.raises(UserError, match=words):
        resolve_files(composed(f"mode={mode}", f"export='{given}'"))


@pytest.mark.parametrize("given", ["aiconfigurator", "flashinfer_trace", "flashinfer_trace:", "vllm:"])
def test_an_export_of_several_files_needs_a_folder(given: str):
    with pytest.raises(UserError, match=f"a path is needed; type export={given.partition(':')[0]}:"):
        resolve_files(composed(f"export='{given}'"))


def test_an_export_of_several_files_names_them(tmp_path: Path, invoke: Invoke):
    data = ("results.path=results/h200_studies/study_in_step", "where={kv_dtype: bf16, s_qo: 1, batch_size: 1}")
    done = invoke(f"export=flashinfer_trace:{tmp_path / 'out'}", *data)
    (file,) = (tmp_path / "out" / "traces").rglob("*.jsonl")

    assert done.returncode == 0, done.stderr
    assert f"{file}: {len(file.read_text().splitlines())} traces" in done.stdout


def test_a_list_runs_and_resumes_and_each_row_replays_from_it(tmp_path: Path):
    path, data = tmp_path / "cases.txt", f"results.path={tmp_path / 'rows'}"
    path.write_text(f"{LINE} --backends torch_sdpa --q_dtype float32 --kv_dtype float32 --refcheck\n")
    args = [f"import={path}", "cluster=inline", "timing=quick", data]
    done, again = run(*args), run(*args)
    (row,) = pd.read_parquet(tmp_path / "rows").to_dict("records")

    assert done.returncode == again.returncode == 0, done.stderr
    assert "--refcheck give way to timing= and check=" in done.stdout and "1 rows in" in done.stdout
    assert "0 rows in" in again.stdout
    assert (row["status"], row["sweep"], row["backend"], row["check"]) == ("ok", "cases", "torch_sdpa", "passed")
    assert f"import={path.name} " in row["command"] and row["command"].endswith(f"mode=replay point={row['point_id']}")
    assert str(tmp_path) not in row["command"]
    replayed = run(*row["command"].split()[3:], data, cwd=tmp_path)
    assert replayed.returncode == 0 and "replay: the row before and after" in replayed.stdout
    assert pd.read_parquet(tmp_path / "rows").to_dict("records")[0]["run_id"] == row["run_id"]
    assert pd.read_parquet(tmp_path / "rows_replay")["run_id"][0] != row["run_id"]


def test_wrong_input_ends_with_code_2_and_no_traceback(tmp_path: Path, invoke: Invoke):
    path = tmp_path / "cases.txt"
    path.write_text("--routine bmm_fp8\n")
    for args in ([f"import={path}"], ["export=flashinfer_csv"], ["export=flashinfer_csv", f"results.path={tmp_path / 'none'}"]):
        done = invoke(*args)

        assert done.returncode == 2
        assert done.stderr.startswith("error: ") and "Traceback" not in done.stderr
