"""Two GPUs by their names: which datasets are found for them, and what is said if there are none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from orchestrator import ROOT
from orchestrator.storage.row import Row, to_table
from tests.helpers.command_line import Invoke
from tests.helpers.compared import dataset, timed

SIDES = ("baseline=h100", "candidate=h200")
NAMES = {"h100": "NVIDIA H100 80GB HBM3", "h200": "NVIDIA H200"}
RUNS = {"h100": "r1", "h200": "r2"}
OLD, NEW = "flashinfer-python 0.6.0", "flashinfer-python 0.7.2"


def folders(name: str) -> tuple[str, str]:
    return f"baseline=results/h100_{name}", f"candidate=results/h200_{name}"


@pytest.mark.parametrize(
    ("typed", "name", "where"),
    [
        ("model=deepseek_v3_2 tp=16", "mla/sparse_and_dense", "{model: deepseek_v3_2, tp: 16}"),
        ("model=llama_3_1_70b drafts=0", "main/specdec_all_candidates", "{model: llama_3_1_70b, s_qo: 1}"),
        ("model=deepseek_r1 tp=8", "mla/mla_mtp", "{model: deepseek_v3, num_qo_heads: 16}"),
    ],
)
def test_the_answer_is_that_of_the_two_datasets_that_share_most(typed: str, name: str, where: str, invoke: Invoke):
    found = invoke("mode=compare", *typed.split(), *SIDES)
    named = invoke("mode=compare", *folders(name), f"where={where}", "missing=allow")

    assert (found.returncode, found.stdout) == (0, named.stdout), found.stderr
    read = " and ".join(side.partition("=")[2] for side in folders(name))
    assert f"note: read {read}, which share most workloads and backends of the same releases" in found.stderr
    assert ("; rows of deepseek_v3 answer, whose heads are the same" in found.stderr) is ("deepseek_r1" in typed)


def test_a_model_of_ones_own_is_answered_by_rows_with_its_heads(tmp_path: Path, invoke: Invoke):
    heads = {"num_attention_heads": 64, "num_key_value_heads": 8, "hidden_size": 8192, "num_hidden_layers": 60}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **heads}))
    done = invoke("mode=compare", f"model={tmp_path}/config.json", "tp=1", *SIDES)

    assert done.returncode == 0 and "rows of llama_3_1_70b answer, whose heads are the same" in done.stderr, done.stderr
    assert "best against best: q bf16, kv bf16 1.31" in " ".join(done.stdout.split())


def test_two_releases_are_compared_by_rows_with_a_models_heads(invoke: Invoke):
    typed = ("mode=compare", "results.path=results/h200_main/servers*", "baseline=vllm:0.25.1", "candidate=vllm:0.33.0")
    lent = invoke(*typed, "model=llama_3_3_70b", "tp=8")
    named = invoke(*typed, "where={model: [llama_3_1_70b, qwen3_235b_a22b], tp: 8}")

    answers = [done.stdout.partition("to measure the suspects")[0] for done in (lent, named)]
    assert lent.returncode == 0 and answers[0] == answers[1] and "flags measured on both sides: FLASH_ATTN" in answers[0]
    assert "note: rows with the heads of llama_3_3_70b answer" in lent.stderr


@pytest.mark.parametrize("candidate", ["candidate=h200", "candidate=h100"])
def test_a_gpu_that_was_not_measured_is_answered_as_by_a_report(candidate: str, invoke: Invoke):
    asked = ("model=llama_3_1_70b", "tp=8")
    compared, reported = invoke("mode=compare", *asked, "baseline=h100", candidate), invoke("mode=report", *asked, "device=h100")

    assert compared.returncode == reported.returncode == 2
    assert compared.stderr == reported.stderr.replace("error: ", "error: baseline=h100: ")
    assert "not measured: tp=8\nnearest: llama_3_1_70b on NVIDIA H200 (tp 8; " in compared.stderr


def test_the_side_and_the_length_that_lack_are_named(invoke: Invoke):
    done = invoke("mode=compare", "model=llama_3_1_70b", "tp=1", "baseline=h200", "candidate=a100", "where={s_kv: 32768}")

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: candidate=a100: not measured: device=a100\nnearest: llama_3_1_70b on NVIDIA H100")


def at(gpu: str, backend: str, libraries: str = NEW, **keys: Any) -> Row:
    problem = {"batch_size": 8, "s_qo": 1, **keys}
    named = {"device_name": NAMES[gpu], "device_uuid": RUNS[gpu], "libraries": libraries, "run_id": RUNS[gpu], "l2": "clean"}
    row = timed(backend, 20.0 if gpu == "h100" else 10.0, **named, **problem)
    return {**row, "context": "isolated", "point_id": f"{backend}{sorted(problem.items())}"}


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, invoke: Invoke) -> Path:
    """Makes a folder with datasets under results/, the folder of this command."""
    files: dict[str, list[Row]] = {
        "h100_mine/a": [at("h100", backend, batch_size=batch) for backend in ("fa2", "fa3") for batch in (1, 8)],
        "h100_mine/drafts": [at("h100", "fa2", s_qo=4, batch_size=batch) for batch in range(1, 20)],
        "h100_mine/large": [at("h100", "fa2", batch_size=100)],
        "h200_mine/drafts": [at("h200", "fa2", s_qo=4, batch_size=batch) for batch in range(1, 20)],
        "h200_mine/more_of_other_releases": [at("h200", name, OLD, batch_size=of) for name in ("fa2", "fa3") for of in (1, 8)],
        "h200_mine/more_workloads_and_no_common_one": [at("h200", "fa2", batch_size=batch) for batch in range(20, 60)],
        "h200_mine/of_the_same": [at("h200", "fa2", batch_size=1), at("h200", "fa3", batch_size=8)],
        "h200_mine/pages": [at("h200", "fa2", page_size=size) for size in (1, 16, 32)],
    }
    for name, rows in files.items():
        (path := tmp_path / "results" / f"{name}.parquet").parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(to_table(rows), path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("typed", "pair"),
    [
        ([], ("a", "of_the_same")),  # with decode, though more is shared of drafts
        (["drafts=3"], ("drafts", "drafts")),
        (["where={batch_size: 1}"], ("a", "of_the_same")),
    ],
)
def test_of_the_same_releases_the_datasets_with_most_common_workloads_and_decode_are_taken(
    typed: list[str], pair: tuple[str, str], stored: Path, invoke: Invoke
):
    done = invoke("mode=compare", *SIDES, *typed)

    assert done.returncode == 0 and "best against best" in done.stdout, done.stderr
    assert f"read results/h100_mine/{pair[0]} and results/h200_mine/{pair[1]}, which share most" in done.stderr
    more = "; 2 more pairs share some, next baseline=results/h100_mine/drafts candidate=results/h200_mine/drafts"
    assert (more in done.stderr) is (pair[0] == "a")


def test_what_a_found_dataset_lacks_is_no_regression_unless_that_is_asked_for(stored: Path, invoke: Invoke):
    found, strict = (invoke("mode=compare", *SIDES, *typed) for typed in ((), ("missing=fail",)))

    assert (found.returncode, strict.returncode) == (0, 1)
    told, red = (" ".join(done.stdout.split()) for done in (found, strict))
    assert "compared, 2 on one side only), by median_us" in told and "missing" not in told
    assert "2 missing" in red and "2 points of the baseline have no time in the candidate and no reason why: red without" in red


def test_gpus_without_a_common_point_are_told_what_each_has(stored: Path, invoke: Invoke):
    done = invoke("mode=compare", *SIDES, "where={page_size: [16, 32]}")
    apart = invoke("mode=compare", *SIDES, "where={batch_size: {from: 20, to: 200}}")

    assert done.returncode == apart.returncode == 2
    assert done.stderr.startswith("error: baseline=h100: not measured: page_size=16 or 32")
    told = "error: baseline=h100 and candidate=h200: no point was measured on both; there are: m on NVIDIA H100 80GB HBM3 ("
    assert apart.stderr.startswith(told) and "; m on NVIDIA H200 (" in apart.stderr


def test_other_conditions_of_a_side_hold_too(stored: Path, invoke: Invoke):
    done = invoke("mode=compare", "baseline=[h100,run:r1]", "candidate=[h200,run:r9]")

    assert done.returncode == 2 and "candidate=run:r9: no row has it" in done.stderr


def test_a_folder_of_a_name_and_a_part_of_a_value_keep_their_meaning(stored: Path, invoke: Invoke):
    for gpu in NAMES:
        dataset(stored / gpu, [at(gpu, "fa2")])
    by_folder = invoke("mode=compare", *SIDES)
    both = f"results.path=[{stored}/h100,{stored}/h200]"
    (stored / "elsewhere").mkdir()
    by_value = invoke("mode=compare", both, "baseline=H100", "candidate=device:H200")

    assert [done.returncode for done in (by_folder, by_value)] == [0, 0], by_value.stderr
    assert "best against best: q" in by_folder.stdout and "note: read " not in by_folder.stderr + by_value.stderr


def test_rows_of_folders_are_chosen_by_model_tp_and_drafts(invoke: Invoke):
    typed = invoke("mode=compare", *folders("mla/sparse_and_dense"), "model=deepseek_v3_2", "tp=16", "drafts=3")
    where = invoke("mode=compare", *folders("mla/sparse_and_dense"), "where={model: deepseek_v3_2, tp: 16, s_qo: 4}")

    assert typed.returncode == 0 and typed.stdout == where.stdout and " 12 " not in typed.stdout.partition("workloads")[2][:40]


@pytest.mark.parametrize("typed", [[], ["baseline=h100"], ["baseline=h100", "candidate=nowhere"]])
def test_a_side_that_lacks_is_answered_with_two_gpus_to_type(typed: list[str], invoke: Invoke):
    done = invoke("mode=compare", "model=llama_3_1_70b", *typed)

    assert done.returncode == 2 and done.stderr.endswith(", or baseline=h100 candidate=h200 for two GPUs\n")


def test_the_readme_and_the_pages_compare_two_gpus_by_their_names():
    command = "mode=compare model=deepseek_v3_2 tp=16 baseline=h100 candidate=h200"

    assert all(command in (ROOT / page).read_text() for page in ("README.md", "docs/compare.md", "docs/commands.md"))
